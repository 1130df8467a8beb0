"""Inputs that the fuzzer found: every reader of what others wrote does with them what it promises.

`tools/fuzz.py` says what that is, and finds more. Those called `found-...` once broke it.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))
import fuzz  # noqa: E402

import fedspend  # noqa: E402
from fedspend.planning import plan_json  # noqa: E402
from fedspend.planning.protocol import load_any_plan  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

# they verify, or import what takes a while
LONG = {"run", "publication", "export", "wire", "checkpoint"}
KEPT = {name: fuzz.kept(name) for name in fuzz.TARGETS}


def test_every_target_has_inputs():
    assert all(KEPT.values())


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.full] if name in LONG else []) for name in KEPT],
)
def test_inputs_that_were_found_are_read_or_refused(name):
    broken = {}
    fuzz.check(name, next(iter(KEPT[name].values())), timed=False)  # imports what it needs
    for label, body in KEPT[name].items():
        try:
            fuzz.check(name, body)
        except fuzz.Broken as error:
            broken[label] = str(error)
    assert not broken


@pytest.mark.parametrize(
    ("reader", "wrong"),
    [
        (lambda: Path("a").write_text(""), "open "),
        (lambda: Path("a").rename("b"), "os.rename"),
        (lambda: socket.socket().connect(("127.0.0.1", 1)), "socket.connect"),
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: [0] * (1 << 62), "MemoryError"),
        (lambda: plan_json.parsed_text(b"no"), None),
    ],
)
def test_a_reader_that_does_what_it_must_not_is_noticed(reader, wrong, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    target = fuzz.Target(lambda _: reader, lambda body, _: body, "")
    monkeypatch.setitem(fuzz.TARGETS, "one", target)
    if wrong is None:
        fuzz.check("one", b"")
    else:
        with pytest.raises(fuzz.Broken, match=wrong):
            fuzz.check("one", b"")
    assert not list(tmp_path.iterdir())


def test_a_plan_that_compresses_too_well_is_kept_as_it_is(monkeypatch, tmp_path):
    """What is refused when it is read is not written."""
    monkeypatch.setattr(plan_json, "SMALL", 100)
    monkeypatch.setattr(plan_json, "MOST_PACKED", 1)
    plan = fedspend.plan(
        [10.0, 20.0], delta=1e-5, rounds=4, rate=0.5, policy="uniform", accountant="rdp"
    )
    plan.save(tmp_path / "plan.json.gz")
    assert load_any_plan(tmp_path / "plan.json.gz").hash == plan.hash
