"""A tune in simulations: on held-out rows, resumable, and honest about how many were tried."""

import json
import tomllib
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from fedspend import tune
from fedspend.configuration.config import load_config
from fedspend.errors import InvalidInput
from fedspend.runs import parallel
from fedspend.tuning import simulated
from fedspend.tuning.grid import settings_of

GRID = ["train.lr=0.1,0.4", "privacy.clip=0.5,1"]


@contextmanager
def in_line(*_):
    """Workers that work in this process."""

    def submit(function, *arguments):
        done = Future()
        done.set_result(function(*arguments))
        return done

    yield submit


@pytest.fixture
def scored(monkeypatch):
    """Runs that take no time: accuracy follows the learning rate. Lists what was run."""
    ran = []

    def accuracy(config, seed):
        ran.append((config.train.lr, config.privacy.clip, seed))
        return {"accuracy": config.train.lr + config.privacy.clip / 100 + seed / 1000}

    monkeypatch.setattr(simulated, "_accuracy", accuracy)
    monkeypatch.setattr(parallel, "started_workers", in_line)
    return ran


def test_the_best_mean_wins_and_the_number_of_settings_is_recorded(short, tmp_path, scored):
    found = tune(short, GRID, seeds=2, output=tmp_path / "t")
    assert found.best.values() == {"train.lr": 0.4, "privacy.clip": 1.0}
    assert len(scored) == 8
    assert [row["mean"] for row in found.rows()] == sorted(
        (row["mean"] for row in found.rows()), reverse=True
    )
    text = (tmp_path / "t" / "best.toml").read_text()
    assert "best of 4 settings, each with 2 seeds" in text.replace("\n# ", " ")
    written = load_config(tmp_path / "t" / "best.toml")
    assert written.train.lr == 0.4
    assert tomllib.loads(text)["privacy"]["groups"] == short["privacy"]["groups"]
    assert written.data.validation == 0, "what is held out for tuning is trained on afterwards"


def test_it_goes_on_where_it_stopped_and_the_grid_may_grow(short, tmp_path, scored):
    tune(short, GRID[:1], seeds=2, output=tmp_path / "t")
    with (tmp_path / "t" / "runs.jsonl").open("ab") as file:
        file.write(b'{"setting": "train.lr=0.1", "se')  # a kill in the middle of a line
    del scored[:]
    tune(short, ["train.lr=0.1,0.4,0.8"], seeds=3, output=tmp_path / "t")
    assert sorted(scored) == [(0.1, 0.5, 7), (0.4, 0.5, 7), *((0.8, 0.5, n) for n in (5, 6, 7))]


def test_another_tune_is_not_mixed_in(short, tmp_path, scored):
    tune(short, GRID[:1], seeds=1, output=tmp_path / "t")
    with pytest.raises(InvalidInput, match=r"another tune: train\.rounds was 3 and is now 2"):
        tune(short, GRID[:1], seeds=1, output=tmp_path / "t", overrides=["train.rounds=2"])
    with pytest.raises(InvalidInput, match=r"validation was 0\.2 and is now 0\.3"):
        tune(short, GRID[:1], seeds=1, output=tmp_path / "t", validation=0.3)
    (tmp_path / "t" / "runs.jsonl").write_text('{"seed": 1}\n')
    with pytest.raises(InvalidInput, match=r"runs\.jsonl:1: not the record of a run"):
        tune(short, GRID[:1], seeds=1, output=tmp_path / "t")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_text("x")
    with pytest.raises(InvalidInput, match="not the folder of a tune"):
        tune(short, GRID[:1], seeds=1, output=tmp_path / "other")
    assert scored


def test_it_measures_on_held_out_training_rows_and_never_on_test_rows(short, monkeypatch):
    """With test rows that are all wrong, the scores stay what they were."""
    from fedspend.configuration.data_inputs import Source

    monkeypatch.setattr(parallel, "started_workers", in_line)
    first = tune(short, GRID[:1], seeds=1).accuracy
    rows = Source.rows.func

    def spoilt(self):
        found = rows(self)
        if found.test_labels is not None:
            found.test_labels[:] = (found.test_labels + 1) % 3
        return found

    monkeypatch.setattr(Source, "rows", property(spoilt))
    assert (tune(short, GRID[:1], seeds=1).accuracy == first).all()


def test_processes_find_the_same(short, monkeypatch):
    found = tune(short, ["train.lr=0.4"], seeds=1, workers=1).accuracy
    monkeypatch.setattr(parallel, "started_workers", in_line)
    assert (tune(short, ["train.lr=0.4"], seeds=1).accuracy == found).all()


