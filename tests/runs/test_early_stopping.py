"""Early stopping: which round is the last, which model is kept, and that nothing is given back."""

import json
import math

import numpy as np
import pytest
import torch
from lib.configs import small, write_toml
from lib.runs import killed, stopped

import fedspend
from fedspend.basics.tensors import read_sealed
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.audit import recheck_balances
from fedspend.runs.verifying import verify_run
from fedspend.server.early_stopping import NOTHING_SEEN, StopRule, of_kept

pytestmark = pytest.mark.usefixtures("quick_verify")


@pytest.fixture
def stopping(tiny):
    """A config that stops after a few of its eight rounds."""
    tiny["train"] |= {"rounds": 8, "tail_average": 1}
    tiny["stop"] = {"patience": 2}
    return tiny


def watched(rule, values):
    """What the rule has seen after these values; models are numbered by their rounds."""
    seen = NOTHING_SEEN
    for round, value in enumerate(values, 1):
        models = (np.full(1, round - 1, np.float32), np.full(1, round, np.float32))
        seen = seen.noted(rule, {"round": round, rule.key: value}, *models)
        if seen.stopped:
            break
    return round, seen


@pytest.mark.parametrize(
    ("rule", "values", "last", "kept"),
    [
        (StopRule("accuracy", 2), [0.1, 0.3, 0.2, 0.3, 0.9], 4, 2),
        (StopRule("loss", 2, lower=True), [3, 1, 2, 1, 0], 4, 2),
        (StopRule("accuracy", 2, least=0.1), [0.1, 0.15, 0.19, 0.9], 3, 1),
        (StopRule("accuracy", 1, first=4), [0.5, 0.4, 0.4, 0.4, 0.9], 4, 1),
        (StopRule("accuracy", 2), [0.1, None, math.nan, 0.9], 3, 1),
        (StopRule("accuracy", 9), [0.1, 0.2, 0.1], 3, 2),
        # a private metric is about the model that its round began with
        (StopRule("private_accuracy", 2, of_beginning=True), [0.1, 0.3, 0.2, 0.2], 4, 1),
    ],
)
def test_the_rule_stops_when_patience_ends_and_keeps_the_best(rule, values, last, kept):
    round, seen = watched(rule, values)
    assert (round, seen.best_round, seen.model.tolist()) == (last, kept, [kept])


def test_a_metric_that_is_never_there_stops_without_a_best_model():
    round, seen = watched(StopRule("accuracy", 3), [None] * 5)
    assert (round, seen.stopped, seen.best_round, seen.model.size) == (3, True, None, 0)


def test_the_best_model_is_kept_and_its_numbers_are_told(stopping, tmp_path):
    result = fedspend.train(stopping, output=tmp_path / "run")
    values = [line["accuracy"] for line in result.metrics]
    assert result.stopped_early
    assert len(values) < 8
    assert result.value == max(values) == values[result.kept_round - 1]
    assert len(values) - result.kept_round == 2  # the patience
    # the same config with as many rounds as it took to the best gives that model, seeded
    other = fedspend.train(stopping | {"stop": {"patience": 2, "keep": "last"}})
    assert other.kept_round == len(other.metrics) == len(values)
    kept, last = ([p.detach() for p in one.model.parameters()] for one in (result, other))
    assert not all(map(torch.equal, kept, last))
    # the model file holds what was handed back
    stored = read_sealed(tmp_path / "run" / "model.safetensors", demanded=True).arrays
    for name, tensor in result.model.named_parameters():
        assert np.array_equal(stored[name], tensor.detach().numpy())


def test_what_a_stopped_run_leaves_is_free_and_its_epsilon_is_that_of_its_plan(stopping, tmp_path):
    result = fedspend.train(stopping, output=tmp_path / "run")
    whole = fedspend.train({**stopping, "stop": {"patience": 99}}, output=tmp_path / "whole")
    assert len(result.metrics) < len(whole.metrics) == 8
    with Ledger.find(result.ledger) as book, Ledger.find(whole.ledger) as other:
        (run,) = book.state.runs.values()
        assert (run.next_round, run.stopped, run.closed is not None) == (
            len(result.metrics),
            True,
            True,
        )
        for mine, theirs in zip(
            book.balances("client").rows(), other.balances("client").rows(), strict=True
        ):
            assert mine["spent"] == theirs["spent"] > 0
            assert mine["remaining"] > theirs["remaining"] == 0
        # the second accountant, which reads the entries again, agrees
        assert recheck_balances(book.state, "client")[0] is True
        # in a ledger without orders it stays charged
        run.by_order = False
        assert [row["remaining"] for row in book.balances("client").rows()] == [
            row["remaining"] for row in other.balances("client").rows()
        ]


