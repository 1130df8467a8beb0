"""docs/results/speed.md and benchmarks/speed/measure.py: the page says what the files say, and what
was measured stays until it is measured again.

That page and files agree as they are in the repository is in test_evidence.py.
"""

from __future__ import annotations

import doctest
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import render
import speed_page
from experiment import Finished
from speed_page import Measured

ROOT = Path(__file__).parents[1]
SPEED = ROOT / "benchmarks" / "speed"
NO_RUNS = Finished(Path("none.jsonl"), {})
pytestmark = [pytest.mark.full, pytest.mark.usefixtures("registries_as_before")]


def loaded(name):
    """A script of the benchmarks, under another name: tests have modules of the same one."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", SPEED / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


measure = loaded("measure")


def of_round(model):
    rivals = ("pfl", "fedjax", "plain torch")
    return {
        model: {
            "fedspend_is_faster_by": dict.fromkeys(rivals, 4.0),
            "times_the_bound": {"fedspend": 2.0},
        }
    }


def found_by(name):
    """Numbers of the shape that each script gives, all made up."""
    if name == "plan-pld":
        return {f"{case}_cpu_seconds": 0.5 for case in loaded("plan").PLD_CASES}
    if name.startswith("plan"):
        return {key: "x" if form == "" else 3 for key, form in speed_page.OF_A_PLAN.values()}
    if name.startswith("rounds"):
        return of_round(name.split("-")[1])
    return {
        "schedules": {},
        "workers": {"workers": {"ratio_of_best": 1.9, "cores_taken_by_others": 0.1}},
        "memory": {"memory_mib_beyond_data": {"logistic": 30.0, "cnn": 150.0}},
        "sorting": {
            points: {key: 2 for key, _ in speed_page.OF_SORTING.values()}
            for points in loaded("sorting").sets(3)
        },
    }[name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in which everything is measured, and which pages are made from."""
    lines = {
        name: {
            "benchmark": name,
            "arguments": [*benchmark.arguments],
            "versions": {"python": "3.11"},
            "found": found_by(name),
            "processor": "Abacus, 2 cores",
            "load": [0.1, 1.25],
        }
        for name, benchmark in measure.BENCHMARKS.items()
    }
    measure.write(tmp_path / measure.LINES, lines)
    row = {"reading_over_budget": 0.75, "noise_below_renyi": 0.1, "planning_cpu_seconds": 0.04}
    rows = [row | {"excess": 1e-5}, row | {"excess": None}]
    (tmp_path / measure.ROWS).write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    monkeypatch.setattr(speed_page, "RESULTS", tmp_path)
    return tmp_path


def pages():
    """Both pages as they would be written, without the rest of the map."""
    text = (ROOT / "docs" / "results" / "speed.md").read_text(encoding="utf-8")
    line = speed_page.IN_THE_MAP["speed"](NO_RUNS)
    return render.rendered(text, speed_page.BLOCKS, NO_RUNS), line


def dashes(text):
    return len(re.findall(r"(?<![\w-])-(?=[ ,;.]|$)", text.removeprefix("- ")))


def test_without_files_every_number_is_a_dash(tmp_path):
    nothing = Measured.read(tmp_path)
    for table in (speed_page.plans, speed_page.pld_plans, speed_page.rounds):
        for row in table(nothing).splitlines()[2:]:
            assert set(row.split(" | ")[1:]) <= {"-", "- |"}
    told = {speed_page.machine: 4, speed_page.in_the_map: 5, speed_page.workers_and_memory: 4}
    for block, count in (told | {speed_page.schedules: 9}).items():
        assert dashes(block(nothing)) == count, block(nothing)


def test_once_everything_is_measured_the_pages_are_whole(folder):
    page, line = pages()
    blocks = re.findall(r": begin -->\n(.*?)<!-- ", page, re.DOTALL)
    assert len(blocks) == len(speed_page.BLOCKS)
    for text in (*blocks, line):
        assert dashes(text) == 0, text
    assert "Abacus, 2 cores" in page
    assert "0.1 to 1.25" in page
    assert folder == speed_page.RESULTS