def test_a_setting_without_a_plan_is_refused_before_anything_is_written(short, tmp_path):
    with pytest.raises(InvalidInput, match="transition must be a round from 1 to 3"):
        tune(short, ["privacy.transition=2,7"], output=tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_rows_of_people_are_refused_with_a_way_out(real):
    with pytest.raises(InvalidInput, match="add private=True"):
        tune(real, GRID)


def test_a_private_metric_is_refused(short):
    short["evaluation"] = {"mode": "private"}
    short["data"]["validation"] = 0.2
    with pytest.raises(InvalidInput, match=r"evaluation\.mode = \"private\" is for real runs"):
        tune(short, GRID)


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ([], "nothing to choose among"),
        (["train.lr"], "--grid must be section.key=value"),
        (["lr=1,2"], "--grid must be section.key=value"),
        (["train.lr=0.1,0.1"], "distinct values"),
        (["train.lr=0.1,,0.2"], "distinct values"),
        (["train.lr=0.1,0.10"], "the same value twice"),
        (["train.lr=0.1", "train.lr=0.2"], "is given twice"),
        (["train.lr=fast"], "--grid train.lr=fast: lr in .train. must be"),
        (["train.speed=1,2"], "unknown key 'speed'"),
        (["privacy.epsilon=1,2"], "cannot be chosen"),
        (["data.validation=0.1,0.2"], "cannot be chosen"),
        (["train.seed=1,2"], "cannot be chosen"),
        (["ledger.location=a,b"], "cannot be chosen"),
        (["privacy.contraction=0.8,0.9"], "no effect"),
        ([f"train.rounds={','.join(map(str, range(1, 1102)))}"], "1,101 settings"),
    ],
)
def test_a_bad_grid_is_refused_in_one_line(short, grid, said):
    with pytest.raises(InvalidInput, match=said) as refused:
        settings_of(short, (), grid)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": 0}, "seeds"),
        ({"workers": 0}, "workers"),
        ({"validation": 0.0}, "validation"),
        ({"validation": float("nan")}, "validation"),
        ({"trials_mean": 5.0}, "trials_mean is for private=True"),
        ({"ledger": "accounts.db"}, "ledger is for private=True"),
        ({"private": True, "seeds": 2}, "seeds is for tunes without private=True"),
        ({"private": True}, "needs a folder for its winner"),
    ],
)
def test_bad_numbers_are_refused(short, options, said):
    with pytest.raises(InvalidInput, match=said):
        tune(short, GRID, **options)


def test_lists_are_values(short):
    short["method"] = {"name": "idp-fedavg"}
    short["privacy"]["policy"] = "weights"
    short["privacy"].pop("saving_rate")
    found = settings_of(short, (), ["privacy.weights=[1,1,2],[1,2,3]"])
    assert [one.config.privacy.weights for one in found] == [[1, 1, 2], [1, 2, 3]]


def test_the_command_line(short, tmp_path, capsys, scored):
    from fedspend.cli.main import main
    from fedspend.tuning.best_config import best_config

    [setting] = settings_of(short, (), ["train.lr=0.3"])
    path = tmp_path / "config.toml"
    path.write_text(best_config(setting, "as given"))
    command = ["tune", str(path), "--grid", "train.lr=0.1,0.4"]
    assert main([*command, "-o", str(tmp_path / "t"), "--seeds", "2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 settings tried, 2 seeds each" in said
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["tried"], found["best"]) == (2, {"train.lr": 0.4})
    assert scored
    for flags, message in (
        (["--price"], "--price needs --private"),
        (["--remaining"], "--remaining needs --private"),
        (["--private", "--seeds", "2"], "--seeds is for tunes without --private"),
        (["--private"], "needs a folder for its winner"),
    ):
        assert main([*command, *flags]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.usefixtures("quick")
def test_the_command_line_of_a_private_tune(short, tmp_path, capsys):
    from fedspend.cli.main import main
    from fedspend.tuning.best_config import best_config

    [setting] = settings_of(short, (), ["train.lr=0.3"])
    path = tmp_path / "config.toml"
    path.write_text(best_config(setting, "as given"))
    command = ["tune", str(path), "--grid", "train.lr=0.1,0.4", "--private", "--trials-mean", "2"]
    assert main([*command, "--price"]) == 0
    assert "times the noise of a run that is not tuned" in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--dry-run", "--json"]) == 0
    priced = json.loads(capsys.readouterr().out)
    assert [row["clients"] for row in priced["budgets"]] == [2, 4]
    assert 1 < priced["noise"] < 5
    assert main([*command, "-o", str(tmp_path / "w"), "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.err == ""
    assert found["setting"][0] in ("train.lr=0.1", "train.lr=0.4")
    assert main(["verify", str(tmp_path / "w")]) == 0
    ledger = ["--ledger", str(tmp_path / "w" / "ledger.db")]
    for view in (["history"], ["show"], ["show", "--run", found["run"]], ["balance"], ["verify"]):
        assert main(["ledger", *view, *ledger]) == 0, view
    assert main(["explain", str(tmp_path / "w" / "plan.json")]) == 2
    assert "one trial of a private tune" in capsys.readouterr().err
