"""Which rows each of very many clients has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspend.basics.shards import ById, Places, Shards, by_id, by_owner

names = st.sampled_from(["a", "b", "c", "dd", "e e", "ä"])


def expected(client_of: list[str], clients: list[str]) -> list[list[int]]:
    return [[n for n, name in enumerate(client_of) if name == client] for client in clients]


@given(st.lists(names, max_size=20), st.lists(names, min_size=1, max_size=6, unique=True))
def test_rows_are_those_of_the_client_wherever_they_lie(client_of, clients):
    for column in (client_of, sorted(client_of)):  # mixed, and together
        found = by_id(np.array(column, dtype=str), clients)
        assert [rows.tolist() for rows in found] == expected(column, clients)
        assert [found[n].tolist() for n in range(len(found))] == expected(column, clients)
        held = ById(tuple(clients), found)
        assert {client: held[client].tolist() for client in held} == dict(
            zip(clients, expected(column, clients), strict=True)
        )
        assert found.end <= len(column)


def test_numbers_are_names_too():
    found = by_id(np.array([10, 10, 9, 10]), ["9", "10", "11"])
    assert [rows.tolist() for rows in found] == [[2], [0, 1, 3], []]


def test_dealt_rows_keep_their_order():
    found = by_owner(np.array([1, 0, 1, 2, 1]), 4)
    assert [rows.tolist() for rows in found] == [[1], [0, 2, 4], [3], []]
    assert [rows.tolist() for rows in found[1:3]] == [[0, 2, 4], [3]]


class Alike(str):
    """A name whose hash is that of every other."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, str(other))


def test_names_with_the_same_hash_do_not_stand_for_each_other():
    places = Places([Alike("a"), Alike("b"), Alike("c")])
    assert [places.get(Alike(name)) for name in "abcd"] == [0, 1, 2, -1]


def test_a_name_that_is_not_there_is_no_key():
    with pytest.raises(KeyError):
        ById(("a",), Shards(np.array([0]), np.array([2])))["b"]
    assert "b" not in ById(("a",), Shards(np.array([0]), np.array([2])))
