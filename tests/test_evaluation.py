"""How good a model is said to be: on public rows, privately, or not at all; what
each leaves in the files of a real run; and which rows clients hold out.
"""

import json
import math
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from lib.configs import small, write_toml
from lib.runs import killed

from fedspend.cli.main import main
from fedspend.configuration.config import config_of
from fedspend.configuration.data_inputs import Source
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger.account import digest
from fedspend.models.evaluation import evaluate
from fedspend.planning.protocol import load_any_plan
from fedspend.report.html import summary, write_report
from fedspend.report.run_data import load_run
from fedspend.runs import running, setup, training
from fedspend.runs.hold_out_key import stored_secret
from fedspend.runs.setup import from_config
from fedspend.server.methods.base import Release, RoundTerms
from fedspend.server.rounds import metric_deviation
from fedspend.stored.files import FILES, HOLD_OUT, METRICS, REPORT, RUN
from fedspend.stored.run import StoredRun

pytestmark = pytest.mark.usefixtures("quick_verify")
SITES, ROWS = 6, 41


def train(config, **more):
    """Real runs are charged under a name; each here has accounts of its own."""
    return training.train(config, project=Path(more.get("output", "run")).name, **more)


def lines(seed, sites=SITES, rows=ROWS, split=False):
    """Two classes that a plane divides, but for noise, so that nobody gets everything right."""
    generator = np.random.default_rng(seed)
    for site in range(sites):
        for row in range(rows):
            x = generator.normal(size=3)
            label = int(x[0] + 0.8 * generator.normal() > 0)
            values = ",".join(f"{value:.5f}" for value in x)
            part = f",{'test' if row % 4 == 0 else 'train'}" if split else ""
            yield f"site{site},{values},{label}{part}"


@pytest.fixture
def config(tmp_path):
    """A real run on rows of six sites, a share of which is held out."""
    head = "client,a,b,c,label"
    (tmp_path / "rows.csv").write_text("\n".join([head, *lines(0)]) + "\n")
    (tmp_path / "split.csv").write_text("\n".join([head + ",split", *lines(0, split=True)]) + "\n")
    (tmp_path / "test.csv").write_text("\n".join([head, *lines(1, 1)]) + "\n")
    data = {"name": "csv", "path": str(tmp_path / "rows.csv"), "classes": 2, "validation": 0.3}
    privacy = {"epsilon": 30.0, "delta": 0.01, "rate": 1.0}
    return small("plain", data=data, privacy=privacy, train__local_steps=3, train__lr=0.5)


def on_test_file(config, **changes):
    data = {key: value for key, value in config["data"].items() if key != "validation"}
    path = Path(data["path"]).with_name("test.csv")
    return config | {"data": data | {"test_path": str(path)} | changes}


def in_mode(config, mode, **more):
    return config | {"evaluation": {"mode": mode} | more}


# --- modes ----------------------------------------------------------------------------------------


def mode_of(config):
    made = from_config(config_of(config))
    return made.evaluation.mode, made.evaluation.rows, made.evaluation.exact


def test_a_real_run_is_public_on_a_test_file_and_says_nothing_about_rows_of_clients(config):
    assert mode_of(on_test_file(config)) == ("public", "public", True)
    assert mode_of(config) == ("none", "clients", False)
    split = on_test_file(config)
    split["data"].pop("test_path")
    split["data"]["path"] = str(Path(split["data"]["path"]).with_name("split.csv"))
    assert mode_of(split) == ("none", "clients", False)
    assert mode_of(in_mode(split, "private"))[0] == "private"


def test_a_real_run_needs_no_test_rows_at_all(config, tmp_path):
    config["data"].pop("validation")
    assert mode_of(config) == ("none", "nobody", False)
    result = train(config, output=tmp_path / "run")
    assert result.accuracy is None
    assert result.metrics[-1]["evaluation"] == "none"
    assert StoredRun(tmp_path / "run").facts().majority is None
    config["privacy"]["randomness"] = "seeded"
    with pytest.raises(InvalidInput, match="no test rows"):
        from_config(config_of(config))


