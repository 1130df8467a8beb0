"""Comparisons by several metrics, from real runs: what they say, and how sure they are of it."""

import csv
import io
import json
import math

import numpy as np
import pytest
from lib.configs import small, write_toml

import fedspend
from fedspend.cli.main import main
from fedspend.runs import comparison
from fedspend.runs.comparison import Comparison

pytestmark = pytest.mark.usefixtures("quick_verify")

SHORT = small(
    privacy__saving_rate=None,
    task__metrics=["accuracy", "f1"],
    train__rounds=2,
    train__tail_average=1,
)
METHODS = ["dp-fedavg", "idp-fedavg"]
T_OF_2, T_OF_3 = 12.706205, 4.302653  # Student's t at 97.5%, with one and two degrees of freedom


@pytest.fixture(scope="module")
def remembered():
    """Every run is made once in this file."""
    known, real = {}, comparison.curves_of_run

    def curves(config, seed):
        key = repr(config.values), seed
        if key not in known:
            known[key] = real(config, seed)
        return known[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(comparison, "curves_of_run", curves)
        yield known


@pytest.fixture
def compared(remembered):  # noqa: ARG001
    return lambda seeds: fedspend.compare(SHORT, METHODS, seeds, workers=1, progress=False)


@pytest.mark.full
def test_every_metric_of_every_seed_is_that_of_train(compared):
    found = compared(3)
    assert found.metrics == ("accuracy", "f1")
    for place, method in enumerate(METHODS):
        for k, seed in enumerate(found.seeds):
            alone = fedspend.train(
                SHORT, overrides=[f"method.name={method}", f"train.seed={seed}"], progress=False
            )
            assert found.values[place, k].tolist() == alone.metrics["accuracy"]
            assert found.of("f1").values[place, k].tolist() == alone.metrics["f1"]


@pytest.mark.full(but=["3-4.302653"])
@pytest.mark.parametrize(("seeds", "t"), [(2, T_OF_2), (3, T_OF_3)])
def test_intervals_of_two_or_three_seeds_are_students_and_marked(compared, seeds, t):
    found = compared(seeds)
    rows = found.rows()
    for n, row in enumerate(rows):
        of_seed = found.final[n]
        half = t * of_seed.std(ddof=1) / math.sqrt(seeds)
        assert (row["mean"], row["interval"]) == pytest.approx((of_seed.mean(), half), abs=1e-6)
        assert row["interval_supported"] is False
        f1 = found.of("f1").final[n]
        assert row["metrics"]["f1"]["by_seed"] == f1.tolist()
        half = t * f1.std(ddof=1) / math.sqrt(seeds)
        assert row["metrics"]["f1"]["interval"] == pytest.approx(half, abs=1e-6)
    paired = found.final[1] - found.final[0]
    assert rows[1]["difference"] == pytest.approx(paired.mean())
    half = t * paired.std(ddof=1) / math.sqrt(seeds)
    assert rows[1]["difference_interval"] == pytest.approx(half, abs=1e-6)
    table = found.table()
    places = [n for n, heading in enumerate(table.header) if heading == "95% interval"]
    assert len(places) == 3
    stars = [[row[n].endswith("*") for n in places] for row in table.rows]
    assert stars == [[True, False, True], [True, True, True]]  # the first is not compared
    assert table.note.startswith("* an interval from two or three seeds")
    assert "*" in repr(found)


def test_more_seeds_have_no_star_and_one_has_no_interval():
    values = np.random.default_rng(0).random((2, 4, 3))
    enough = Comparison(("a", "b"), (0, 1, 2, 3), values, "accuracy", {"f1": values / 2})
    assert enough.supported
    assert "*" not in enough.table().markdown()
    alone = Comparison(("a", "b"), (0,), values[:, :1], "accuracy", {"f1": values[:, :1]})
    assert alone.rows()[0]["interval"] is None
    assert "*" not in alone.table().csv()


def test_a_metric_that_is_undefined_at_first_ends_with_its_last_value():
    values = np.array([[[np.nan, 0.5, 0.7], [0.1, 0.2, np.nan], [np.nan] * 3]])
    final = Comparison(("a",), (0, 1, 2), values).final
    assert final[0, :2].tolist() == [0.7, 0.2]
    assert np.isnan(final[0, 2])


def test_the_model_that_a_stopping_rule_keeps_is_the_one_compared():
    """The best model is not always the last one; `stop.keep` says which is handed out."""
    stop = {**SHORT, "train": {**SHORT["train"], "rounds": 6}, "stop": {"patience": 2}}
    vary = ["stop.keep=best,last"]
    for seed in range(5, 30):
        at = [f"train.seed={seed}"]
        alone = fedspend.train(stop, overrides=[*at, "method.name=dp-fedavg"], progress=False)
        if alone.kept_round == len(alone.metrics):
            continue
        found = fedspend.compare(
            stop, ["dp-fedavg"], 1, overrides=at, workers=1, progress=False, vary=vary
        )
        assert found.final[:, 0].tolist() == [alone.value, alone.metrics[-1]["accuracy"]]
        return
    pytest.fail("no seed has its best model before its last one")


@pytest.fixture
def config(tmp_path, remembered):  # noqa: ARG001
    path = tmp_path / "config.toml"
    write_toml(path, SHORT)
    return str(path)


def told(config, *more):
    return [
        *("compare", config, "--methods", ",".join(METHODS), "--seeds", "2"),
        *("--workers", "1", "--quiet", *more),
    ]


@pytest.mark.parametrize("kind", ["csv", "markdown", "latex"])
def test_the_command_prints_the_table_in_every_format(config, compared, capsys, kind):
    assert main(told(config, "--table", kind)) == 0
    text = capsys.readouterr().out
    table = compared(2).table()
    assert text == getattr(table, kind)()
    if kind == "csv":
        rows = list(csv.reader(io.StringIO(text)))
        assert rows == [list(table.header), *map(list, table.rows)]
        return
    for name in METHODS:
        assert name in text
    assert "f1" in text
    assert ("% * an interval" if kind == "latex" else "\n* an interval") in text
    if kind == "latex":
        assert text.count(r"\\") == 3
        assert r"\pm" in text
    else:
        assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


@pytest.mark.full
def test_a_folder_has_every_format_and_a_plot_of_every_metric(config, compared, tmp_path, capsys):
    folder = tmp_path / "out"
    assert main(told(config, "-o", str(folder))) == 0
    assert "cannot be relied on" in " ".join(capsys.readouterr().out.split())
    assert sorted(path.name for path in folder.iterdir()) == [
        *("accuracy.png", "comparison.csv", "comparison.json", "comparison.md", "comparison.tex"),
        *("f1.png", "grid.json", "runs.jsonl"),
    ]
    found = compared(2)
    whole = json.loads((folder / "comparison.json").read_text())
    assert whole["f1"] == found.of("f1").curves()
    assert whole["interval_supported"] is False
    assert (folder / "comparison.tex").read_text() == found.table().latex()
    rows = list(csv.DictReader(io.StringIO((folder / "comparison.csv").read_text())))
    assert float(rows[1]["f1"]) == found.rows()[1]["metrics"]["f1"]["mean"]
