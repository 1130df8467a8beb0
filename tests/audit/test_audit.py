"""Audits: sound mechanisms stay below their claims, broken ones do not; and the bound is one."""

import json

import numpy as np
import pytest
from audited import BROKEN, SOUND, settings
from lib.configs import write_toml
from lib.gaussian import gaussian_epsilon
from scipy import stats

from fedspend.auditing import audit
from fedspend.auditing.bounds import Coins, gift_tail, lower_bound, most_gifts
from fedspend.auditing.entry import split
from fedspend.auditing.guessing import learn
from fedspend.auditing.observations import Expected, Observations
from fedspend.cli.main import main
from fedspend.configuration.config import any_config
from fedspend.errors import InvalidInput, Refused
from fedspend.runs.setup import from_config


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("name", SOUND)
def test_no_bound_exceeds_the_claim_of_a_sound_mechanism(name):
    config, trials = SOUND[name]
    found = audit(config, trials=trials, seed=11)
    assert found.ok
    assert all(0 <= group.measured <= group.claimed for group in found.groups)
    for group in found.groups:
        error = group.sampled.error or 1e-9
        assert abs(group.sampled.ratio - 1) <= 5 * error
    bits = found.method == "adaptive-clip"  # one bit for all canaries of a run
    for meter in () if bits else (*found.noise_by_round, found.noise_over_rounds):
        assert abs(meter.ratio - 1) <= 5 * meter.error


@pytest.mark.full(only=["noise checked in the first round only"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_mechanism_is_caught(name, monkeypatch):
    broken = BROKEN[name]
    broken.patch(monkeypatch)
    found = audit(broken.config, trials=broken.trials, seed=5, **broken.options)
    strictest = found.groups[0]
    noise = from_config(any_config(broken.config)).plan.schedules.noise_multiplier
    assert broken.true_epsilon(float(noise[0, 0])) >= 2 * strictest.claimed
    assert not found.ok
    assert strictest.measured > strictest.claimed


def test_the_config_of_the_first_round_is_refused_where_every_round_is_checked():
    with pytest.raises(InvalidInput, match="bits are too few for discrete noise"):
        audit(BROKEN["noise checked in the first round only"].config, trials=10)


def test_meters_show_what_was_broken(monkeypatch):
    BROKEN["noise reused"].patch(monkeypatch)
    found = audit(BROKEN["noise reused"].config, trials=30)
    assert all(abs(meter.ratio - 1) < 0.1 for meter in found.noise_by_round)
    assert found.noise_over_rounds.ratio == pytest.approx(2.0, rel=0.1)  # of four rounds
    monkeypatch.undo()
    BROKEN["doubled clip"].patch(monkeypatch)
    assert audit(BROKEN["doubled clip"].config, trials=10).groups[0].clip.ratio == pytest.approx(
        2, rel=1e-4
    )


@pytest.mark.full
def test_most_of_a_known_epsilon_is_found():
    """A plain Gaussian, whose epsilon has a closed form."""
    config = settings(privacy__epsilon=4.0, privacy__delta=1e-5, data__clients=80)
    noise = from_config(any_config(config)).plan.schedules.noise_multiplier[0, 0]
    known = gaussian_epsilon(1 / noise, 1e-5)
    group = audit(config, trials=1500, canaries=70, seed=3).groups[0]
    assert 0.6 * known <= group.measured <= known


# --- the bound itself ----------------------------------------------------------------------------


def worst(generator, coins: Coins, epsilon: float, delta: float) -> tuple[int, int]:
    """(right, wrong) of the mechanism that gives away as much as (epsilon, delta) allows:
    randomised response, and with probability delta all coins of a run at once.
    """
    q = 1 / (1 + np.exp(-epsilon))
    told = generator.binomial(coins.runs, delta) * coins.each
    right = told + generator.binomial(coins.all - told, q)
    return int(right), coins.all - int(right)


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("coins", [Coins(2000, 1), Coins(40, 50), Coins(1, 2000)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.02), (2.0, 1e-3), (4.0, 0.0)])
def test_the_bound_is_a_bound_for_the_worst_mechanism(coins, epsilon, delta):
    generator, times = np.random.default_rng(4), 1000
    over = sum(
        lower_bound(*worst(generator, coins, epsilon, delta), coins, delta, 0.95) > epsilon
        for _ in range(times)
    )
    assert over <= stats.binom.ppf(1 - 1e-6, times, 0.05)


def test_counting_all_guesses_as_earned_would_be_no_bound():
    """The same without gifts: delta cannot be ignored."""
    coins, generator = Coins(20_000, 1), np.random.default_rng(4)
    over = sum(
        lower_bound(*worst(generator, coins, 0.5, 0.05), coins, 0.0, 0.95) > 0.5 for _ in range(200)
    )
    assert over > 150


def test_gifts_are_counted_from_the_safe_side():
    for coins in (Coins(500, 1), Coins(50, 10), Coins(1, 500)):
        gifts = most_gifts(coins, 1e-3, 0.025)
        assert gift_tail(gifts, coins, 1e-3) <= 0.025
        assert gifts == 0 or gift_tail(gifts - 1, coins, 1e-3) > 0.025
    assert most_gifts(Coins(10, 10), 0.0, 0.025) == 0
    generator = np.random.default_rng(1)
    coins, delta = Coins(200, 20), 2e-3
    drawn = 20 * generator.binomial(200, delta, 20_000)
    for gifts in (20, 39, 40, 100):
        assert (drawn > gifts).mean() <= gift_tail(gifts, coins, delta) + 0.01


def test_more_right_guesses_are_never_worth_less():
    found = [lower_bound(right, 300 - right, Coins(10, 100), 1e-4, 0.95) for right in range(301)]
    assert found == sorted(found)
    assert found[150] == 0.0


def test_guesses_are_learned_from_the_pilot_alone():
    generator, coins = np.random.default_rng(0), 4000
    inside = generator.random(coins) < 0.5
    signal = (generator.standard_normal((3, coins)) + 2 * inside).astype(np.float32)
    seen = Observations(np.repeat(np.arange(40), 100), np.zeros(coins, int), inside, signal)
    expected = Expected(np.ones((3, 1)), np.full((3, 1), 2.0), np.ones((3, 1), int))
    pilot, left = split(seen, 40, 100, generator)
    assert (int(pilot.sum()), left) == (1000, Coins(30, 100))
    assert set(seen.run[pilot]).isdisjoint(seen.run[~pilot])
    rule = learn(seen.some(pilot), expected, left, 1e-5, 0.025)
    flipped = Observations(
        seen.run, seen.unit, np.where(pilot, inside, ~inside), np.where(pilot, signal, -signal)
    )
    again = learn(flipped.some(pilot), expected, left, 1e-5, 0.025)
    assert (rule.high, rule.low, rule.score) == (again.high, again.low, again.score)
    # few runs: the coins that are left may share what was learned, so they count as one run
    pilot, left = split(seen, 1, 4000, generator)
    assert left == Coins(1, int((~pilot).sum()))


def test_one_run_is_enough_for_a_bound():
    config = settings(data__clients=200, data__features=60, privacy__epsilon=6.0)
    found = audit(config, trials=1)
    assert found.groups[0].method == "one run"
    assert 0 < found.groups[0].measured <= found.groups[0].claimed


def test_the_same_seed_finds_the_same():
    first, second, third = (audit(settings(), trials=20, seed=seed) for seed in (1, 1, 2))
    assert first.groups == second.groups
    assert first.noise_by_round != third.noise_by_round


def test_others_may_train():
    found = audit(settings(privacy__rate=0.5), trials=10, canaries=12, train_others=True)
    assert found.ok
    assert found.groups[0].sampled.ratio == pytest.approx(1, abs=0.2)


# --- what is refused, and the command line -------------------------------------------------------


def test_real_rows_are_refused(tmp_path):
    with pytest.raises(Refused, match="'os'"):
        audit(settings(privacy__randomness="os"))
    rows = tmp_path / "rows.csv"
    rows.write_text("x,label\n1,0\n2,1\n", encoding="utf-8")
    own = settings(data__name="csv") | {
        "data": {"name": "csv", "path": str(rows), "label": "label"}
    }
    with pytest.raises(Refused, match="'csv' is treated as private"):
        audit(own)
    own["privacy"]["randomness"] = "seeded"
    with pytest.raises(Refused, match="drop train_others=True"):
        audit(own, train_others=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": float("nan")}, "confidence"),
        ({"trials": 0}, "trials"),
        ({"canaries": 0}, "canaries"),
        ({"canaries": 10_000}, "room for 76"),
        ({"canaries": 1, "trials": 3}, "raise trials"),
        ({"rounds": 0}, "rounds"),
        ({"seed": -1}, "seed"),
        ({"overrides": ["method.name=fedavg"]}, "promises nothing"),
    ],
)
def test_bad_input_is_one_line(options, message):
    config = settings()
    if options.get("overrides"):
        config = settings(method__name="fedavg", privacy__epsilon=None, privacy__delta=None)
        options = {}
    with pytest.raises(InvalidInput, match=message):
        audit(config, **options)


