"""What tests lean on: a kill that does not come is noticed, verdicts are remembered only if they
passed, configs are copies.
"""

from types import SimpleNamespace

import pytest
from lib.configs import CLIENT, changed, small
from lib.runs import killed, stopped
from lib.verdicts import remembering

import fedspend

pytestmark = pytest.mark.usefixtures("quick_verify")


@pytest.mark.full(but_every=5)
@pytest.mark.parametrize("at", ["play", "keep", "enter", "kept", "told"])
def test_a_run_dies_where_it_is_told_to(at, tmp_path):
    with killed(at=at, round=2):
        fedspend.train(small(), output=tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == (2 if at == "told" else 1)
    with pytest.raises(pytest.fail.Exception), killed(at=at, round=9):
        fedspend.train(small(), output=tmp_path / "other")


def test_a_stopped_run_goes_on(tmp_path):
    folder = stopped(small(), tmp_path / "run", rounds=3)
    assert len(fedspend.train(small(), output=folder, resume=True).metrics) == 4


@pytest.mark.parametrize("ok", [True, False])
def test_only_verdicts_that_passed_are_remembered(ok):
    asked = []

    def find(plan, **_options):
        asked.append(plan)
        return SimpleNamespace(ok=ok)

    verify, plan = remembering(find), SimpleNamespace(hash="a")
    for _ in range(3):
        assert verify(plan).ok is ok
    assert len(asked) == (1 if ok else 3)
    for other in (plan, SimpleNamespace(hash="b")):
        verify(other, colluders=2)
    assert len(asked) == (3 if ok else 5)


def test_a_config_is_a_copy():
    made = small(privacy__rate=0.5, privacy__saving_rate=None, stop={"patience": 2})
    assert made["privacy"]["rate"] == 0.5
    assert "saving_rate" not in made["privacy"]
    assert made["stop"] == {"patience": 2}
    made["train"]["rounds"] = 99
    assert CLIENT["train"]["rounds"] == 4
    assert "stop" not in changed(made, stop=None)
