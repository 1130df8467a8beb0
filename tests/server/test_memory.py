"""A mechanism with a memory: noise that is correlated over rounds survives a kill at any write; a
lost memory is not made up.
"""

import dataclasses

import numpy as np
import pytest
from lib.runs import Killed, check_killed_at_every_write, killed

from fedspend.basics.tensors import read_tensors
from fedspend.configuration.config import config_of
from fedspend.errors import Refused
from fedspend.runs.running import run
from fedspend.runs.setup import from_config
from fedspend.server.mechanism import Noised

pytestmark = pytest.mark.usefixtures("quick_verify")
PARAMETERS = 21


class Correlated:
    """Noise `z_t - z_{t-1} / 2`: what one round adds, the next takes away in part. The memory is
    the last z.
    """

    def __init__(self, seed=7):
        self.seed = seed

    def start(self):
        return {"last": np.zeros(PARAMETERS)}

    def draw(self, round):
        return np.random.default_rng([self.seed, round]).standard_normal(PARAMETERS)

    def release(self, sum, memory):
        z = self.draw(sum.round)
        noised = sum.total + sum.deviation * (z - 0.5 * memory["last"])
        return Noised(noised / sum.denominator), {"last": z}


@pytest.fixture
def small(tiny):
    tiny["train"]["rounds"] = 4
    return tiny


def correlated(sections, mechanism=None):
    setup = from_config(config_of(sections))
    return dataclasses.replace(
        setup, training=dataclasses.replace(setup.training, mechanism=mechanism or Correlated())
    )


def last_release(folder):
    """The round whose release is on disk, and all of the file: the release, and the memory after
    it.
    """
    path = folder / "release.safetensors"
    if not path.exists():
        return {}
    return {read_tensors(path)[1]["round"]: path.read_bytes()}


def play(setup, folder, seen, **options):
    """Run to the end or to the kill; every release that was on disk after a round, or at the kill,
    is put into `seen`.
    """

    def note(*_):
        for round, body in last_release(folder).items():
            assert seen.setdefault(round, body) == body, "no round is released in two ways"

    try:
        return run(setup, folder, on_round=note, **options)
    finally:
        note()


def outcome(folder):
    names = (
        "metrics.jsonl",
        "model.safetensors",
        "checkpoint.safetensors",
        "release.safetensors",
        "plan.json",
    )
    return {name: (folder / name).read_bytes() for name in names}


def test_noise_is_correlated_as_the_mechanism_says(small, tmp_path):
    """Releases of a run without rows, so that noise is all there is: `z_t - z_{t-1} / 2` in every
    round.
    """
    mechanism, seen = Correlated(), {}
    setup = correlated(small, mechanism)
    nobody = tuple(np.zeros(0, dtype=np.int64) for _ in setup.federation.shards)
    setup = dataclasses.replace(
        setup, federation=dataclasses.replace(setup.federation, shards=nobody)
    )
    play(setup, tmp_path / "run", seen)
    before = np.zeros(PARAMETERS)
    for t in range(4):
        path = tmp_path / f"{t}.safetensors"
        path.write_bytes(seen[t])
        arrays, _ = read_tensors(path)
        terms = setup.method.terms(t, {})
        wanted = terms.deviation * (mechanism.draw(t) - 0.5 * before) / terms.denominator
        np.testing.assert_array_equal(arrays["update"], wanted.astype(np.float32))
        np.testing.assert_array_equal(arrays["memory.last"], mechanism.draw(t))
        before = mechanism.draw(t)


@pytest.mark.full
def test_killed_at_every_write_releases_model_and_memory_are_those_of_an_uninterrupted_run(
    small, tmp_path
):
    releases = {}

    def go(folder, resume):
        play(correlated(small), folder, releases.setdefault(folder, {}), resume=resume)

    def all_of(folder):
        return outcome(folder), releases[folder]

    check_killed_at_every_write(tmp_path, go, all_of, writes=30)
    assert sorted(releases[tmp_path / "whole"]) == [0, 1, 2, 3]


def killed_after(setup, folder, rounds):
    with killed(round=rounds):
        run(setup, folder, project="memory")