@pytest.mark.full
def test_a_stopped_run_passes_verification_and_can_be_published(stopping, tmp_path):
    from fedspend.publishing.checking import verify_publication
    from fedspend.publishing.writing import publish
    from fedspend.report.html import write_report

    folder = tmp_path / "run"
    fedspend.train(stopping, output=folder)
    write_report([folder], folder / "report.html")
    found = verify_run(folder)
    assert found.ok, [one for one in found.checks if one.good is False]
    page = (folder / "report.html").read_text()
    assert "The run stopped early" in page
    assert "stay charged" in page
    publish(folder, tmp_path / "public")
    assert verify_publication(tmp_path / "public").ok


@pytest.mark.full
def test_another_best_model_in_its_place_is_noticed(stopping, tmp_path):
    """The model of a stopped run is the checkpoint's best one, not any other."""
    from fedspend.basics.tensors import seal

    folder = tmp_path / "run"
    fedspend.train(stopping, output=folder)
    path = folder / "model.safetensors"
    found = read_sealed(path, demanded=True)
    about = {key: value for key, value in found.about.items() if key != "digest"}
    path.write_bytes(seal({name: one + 1 for name, one in found.arrays.items()}, about)[0])
    verdicts = {one.check: one.good for one in verify_run(folder).checks}
    assert verdicts["model"] is False


@pytest.mark.full
def test_killed_and_resumed_it_stops_in_the_same_round_with_the_same_model(stopping, tmp_path):
    whole = fedspend.train(stopping, output=tmp_path / "whole")
    for at in range(1, len(whole.metrics) + 1):
        folder = tmp_path / f"killed{at}"
        stopped(stopping, folder, at)
        fedspend.train(stopping, output=folder, resume=True)
        for name in ("metrics.jsonl", "model.safetensors", "checkpoint.safetensors"):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    again = fedspend.train(stopping, output=tmp_path / "whole", resume=True)
    assert len(again.metrics) == len(whole.metrics)


def test_a_resumed_run_keeps_its_rule(stopping, tmp_path):
    fedspend.train(stopping, output=tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"stop\.patience was 2 and is now 3"):
        fedspend.train({**stopping, "stop": {"patience": 3}}, output=tmp_path / "run", resume=True)


