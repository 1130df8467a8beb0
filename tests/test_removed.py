"""What was removed is refused with its sentence of one table, wherever it is written."""

from functools import partial
from operator import attrgetter

import advised
import pytest

import fedspend
from fedspend.basics.removed import REMOVED
from fedspend.configuration.config import any_config, config_of
from fedspend.runs.directory import RunDirectory

OF_PYTHON = [one for one in REMOVED if one.startswith("fedspend.") and "(" not in one]
OF_CALLS = [one for one in REMOVED if one.startswith("fedspend.") and "(" in one]
OF_COMMANDS = [one for one in REMOVED if one.startswith(("fedspend ", "--"))]
OF_CONFIGS = [one for one in REMOVED if one not in (*OF_PYTHON, *OF_CALLS, *OF_COMMANDS)]


@pytest.mark.parametrize("written", OF_COMMANDS)
def test_the_command_line_says_what_to_write_now(run, written):
    words = written.split()[1:] if written.startswith("fedspend ") else ["plan", *written.split()]
    outcome = run(*words, "--y=1")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"fedspend: {written} was removed; {REMOVED[written]}\n"


@pytest.mark.parametrize("written", OF_CONFIGS)
def test_configs_say_what_to_write_now(written):
    name, _, value = written.partition("=")
    section, key = name.split(".")
    for place, read in (
        ("config", lambda: config_of({section: {key: value or 1}})),
        (f"--set {name}={value or 1}", lambda: any_config({}, [f"{name}={value or 1}"])),
    ):
        with pytest.raises(fedspend.InvalidInput) as refused:
            read()
        assert str(refused.value) == f"{place}: {written} was removed; {REMOVED[written]}"


@pytest.mark.parametrize("written", OF_PYTHON)
def test_python_says_what_to_write_now(written):
    with pytest.raises(AttributeError) as refused:
        attrgetter(written.removeprefix("fedspend."))(fedspend)
    assert str(refused.value) == f"{written} was removed; {REMOVED[written]}"


@pytest.mark.parametrize("written", OF_CALLS)
def test_calls_say_what_to_write_now(written):
    function, _, given = written.removeprefix("fedspend.").removesuffix(")").partition("(")
    if given.endswith("="):
        call = partial(getattr(fedspend, function), **{given.removesuffix("="): 1})
    else:
        call = partial(fedspend.register, given.strip("'"), "mine", print, help="my own")
    with pytest.raises(fedspend.InvalidInput) as refused:
        call()
    assert str(refused.value) == f"{written} was removed; {REMOVED[written]}"


def test_a_run_of_0_2_that_named_the_mean_goes_on(tmp_path):
    then, now = {"train.seed": 1, "train.aggregation": "mean"}, {"train.seed": 1}
    RunDirectory.create(tmp_path / "run", {"settings": then})
    RunDirectory.resume(tmp_path / "run", {"settings": now})
    with pytest.raises(fedspend.InvalidInput, match=r"train\.seed was 1 and is now 2"):
        RunDirectory.resume(tmp_path / "run", {"settings": {"train.seed": 2}})


@pytest.mark.parametrize("sentence", REMOVED.values())
def test_what_to_write_now_is_there(sentence):
    assert not advised.lacking(sentence, ["plan"])