@pytest.mark.full
def test_the_command_writes_table_json_and_plot(tmp_path, capsys, monkeypatch):
    config = str(write_toml(tmp_path / "c.toml", settings()))
    out, plot = tmp_path / "audit.json", tmp_path / "audit.png"
    args = ["audit", config, "--trials", "20", "-o", str(out), "--plot", str(plot)]
    assert main(args) == 0
    told = capsys.readouterr()
    assert "measured" in told.out
    assert "No claim is contradicted" in told.out
    assert plot.read_bytes().startswith(b"\x89PNG")
    stored = json.loads(out.read_text(encoding="utf-8"))
    assert {"claimed", "measured", "confidence", "guesses", "right"} <= set(stored["groups"][0])
    BROKEN["no noise"].patch(monkeypatch)
    assert main([*args, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] is False
    assert printed["groups"][0]["measured"] > printed["groups"][0]["claimed"]
    assert main(["audit", config, "--trials", "20"]) == 1
    assert "BROKEN" in capsys.readouterr().out
    assert main(["audit", config, "--trials", "20", "--quiet"]) == 1
    assert capsys.readouterr().out == ""


def test_the_command_says_no_in_one_line(tmp_path, capsys):
    config = str(write_toml(tmp_path / "c.toml", settings()))
    real = ["audit", config, "--set", "privacy.randomness=os"]
    for args, code in (
        (real, 1),
        (["audit", config, "--trials", "0"], 2),
        (["audit", config, "--confidence", "2"], 2),
        (["audit", config, "--plot", "a.bmp"], 2),
        (["audit", str(tmp_path / "none.toml")], 2),
    ):
        assert main(args) == code
        told = capsys.readouterr().err
        assert told.startswith("fedspend: ")
        assert told.count("\n") == 1
