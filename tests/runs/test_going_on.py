"""A run goes on in one place, from the files that its ledger has seen last; or not at all."""

import json
import shutil
import stat

import numpy as np
import pytest
from lib.configs import write_toml
from lib.runs import killed, stopped
from owners import verify_run

from fedspend import train
from fedspend.basics.tensors import read_tensors, seal
from fedspend.cli.main import main
from fedspend.errors import FedspendError, InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.report.html import write_report
from fedspend.stored.files import FILES, LOGS, REPORT

pytestmark = pytest.mark.usefixtures("quick_verify")


def rounds_in(place):
    with Ledger.open(place) as ledger:
        return [run.rounds for run in ledger.state.runs.values()]


@pytest.fixture(params=["inside", "outside"])
def begun(request, tiny, tmp_path):
    """A run that was stopped after two rounds: a simulation, whose ledger is in its directory; or a
    real one, whose ledger is not.
    """
    inside = request.param == "inside"
    if not inside:
        tiny["privacy"]["randomness"] = "os"
    stopped(tiny, tmp_path / "run", ledger=None if inside else tmp_path / "accounts.db")
    return tiny, tmp_path / "run", inside


# --- copies ---


@pytest.mark.full(only=["inside"])
def test_a_copy_does_not_go_on_whoever_comes_first(begun, tmp_path):
    config, folder, _ = begun
    shutil.copytree(folder, tmp_path / "copy")
    with pytest.raises(Refused, match="is a copy of it or it was moved") as refused:
        train(config, output=tmp_path / "copy", resume=True)
    assert "moved=True" in str(refused.value)
    train(config, output=folder, resume=True)
    with pytest.raises(Refused):
        train(config, output=tmp_path / "copy", resume=True)
    assert verify_run(folder).ok


def test_a_copy_in_the_place_of_the_original_is_noticed(begun, tmp_path):
    config, folder, _ = begun
    shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(folder)
    (tmp_path / "copy").rename(folder)
    with pytest.raises(Refused, match="another directory that was at"):
        train(config, output=folder, resume=True)
    train(config, output=folder, resume=True, moved=True)


@pytest.mark.full(only=["inside"])
def test_a_moved_run_goes_on_in_its_new_place_only(begun, tmp_path, capsys):
    config, folder, inside = begun
    shutil.copytree(folder, tmp_path / "kept")
    folder.rename(tmp_path / "new")
    told = []
    train(config, output=tmp_path / "new", resume=True, moved=True, on_note=told.append)
    assert any("begins no round anywhere else" in note for note in told)
    assert verify_run(tmp_path / "new").ok
    if not inside:  # the old place comes back, and the ledger knows better
        (tmp_path / "kept").rename(folder)
        for options in ({}, {"moved": True}):
            with pytest.raises(Refused):
                train(config, output=folder, resume=True, **options)
        assert len(rounds_in(tmp_path / "accounts.db")[0]) == 4
        assert main(["ledger", "history", "--ledger", str(tmp_path / "accounts.db"), "--json"]) == 0
        entries = json.loads(capsys.readouterr().out)
        moves = [one["about"] for one in entries if one["kind"] == "move"]
        assert moves == [str(tmp_path / "new")]


def entries_of(place):
    with Ledger.open(place) as ledger:
        return ledger.state.entries


# what is refused, and what must not be entered before
REFUSED_LATER = {
    "another setting": (lambda config, _: config["train"].update(lr=0.2), "holds another run"),
    "data that are gone": (
        lambda config, _: config.update(
            data={"name": "csv", "path": "gone.csv", "label": "x", "classes": 2}
        ),
        "gone.csv",
    ),
    "a changed file": (
        lambda _, folder: (folder / "certificate.json").write_text(
            (folder / "certificate.json").read_text() + " "
        ),
        "was changed since",
    ),
    "damaged metrics": (
        lambda _, folder: (folder / "metrics.jsonl").write_text(""),
        "does not tell the 2 rounds",
    ),
}


@pytest.mark.parametrize("begun", ["outside"], indirect=True)
@pytest.mark.parametrize("why", REFUSED_LATER)
def test_a_move_is_entered_only_if_the_run_goes_on(begun, tmp_path, why):
    config, folder, _ = begun
    before = entries_of(tmp_path / "accounts.db")
    folder.rename(tmp_path / "new")
    change, told = REFUSED_LATER[why]
    change(config, tmp_path / "new")
    notes = []
    with pytest.raises(FedspendError, match=told):
        train(config, output=tmp_path / "new", resume=True, moved=True, on_note=notes.append)
    assert entries_of(tmp_path / "accounts.db") == before
    assert not any("begins no round" in note for note in notes)