def test_a_mechanism_that_forgets_would_be_noticed(small, tmp_path):
    """The broken store: a resumed run that begins with an empty memory ends elsewhere."""

    class Forgetful(Correlated):
        def release(self, sum, memory):
            return super().release(sum, self.start() if sum.round == 2 else memory)

    run(correlated(small), tmp_path / "whole")
    killed_after(correlated(small), tmp_path / "cut", 2)
    run(correlated(small, Forgetful()), tmp_path / "cut", resume=True)
    assert (
        outcome(tmp_path / "cut")["model.safetensors"]
        != outcome(tmp_path / "whole")["model.safetensors"]
    )


@pytest.mark.parametrize("randomness", ["seeded", "os"])
def test_a_lost_memory_is_refused(small, tmp_path, randomness):
    """Begun anew, the noise of the next round would not fit the releases that are out."""
    small["privacy"]["randomness"] = randomness
    folder = tmp_path / "run"
    killed_after(correlated(small), folder, 2)
    (folder / "release.safetensors").unlink()
    before = (folder / "checkpoint.safetensors").read_bytes()
    for _ in range(2):
        with pytest.raises(Refused, match=r"release\.safetensors is missing"):
            run(correlated(small), folder, resume=True)
    assert (folder / "checkpoint.safetensors").read_bytes() == before
    assert not (folder / "release.safetensors").exists()


@pytest.mark.full(only=["os"])
@pytest.mark.parametrize("randomness", ["seeded", "os"])
def test_an_older_copy_of_the_memory_is_refused(small, tmp_path, randomness):
    """It looks like a memory, and the noise that it makes does not fit the releases any better than
    none.
    """
    small["privacy"]["randomness"] = randomness
    folder, older = tmp_path / "run", {}
    setup = correlated(small)

    def look(*_):
        older.update(last_release(folder))

    with killed(round=3):
        run(setup, folder, on_round=look, project="memory")
    newest = (folder / "release.safetensors").read_bytes()
    (folder / "release.safetensors").write_bytes(older[1])
    with pytest.raises(Refused, match=r"release\.safetensors is of round 2"):
        run(correlated(small), folder, resume=True)
    (folder / "release.safetensors").write_bytes(newest)
    assert len(run(correlated(small), folder, resume=True).metrics) == 4


def test_a_memory_that_there_never_was_is_begun(small, tmp_path, monkeypatch):
    """A real run that dies before its first release, and again before its second: nothing is out,
    so nothing was lost.
    """
    small["privacy"]["randomness"] = "os"
    folder, real, memories = tmp_path / "run", Correlated.release, {}

    def watched(self, sum, memory):
        memories[sum.round] = memory["last"]
        if sum.round < 2:
            raise Killed
        return real(self, sum, memory)

    monkeypatch.setattr(Correlated, "release", watched)
    for resume in (False, True):
        with pytest.raises(Killed):
            run(correlated(small), folder, resume=resume, project="memory")
    result = run(correlated(small), folder, resume=True)
    assert [bool(line.get("skipped")) for line in result.metrics] == [True, True, False, False]
    assert not memories[2].any()
    np.testing.assert_array_equal(memories[3], Correlated().draw(2))


def test_a_mechanism_without_a_memory_does_not_go_on_without_the_file_either(small, tmp_path):
    """It would need nothing of it; but what is missing shows that this is not the run as it was."""
    run(from_config(config_of(small)), tmp_path / "whole")
    killed_after(from_config(config_of(small)), tmp_path / "cut", 2)
    file = tmp_path / "cut" / "release.safetensors"
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(Refused, match=r"release\.safetensors is missing"):
        run(from_config(config_of(small)), tmp_path / "cut", resume=True)
    file.write_bytes(content)
    run(from_config(config_of(small)), tmp_path / "cut", resume=True)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_a_real_round_that_was_lost_leaves_the_memory_of_the_last_release(
    small, tmp_path, monkeypatch
):
    """Round 3 is reserved and dies: it is skipped, and round 4 takes away half of what round 2
    added.
    """
    small["privacy"]["randomness"] = "os"
    folder, real, memories = tmp_path / "run", Correlated.release, {}

    def watched(self, sum, memory):
        memories[sum.round] = memory["last"]
        if sum.round == 2:
            raise Killed
        return real(self, sum, memory)

    monkeypatch.setattr(Correlated, "release", watched)
    with pytest.raises(Killed):
        run(correlated(small), folder, project="memory")
    result = run(correlated(small), folder, resume=True)
    assert [bool(line.get("skipped")) for line in result.metrics] == [False, False, True, False]
    np.testing.assert_array_equal(memories[3], Correlated().draw(1))
