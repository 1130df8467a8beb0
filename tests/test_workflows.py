"""The workflows run what contributors run: targets that exist, on the versions that are promised.

`make lint` holds their form against the schema of GitHub.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / ".github/workflows").glob("*.yml"))
}
JOBS = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
STEPS = [step for job in JOBS for step in job["steps"]]


def test_commands_are_targets_of_make_or_the_script_that_runs_everything():
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", made, re.M))
    commands = [step["run"] for step in STEPS if "run" in step]
    wrong = [
        command
        for command in commands
        if command != "bash .ci/run"
        and not (command.startswith("make ") and command.split()[1] in targets)
    ]
    assert wrong == []
    assert {"make lint", "bash .ci/run"} <= set(commands)


def test_actions_are_pinned_by_their_major_version():
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used
    assert [one for one in used if not re.fullmatch(r"actions/[a-z-]+@v\d+", one)] == []


def test_every_version_of_python_that_is_promised_is_tested():
    [matrix] = [job["strategy"]["matrix"]["python"] for job in JOBS if "strategy" in job]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert matrix == promised
    assert PROJECT["requires-python"] == f">={promised[0]}"