@pytest.mark.parametrize("begun", ["outside"], indirect=True)
def test_lost_rounds_are_entered_only_if_the_run_goes_on(begun, tmp_path):
    """A replanned run may be refused; until it goes on nothing is written."""
    config, folder, _ = begun
    with killed(at="play"):
        train(config, output=folder, resume=True)
    before = entries_of(tmp_path / "accounts.db")
    files = {path: path.read_bytes() for path in folder.iterdir()}
    other = config | {"train": config["train"] | {"lr": 0.2}}
    with pytest.raises(InvalidInput, match="holds another run"):
        train(other, output=folder, resume=True, replan=True)
    assert entries_of(tmp_path / "accounts.db") == before
    assert {path: path.read_bytes() for path in folder.iterdir()} == files


@pytest.mark.full
@pytest.mark.parametrize("begun", ["outside"], indirect=True)
def test_a_run_that_was_moved_and_lost_a_round_is_replanned_in_its_new_place(begun, tmp_path):
    config, folder, _ = begun
    with killed(at="play"):
        train(config, output=folder, resume=True)
    folder.rename(tmp_path / "new")
    result = train(config, output=tmp_path / "new", resume=True, moved=True, replan=True)
    assert result.plan.rounds == 5
    assert [line["round"] for line in result.metrics if line.get("skipped")] == [3]
    assert verify_run(tmp_path / "new").ok


@pytest.mark.full(but=["inside"])
def test_a_copy_with_its_own_ledger_is_not_a_move_while_the_original_is_there(begun, tmp_path):
    config, folder, inside = begun
    shutil.copytree(folder, tmp_path / "copy")
    if inside:
        with pytest.raises(Refused, match="is still in"):
            train(config, output=tmp_path / "copy", resume=True, moved=True)
        train(config, output=folder, resume=True)
    else:  # one ledger knows of both: the old place is revoked
        train(config, output=tmp_path / "copy", resume=True, moved=True)
        with pytest.raises(Refused):
            train(config, output=folder, resume=True)


# inside, the ledger would be copied with the directory
@pytest.mark.parametrize("begun", ["outside"], indirect=True)
def test_a_process_in_the_old_place_begins_no_further_round(begun, tmp_path):
    """The run is moved while it is being played."""
    config, folder, _ = begun
    shutil.copytree(folder, tmp_path / "new")

    def move(line, _):
        if line["round"] == 3:
            for path in folder.iterdir():
                shutil.copy(path, tmp_path / "new")
            stopped(config, tmp_path / "new", rounds=4, resume=True, moved=True)

    with pytest.raises(FedspendError, match=r"it was moved|closed|another process"):
        train(config, output=folder, resume=True, on_round=move)


@pytest.mark.parametrize("begun", ["outside"], indirect=True)
def test_a_copy_that_was_overtaken_does_not_go_on_even_if_it_is_said_to_be_moved(begun, tmp_path):
    config, folder, _ = begun
    shutil.copytree(folder, tmp_path / "copy")
    stopped(config, folder, rounds=3, resume=True)
    with pytest.raises(Refused, match=r"release\.safetensors is of round 2|not the one that"):
        train(config, output=tmp_path / "copy", resume=True, moved=True)
    train(config, output=folder, resume=True)
    assert audit(str(tmp_path / "accounts.db")).ok


def test_moved_is_for_runs_that_go_on(tiny, tmp_path):
    with pytest.raises(InvalidInput, match="was moved, so it needs resume=True"):
        train(tiny, output=tmp_path / "run", moved=True)
    assert main(["train", "x.toml", "--moved"]) == 2
    train(tiny, output=tmp_path / "run")
    told = []
    train(tiny, output=tmp_path / "run", resume=True, moved=True, on_note=told.append)
    assert any("was not moved, or is over" in note for note in told)


