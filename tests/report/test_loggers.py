"""Loggers: the real libraries get the numbers of metrics.jsonl, and of real runs nothing else."""

import csv
import json
import stat
import sys
import time

import numpy as np
import pytest
from lib.configs import small, write_toml
from lib.runs import stopped

import fedspend
from fedspend.errors import FedspendWarning, InvalidInput
from fedspend.report.groups import Grouping
from fedspend.report.loggers import Place, WandB, numbers_of

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("quick_verify")]


class Kept:
    """A logger of one's own."""

    def __init__(self):
        self.rounds, self.closed = {}, 0

    def log(self, round, numbers):
        self.rounds[round] = dict(numbers)

    def close(self):
        self.closed += 1


def mlflow_history(folder, key):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "mlflow").resolve().as_uri())
    experiment = client.get_experiment_by_name("fedspend")
    (run,) = client.search_runs([experiment.experiment_id])
    return run, client.get_metric_history(run.info.run_id, key)


def test_mlflow_gets_metrics_and_epsilon_by_group_and_a_resumed_run_goes_on(
    tiny, tmp_path, monkeypatch
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tiny["train"]["loggers"] = ["mlflow"]
    stopped(tiny, tmp_path / "run")
    result = fedspend.train(tiny, output=tmp_path / "run", resume=True)
    for key, wanted in (
        ("accuracy", [line["accuracy"] for line in result.metrics]),
        ("epsilon/4", [line["epsilon"]["4"] for line in result.metrics]),
    ):
        run, found = mlflow_history(tmp_path / "run", key)
        assert [one.step for one in found] == [1, 2, 3, 4]
        assert [one.value for one in found] == pytest.approx(wanted)
    assert run.info.status == "FINISHED"
    assert stat.S_IMODE((tmp_path / "run" / "mlflow").stat().st_mode) == 0o700


def stored_records(body, block=2**15):
    """The records of a `.wandb` file: a head of 7 bytes, then pieces in blocks, as LevelDB's log
    has them (checksum, length, and whether it is whole, the first, a middle or the last piece).
    """
    at, parts = 7, []
    while at + 7 <= len(body):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = int.from_bytes(body[at + 4 : at + 6], "little"), body[at + 6]
        if kind == 0:
            break
        parts.append(body[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):
            yield b"".join(parts)
            parts = []


def written_rows(path):
    """What the file has of each round."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for data in stored_records(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            rows.append(
                {
                    one.key or "/".join(one.nested_key): json.loads(one.value_json)
                    for one in record.history.item
                }
            )
    return rows


def test_wandb_writes_offline_into_the_run_directory(tiny, tmp_path):
    result = fedspend.train(tiny, output=tmp_path / "run", loggers=["wandb"])
    folder = tmp_path / "run" / "wandb-logs"
    (path,) = folder.rglob("*.wandb")
    rows = written_rows(path)
    until = time.monotonic() + 60
    while len(rows) < 4 and time.monotonic() < until:  # a process of its own writes them
        time.sleep(0.1)
        rows = written_rows(path)
    assert [row["_step"] for row in rows] == [1, 2, 3, 4]
    assert [row["accuracy"] for row in rows] == [line["accuracy"] for line in result.metrics]
    assert rows[-1]["epsilon/12"] == pytest.approx(result.metrics[-1]["epsilon"]["12"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_in_real_runs_wandb_gets_all_rounds_at_the_end(tmp_path, monkeypatch):
    """It notes the time of every call, which would tell how long rounds took."""
    calls = []

    class Run:
        def log(self, numbers, step):
            calls.append((step, numbers))

        def finish(self):
            calls.append("finished")

    import wandb

    monkeypatch.setattr(wandb, "init", lambda **_: Run())
    logger = WandB(Place(tmp_path, "run", "id", timed=False))
    logger.log(1, {"loss": 1.0})
    logger.log(2, {"loss": 0.5})
    assert calls == []
    logger.close()
    assert calls == [(1, {"loss": 1.0}), (2, {"loss": 0.5}), "finished"]


def own_rows(folder, budgets):
    draw = np.random.default_rng(2)
    with (folder / "rows.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["client", "x", "label"])
        for client in budgets:
            lines.writerows((client, f"{x:.3f}", int(x > 0)) for x in draw.normal(size=20))
    with (folder / "budgets.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["client", "epsilon"])
        lines.writerows(budgets.items())
    data = {
        "name": "csv",
        "path": str(folder / "rows.csv"),
        "label": "label",
        "client": "client",
        "classes": 2,
        "bounds": [-4, 4],
        "validation": 0.3,
    }
    return small(
        "plain",
        data=data,
        privacy__epsilon=None,
        privacy__budgets=str(folder / "budgets.csv"),
        evaluation__mode="private",
        ledger__project="clinic",
    )


def test_of_a_real_run_nothing_is_told_about_single_clients(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    # of 60 rows none is held out with chance 0.7**60 < 1e-9, and then nothing could be measured
    config = own_rows(tmp_path, {"anna": 3.0, "bert": 6.0, "carl": 6.0})
    kept = Kept()
    result = fedspend.train(config, output=tmp_path / "run", loggers=[kept, "mlflow"])
    assert set(result.metrics[0]["epsilon"]) == {"3", "6"}
    assert list(kept.rounds) == [1, 2]
    for numbers in kept.rounds.values():
        assert set(numbers) == {
            "private_accuracy",
            "private_accuracy_deviation",
            "noise_deviation",
            "clip",
            "epsilon/6",  # of two; epsilon/3 is anna's own
        }
    assert kept.closed == 1
    _, found = mlflow_history(tmp_path / "run", "epsilon/6")
    assert len({one.timestamp for one in found}) == 1  # how long rounds took is not told


def test_whatever_a_line_has_only_known_names_leave_a_real_run():
    line = {
        "round": 1,
        "accuracy": None,
        "cohort": 7,
        "discarded": 1,
        "mean_norm": 0.3,
        "surprise": 5.0,
        "noise_deviation": 0.1,
        "epsilon": {"one": 1.0, "two": 2.0, "unknown": 3.0},
    }
    grouping = Grouping(("one", "two"), (np.array([0]), np.array([1, 2])), True, False)
    found = numbers_of(line, grouping, simulation=False)
    assert found == {"noise_deviation": 0.1, "epsilon/two": 2.0}
    told = numbers_of(line, grouping, simulation=True)
    assert {"cohort", "surprise", "epsilon/one", "epsilon/unknown"} <= set(told)


def test_a_logger_that_fails_is_left_out_and_the_run_goes_on(tiny):
    class Failing(Kept):
        def log(self, round, numbers):
            super().log(round, numbers)
            raise ConnectionError("the server\nis gone")

    failing, kept = Failing(), Kept()
    with pytest.warns(FedspendWarning, match="logger Failing failed .*the server is gone"):
        result = fedspend.train(tiny, loggers=[failing, kept])
    assert (list(failing.rounds), list(kept.rounds)) == ([1], [1, 2, 3, 4])
    assert len(result.metrics) == 4
    assert (failing.closed, kept.closed) == (0, 1)


def test_loggers_change_nothing(tiny):
    assert fedspend.train(tiny, loggers=[Kept()]).metrics == fedspend.train(tiny).metrics


@pytest.mark.parametrize(
    ("loggers", "said"),
    [
        ("mlflow", "list of names"),
        (["mflow"], "did you mean 'mlflow'"),
        (["mlflow"], "this run has none"),
        ([3], r"log\(round, numbers\)"),
    ],
)
def test_bad_loggers_are_one_line(tiny, loggers, said):
    with pytest.raises(InvalidInput, match=said):
        fedspend.train(tiny, loggers=loggers)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_library_is_named_before_anything_is_written(
    tiny, tmp_path, monkeypatch, capsys, name
):
    from fedspend.cli.main import main

    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(
        "fedspend.basics.extras.importlib.util.find_spec",
        lambda package: None if package == name else object(),
    )
    config = tmp_path / "tiny.toml"
    write_toml(config, tiny)
    code = main(["train", str(config), "-o", str(tmp_path / "run"), "--logger", name])
    assert code == 2
    assert f"pip install 'fedspend[{name}]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
