"""What messages advise is there: the flags of commands, and the keys of a config.

The fixture `refused` looks at every message that a test provokes; here is what the source says.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import advised
import pytest

import fedspend
from fedspend.configuration.sections import SECTIONS

SOURCE = Path(fedspend.__file__).parent
FLAGS = advised.flags()
ANY = set().union(*FLAGS.values())
# of `flwr`, `flower-superlink` and `flower-supernode`
OF_FLOWER = {"--run-config", "--node-config"}
PROGRAMS = {"flower/loopback.py", "flower/project.py"}  # start those, or write scripts that do
GONE = {"basics/removed.py"}  # names what is not there any more


def texts(path: Path) -> list[tuple[int, str]]:
    """The texts in a module that people may be shown: not what describes the code itself."""
    tree = ast.parse(path.read_text())
    hidden = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    pieces = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in hidden | pieces:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (one.value if isinstance(one, ast.Constant) else "X" for one in node.values)
            found.append((node.lineno, "".join(map(str, parts))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append((node.lineno, node.value))
    return found


def modules() -> list[str]:
    return sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))


@pytest.mark.full(but_every=20)
@pytest.mark.parametrize("module", sorted(set(modules()) - PROGRAMS - GONE))
def test_a_flag_that_is_advised_is_one_of_the_command(module):
    room, name = module.split("/")[0], Path(module).stem.replace("_", "-")
    own = FLAGS.get(name, ANY) if room == "cli" else ANY
    for line, text in texts(SOURCE / module):
        for whose, flag in advised.advised(text):
            there = own | OF_FLOWER if whose is None else FLAGS[whose]
            assert flag in there, (
                f"{module}:{line}: {whose or 'this command'} has no {flag}: {text}"
            )


def test_a_flag_that_is_not_there_is_noticed():
    found = list(advised.advised("give --clients N; or fedspend ledger verify --runs DIR --chain"))
    assert found == [
        (None, "--clients"),
        ("ledger verify", "--runs"),
        ("ledger verify", "--chain"),
    ]
    assert "--clients" in FLAGS["plan"] - FLAGS["train"]
    assert "--runs" in FLAGS["ledger verify"] - FLAGS["ledger show"]
    assert "--chain" not in ANY


DOTTED = re.compile(rf"(?<![\w./:{{\-])({'|'.join(SECTIONS)})\.([a-z_]+)\b(?![./(\w])")
FILES = {"db", "json", "toml"}


@pytest.mark.full(but_every=20)
@pytest.mark.parametrize("module", sorted(set(modules()) - GONE))
def test_a_key_that_is_named_is_one_of_its_section(module):
    for line, text in texts(SOURCE / module):
        # one word may be anything: a module, a setting that the code looks up
        for section, key in DOTTED.findall(text) if " " in text else ():
            there = key in SECTIONS[section] or key in FILES
            assert there, f"{module}:{line}: [{section}] has no {key}: {text}"


ONE_CLIENT = """
[data]
name = "digits"
clients = 5
[model]
name = "logistic"
[method]
name = "dp-fedavg"
[privacy]
epsilon = 3
delta = 1e-3
rate = 0.5
clip = 1
[train]
rounds = 2
batch_size = 4
local_steps = 1
lr = 0.1
"""


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("delta = 1e-3", "give delta under [privacy] in the config, or --set privacy.delta=VALUE"),
        ("clients = 5", "give clients under [data] in the config, or --set data.clients=VALUE"),
        ("epsilon = 3", "no budgets: give epsilon, groups or budgets under [privacy] in a config"),
    ],
)
def test_training_advises_no_flag_of_planning(refused, tmp_path, without, said):
    (tmp_path / "config.toml").write_text(ONE_CLIENT.replace(without, ""))
    assert said in refused("train", tmp_path / "config.toml", "-o", tmp_path / "run")
    flag = f"--{without.split()[0]}"
    assert f"give {flag}" in refused("plan", tmp_path / "config.toml")
