"""The worked examples of CONTRIBUTING: one file each, and the same checks as ours."""

from __future__ import annotations

import json
import runpy
import shlex
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lib.runs import killed

import fedspend
from fedspend.accounting.accountants import ACCOUNTANTS
from fedspend.cli.main import main
from fedspend.cli.names import NAMES, registered
from fedspend.configuration.config import config_of
from fedspend.data import DATA_SETS, PARTITIONS
from fedspend.engines.reference import ReferenceEngine
from fedspend.engines.table import ENGINES, EngineEntry
from fedspend.errors import FedspendWarning, InvalidInput, Refused
from fedspend.planning.policies import POLICIES
from fedspend.runs.setup import from_config
from fedspend.server.methods.table import METHODS
from fedspend.server.steps import SERVER_STEPS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "extending"
pytestmark = pytest.mark.usefixtures("registries_as_before")
REGISTRIES = {
    "policy": POLICIES,
    "method": METHODS,
    "data_set": DATA_SETS,
    "partition": PARTITIONS,
    "server_step": SERVER_STEPS,
}
BUDGETS, TERMS = [2.0] * 5 + [8.0] * 5, {"delta": 1e-2, "rounds": 12, "rate": 0.5}
DIGITS = {
    "data": {"name": "digits", "clients": 8, "partition": "iid"},
    "model": {"name": "logistic"},
    "privacy": {"epsilon": 5.0, "delta": 1e-2, "rate": 0.5, "policy": "uniform"},
    "train": {"rounds": 3, "local_steps": 2, "batch_size": 8, "lr": 0.1},
}


def use(example: str) -> None:
    runpy.run_path(str(FOLDER / f"{example}.py"))


def command(example: str) -> list[str]:
    """The command that an example's own text gives."""
    text = (FOLDER / f"{example}.py").read_text(encoding="utf-8")
    lines = text.partition("    fedspend ")[2].split("\n\n")[0].replace("\\\\\n", " ")
    return shlex.split(lines.partition('"""')[0])


@pytest.mark.full(only=["method", "server_step"])
@pytest.mark.parametrize("example", REGISTRIES)
def test_one_file_adds_one_entry_and_its_command_runs(example, tmp_path, monkeypatch, capsys):
    assert f"examples/extending/{example}.py" in (ROOT / "CONTRIBUTING.md").read_text()
    before = REGISTRIES[example].names
    arguments = command(example)
    if "-o" in arguments:
        arguments[arguments.index("-o") + 1] = str(tmp_path / "run")
    monkeypatch.chdir(ROOT)
    assert main(arguments) == 0, capsys.readouterr().err
    assert len(REGISTRIES[example].names) == len(before) + 1


def test_a_policy_of_ones_own_is_sealed_and_verified_like_ours():
    use("policy")
    made = fedspend.plan(BUDGETS, **TERMS, policy="late", options={"factor": 0.4})
    noise = made.noise_multiplier
    assert noise[-1] / noise[0] == pytest.approx(np.full(10, 0.4))
    assert made.epsilon.tolist() == pytest.approx(BUDGETS, rel=1e-5)
    assert (made.epsilon <= BUDGETS).all()
    assert fedspend.verify(made).ok
    assert made.parameters["options"] == {"factor": 0.4}
    with pytest.raises(InvalidInput, match="no option 'facto'"):
        fedspend.plan(BUDGETS, **TERMS, policy="late", options={"facto": 0.4})