def own_rows(tmp_path, evaluation, validation=0.0, test=True):
    draw = np.random.default_rng(1)
    for name in ("rows", "test"):
        lines = [
            f"{x:.3f},{int(x > 0)},{'north' if n % 2 else 'south'}"
            for n, x in enumerate(draw.normal(size=80))
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,label,client", *lines]) + "\n")
    data = {
        "name": "csv",
        "path": str(tmp_path / "rows.csv"),
        "label": "label",
        "client": "client",
        "classes": 2,
        "bounds": [-4, 4],
        "validation": validation,
    }
    return small(
        "plain",
        data=data | ({"test_path": str(tmp_path / "test.csv")} if test else {}),
        method__name="dp-fedavg",
        privacy__rate=1.0,
        train={"rounds": 4, "local_steps": 1, "batch_size": 8, "lr": 0.1},
        evaluation=evaluation,
        stop__patience=1,
        ledger__project="clinic",
    )


def test_a_real_run_stops_by_public_rows_and_by_what_is_paid_for(tmp_path):
    public = fedspend.train(own_rows(tmp_path, {"mode": "public"}))
    assert {line["evaluation"] for line in public.metrics} == {"public"}
    assert public.kept_round >= 1
    private = fedspend.train(
        own_rows(tmp_path, {"mode": "private"}, validation=0.3, test=False)
        | {"ledger": {"project": "private"}}
    )
    assert all(line["accuracy"] is None for line in private.metrics)
    best = max(line["private_accuracy"] for line in private.metrics)
    assert private.private_value == best
    assert private.kept_round < len(private.metrics)  # of the model that a round began with


@pytest.mark.parametrize(
    ("evaluation", "validation", "test", "error", "said"),
    [
        ({"mode": "none"}, 0.3, False, Refused, "exact metric of clients' rows"),
        ({}, 0.0, False, InvalidInput, "nothing is measured here"),
    ],
)
def test_a_real_run_never_stops_by_exact_numbers_of_clients(
    tmp_path, evaluation, validation, test, error, said
):
    with pytest.raises(error, match=said):
        fedspend.train(own_rows(tmp_path, evaluation, validation, test), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ({"patience": 0}, "patience"),
        ({"patience": 2, "keep": "worst"}, "keep"),
        ({"patience": 2, "metric": "mse"}, "not measured"),
        ({"patience": 2, "first": 99}, "lower it"),
        ({"patience": 2, "patients": 1}, "patients"),
        ({"least": 0.1}, "patience"),
        ("soon", "stop"),
    ],
)
def test_bad_rules_are_one_clear_line_from_config_and_python(tiny, stop, said):
    with pytest.raises(InvalidInput, match=said) as caught:
        fedspend.train({**tiny, "stop": stop})
    assert "\n" not in str(caught.value)
    rows = [(np.zeros((4, 2), np.float32), np.zeros(4, int))] * 2
    plan = fedspend.plan(epsilons=[5.0, 5.0], rounds=3, rate=1.0, delta=1e-3)
    with pytest.raises(InvalidInput, match=said) as caught:
        fedspend.train(
            clients=rows,
            model=torch.nn.Linear(2, 2),
            plan=plan,
            test=rows[0],
            lr=0.1,
            batch_size=2,
            local_steps=1,
            randomness="seeded",
            stop=stop,
        )
    assert "\n" not in str(caught.value)


def test_private_metrics_and_a_tail_do_not_go_together(tiny):
    tiny["evaluation"] = {"mode": "private"}
    tiny["data"]["validation"] = 0.3
    tiny["stop"] = {"patience": 2}
    with pytest.raises(InvalidInput, match="single iterates"):
        fedspend.train(tiny)


def test_a_private_tune_refuses_trials_of_different_length(tiny):
    from fedspend.configuration.config import any_config
    from fedspend.tuning.trial import prepared

    tiny["stop"] = {"patience": 2}
    tiny["train"]["tail_average"] = 1
    with pytest.raises(InvalidInput, match="how long they take"):
        prepared(any_config(tiny, ()), None, None)


@pytest.mark.full
def test_the_summary_says_so(stopping, tmp_path, capsys):
    from fedspend.cli.main import main

    config = tmp_path / "run.toml"
    write_toml(config, stopping)
    assert main(["train", str(config), "-o", str(tmp_path / "a")]) == 0
    said = capsys.readouterr().out
    assert "Stopped early" in said
    assert "stay charged" in said
    assert main(["train", str(config), "-o", str(tmp_path / "b"), "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["stopped_early"] is True
    assert last["kept_round"] < last["rounds"]


def test_lines_without_a_rule_are_left_alone():
    lines = [{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.4}]
    assert of_kept(lines) is lines[-1]


@pytest.mark.full(only=["1"])
@pytest.mark.parametrize("rounds", [0, 1])
def test_closing_a_run_by_hand_frees_what_its_rule_would_free(stopping, tmp_path, rounds):
    """A run that was killed after its rule had stopped it, and before its account was closed."""
    folder = tmp_path / "run"
    with killed(at="told" if rounds else "fedspend.ledger.Ledger.reserve"):
        fedspend.train(stopping, output=folder)
    with Ledger.open(str(folder / "ledger.db"), write=True) as book:
        (run,) = book.state.runs
        before = [row["spent"] for row in book.balances("client").rows()]
        book.close_run(run, reason="it was good enough")
        closed = book.run(run)
        assert (closed.closed, closed.stopped_itself) == ("it was good enough", False)
        assert (closed.charged(held=False), closed.gave_back) == (rounds, bool(rounds))
        after = [row["spent"] for row in book.balances("client").rows()]
        assert all(
            now > then if rounds else now == then == 0
            for now, then in zip(after, before, strict=True)
        )
    if rounds:
        assert verify_run(folder).ok
