"""Completion is made from the parsers: what bash offers is what they take."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess

import pytest

from fedspend.cli.completion import WRITERS, levels
from fedspend.cli.main import COMMANDS, build_parser


@pytest.fixture(scope="module")
def found():
    return list(levels(build_parser()[0]))


@pytest.fixture(scope="module")
def offered(found, tmp_path_factory):
    """What bash offers after a line, of which the last word is being typed."""
    script = tmp_path_factory.mktemp("bash") / "fedspend.bash"
    script.write_text(WRITERS["bash"](found))

    def offered(line: str) -> list[str]:
        words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
        ask = (
            f"source {shlex.quote(str(script))}; COMP_WORDS=({shlex.join(words)}); "
            f'COMP_CWORD={len(words) - 1}; _fedspend; printf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        done = subprocess.run(["bash", "-uc", ask], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split()

    return offered


def test_commands_actions_options_and_names(offered):
    assert set(COMMANDS) < set(offered("fedspend "))
    assert offered("fedspend pla") == ["plan", "planner"]
    assert offered("fedspend ledger bal") == ["balance"]
    assert offered("fedspend ledger balance --un") == ["--unit"]
    assert offered("fedspend ledger balance --unit ") == ["client", "record"]
    assert offered("fedspend plan a.toml --policy opt") == ["optimal"]
    assert offered("fedspend data c") == ["check"]
    assert offered("fedspend plan --output ") == []  # bash completes file names then
    assert "fish" in offered("fedspend completion ")


def test_every_option_of_every_command_is_offered(found):
    def check(parser: argparse.ArgumentParser, path: str) -> int:
        [level] = [one for one in found if one.path == path]
        options = {option for action in parser._actions for option in action.option_strings}
        assert {word.text for word in level.options} == options
        return sum(
            check(child, f"{path} {name}")
            for action in parser._actions
            if isinstance(action, argparse._SubParsersAction)
            for name, child in action.choices.items()
        ) + len(options)

    assert check(build_parser()[0], "fedspend") > 100


@pytest.mark.full(only=["bash"])
@pytest.mark.parametrize("shell", WRITERS)
def test_a_shell_reads_its_script(found, run, shell, tmp_path):
    outcome = run("completion", shell)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == WRITERS[shell](found)
    assert "individual-rates" in outcome.out
    script = tmp_path / "script"
    script.write_text(outcome.out)
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True)


def test_a_shell_that_we_do_not_know(refused):
    assert "'tcsh'" in refused("completion", "tcsh")
