"""What clients remember: any id has a place of its own, for its owner's eyes only; what cannot be
read is said in one line.
"""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspend.client import state
from fedspend.client.state import FolderStates, MemoryStates, folder_beside
from fedspend.errors import InvalidInput

AWKWARD = [
    "",
    ".",
    "..",
    "../x",
    "/etc",
    "a/b",
    "a\\b",
    "a\0b",
    "a\nb",
    "%2E",
    "=",
    "a b",
    "é",
    "e\u0301",
    "\ud800",
    "x" * 5000,
    "A",
    "a",
]
ids = st.one_of(
    st.sampled_from(AWKWARD), st.text(max_size=120), st.text(st.characters(codec=None), max_size=5)
)


@pytest.mark.full
@given(st.lists(ids, unique=True, min_size=2, max_size=8))
def test_any_id_has_a_place_of_its_own_inside_the_folder(clients):
    folder = Path("runs/first.clients")
    places = [Path(FolderStates(folder).place(client)) for client in clients]
    for place in places:
        assert place.parent.parent == folder, "neither the folder itself nor anything above it"
        assert place.parent.resolve().parent == folder.resolve()
        assert len(place.parent.name) <= 255
    assert len({place.parent.name.lower() for place in places}) == len(clients), (
        "also where capitals are not told apart"
    )


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_what_was_written_is_read_by_its_client_and_by_nobody_else(tmp_path, kind):
    states = FolderStates(tmp_path / "states") if kind == "folder" else MemoryStates()
    for number, client in enumerate(AWKWARD):
        assert states.read(client) is None
        states.write(client, b"old")
        states.write(client, bytes([number]))
    assert [states.read(client) for client in AWKWARD] == [
        bytes([number]) for number in range(len(AWKWARD))
    ]
    assert states.read("somebody else") is None
    assert "somebody else" in states.place("somebody else") or kind == "folder"


def test_an_id_that_is_the_hash_of_another_has_a_place_of_its_own(tmp_path):
    states, long = FolderStates(tmp_path), "x" * 5000
    states.write(long, b"long")
    for forged in (
        Path(states.place(long)).parent.name,
        Path(states.place(long)).parent.name.lstrip("="),
    ):
        assert states.read(forged) is None


def test_states_are_for_their_owner_only(tmp_path):
    before = os.umask(0)
    try:
        states = FolderStates(tmp_path / "run.clients")
        states.write("north", b"private")
    finally:
        os.umask(before)
    path = Path(states.place("north"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {
        stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)
    } == {0o700}
    assert [one.name for one in path.parent.iterdir()] == [state.FILE], (
        "no half-written file is left"
    )


def test_a_state_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    states = FolderStates(tmp_path)
    states.write("north", b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        states.write("north", b"new")
    assert states.read("north") == b"old"
    assert [one.name for one in Path(states.place("north")).parent.iterdir()] == [state.FILE]


def test_a_state_that_cannot_be_read_is_named_and_not_taken_for_a_missing_one(tmp_path):
    """A missing state has a meaning: all rounds so far are paid at the clip. One that is there and
    unreadable must not have it.
    """
    states = FolderStates(tmp_path)
    path = Path(states.place("north"))
    path.mkdir(parents=True)
    with pytest.raises(InvalidInput, match="cannot be read") as refused:
        states.read("north")
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    other = Path(states.place("south"))
    other.parent.write_bytes(b"a file where a folder should be")
    with pytest.raises(InvalidInput, match="cannot be read"):
        states.read("south")


def test_states_are_beside_the_run_directory():
    assert folder_beside(Path("runs/first")) == Path("runs/first.clients").resolve()
    assert folder_beside(Path("runs/first.v2")) == Path("runs/first.v2.clients").resolve()


def test_states_lie_beside_the_run_directory_however_it_is_called(tmp_path, monkeypatch):
    (tmp_path / "run" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    beside = tmp_path.resolve() / "run.clients"
    for name in (tmp_path / "run", Path("."), Path("inner/.."), Path("../run"), tmp_path / "link"):
        assert folder_beside(name) == beside
