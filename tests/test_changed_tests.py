"""`tools/changed_tests.py` on a small repository: what a change may break is printed, and what it
cannot reach is not.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import changed_tests

FILES = {
    "src/fedspend/__init__.py": "if 0:\n    from fedspend.runs.training import train as train\n",
    "src/fedspend/noise/grid.py": '"""\n>>> 1\n1\n"""\n',
    "src/fedspend/noise/other.py": "",
    "src/fedspend/server/__init__.py": "from fedspend.server.release import go as go\n",
    "src/fedspend/server/release.py": "def go():\n    from fedspend.noise.grid import Grid\n",
    "src/fedspend/server/steps.py": "",
    "src/fedspend/runs/training.py": "import fedspend.server.release\n",
    "src/fedspend/report/page.py": "",
    "src/fedspend/report/assets/page.css": "",
    "src/fedspend/cli/main.py": "from fedspend.cli import plan, at_once\n",
    "src/fedspend/cli/plan.py": "from fedspend.noise import grid\n",
    "src/fedspend/cli/at_once.py": "",
    "tests/conftest.py": (
        "from lib import marks\nfrom tiny import TINY\nfrom places import Server\n\n\n"
        "@pytest.fixture\ndef run():\n    from fedspend.cli.main import main\n\n\n"
        "@pytest.fixture\ndef place(server): ...\n\n\n"
        "@pytest.fixture\ndef server():\n    return started()\n\n\n"
        "def started():\n    return Server(TINY)\n\n\n"
        "def pytest_configure(config):\n    marks.register()\n"
    ),
    "tests/tiny.py": "TINY = {}\n",
    "tests/lib/marks.py": "",
    "tests/places.py": "class Server:\n    import fedspend.report.page\n",
    "tests/noise/test_grid.py": "from fedspend.noise.grid import Grid\n",
    "tests/noise/test_other.py": "import fedspend.noise.other\n",
    "tests/server/helping.py": "from fedspend.server import go\n",
    "tests/server/test_release.py": "from server.helping import go\n",
    "tests/server/test_steps.py": "from fedspend.server.steps import step\n",
    "tests/server/numbers.csv": "",
    "tests/runs/test_train.py": "import fedspend\n\n\ndef test():\n    fedspend.train()\n",
    "tests/runs/test_patched.py": "def test(m):\n    m.setattr('fedspend.noise.grid.Grid', 1)\n",
    "tests/cli/test_plan.py": "def test(run):\n    run('plan')\n",
    "tests/cli/test_at_once.py": "def test(run):\n    run('at-once', 'x')\n",
    "tests/report/conftest.py": "",
    "tests/report/test_look.py": "pytestmark = pytest.mark.usefixtures('place')\n",
    "tests/deployment/test_real.py": "import fedspend.noise.grid\n",
    "tests/test_docs.py": 'PAGES = "docs"\n',
    "docs/how-to/train.md": "",
    "examples/quickstart.toml": "",
}

GRID = ["tests/noise/test_grid.py", "tests/noise/test_other.py"]  # its room
RELEASE = [
    "tests/server/test_release.py"
]  # imports a changed module, through a package and a helper
CHANGES = {
    "src/fedspend/noise/grid.py": [
        *GRID,
        *RELEASE,
        "tests/runs/test_patched.py",
        "tests/cli/test_plan.py",
        "src/fedspend/noise/grid.py",
    ],
    "src/fedspend/noise/other.py": [*GRID, "tests/runs/test_patched.py"],
    "src/fedspend/server/release.py": [
        *RELEASE,
        "tests/server/test_steps.py",
        "tests/runs/test_train.py",
    ],
    "src/fedspend/report/assets/page.css": ["tests/report/test_look.py"],
    "src/fedspend/cli/at_once.py": ["tests/cli/test_plan.py", "tests/cli/test_at_once.py"],
    "tests/tiny.py": ["tests/report/test_look.py"],
    "tests/server/helping.py": RELEASE,
    "tests/server/numbers.csv": [*RELEASE, "tests/server/test_steps.py"],
    "tests/report/conftest.py": ["tests/report/test_look.py"],
    "tests/noise/test_grid.py": ["tests/noise/test_grid.py"],
    "tests/deployment/test_real.py": [],
    "docs/how-to/train.md": ["tests/test_docs.py"],
    "docs/how-to/data.md": ["tests/test_docs.py"],
    "examples/quickstart.toml": [],
    # gone, and still imported
    "src/fedspend/noise/gone.py": [*GRID, "tests/runs/test_patched.py"],
}


@pytest.fixture
def repository(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("changed", CHANGES)
def test_what_a_change_reaches(repository, changed):
    tree = changed_tests.Tree(repository, [changed])
    assert sorted(changed_tests.select_tests(tree, [changed])) == sorted(CHANGES[changed])


@pytest.mark.parametrize("changed", ["tests/conftest.py", "tests/lib/marks.py"])
def test_what_every_test_meets_reaches_every_test(repository, changed):
    tree = changed_tests.Tree(repository)
    found = changed_tests.select_tests(tree, [changed])
    assert found == changed_tests.test_files(tree)
    assert len(found) == 10


def test_what_has_changed_since_a_revision(repository):
    if shutil.which("git") is None:
        pytest.skip("git is not on the PATH")

    def git(*arguments: str) -> None:
        me = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *me, *arguments], cwd=repository, check=True, capture_output=True)

    git("init", "--initial-branch", "main")
    git("add", ".")
    git("commit", "--message", "first")
    assert changed_tests.changed_files(repository, None) == []
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    git("mv", "tests/tiny.py", "tests/töny.py")
    git("commit", "--message", "second")
    (repository / "docs/how-to/train.md").write_text("new", encoding="utf-8")
    (repository / "docs/new page.md").write_text("", encoding="utf-8")
    (repository / ".gitignore").write_text("*.log\n", encoding="utf-8")
    (repository / "a.log").write_text("", encoding="utf-8")
    now = [".gitignore", "docs/how-to/train.md", "docs/new page.md"]
    assert changed_tests.changed_files(repository, "HEAD") == now
    since = sorted([*now, "tests/tiny.py", "tests/töny.py"])
    assert changed_tests.changed_files(repository, None) == since
    assert changed_tests.changed_files(repository, "HEAD~1") == since


@pytest.mark.full
def test_what_is_printed(repository, monkeypatch, capsys):
    monkeypatch.setattr(changed_tests, "ROOT", repository)
    monkeypatch.setattr(changed_tests, "changed_files", lambda _, base: [f"docs/{base}.md"])
    assert changed_tests.main(["--base", "v1"]) == 0
    assert capsys.readouterr().out == "tests/test_docs.py\n"