def test_a_simulation_shows_exact_numbers_and_says_whose_rows_they_are_about(config):
    config["privacy"]["randomness"] = "seeded"
    assert mode_of(config) == ("simulation", "clients", True)
    assert mode_of(on_test_file(config)) == ("public", "public", True)
    assert mode_of(in_mode(config, "none")) == ("simulation", "clients", True)


def test_rows_of_clients_cannot_be_called_public(config):
    with pytest.raises(InvalidInput, match="came out of clients") as refused:
        from_config(config_of(in_mode(config, "public")))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("how", ["itself", "a link"])
def test_the_file_of_the_clients_rows_is_not_public(config, tmp_path, how):
    rows, other = tmp_path / "rows.csv", tmp_path / "other.csv"
    if how == "itself":
        other = rows
    else:
        other.hardlink_to(rows)
    for asked in (on_test_file(config), in_mode(on_test_file(config), "public")):
        asked["data"]["test_path"] = str(other)
        with pytest.raises(InvalidInput, match=r"test_path is the file of data\.path") as refused:
            from_config(config_of(asked))
        assert "\n" not in str(refused.value)
    asked["privacy"]["randomness"] = "seeded"
    assert mode_of(asked)[0] == "public", "a simulation protects nobody"


def test_arrays_of_test_rows_are_public_if_the_config_says_so(config, tmp_path):
    generator = np.random.default_rng(0)
    np.savez(
        tmp_path / "rows.npz",
        features=generator.normal(size=(60, 3)),
        label=generator.integers(0, 2, 60),
        client=np.repeat(["a", "b", "c"], 20),
        test_features=generator.normal(size=(9, 3)),
        test_label=generator.integers(0, 2, 9),
    )
    config["data"] = {"name": "npz", "path": str(tmp_path / "rows.npz"), "classes": 2}
    assert mode_of(config) == ("none", "clients", False)
    assert mode_of(in_mode(config, "public")) == ("public", "public", True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"method": {"name": "fedavg"}}, "no budgets"),
        ({"data": {"validation": 0.0}}, "data.validation"),
    ],
)
def test_a_private_metric_that_nobody_can_pay_for_is_refused(config, change, why):
    changed = {name: section | change.get(name, {}) for name, section in config.items()}
    with pytest.raises(InvalidInput, match=why) as refused:
        from_config(config_of(in_mode(changed, "private")))
    assert "\n" not in str(refused.value)


def test_a_private_metric_of_records_is_refused(config, tmp_path):
    named = [f"{line},r{n}" for n, line in enumerate(lines(0))]
    (tmp_path / "ids.csv").write_text("\n".join(["client,a,b,c,label,id", *named]) + "\n")
    config["data"] |= {"path": str(tmp_path / "ids.csv"), "record": "id"}
    config["method"] = {"name": "rpdp"}
    config["train"].pop("batch_size")
    with pytest.raises(InvalidInput, match="held-out records would have to pay") as refused:
        from_config(config_of(in_mode(config, "private")))
    assert "\n" not in str(refused.value)


def test_noise_of_a_metric_without_one_has_no_effect_and_is_refused(config):
    with pytest.raises(InvalidInput, match=r'evaluation\.mode = "private"'):
        train(config | {"evaluation": {"noise": 5.0}})


# --- what is left in the files --------------------------------------------------------------------