@pytest.mark.parametrize(
    ("benchmark", "keys", "shown", "in_the_map"),
    [
        ("plan", ["plan_cpu_seconds"], "8765.4", True),
        ("plan-pld", ["25_noises_200_schedules_cpu_seconds"], "8765.43", False),
        ("rounds-mlp-16", ["mlp", "fedspend_is_faster_by", "pfl"], "8765.4", True),
        ("rounds-cnn-64", ["cnn", "times_the_bound", "fedspend"], "8765.43", False),
        ("workers", ["workers", "ratio_of_best"], "8765.43", False),
    ],
)
def test_a_number_that_changes_changes_the_pages(folder, benchmark, keys, shown, in_the_map):
    before = pages()
    lines = measure.read(folder / measure.LINES)
    *path, last = keys
    place = lines[benchmark]["found"]
    for key in path:
        place = place[key]
    place[last] = 8765.43
    measure.write(folder / measure.LINES, lines)
    page, line = pages()
    assert shown in page
    assert shown not in before[0]
    assert (shown in line) == (line != before[1]) == in_the_map


def test_a_schedule_over_its_budget_is_told(folder):
    assert "were checked: 2; over their budgets: 0." in pages()[0]
    row = {"reading_over_budget": 1.5, "noise_below_renyi": 0.1, "planning_cpu_seconds": 0.04}
    with (folder / measure.ROWS).open("a") as file:
        file.write(json.dumps(row | {"excess": None}) + "\n")
    assert "were checked: 3; over their budgets: 1." in pages()[0]
    assert "below the budgets by -5.0e-01 to 2.5e-01" in pages()[0]


@pytest.mark.parametrize("module", [measure, speed_page])
def test_examples_in_docstrings(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_page_and_plans_name_the_same_cases():
    assert set(speed_page.PLD_PLANS) == set(loaded("plan").PLD_CASES)


def test_a_plan_is_measured_with_what_the_page_shows():
    """But for what --verify finds, which takes longer, and Opacus."""
    small = ["--json", "--clients", "50", "--rounds", "3", "--repeats", "1"]
    run = [sys.executable, str(SPEED / "plan.py"), *small]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    wanted = {key for key, _ in speed_page.OF_A_PLAN.values()}
    missing = wanted - set(json.loads(done.stdout))
    assert {key for key in missing if not re.match("verify|opacus|times_faster", key)} == set()


class Command:
    """measure.py with one benchmark, a script that counts how often it runs."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        self.script = folder / "script.py"
        monkeypatch.setattr(
            measure,
            "BENCHMARKS",
            {"one": measure.Benchmark(str(self.script), ("--x", "1"), ("numpy",), peers=True)},
        )
        self.write("")

    def write(self, ending):
        self.script.write_text(
            "import json, pathlib, sys\n"
            "place = pathlib.Path(__file__).with_name('count')\n"
            "place.write_text(str(int(place.read_text()) + 1 if place.exists() else 1))\n"
            f"print(json.dumps({{'count': place.read_text(), 'given': sys.argv[1:]}}))\n{ending}"
        )

    def __call__(self, *arguments):
        """Exit code and the line afterwards."""
        given = ["measure.py", "--results", str(self.folder), *arguments]
        self.monkeypatch.setattr(sys, "argv", given)
        return measure.main(), measure.read(self.folder / measure.LINES).get("one")


def test_what_is_measured_is_kept_until_it_is_measured_again(tmp_path, monkeypatch):
    command = Command(tmp_path, monkeypatch)
    code, line = command()
    assert (code, line["found"]) == (0, {"count": "1", "given": ["--json", "--x", "1"]})
    assert set(line["versions"]) == {"python", "numpy"}
    assert len(line["load"]) == 2
    assert command() == (0, line)
    assert command("--again")[1]["found"]["count"] == "2"
    assert command("--", "--y", "2")[1]["arguments"] == ["--x", "1", "--y", "2"]
    assert command()[1]["found"]["count"] == "4", "other arguments: measured anew"
    assert len((tmp_path / measure.LINES).read_text().splitlines()) == 1


def test_peers_that_are_there_now_are_measured_and_not_lost(tmp_path, monkeypatch):
    command = Command(tmp_path, monkeypatch)
    command()
    versions = {sys.executable: {"numpy": "2"}, "theirs": {"numpy": "1", "pfl": "0.6.0"}}
    monkeypatch.setattr(measure, "installed", versions.get)
    _, line = command("--peers-python", "theirs")
    assert line["versions"]["pfl"] == "0.6.0"
    assert line["found"]["given"][-2:] == ["--peers-python", "theirs"]
    assert command() == (0, line), "a run without peers does not replace it"


def test_a_benchmark_that_fails_leaves_its_line(tmp_path, monkeypatch, capfd):
    command = Command(tmp_path, monkeypatch)
    _, line = command()
    command.write("sys.exit(1)")
    assert command("--again") == (1, line)
    assert "failed: one" in capfd.readouterr().err
    with pytest.raises(SystemExit, match="no such benchmark; there are one"):
        command("--only", "two")