@pytest.mark.full
def test_a_policy_may_move_the_rates_too():
    fedspend.register(
        "policy",
        "by-turns",
        lambda ask: (np.ones(ask.rounds), np.where(np.arange(ask.rounds) % 2, 0.2, ask.rate)),
        help="every other round at a low rate",
    )
    made = fedspend.plan(BUDGETS, **TERMS, policy="by-turns")
    assert made.sampling_rate[:4, 0].tolist() == [0.5, 0.2, 0.5, 0.2]
    assert made.epsilon.tolist() == pytest.approx(BUDGETS, rel=1e-5)
    assert fedspend.verify(made).ok


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize("epsilon", [0.05, 2.0, 30.0])
@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_noise_of_any_shape_is_scaled_to_the_budget(epsilon, rate):
    """Also where its smallest noise is far too small to begin with, at every order or at all."""
    for name, shape in (("rising", np.geomspace(1, 900, 20)), ("spiky", [1.0] * 19 + [900.0])):
        fedspend.register("policy", name, lambda _, shape=shape: shape, help="wide")
        terms = {"delta": 1e-6, "rounds": 20, "rate": rate, "accountant": "rdp"}
        made = fedspend.plan([epsilon], policy=name, **terms)
        assert made.epsilon[0] == pytest.approx(epsilon, rel=1e-6)
        assert made.epsilon[0] <= epsilon
        noise = made.noise_multiplier[:, 0]
        assert np.allclose(noise / noise[0], np.asarray(shape) / shape[0])


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda ask: np.ones(ask.rounds + 1), "12 numbers"),
        (lambda ask: np.full(ask.rounds, np.nan), "positive, finite noise"),
        (lambda ask: -np.ones(ask.rounds), "positive, finite noise"),
        (lambda ask: np.geomspace(1, 1e5, ask.rounds), "factor of 1000"),
        (lambda ask: (np.ones(ask.rounds), np.full(ask.rounds, 1.5)), "at most 1"),
        (lambda _: "late", "12 numbers"),
    ],
)
def test_a_policy_that_answers_nonsense_is_refused(answer, said):
    fedspend.register("policy", "nonsense", answer, help="wrong")
    with pytest.raises(InvalidInput, match=said):
        fedspend.plan(BUDGETS, **TERMS, policy="nonsense")


def test_the_keys_of_an_entry_are_read_from_the_config_and_refused_elsewhere(tmp_path, capsys):
    config = tmp_path / "late.toml"
    config.write_text(
        '[privacy]\nepsilon = 4\ndelta = 1e-3\nrate = 0.5\npolicy = "late"\nfactor = 0.3\n'
        "[train]\nrounds = 8\n[data]\nclients = 5\n"
    )
    load = ["--load", str(FOLDER / "policy.py")]
    assert main([*load, "plan", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "late"
    config.write_text(config.read_text().replace('"late"', '"uniform"'))
    assert main(["plan", str(config)]) == 2
    assert "factor in [privacy] has no effect" in capsys.readouterr().err


def test_without_the_file_its_names_are_unknown(tmp_path, capsys):
    config = tmp_path / "late.toml"
    config.write_text('[privacy]\npolicy = "late"\nfactor = 0.3\n')
    assert main(["plan", str(config)]) == 2
    assert "unknown key 'factor'" in capsys.readouterr().err


def spending(share: float, **changes: float):
    """A method that scales what is planned: the clip by `share`."""
    from dataclasses import dataclass, replace

    from fedspend.server.methods.planned import Planned

    @dataclass(frozen=True)
    class Scaled:
        plan: object
        name: str = "scaled"

        def start(self):
            return {}

        def terms(self, round, state):
            planned = Planned(self.plan, self.name).terms(round, state)
            scaled = replace(planned, clip_norm=planned.clip_norm * share)
            return replace(scaled, **changes)

        def learn(self, state, _release):
            return state

    return lambda given: Scaled(given.plan)


@pytest.mark.full(
    but=[
        "<lambda>-cost more than was planned3",
        "<lambda>-not a planned release1",
        "<lambda>-on bits cannot be drawn0",
    ]
)
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (spending(2.0), "cost more than was planned"),
        (spending(float("nan")), "cost more than was planned"),
        (spending(1.0, deviation=0.0), "not a planned release"),
        (spending(1.0, deviation=1e-3), "cost more than was planned"),
        (spending(1.0, bit_deviation=10.0), "cost more than was planned"),
        (spending(1.0, sampling_rate=np.ones(8)), "not between 0 and the planned one"),
        (spending(1.0, sampling_rate=np.full(8, np.nan)), "not between 0 and the planned one"),
        (spending(1.0, sampling_rate=np.full(3, 0.1)), "do not match the 8 clients"),
        (spending(1.0, denominator=float("inf")), "not a planned release"),
        (spending(1.0, sampling_rate=np.full(8, -0.1)), "not between 0 and the planned one"),
        (spending(1.0, clip_norm=np.ma.masked_invalid([np.nan] + [0.1] * 7)), "masked arrays"),
        (spending(1.0, clip_norm=["much"] * 8), "must be numbers"),
        (spending(1.0, bit_deviation=0.0), "on bits cannot be drawn"),
        (spending(1.0, bit_deviation=-5.0), "on bits cannot be drawn"),
        (spending(1.0, bit_deviation=float("inf")), "on bits cannot be drawn"),
        (spending(1.0, bit_deviation=float("nan")), "on bits cannot be drawn"),
    ],
)
def test_a_method_that_would_overspend_is_refused_before_anything_is_spent(make, said, tmp_path):
    fedspend.register("method", "scaled", make, help="as it likes")
    config = {**DIGITS, "method": {"name": "scaled"}}
    with pytest.raises(Refused, match=said):
        fedspend.train(config, output=tmp_path / "run")
    from fedspend.ledger import Ledger

    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert all("reserve" not in str(entry) for entry in ledger.entries())


