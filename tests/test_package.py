"""What is built: the wheel has everything that the code reads, and works where nothing else is.

`make test-dist` also installs it in clean environments, with each extra.
"""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import fedspend
from fedspend.starting.templates import TEMPLATES

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILD = (
    "from setuptools import build_meta\n"
    "print(build_meta.build_wheel('out'))\nprint(build_meta.build_sdist('out'))"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, sdist), built from a copy, because building writes beside the sources."""
    folder = tmp_path_factory.mktemp("build")
    junk = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=junk)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    (folder / "out").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BUILD], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return next((folder / "out").glob("*.whl")), next((folder / "out").glob("*.tar.gz"))


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The wheel, unpacked as an installer does it."""
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(built[0]) as wheel:
        wheel.extractall(folder)
    return folder


def inside(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


@pytest.mark.full
def test_the_wheel_has_every_file_of_the_package_and_the_examples(installed):
    code = {name for name in inside(ROOT / "src") if ".egg-info/" not in name}
    examples = {f"fedspend/examples/{name}" for name in inside(ROOT / "examples")}
    built = {name for name in inside(installed) if ".dist-info/" not in name}
    assert built == code | examples


def test_metadata(installed):
    [place] = installed.glob("*.dist-info/METADATA")
    told = email.message_from_string(place.read_text(encoding="utf-8"))
    assert told["Version"] == fedspend.__version__
    assert set(told.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert told["License-Expression"] == "Apache-2.0"
    assert told.get_payload().startswith("# fedspend")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {fedspend.__version__}\n" in citation
    assert re.search(r"^fedspend = fedspend\.cli\.main:main$", entry_points(installed), re.M)


def entry_points(installed: Path) -> str:
    [place] = installed.glob("*.dist-info/entry_points.txt")
    return place.read_text(encoding="utf-8")


@pytest.mark.full
def test_templates_come_out_of_the_wheel(installed, tmp_path):
    """From there alone: the repository is not on the path."""
    program = (
        "import sys, json, fedspend\nfrom pathlib import Path\n"
        "from fedspend.starting.templates import TEMPLATES, examples, write\n"
        "made = {name: len(write(Path(name), name)) for name in TEMPLATES}\n"
        "print(json.dumps([fedspend.__file__, str(examples()), made]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    module, examples, made = json.loads(done.stdout)
    assert module.startswith(str(installed))
    assert examples == str(installed / "fedspend" / "examples")
    assert set(made) == set(TEMPLATES)
    assert all(number >= 2 for number in made.values())


def test_the_sdist_can_be_built_again_and_tested(built):
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert names >= {"setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"}
    assert names >= {"SECURITY.md", "CITATION.cff", "Makefile", "constraints.txt"}
    assert {"examples/quickstart.toml", "src/fedspend/cli/main.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("runs/")]


WITHOUT_TRAIN = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors", "sklearn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from fedspend.cli.main import main

terms = ["--epsilon", "3:2", "--delta", "1e-3", "--rounds", "2", "--rate", "0.5"]
sys.exit(main(["plan", *terms, "-o", "plan.json"]) or main(["verify", "plan.json"]))
"""


@pytest.mark.full
def test_a_plan_is_made_and_checked_without_the_extra_train(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TRAIN],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
