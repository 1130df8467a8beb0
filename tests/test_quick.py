"""Which cases `make test` runs, and that slow ones are noticed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from lib import quick


def cases(names, **how):
    mark = pytest.mark.full(**how).mark
    return [
        SimpleNamespace(
            nodeid=f"test_a.py::test_it[{name}]", name=f"test_it[{name}]", own_markers=[mark]
        )
        for name in names
    ]


def staying(items):
    quick.pytest_collection_modifyitems(items)
    return [quick.name_of(item) for item in items if not item.own_markers]


def test_a_mark_may_name_the_slow_cases_or_the_quick_ones():
    assert staying(cases("abc", only=["b"])) == ["a", "c"]
    assert staying(cases("abc", but=["b"])) == ["b"]
    assert staying(cases("abcdefg", but_every=3)) == ["a", "d", "g"]


def test_a_mark_without_names_leaves_out_the_whole_function():
    assert staying(cases("abc")) == []


def test_of_a_product_every_value_stays():
    """Three divides neither four nor five."""
    product = [f"{a}-{b}" for a in "wxyz" for b in "12345"]
    assert {
        value for name in staying(cases(product, but_every=3)) for value in name.split("-")
    } == {*"wxyz12345"}


@pytest.mark.parametrize("how", [{"only": ["c", "d"]}, {"but": ["d"]}])
def test_a_case_that_does_not_exist_is_an_error(how):
    with pytest.raises(pytest.UsageError, match="its mark names d, and its cases are a, b, c"):
        staying(cases("abc", **how))


def report(took, name="test_a.py::test_it", when="call"):
    return SimpleNamespace(nodeid=name, when=when, user_properties=[("processor_seconds", took)])


@pytest.mark.parametrize(("ci", "code"), [("true", pytest.ExitCode.TESTS_FAILED), ("", 0)])
def test_a_slow_test_is_listed_and_fails_the_run_in_ci(monkeypatch, ci, code):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(quick, "measure_again", dict)
    watch, session = quick.Watch(), SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    watch.pytest_runtest_logreport(report(0.9 * watch.limit))
    watch.pytest_runtest_logreport(report(3.0, min(quick.WORTH_THEIR_TIME)))
    watch.pytest_runtest_logreport(report(30.0, when="teardown"))
    watch.pytest_sessionfinish(session)
    assert (watch.slow, session.exitstatus) == ({}, pytest.ExitCode.OK)
    watch.pytest_runtest_logreport(report(1.1 * watch.limit))
    watch.pytest_sessionfinish(session)
    assert [*watch.slow] == ["test_a.py::test_it"]
    assert session.exitstatus == code


def test_what_took_long_once_only_is_no_slow_test(monkeypatch):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(quick, "measure_again", lambda names: dict.fromkeys(names, 0.1))
    watch, session = quick.Watch(), SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    watch.pytest_runtest_logreport(report(30.0))
    watch.pytest_sessionfinish(session)
    assert (watch.slow, session.exitstatus) == ({}, pytest.ExitCode.OK)


@pytest.mark.full
def test_a_test_is_measured_again_in_a_process_of_its_own():
    name = "tests/test_quick.py::test_at_most_twenty_are_worth_their_time"
    took = quick.measure_again([name])
    assert [*took] == [name]
    assert 0 <= took[name] < 0.1


def test_at_most_twenty_are_worth_their_time():
    assert len(quick.WORTH_THEIR_TIME) <= 20