def test_terms_in_low_precision_are_used_as_they_were_checked():
    """Squared in half precision, so small a deviation would be no noise at all."""
    small = np.float16(1.5e-4)
    make = spending(1.0, deviation=small, clip_norm=np.full(8, 1e-5, dtype=np.float16))
    fedspend.register("method", "scaled", make, help="tiny")
    setup = from_config(config_of({**DIGITS, "method": {"name": "scaled"}}))
    terms = setup.method.terms(0, {})
    assert type(terms.deviation) is float
    assert terms.deviation**2 > 0
    assert terms.clip_norm.dtype == np.float64


def test_what_a_method_keeps_cannot_change_after_the_check():
    clip = np.full(8, 1e-3)
    fedspend.register("method", "scaled", spending(1.0, clip_norm=clip), help="its own array")
    terms = from_config(config_of({**DIGITS, "method": {"name": "scaled"}})).method.terms(0, {})
    clip[:] = 1e9
    assert terms.clip_norm.max() == 1e-3


def test_a_method_of_ones_own_may_spend_less():
    fedspend.register("method", "scaled", spending(0.5), help="half the clip")
    assert len(fedspend.train({**DIGITS, "method": {"name": "scaled"}}).metrics) == 3


def test_our_own_methods_are_held_to_their_plans_too():
    setup = from_config(config_of({**DIGITS, "method": {"name": "idp-fedavg"}}))
    assert type(setup.method).__name__ == "Guarded"


def test_a_plan_is_verified_where_its_accountant_is_not_loaded(tmp_path):
    """One of version 0.2, in which users had their own."""
    by_pld = ACCOUNTANTS["pld"]
    ACCOUNTANTS.add(replace(by_pld, name="gdp"))
    made = fedspend.plan([2.0], delta=1e-3, rounds=4, rate=1.0, accountant="gdp")
    made.save(tmp_path / "plan.json")
    ACCOUNTANTS.remove("gdp")
    found = fedspend.verify(tmp_path / "plan.json")
    assert found.ok
    assert {"claim not too low", "own accountant"} <= {check.name for check in found.checks}
    assert any("'gdp', is not loaded here" in check.meaning for check in found.checks)
    loaded = fedspend.Plan.load(tmp_path / "plan.json")
    with pytest.raises(InvalidInput, match="'gdp', which is not loaded here; load its file"):
        loaded.spent()
    rows = [(np.zeros((2, 3), dtype=np.float32), np.zeros(2, dtype=np.int64))]
    with pytest.raises(InvalidInput, match="'gdp', which is not loaded here; load its file"):
        fedspend.train(
            clients=rows,
            model=torch.nn.Linear(3, 2),
            plan=loaded,
            test=rows[0],
            lr=0.1,
            batch_size=2,
            local_steps=1,
            randomness="seeded",
        )
    # the claim itself is checked, whatever name it goes by
    halved = loaded.replace(epsilon=loaded.epsilon / 2)
    assert not fedspend.verify(halved).ok


@pytest.mark.parametrize("kind", ["policy", "method"])
def test_keys_that_mean_something_already_are_not_given_another_meaning(kind):
    key = "saving_rate" if kind == "policy" else "clip_lr"
    with pytest.raises(InvalidInput, match=f"cannot take '{key}'"):
        fedspend.register(kind, "other", lambda *_: None, help="wrong", keys=(key,))


def test_a_file_that_fails_says_so_in_one_line(tmp_path, capsys):
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    assert main(["--load", str(broken), "data", "list"]) == 2
    error = capsys.readouterr().err
    assert "broken.py: ZeroDivisionError" in error
    assert error.count("\n") == 1
    assert main(["--load", str(tmp_path / "none.py"), "data", "list"]) == 2
    assert "none.py" in capsys.readouterr().err


