"""The files of a run directory: one list, which is complete, and one reader."""

import ast
import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import fedspend
from fedspend import train
from fedspend.errors import InvalidInput
from fedspend.report.html import write_report
from fedspend.stored.files import (
    FILES,
    HOLD_OUT,
    LOGS,
    OLD_NORMS,
    PLAN,
    REPORT,
    SIGNATURE,
    TUNE,
    as_table,
)
from fedspend.stored.run import NamedLedger, StoredRun

SOURCE = Path(fedspend.__file__).parent
ROOT = Path(__file__).parent.parent


def literals(path):
    """Strings in a module that are not docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docs:
            yield node.value


@pytest.mark.full
def test_no_other_module_names_a_file_of_a_run():
    # In the examples of the command line, plan.json is a file that the user names.
    names = {file.name for file in FILES} - {PLAN.name}
    found = [
        f"{path.relative_to(SOURCE)}: {text!r}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path != SOURCE / "stored" / "files.py"
        for text in literals(path)
        if text == PLAN.name or any(name in text for name in names)
    ]
    assert found == []


def test_every_writer_is_a_module():
    for file in FILES:
        path = SOURCE / (file.writer.replace(".", "/") + ".py")
        assert path.exists() or file == OLD_NORMS, file


def test_the_guide_shows_the_list():
    assert as_table() in (ROOT / "docs" / "how-to" / "run-directory.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("quick_verify")
def test_a_run_leaves_the_files_that_are_listed_and_no_others(tiny, tmp_path):
    tiny["train"]["loggers"] = ["tensorboard"]
    train(tiny, output=tmp_path / "run")
    write_report([tmp_path / "run"], REPORT.of(tmp_path / "run"))
    found = {path.name: path for path in (tmp_path / "run").iterdir()}
    assert found.pop(LOGS).is_dir()
    # this run was not signed, holds no rows out, and is no tune
    not_here = (OLD_NORMS, SIGNATURE, HOLD_OUT, TUNE)
    assert set(found) == {file.name for file in FILES} - {file.name for file in not_here}
    for file in FILES:
        if file not in not_here:
            assert stat.S_IMODE(found[file.name].stat().st_mode) == file.mode, file


@pytest.mark.usefixtures("quick_verify")
def test_what_a_run_wrote_is_what_the_reader_finds(tiny, tmp_path):
    result = train(tiny, output=tmp_path / "run")
    found = StoredRun(tmp_path / "run")
    facts = found.facts()
    assert facts.simulation is True
    assert facts.settings["train.seed"] == 5
    assert facts.plan_hash == result.plan.hash == found.plan().hash
    assert found.certificate()["plan_hash"] == result.plan.hash
    assert found.metrics() == result.metrics
    assert facts.ledger.location == "ledger.db"
    assert len(facts.ledger.run) == 12


@pytest.mark.parametrize(
    ("ledger", "words"),
    [
        (3, "which ledger"),
        ({"run": "a"}, "which ledger"),
        ({"location": 3, "run": "a"}, "which ledger"),
    ],
)
def test_a_damaged_name_of_the_ledger_is_refused_in_one_line(tmp_path, ledger, words):
    (tmp_path / "run.json").write_text(json.dumps({"settings": {}, "ledger": ledger}))
    with pytest.raises(InvalidInput, match=words) as refused:
        StoredRun(tmp_path).facts()
    assert "\n" not in str(refused.value)


def test_a_run_that_says_little_is_read_as_far_as_it_goes(tmp_path):
    assert not StoredRun(tmp_path).begun
    (tmp_path / "run.json").write_text(
        json.dumps({"settings": {}, "ledger": {"location": "x.db", "run": "a"}, "groups": "none"})
    )
    facts = StoredRun(tmp_path).facts()
    assert (facts.simulation, facts.majority, facts.groups) == (None, None, None)
    assert facts.ledger == NamedLedger("x.db", "a")
    assert StoredRun(tmp_path).plan() is None
    assert StoredRun(tmp_path).certificate() is None
    assert StoredRun(tmp_path).metrics() == []


@pytest.mark.full
def test_reading_a_run_needs_no_torch():
    script = (
        "import sys; import fedspend.report.html, fedspend.stored.run; "
        "sys.exit('torch' in sys.modules or 'safetensors' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