def test_a_finished_run_may_be_copied_and_looked_at(tiny, tmp_path):
    result = train(tiny, output=tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    again = train(tiny, output=tmp_path / "copy", resume=True)
    assert again.metrics == result.metrics


# --- damage ---


def test_without_its_checkpoint_a_run_does_not_begin_again(begun):
    """It restarted from an untrained model, and skipped what was spent."""
    config, folder, _ = begun
    (folder / "checkpoint.safetensors").unlink()
    with pytest.raises(Refused, match="is missing, but the ledger has 2 rounds"):
        train(config, output=folder, resume=True)


def test_an_older_checkpoint_is_not_gone_on_from(tiny, tmp_path):
    folder = stopped(tiny, tmp_path / "run", rounds=1)
    old = (folder / "checkpoint.safetensors").read_bytes()
    stopped(tiny, folder, rounds=3, resume=True)
    (folder / "checkpoint.safetensors").write_bytes(old)
    with pytest.raises(Refused, match="is from after round 1, but the ledger has 3 rounds"):
        train(tiny, output=folder, resume=True)


def test_without_its_release_a_run_does_not_go_on(begun):
    config, folder, _ = begun
    (folder / "release.safetensors").unlink()
    with pytest.raises(Refused, match="is missing, but the ledger has a release of round 2"):
        train(config, output=folder, resume=True)


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "release.safetensors"])
@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "other", "unsealed"])
def test_damaged_tensors_are_refused_in_one_line(tiny, tmp_path, name, how):
    folder = stopped(tiny, tmp_path / "run")
    path = folder / name
    body = bytearray(path.read_bytes())
    if how == "flipped":
        body[-3] ^= 4
    arrays, about = read_tensors(path)
    if how == "unsealed":
        del about["digest"]
        from fedspend.basics.tensors import pack

        body = pack(arrays, about)
    path.write_bytes(
        {"flipped": body, "cut": body[:-9], "empty": b"", "other": b"{}", "unsealed": body}[how]
    )
    with pytest.raises(InvalidInput, match="is damaged") as refused:
        train(tiny, output=folder, resume=True)
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_checkpoint_that_somebody_made_is_noticed_once_its_round_has_begun(tiny, tmp_path):
    folder = stopped(tiny, tmp_path / "run")
    with killed(at="play"):
        train(tiny, output=folder, resume=True)
    arrays, about = read_tensors(folder / "checkpoint.safetensors")
    del about["digest"]
    arrays["parameters"] = np.zeros_like(arrays["parameters"])
    (folder / "checkpoint.safetensors").write_bytes(seal(arrays, about)[0])
    with pytest.raises(Refused, match="is not the one that the ledger has seen"):
        train(tiny, output=folder, resume=True)
    assert not verify_run(folder).ok


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize(
    ("name", "body"),
    [
        (name, body)
        for name in ("certificate.json", "metrics.jsonl", "plan.json", "run.json")
        for body in (b"", b"\xff\xfe", b"[]", b'{"a": ' * 5000, b"{}\n", b"null")
        # that is a certificate of another plan: the plan is verified again
        if (name, body) != ("certificate.json", b"{}\n")
    ],
)
def test_damaged_documents_are_refused_in_one_line(tiny, tmp_path, name, body, capsys):
    config = write_toml(tmp_path / "run.toml", tiny)
    folder = stopped(str(config), tmp_path / "run")
    (folder / name).write_bytes(body)
    code = main(["train", str(config), "-o", str(folder), "--resume"])
    said = capsys.readouterr().err.strip().splitlines()
    assert code in (1, 2)
    assert len(said) == 1, said
    assert said[0].startswith("fedspend: ")
    assert name in said[0]


def test_without_its_plan_a_run_does_not_go_on(tiny, tmp_path):
    folder = stopped(tiny, tmp_path / "run")
    (folder / "plan.json").unlink()
    with pytest.raises(InvalidInput, match=r"plan\.json is missing"):
        train(tiny, output=folder, resume=True)


def test_a_line_of_the_metrics_that_was_changed_is_noticed(tiny, tmp_path):
    folder = stopped(tiny, tmp_path / "run")
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"accuracy": 0.', '"accuracy": 0.9', 1))
    with pytest.raises(InvalidInput, match=r"metrics\.jsonl is damaged"):
        train(tiny, output=folder, resume=True)


# --- who may read, and what times tell ---


def test_every_file_that_shows_budgets_is_the_owners_alone(tiny, tmp_path):
    tiny["train"]["loggers"] = ["tensorboard"]
    folder = tmp_path / "run"
    train(tiny, output=folder)
    write_report([folder], REPORT.of(folder))
    assert all(file.private for file in FILES)
    for path in folder.iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.name == LOGS else 0o600), path.name


def test_times_in_a_real_ledger_do_not_tell_how_long_a_round_took(tiny, tmp_path):
    tiny["privacy"]["randomness"] = "os"
    train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    with Ledger.open(tmp_path / "accounts.db", write=True) as ledger:
        ledger.change(["0"], 20.0, reason="asked by letter")
        times = {}
        for _, text, _ in ledger.entries():
            body = json.loads(text)
            times.setdefault(body["kind"], set()).add(body["time"])
    assert all(len(time) == len("2026-01-31T12:00:00Z") for time in times["change"])
    for kind in ("register", "open", "reserve", "commit", "close"):
        assert all(len(time) == len("2026-01-31") for time in times[kind]), kind
    assert audit(str(tmp_path / "accounts.db")).ok


def test_tensorboard_of_a_real_run_tells_no_times(tiny, tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tiny["privacy"]["randomness"] = "os"
    tiny["train"]["loggers"] = ["tensorboard"]
    train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    events = reading.EventAccumulator(str(tmp_path / "run" / LOGS)).Reload()
    seen = {event.wall_time for name in events.Tags()["scalars"] for event in events.Scalars(name)}
    assert len(seen) == 1