def test_help_lists_what_the_registries_have_and_what_was_loaded(capsys):
    assert main(["--load", str(FOLDER / "policy.py"), "plan", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for registry in (POLICIES, METHODS):
        assert ", ".join(registry.names) in shown.replace("- ", "-")
    assert "late" in POLICIES.names


def test_help_that_is_shown_before_anything_is_loaded_has_the_same_names():
    assert registered() == NAMES


@pytest.mark.parametrize("what", REGISTRIES)
def test_the_pages_name_every_entry(what):
    pages = " ".join(
        page.read_text(encoding="utf-8")
        for page in (*ROOT.glob("docs/**/*.md"), ROOT / "README.md")
    )
    missing = [name for name in REGISTRIES[what].names if name not in pages]
    assert missing == []


def test_data_list_shows_data_sets_of_ones_own(capsys):
    assert main(["--load", str(FOLDER / "data_set.py"), "data", "list", "--json"]) == 0
    assert "clinics" in [line["name"] for line in json.loads(capsys.readouterr().out)]


# --- server steps ----------------------------------------------------------------


def own_arrays(**options):
    generator = np.random.default_rng(1)
    rows = [(generator.normal(size=(8 + n, 3)), generator.integers(0, 2, 8 + n)) for n in range(4)]
    torch.manual_seed(0)
    return {
        "clients": rows,
        "model": torch.nn.Linear(3, 2),
        "plan": fedspend.plan([5.0] * 4, delta=1e-2, rounds=3, rate=1.0, accountant="rdp"),
        "test": rows[0],
        "lr": 0.2,
        "batch_size": 4,
        "local_steps": 2,
        "randomness": "seeded",
    } | options


def weights(result):
    return result.model.weight.detach().numpy().copy()


def test_a_server_step_of_ones_own_is_what_ours_would_do():
    def momentum(parameters, update, velocity, unused, lr):
        velocity = np.float32(0.5) * velocity + update
        return parameters + lr * velocity, velocity, unused

    ours = fedspend.train(**own_arrays(server_momentum=0.5, server_lr=0.7))
    own = fedspend.train(**own_arrays(server_optimizer=momentum, server_lr=0.7))
    assert np.allclose(weights(own), weights(ours), atol=1e-6)
    assert own.metrics[-1]["epsilon"] == ours.metrics[-1]["epsilon"]


def test_a_server_step_of_ones_own_is_resumed_with_what_it_remembers(tmp_path):
    use("server_step")
    whole = fedspend.train(**own_arrays(server_optimizer="lion", server_lr=0.01))
    asked = own_arrays(server_optimizer="lion", server_lr=0.01, output=tmp_path / "run")
    with killed(round=2):
        fedspend.train(**asked)
    asked |= {"model": torch.nn.Linear(3, 2)}
    assert (weights(fedspend.train(**asked, resume=True)) == weights(whole)).all()


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (lambda p, *_: p, "three vectors"),
        (lambda p, *_: (p[:2], p, p), "finite vectors of 8 numbers"),
        (lambda p, *_: (p * np.nan, p, p), "not finite"),
    ],
)
def test_a_server_step_that_gives_something_else_is_refused(step, says):
    with pytest.raises(InvalidInput, match=says):
        fedspend.train(**own_arrays(server_optimizer=step))


@pytest.mark.full(but_every=2)
@pytest.mark.parametrize("randomness", ["seeded", "os"])
def test_an_engine_that_is_not_ours_is_held_to_the_clip(randomness, tmp_path):
    """One with a slip in it: every vector is a thousand times too long."""

    class Slip(ReferenceEngine):
        def run(self, tasks):
            for reply in super().run(tasks):
                sent = reply.contribution
                yield replace(reply, contribution=replace(sent, vector=1000 * sent.vector))

    ENGINES.add(EngineEntry("slip", "too long", make=lambda work, _: Slip(work)))
    config = {**DIGITS, "engine": {"name": "slip"}, "method": {"name": "idp-fedavg"}}
    config["privacy"] = {
        "epsilon": 1e3,  # hardly any noise
        "delta": 1e-2,
        "rate": 1.0,
        "clip": 0.5,
        "randomness": randomness,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedspendWarning)  # each answer is told to the operator
        result = fedspend.train(config, ledger=tmp_path / "accounts.db")
    moved = torch.cat([part.flatten() for part in result.model.parameters()]).norm()
    assert moved <= 3 * 0.5 * 1.5  # three rounds, the clip, and noise; logistic starts at zero
