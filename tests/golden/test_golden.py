"""What fedspend says and computes is what the golden files hold.

Guarantee: a sentence, number or help text that changes is seen as the diff of a file that people
read; none changes by the way. The files hold what is so, right or wrong: a change on purpose
writes them anew with `make golden`, and its diff is part of the change.
"""

from __future__ import annotations

import argparse
import re

import pytest
import torch
from golden import commands, comparing, configs, plans, sentences
from golden.cases import FILES, Case, all_cases
from golden.session import ROOT

CASES = all_cases()


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.quick else pytest.mark.full)
        for case in CASES
    ],
)
def test_what_is_said_is_what_was_said(case: Case):
    stored = case.path.read_text(encoding="utf-8") if case.path.exists() else ""
    found = comparing.difference(stored, case.make(), case.name)
    assert not found, f"{case.name} has changed; run make golden and read the diff\n{found}"


def test_every_file_belongs_to_a_case():
    there = {path for path in FILES.rglob("*") if path.is_file()} - {comparing.MACHINE}
    assert there == {case.path for case in CASES}, "run make golden"


def test_no_file_names_this_machine():
    for case in CASES:
        text = case.path.read_text(encoding="utf-8")
        assert str(ROOT) not in text, case.name
        assert not re.search(r"/tmp/|/home/|/root/|golden-\w{8}", text), case.name


def test_the_files_stay_small():
    assert sum(path.stat().st_size for path in FILES.rglob("*") if path.is_file()) < 3_000_000


def test_every_command_that_has_json_is_asked_for_it():
    from fedspend.cli.main import build_parser

    said = "".join((FILES / f"said/{name}.txt").read_text("utf-8") for name in commands.STORIES)
    asked = [line for line in said.splitlines() if line.startswith("$ ") and "--json" in line]

    def with_json(name: str, parser: argparse.ArgumentParser) -> list[str]:
        found = []
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word, below in action.choices.items():
                    found += with_json(f"{name} {word}", below)
            elif "--json" in action.option_strings:
                found.append(name)
        return found

    for name, parser in build_parser()[1].items():
        for command in with_json(name, parser):
            assert any(line.startswith(f"$ fedspend {command} ") for line in asked), command


def test_there_is_a_plan_of_every_kind():
    from fedspend.server.methods.table import METHODS

    named = {
        name for name in METHODS.names if f'name = "{name}"' in "".join(configs.CONFIGS.values())
    }
    assert set(METHODS.names) - named == {"privacy-free"}, "another name of a run without a plan"
    assert set(configs.WITHOUT_PLAN).isdisjoint(plans.kinds())


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ('raise InvalidInput(f"no {name!r}; give one")', "InvalidInput: no {}; give one"),
        ('raise Refused("one " + "two")', "Refused: one two"),
        ('raise Refused("late" if late else "early")', "Refused: (late | early)"),
        (
            "raise Refused(f\"so {'late' if late else 'early'} now\")",
            "Refused: so {(late | early)} now",
        ),
        ('words = "all of it"; raise Refused(words)', "Refused: all of it"),
        (
            'kind = Refused if late else InvalidInput; raise kind("no")',
            "InvalidInput or Refused: no",
        ),
        ('warnings.warn("mind this", FedspendWarning)', "warn FedspendWarning: mind this"),
        ('raise ValueError("not so")', "raise ValueError: not so"),
        ("raise Refused(told())", "Refused: what was told"),
        ('taking(True, "the words are given here")', "Refused by taking: the words are given here"),
    ],
)
def test_sentences_are_found_where_they_are_hidden(tmp_path, monkeypatch, code, wanted):
    path = tmp_path / "fedspend" / "room" / "one.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "class FedspendError(Exception): ...\nclass FedspendWarning(Warning): ...\n"
        "class InvalidInput(FedspendError): ...\nclass Refused(FedspendError): ...\n"
        "def told():\n    return 'what was told'\n"
        "def taking(wrong, words):\n    raise Refused(words)\n"
        f"def some(name, late):\n    {code}\n"
    )
    monkeypatch.setattr(sentences, "SOURCE", path.parents[1])
    caches = (
        *(sentences.modules, sentences.kinds, sentences.sentences, sentences.modules_by_name),
        *(sentences.takers, sentences.takers_by_name),
    )
    for one in caches:
        one.cache_clear()
    try:
        assert wanted in sentences.all_of_them().splitlines()
        assert wanted in sentences.by_place()["room"]
    finally:
        for one in caches:
            one.cache_clear()


@pytest.mark.parametrize(
    ("stored", "now", "good"),
    [
        ("spent 1.23456789", "spent 1.23456788", True),
        ("spent 1.2346", "spent 1.2345", True),
        ("worst 1.48e-16", "worst -2.2e-16", True),
        ("┃ 1.0 ┃   two", "┃ 1.0 ┃ two", True),
        ("model  0123456789abcdef", "model  fedcba9876543210", True),
        ("spent 1.23456789", "spent 1.2355", False),
        ("4 rounds", "5 rounds", False),
        ("plan sha256:0123", "plan sha256:0124", False),
        ("plan  0123456789abcdef", "plan  fedcba9876543210", False),
        ("all is well", "all is good", False),
        ("all is well", "all is well, is it", False),
    ],
)
def test_elsewhere_only_rounding_may_differ(stored, now, good):
    assert (comparing.difference(stored, now, "x", exactly=False) == "") == good
    assert comparing.difference(stored, now, "x", exactly=True)
