"""Budgets as texts, shares and CSV: what is accepted, and that everything else is refused in one
line that says where.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspend.budgets.csv_file import read_budgets_csv
from fedspend.budgets.population import (
    Group,
    apportion,
    by_epsilon,
    from_groups,
    parse_by_epsilon,
    parse_groups,
)
from fedspend.errors import InvalidInput


def refusal(action, *arguments) -> str:
    with pytest.raises(InvalidInput) as caught:
        action(*arguments)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


def csv_file(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "clients.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# --- texts ----------------------------------------------------------------------------------------


def test_groups_by_count():
    population = parse_groups("10:34, 20:43 ,30:23")
    assert population.clients == tuple(str(n) for n in range(100))
    assert population.epsilons.dtype == np.float64
    assert np.unique(population.epsilons, return_counts=True)[1].tolist() == [34, 43, 23]


def test_one_epsilon_for_all():
    assert parse_groups("0.5", clients=3).epsilons.tolist() == [0.5] * 3
    assert "--clients" in refusal(parse_groups, "0.5")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "''"),
        ("x", "'x'"),
        ("nan", "'nan'"),
        ("inf", "'inf'"),
        ("0", "positive"),
        ("-1", "positive"),
        ("10:0", "'0'"),
        ("10:-3", "'-3'"),
        ("10:1.5", "'1.5'"),
        ("10:", "''"),
        ("10:x", "'x'"),
        ("10:²", "'²'"),
        (":5", "''"),
        ("nan:5", "'nan'"),
        ("10:5,20", "'20'"),
        ("10:5,", "''"),
        ("10,20,30", "'10'"),
        ("1_0:5", "'1_0'"),
        ("10:99999999999999999999999999", "whole number"),
        ("10:20000000", "20,000,000"),
    ],
)
def test_bad_groups(text, names):
    assert names in refusal(parse_groups, text, 5 if ":" not in text else None)


def test_counts_must_agree_with_clients():
    assert "77" in refusal(parse_groups, "10:34,20:43", 100)
    assert len(parse_groups("10:34,20:43", 77).clients) == 77


def test_by_epsilon():
    epsilons = np.array([20.0, 10.0, 20.0])
    assert by_epsilon(
        "saving rate", parse_by_epsilon("saving rate", "10:0.5,20:0.6"), epsilons
    ).tolist() == [0.6, 0.5, 0.6]
    assert "20" in refusal(by_epsilon, "saving rate", {10.0: 0.5}, epsilons)
    assert "30" in refusal(by_epsilon, "saving rate", {10.0: 0.5, 20.0: 0.5, 30.0: 0.5}, epsilons)
    for text in ("10:0.5,0.6", "10:0.5,10:0.6", "10:x", "nan", "", "10:nan"):
        refusal(parse_by_epsilon, "saving rate", text)


# --- shares ---------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=8), st.integers(1, 5000))
def test_apportion_is_close_and_complete(shares, total):
    counts = apportion(shares, total)
    assert sum(counts) == total
    for share, count in zip(shares, counts, strict=True):
        assert abs(count - share * total / math.fsum(shares)) < 1 + 1e-6


def test_groups_by_share():
    population = from_groups(
        [Group(10, 34, 0.5, 13), Group(20, 43, 0.6, 12), Group(30, 23, 0.7, 11)], 100
    )
    assert np.unique(population.epsilons, return_counts=True)[1].tolist() == [34, 43, 23]
    assert population.saving_rates is not None
    assert population.transitions is not None
    assert population.saving_rates[[0, 34, 99]].tolist() == [0.5, 0.6, 0.7]
    assert population.transitions[[0, 34, 99]].tolist() == [13, 12, 11]
    assert from_groups([Group(10), Group(20)], 4).epsilons.tolist() == [10, 10, 20, 20]
    assert from_groups([Group(10, 1), Group(20, 0)], 4).epsilons.tolist() == [10] * 4


def test_bad_shares():
    assert "none of 10 clients" in refusal(from_groups, [Group(10, 0.999), Group(20, 0.001)], 10)
    assert "none of 1 clients" in refusal(from_groups, [Group(10), Group(20)], 1)
    refusal(from_groups, [], 10)
    refusal(from_groups, [Group(10, 0.5), Group(20)], 10)
    refusal(from_groups, [Group(10, 0.5, 0.5), Group(20, 0.5)], 10)
    refusal(from_groups, [Group(10, math.nan)], 10)
    refusal(from_groups, [Group(10, 0)], 10)
    refusal(from_groups, [Group(10, -1)], 10)
    refusal(from_groups, [Group(10)], 0)


# --- CSV ------------------------------------------------------------------------------------------


def test_csv_with_everything(tmp_path):
    content = (
        '\ufeffgroup,client,epsilon,transition,saving_rate\r\nclinic,"Smith, A",10,13,0.5\r\n\r\n '
        "phone , b ,2e1, 12,0.6\r\n"
    )
    population = read_budgets_csv(csv_file(tmp_path, content))
    assert population.clients == ("Smith, A", "b")
    assert population.epsilons.tolist() == [10.0, 20.0]
    assert population.groups == ("clinic", "phone")
    assert population.saving_rates is not None
    assert population.transitions is not None
    assert population.saving_rates.tolist() == [0.5, 0.6]
    assert population.transitions.tolist() == [13.0, 12.0]


def test_csv_with_the_least(tmp_path):
    population = read_budgets_csv(csv_file(tmp_path, "client,epsilon\na,1\n"))
    assert (population.saving_rates, population.transitions, population.groups) == (
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("content", "line", "names"),
    [
        ("client,epsilon\na,1\nb,\n", 3, "epsilon is empty"),
        ("client,epsilon\na,1\n,2\n", 3, "client is empty"),
        ("client,epsilon\na,1\n  ,2\n", 3, "client is empty"),
        ("client,epsilon\na,1\nb\n", 3, "1 cells"),
        ("client,epsilon\na,1\nb,2,3\n", 3, "3 cells"),
        ("client,epsilon\na,1\nb,2\n\na,3\n", 5, "first on line 2"),
        ("client,epsilon\na,ten\n", 2, "'ten'"),
        ("client,epsilon\na,1\nb,nan\n", 3, "'nan'"),
        ("client,epsilon\na,inf\n", 2, "'inf'"),
        ("client,epsilon\na,0\n", 2, "'0'"),
        ("client,epsilon\na,-1\n", 2, "'-1'"),
        ("client,epsilon\na,1_0\n", 2, "'1_0'"),
        ("client,epsilon\na,1e999\n", 2, "'1e999'"),
        ("client,epsilon,saving_rate\na,1,0\n", 2, "saving_rate"),
        ("client,epsilon,saving_rate\na,1,1.5\n", 2, "saving_rate"),
        ("client,epsilon,saving_rate\na,1,0.5\nb,1,\n", 3, "saving_rate is empty"),
        ("client,epsilon,transition\na,1,1.5\n", 2, "transition"),
        ("client,epsilon,transition\na,1,0\n", 2, "transition"),
        ("client,epsilon,group\na,1,\n", 2, "group is empty"),
        ("client,epsilom\na,1\n", 1, "did you mean 'epsilon'"),
        ("client,budget\na,1\n", 1, "'budget'"),
        ("client,epsilon,epsilon\na,1,1\n", 1, "twice"),
        ("client\na\n", 1, "'epsilon' is missing"),
        ("epsilon\n1\n", 1, "'client' is missing"),
        ("client;epsilon\na;1,000\n", 2, "may mark decimals or thousands"),
        ('client,epsilon\n"a\nb",1\n', 3, "line break"),
        ("client,epsilon\na\x1b[31m,1\n", 2, "control"),
        ('client,epsilon\n"a,1\n', 2, "not valid CSV"),
        (b"client,epsilon\na,1\n\xff\xfe,2\n", 3, "UTF-8"),
        ("a,1\nb,2\n", 1, "unknown column"),
    ],
)
def test_bad_csv_names_file_and_line(tmp_path, content, line, names):
    message = refusal(read_budgets_csv, csv_file(tmp_path, content))
    assert message.startswith(f"{tmp_path / 'clients.csv'}:{line}: ")
    assert names in message


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff", "client,epsilon\n"])
def test_empty_csv(tmp_path, content):
    assert str(tmp_path) in refusal(read_budgets_csv, csv_file(tmp_path, content))


@pytest.mark.full
def test_large_csv_is_quick(tmp_path):
    rows = "".join(f"client-{n},{0.5 + n / 4000}\n" for n in range(100_000))
    path = csv_file(tmp_path, "client,epsilon\n" + rows)
    start = time.process_time()
    population = read_budgets_csv(path)
    assert time.process_time() - start < 12  # 0.5 on one quiet core
    assert len(population.clients) == 100_000
    path = csv_file(tmp_path, "client,epsilon\n" + rows + "client-7,1\n")
    assert ":100002: " in refusal(read_budgets_csv, path)