def exact_numbers(folder, config):
    """Accuracy and loss of the handed-out model on the rows that were held out, and how often the
    commonest class is right.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = from_config(
            config_of(config),
            stored=load_any_plan(folder / "plan.json"),
            secret=HOLD_OUT.of(folder).read_bytes(),
        )
    import torch
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    flat = np.concatenate([tensors[name].ravel() for name, _ in made.module.named_parameters()])
    dataset = made.federation.dataset
    loss, accuracy = evaluate(
        made.module,
        torch.from_numpy(flat),
        torch.from_numpy(dataset.test_features),
        torch.from_numpy(dataset.test_labels),
    )
    counts = np.bincount(dataset.test_labels)
    return accuracy, loss, counts.max() / counts.sum()


def found_in(folder, *numbers):
    """Files that hold one of these numbers, in digits or as bytes of a float."""
    wanted = [form for number in numbers for form in forms_of(number)]
    return sorted(
        path.name
        for path in folder.rglob("*")
        if path.is_file() and any(form in path.read_bytes() for form in wanted)
    )


def forms_of(number):
    digits = f"{number:.6f}"
    if len(digits.rstrip("0")) >= 7:  # else it is too short to be told from others
        yield digits[:-1].encode()
    yield struct.pack("<d", number)
    yield struct.pack("<f", number)


# A loss has its first five decimals in common with some other number in the files with chance 3e-4.
@pytest.mark.usefixtures("system_from_a_seed")
@pytest.mark.parametrize("mode", ["none", "private"])
def test_a_real_run_leaves_no_exact_number_about_rows_of_clients(config, tmp_path, mode):
    pytest.importorskip("tensorboard")
    folder = tmp_path / "run"
    config = in_mode(config, mode)
    config["train"]["loggers"] = ["tensorboard"]
    result = train(config, output=folder)
    write_report([folder], REPORT.of(folder))
    accuracy, loss, majority = exact_numbers(folder, config)
    assert found_in(folder, accuracy, loss, majority) == []
    assert result.accuracy is None
    assert all(line["accuracy"] is None and line["loss"] is None for line in result.metrics)
    assert {line["evaluation"] for line in result.metrics} == {mode}
    assert StoredRun(folder).facts().majority is None
    told = summary(load_run(folder, "run"))
    assert (told["accuracy"], told["loss"], told["evaluation"]) == (None, None, mode)


# Accuracy and loss both have too few decimals, or others when they are rounded, with chance 5e-3.
@pytest.mark.usefixtures("system_from_a_seed")
def test_an_exact_number_in_a_file_would_be_noticed(config, tmp_path, monkeypatch):
    """The old way: accuracy on held-out rows is written down as if it were a release."""
    from fedspend.configuration.evaluation import Evaluation

    monkeypatch.setattr(
        setup, "evaluation_of", lambda *_: Evaluation("public", "public", exact=True)
    )
    folder = tmp_path / "run"
    train(config, output=folder)
    accuracy, loss, majority = exact_numbers(folder, config)
    assert METRICS.name in found_in(folder, accuracy, loss)
    assert StoredRun(folder).facts().majority == majority


def test_a_real_run_on_public_rows_shows_accuracy_and_says_that_they_are_public(config, tmp_path):
    folder = tmp_path / "run"
    result = train(on_test_file(config), output=folder)
    write_report([folder], REPORT.of(folder))
    assert 0 <= result.accuracy <= 1
    page = REPORT.of(folder).read_text(encoding="utf-8")
    assert '<figure data-mark="public"' in page
    assert "no client holds" not in page
    assert not HOLD_OUT.of(folder).exists()


def test_a_private_metric_is_stored_released_and_marked(config, tmp_path):
    folder = tmp_path / "run"
    result = train(in_mode(config, "private", noise=50.0), output=folder)
    plan = load_any_plan(folder / "plan.json")
    assert plan.metric_noise == 50.0
    told = [line["private_accuracy"] for line in result.metrics]
    assert len(set(told)) == 2  # of noise of 409,600 steps: alike with chance 7e-7
    assert result.private_accuracy == told[-1]
    assert result.metrics[0]["private_accuracy_deviation"] == pytest.approx(50.0 / SITES)
    write_report([folder], REPORT.of(folder))
    page = REPORT.of(folder).read_text(encoding="utf-8")
    assert "Private accuracy" in page
    assert "The final model itself was not measured" in page
    assert "Accuracy by round" not in page


def test_the_ledger_has_a_digest_of_the_metric_too():
    update = np.zeros(2, dtype=np.float32)
    found = {digest(Release(update, None, metric)) for metric in (None, 0.5, 0.25)}
    assert len(found) == 3


def test_a_simulation_of_a_private_metric_comes_near_the_exact_one(tiny):
    tiny["data"] |= {"clients": 30, "validation": 0.4, "examples": 1500, "partition": "iid"}
    tiny["data"].pop("alpha")
    tiny["method"]["name"] = "idp-fedavg"
    tiny["privacy"] = {"epsilon": 1e4, "delta": 1e-3, "rate": 1.0}
    tiny["train"]["tail_average"] = 1
    result = train(in_mode(tiny, "private", noise=0.3))
    for before, line in zip(result.metrics, result.metrics[1:], strict=False):
        assert line["private_accuracy"] == pytest.approx(before["accuracy"], abs=0.12)
    assert result.metrics[-1]["evaluation"] == "private"


def test_old_real_runs_are_reported_without_exact_numbers_about_rows_of_clients(config, tmp_path):
    """As version 0.1.0 left them: nothing in `run.json` about evaluation, and numbers in every
    line.
    """
    folder = tmp_path / "run"
    train(config, output=folder)
    facts = json.loads(RUN.of(folder).read_text())
    facts.pop("evaluation")
    RUN.of(folder).write_text(json.dumps(facts | {"majority": 0.515151}))
    old = [
        {key: value for key, value in json.loads(line).items() if key != "evaluation"}
        | {"accuracy": 0.737373, "loss": 0.515151}
        for line in METRICS.of(folder).read_text().splitlines()
    ]
    METRICS.of(folder).write_text("".join(json.dumps(line) + "\n" for line in old))
    write_report([folder], REPORT.of(folder))
    page = REPORT.of(folder).read_text(encoding="utf-8")
    assert all(number not in page for number in ("73.7", "51.5", "0.737", "0.515"))
    assert summary(load_run(folder, "run"))["majority"] is None


# --- the hold-out ---------------------------------------------------------------------------------


def held(config, secret=None):
    return Source(config_of(config), secret).dataset.test_features.tolist()


def test_every_real_run_has_its_own_secret_hold_out(config, tmp_path):
    for name in ("one", "two"):
        train(config, output=tmp_path / name)
    keys = [HOLD_OUT.of(tmp_path / name).read_bytes() for name in ("one", "two")]
    assert len(set(keys)) == 2
    assert {len(key) for key in keys} == {32}
    assert HOLD_OUT.of(tmp_path / "one").stat().st_mode & 0o777 == 0o600
    assert held(config, keys[0]) != held(config, keys[1])
    assert held(config, keys[0]) != held(config)
    for path in (tmp_path / "one").iterdir():
        if path.name != HOLD_OUT.name:
            assert keys[0] not in path.read_bytes(), path.name
            assert keys[0].hex().encode() not in path.read_bytes(), path.name
    assert next(file for file in FILES if file is HOLD_OUT).publish == "never"


def test_a_run_goes_on_with_the_rows_that_it_held_out(config, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with killed():
        train(config, output=folder)
    key, used = HOLD_OUT.of(folder).read_bytes(), []
    sound = running.run

    def watched(made, *rest, **more):
        used.append(made.secret)
        return sound(made, *rest, **more)

    monkeypatch.setattr(training, "run", watched)
    train(config, output=folder, resume=True)
    assert used == [key]


@pytest.mark.full(but=["cut"])
@pytest.mark.parametrize("damage", ["lost", "changed", "cut"])
def test_a_lost_or_changed_key_is_refused_in_one_line(config, tmp_path, damage):
    folder = tmp_path / "run"
    with killed():
        train(config, output=folder)
    path = HOLD_OUT.of(folder)
    body = path.read_bytes()
    if damage == "lost":
        path.unlink()
    else:
        path.write_bytes(body[:7] if damage == "cut" else bytes(32))
    with pytest.raises(InvalidInput, match=r"hold_out\.key") as refused:
        train(config, output=folder, resume=True)
    assert "\n" not in str(refused.value)
    path.write_bytes(body)
    assert train(config, output=folder, resume=True).metrics[-1]["round"] == 2


def test_a_key_that_a_kill_left_behind_does_not_stop_a_new_run(config, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    HOLD_OUT.of(folder).write_bytes(b"left behind")
    train(config, output=folder, resume=True)
    assert HOLD_OUT.of(folder).read_bytes() != b"left behind"


def test_an_older_run_goes_on_under_the_key_of_its_seed(config, tmp_path):
    """Its `run.json` says nothing of a key; that of a run of today is sealed by the ledger."""
    folder = tmp_path / "run"
    with killed():
        train(config, output=folder)
    facts = json.loads(RUN.of(folder).read_text())
    assert stored_secret(folder) == HOLD_OUT.of(folder).read_bytes()
    assert len(facts.pop("hold_out")) == 64
    RUN.of(folder).write_text(json.dumps(facts))
    assert stored_secret(folder) is None
    with pytest.raises(Refused, match="was changed"):
        train(config, output=folder, resume=True)


def test_dealt_clients_hold_out_rows_that_decide_for_themselves(tiny):
    tiny["data"]["validation"] = 0.3
    made = from_config(config_of(in_mode(tiny, "private")))
    plain = dict(tiny, data={k: v for k, v in tiny["data"].items() if k != "validation"})
    dealt = from_config(config_of(plain)).federation
    for kept, out, whole in zip(
        made.federation.shards, made.held_out.shards, dealt.shards, strict=True
    ):
        assert sorted([*kept, *out]) == sorted(whole)
    total = sum(map(len, made.held_out.shards))
    assert 0.2 < total / 240 < 0.4
    assert made.evaluation.rows == "public"


# --- the command line and plans made beforehand ---------------------------------------------------


def test_the_command_line_says_what_may_be_said(config, tmp_path, capsys):
    file = str(write_toml(tmp_path / "c.toml", config))
    assert main(["train", file, "-o", str(tmp_path / "none"), "--project", "a"]) == 0
    assert "accuracy not shown (evaluation: none)" in capsys.readouterr().out
    private = ["--set", "evaluation.mode=private"]
    assert (
        main(["train", file, "-o", str(tmp_path / "p"), "--project", "b", "--json", *private]) == 0
    )
    *rounds, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert last["evaluation"] == "private"
    assert last["accuracy"] is None
    assert math.isfinite(last["private_accuracy"])
    assert {line["evaluation"] for line in rounds} == {"private"}
    assert main(["train", file, "-o", str(tmp_path / "q"), "--project", "c", *private]) == 0
    assert "before the last round, privately: accuracy" in capsys.readouterr().out


def test_a_plan_made_beforehand_must_state_the_same_metric(config, tmp_path, capsys):
    config["privacy"]["noise"] = "discrete"
    file = str(write_toml(tmp_path / "c.toml", config))
    private = ["--set", "evaluation.mode=private", "--set", "evaluation.noise=40"]
    for name, options in (("with", private), ("without", [])):
        assert main(["plan", file, "-o", str(tmp_path / f"{name}.json"), *options]) == 0
    assert "private metrics (noise 40 on their sum)" in capsys.readouterr().out

    def train(plan, *options):
        folder = str(tmp_path / f"run-{plan}-{len(options)}")
        code = main(
            [
                "train",
                file,
                "--project",
                plan,
                "-o",
                folder,
                "--plan",
                str(tmp_path / f"{plan}.json"),
                *options,
            ]
        )
        return code, capsys.readouterr().err

    assert train("with", *private)[0] == 0
    assert train("without")[0] == 0
    for plan, options, why in (
        ("with", (), "states a private metric"),
        ("without", private, "no private metric"),
        ("with", (*private, "--set", "evaluation.noise=41"), "evaluation.noise 40"),
    ):
        code, said = train(plan, *options)
        assert (code, why in said) == (2, True), said


@pytest.mark.parametrize("rate", [0.3, 0.7, 1.0])
def test_the_deviation_of_a_private_metric_covers_who_is_sampled(rate):
    """Half of the clients have metric 1, the others 0, which is as far as they can differ."""
    rates, metrics = np.full(12, rate), np.repeat([0.0, 1.0], 6)
    terms = RoundTerms(rates, np.ones(12), 1.0, rates.sum(), metric_deviation=0.6)
    drawn = np.random.default_rng(1)
    sampled = drawn.random((20_000, 12)) < rates
    sums = (sampled * (metrics - 0.5)).sum(axis=1) + drawn.normal(0, 0.6, 20_000)
    assert metric_deviation(terms) == pytest.approx(np.std(sums / rates.sum()), rel=0.02)


def test_the_deviation_is_at_most_that_for_metrics_that_agree():
    terms = RoundTerms(np.full(12, 0.3), np.ones(12), 1.0, 3.6, metric_deviation=0.05 * 3.6)
    drawn = np.random.default_rng(2)
    alike = drawn.binomial(12, 0.3, 20_000) * (0.8 - 0.5) / 3.6 + drawn.normal(0, 0.05, 20_000)
    assert 0.05 < np.std(alike) < metric_deviation(terms)
