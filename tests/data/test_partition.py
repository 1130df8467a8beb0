from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspend.configuration.config import config_of
from fedspend.data import (
    Dataset,
    Federation,
    from_arrays,
    from_clients,
    load,
    partition,
    statistics,
)
from fedspend.data.partition import PARTITIONS
from fedspend.errors import InvalidInput
from fedspend.runs.setup import from_config


def labelled(labels, **options) -> Dataset:
    array = np.asarray(labels)
    return from_arrays(
        np.zeros((len(array), 1)),
        array,
        classes=10,
        test_features=[[0.0]],
        test_labels=[0],
        **options,
    )


def dealt(federation: Federation) -> list[int]:
    return sorted(np.concatenate(federation.shards).tolist())


LABELS = st.lists(st.integers(0, 9), min_size=1, max_size=120)


@settings(deadline=None)
@given(
    LABELS,
    st.data(),
    st.sampled_from(["iid", "dirichlet"]),
    st.floats(1e-6, 1e12),
    st.integers(0, 2**40),
)
def test_every_row_is_dealt_exactly_once(labels, data, kind, alpha, seed):
    clients = data.draw(st.integers(1, len(labels)))
    federation = partition(labelled(labels), clients=clients, kind=kind, seed=seed, alpha=alpha)
    assert dealt(federation) == list(range(len(labels)))
    assert federation.clients == tuple(map(str, range(clients)))
    sizes = [len(rows) for rows in federation.shards]
    if kind == "iid":
        assert max(sizes) - min(sizes) <= 1
    again = partition(labelled(labels), clients=clients, kind=kind, seed=seed, alpha=alpha)
    assert all(np.array_equal(a, b) for a, b in zip(federation.shards, again.shards, strict=True))


@settings(deadline=None)
@given(LABELS, st.data(), st.integers(1, 4), st.integers(0, 2**40))
def test_label_shards_deal_every_row_once_and_few_labels(labels, data, each, seed):
    if each > len(labels):
        return
    clients = data.draw(st.integers(1, len(labels) // each))
    federation = partition(labelled(labels), clients=clients, kind="shards", seed=seed, shards=each)
    assert dealt(federation) == list(range(len(labels)))
    pieces = clients * each
    largest = -(-len(labels) // pieces)
    assert all(
        pieces // clients * (len(labels) // pieces) <= len(rows) <= each * largest
        for rows in federation.shards
    )


@pytest.mark.full
@settings(deadline=None)
@given(LABELS, st.data(), st.integers(0, 2**40))
def test_few_classes_deal_every_row_once_and_every_class_equally(labels, data, seed):
    labels = np.array(labels)
    present, counts = np.unique(labels, return_counts=True)
    each = data.draw(st.integers(1, present.size))
    clients = data.draw(
        st.integers(-(-present.size // each), max(-(-present.size // each), labels.size))
    )
    if clients > labels.size:
        return
    request = {"clients": clients, "kind": "classes", "seed": seed, "classes_per_client": each}
    federation = partition(labelled(labels), **request)
    assert dealt(federation) == list(range(labels.size))
    # (clients, classes)
    table = np.array(
        [np.bincount(labels[rows], minlength=10)[present] for rows in federation.shards]
    )
    assert ((table > 0).sum(axis=1) <= each).all()
    holders = (table > 0).sum(axis=0)
    plenty = counts >= clients  # enough rows for every holder to get one
    assert np.ptp(holders[plenty]) <= 1 if plenty.any() else True
    if plenty.all():
        assert ((table > 0).sum(axis=1) == each).all()
    for rows in table.T:
        assert np.ptp(rows[rows > 0]) <= 1, "who holds a class has as much of it as the others"
    again = partition(labelled(labels), **request)
    assert all(np.array_equal(a, b) for a, b in zip(federation.shards, again.shards, strict=True))


def test_five_classes_for_each_of_ten_clients_are_drawn_at_random():
    """Two clients have 5 * 4 / 9 classes in common on average: given one's, each is held by 4 of
    the other 9 clients.
    """
    labels = np.repeat(np.arange(10), 60)
    common = []
    for seed in range(200):
        federation = partition(
            labelled(labels), clients=10, kind="classes", seed=seed, classes_per_client=5
        )
        assert {len(rows) for rows in federation.shards} == {60}
        held = [set(labels[rows].tolist()) for rows in federation.shards]
        assert {len(classes) for classes in held} == {5}
        common.append([len(held[0] & other) for other in held[1:]])
    # exactly, whatever is drawn: it follows from the equal numbers of holders
    assert np.mean(common) == pytest.approx(20 / 9)
    # and no client is special to another
    assert np.mean(common, axis=0) == pytest.approx(np.full(9, 20 / 9), abs=0.35)
    # nearly that of two draws of 5 out of 10: hypergeometric
    assert np.var(common) == pytest.approx(25 / 36, abs=0.1)


def test_all_classes_or_one():
    labels = np.repeat(np.arange(10), 20)
    everything = partition(
        labelled(labels), clients=4, kind="classes", seed=0, classes_per_client=10
    )
    assert all((np.bincount(labels[rows]) == 5).all() for rows in everything.shards)
    single = partition(labelled(labels), clients=20, kind="classes", seed=0, classes_per_client=1)
    assert all(len(rows) == 10 and np.unique(labels[rows]).size == 1 for rows in single.shards)


def test_the_config_knows_every_way_to_deal():
    for kind in PARTITIONS.names:
        assert config_of({"data": {"partition": kind}}).data.partition == kind
    config = {
        "data": {"name": "digits", "clients": 10, "partition": "classes", "classes_per_client": 3},
        "model": {"name": "logistic"},
        "method": {"name": "fedavg"},
        "train": {"rounds": 1, "local_steps": 1, "batch_size": 8, "lr": 0.1, "seed": 0},
    }
    assert statistics(from_config(config_of(config)).federation).labels_per_client == 3
    with pytest.raises(InvalidInput, match="needs classes_per_client"):
        from_config(config_of(config).without("data.classes_per_client"))
    with pytest.raises(
        InvalidInput,
        match=r"classes_per_client in \[data\] must be a whole number of at least 1, got 0",
    ):
        config_of({"data": {"classes_per_client": 0}})


@given(st.lists(st.integers(0, 12), min_size=1, max_size=80), st.integers(0, 2**40))
def test_natural_clients_keep_their_rows(owners, seed):
    data = labelled(np.zeros(len(owners), dtype=int), client_of=owners)
    names = sorted(set(owners))
    federation = partition(data, clients=None, kind="natural", seed=seed)
    assert federation.clients == tuple(map(str, names))
    for name, rows in zip(names, federation.shards, strict=True):
        assert rows.tolist() == [row for row, owner in enumerate(owners) if owner == name]
    same = partition(data, clients=len(names), kind="natural", seed=seed)
    assert same.clients == federation.clients
    some = partition(data, clients=max(1, len(names) // 2), kind="natural", seed=seed)
    assert set(some.clients) <= set(federation.clients)
    assert len(some.clients) == max(1, len(names) // 2)
    for client, rows in zip(some.clients, some.shards, strict=True):
        assert np.array_equal(rows, federation.shards[federation.clients.index(client)])


def test_clients_may_have_names():
    data = labelled([0, 1, 2], client_of=["ward b", "ward a", "ward b"])
    federation = partition(data, clients=None, kind="natural", seed=0)
    assert federation.clients == ("ward a", "ward b")
    assert [rows.tolist() for rows in federation.shards] == [[1], [0, 2]]


def test_dirichlet_shares_have_the_promised_spread():
    """A client's share of a class is Beta(alpha, (n-1) alpha): mean 1/n, variance (n-1)/n^2/(n
    alpha + 1).
    """
    labels = np.repeat(np.arange(10), 2000)
    clients, alpha, shares = 10, 0.5, []
    for seed in range(40):
        federation = partition(
            labelled(labels), clients=clients, kind="dirichlet", seed=seed, alpha=alpha
        )
        shares += [np.bincount(labels[rows], minlength=10) / 2000 for rows in federation.shards]
    variance = (clients - 1) / clients**2 / (clients * alpha + 1)
    assert np.mean(shares) == pytest.approx(1 / clients)
    assert np.var(shares) == pytest.approx(variance, rel=0.1)


def test_alpha_goes_from_one_owner_per_class_to_equal_shares():
    labels = np.repeat(np.arange(10), 100)
    narrow = partition(labelled(labels), clients=20, kind="dirichlet", seed=0, alpha=1e-9)
    assert statistics(narrow).empty >= 10
    wide = statistics(
        partition(labelled(labels), clients=20, kind="dirichlet", seed=0, alpha=1e308)
    )
    assert (wide.smallest, wide.largest, wide.labels_per_client) == (50, 50, 10)


def test_two_shards_are_at_most_a_few_labels():
    labels = np.repeat(np.arange(10), 600)
    federation = partition(labelled(labels), clients=100, kind="shards", seed=1)
    assert {len(rows) for rows in federation.shards} == {60}
    assert max(len(np.unique(labels[rows])) for rows in federation.shards) == 2


def test_another_seed_deals_otherwise():
    data = labelled(np.arange(1000) % 10)
    for kind in ("iid", "dirichlet", "shards", "classes"):
        one, two = (
            partition(data, clients=10, kind=kind, seed=seed, alpha=1.0, classes_per_client=5)
            for seed in (1, 2)
        )
        assert any(not np.array_equal(a, b) for a, b in zip(one.shards, two.shards, strict=True))


def test_ten_thousand_clients_are_cheap_and_share_the_features():
    data = labelled(np.arange(60_000) % 10)
    start = time.process_time()
    federation = partition(data, clients=10_000, kind="dirichlet", seed=0, alpha=0.1)
    assert time.process_time() - start < 2  # 0.06 on one quiet core
    assert federation.dataset is data
    assert sum(rows.nbytes for rows in federation.shards) == 60_000 * 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "dirichelt"}, "unknown partition 'dirichelt'; did you mean 'dirichlet'?"),
        ({"kind": 3}, "unknown partition 3"),
        ({"clients": 0}, "clients must be a whole number of at least 1, got 0"),
        ({"clients": -1}, "clients must be a whole number of at least 1"),
        ({"clients": 2.5}, "clients must be a whole number"),
        ({"clients": None}, "clients must be a number, got None"),
        ({"clients": 21}, "at most the number of training rows, 20, got 21"),
        ({"kind": "dirichlet"}, "needs alpha"),
        ({"kind": "dirichlet", "alpha": 0}, "alpha must be positive, got 0"),
        ({"kind": "dirichlet", "alpha": -1.0}, "alpha must be positive"),
        ({"kind": "dirichlet", "alpha": float("nan")}, "alpha must be a finite number"),
        ({"kind": "dirichlet", "alpha": float("inf")}, "alpha must be a finite number"),
        ({"kind": "shards", "shards": 0}, "shards must be a whole number of at least 1"),
        (
            {"kind": "shards", "clients": 11},
            r"clients \* shards must be at most the number of training rows, 20, got 22",
        ),
        ({"kind": "classes"}, "needs classes_per_client"),
        (
            {"kind": "classes", "classes_per_client": 0},
            "classes_per_client must be a whole number of at least 1, got 0",
        ),
        (
            {"kind": "classes", "classes_per_client": 2.5},
            "classes_per_client must be a whole number",
        ),
        (
            {"kind": "classes", "classes_per_client": float("nan")},
            "classes_per_client must be a finite number",
        ),
        (
            {"kind": "classes", "classes_per_client": 11},
            "at most the number of classes in the data, 10, got 11",
        ),
        (
            {"kind": "classes", "classes_per_client": 2},
            "must be at least 10, so that every class has a client, got 8",
        ),
        ({"kind": "natural"}, "names no clients"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_bad_requests(change, message):
    request = {"clients": 4, "kind": "iid", "seed": 0, "alpha": None} | change
    with pytest.raises(InvalidInput, match=message):
        partition(labelled(np.arange(20) % 10), **request)


def test_more_natural_clients_than_there_are():
    with pytest.raises(InvalidInput, match="at most the 2 that data set 'arrays' names, got 3"):
        partition(labelled([0, 1], client_of=[5, 6]), clients=3, kind="natural", seed=0)


def test_a_federation_refuses_shared_and_foreign_rows():
    data = labelled([0, 1, 2])
    with pytest.raises(InvalidInput, match="row 1 belongs to two clients"):
        Federation(data, ("a", "b"), (np.array([0, 1]), np.array([1])))
    with pytest.raises(InvalidInput, match="a client holds row 3, but there are 3 rows"):
        Federation(data, ("a",), (np.array([0, 3]),))
    with pytest.raises(InvalidInput, match="a client holds row -1"):
        Federation(data, ("a",), (np.array([-1]),))
    with pytest.raises(InvalidInput, match="one shard per client"):
        Federation(data, ("a", "b"), (np.array([0]),))
    with pytest.raises(InvalidInput, match="client 'a' is listed twice"):
        Federation(data, ("a", "a"), (np.array([0]), np.array([1])))


def test_arrays_per_client():
    rows = {"a": (np.ones((2, 3)), [0, 1]), "empty": ([], []), "b": (np.full((1, 3), 4), [1])}
    federation = from_clients(rows, test=(np.zeros((1, 3)), [0]), classes=2, bounds=[0, 4])
    assert federation.clients == ("a", "empty", "b")
    assert [rows.tolist() for rows in federation.shards] == [[0, 1], [], [2]]
    assert federation.dataset.features[:, 0].tolist() == [0.25, 0.25, 1]
    assert statistics(federation).empty == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": (np.ones((2, 3)), [0])}, "client 'a' has 2 rows of features and 1 labels"),
        ({"a": ([], [])}, "no client has a single row"),
        ({}, "no client has a single row"),
        (
            {"a": (np.ones((1, 3)), [0]), "b": (np.ones((1, 2)), [0])},
            "the same shape at every client",
        ),
        ({"a": (np.ones((1, 3)), [7])}, r"labels\[0\] is 7"),
    ],
)
def test_bad_arrays_per_client(rows, message):
    with pytest.raises(InvalidInput, match=message):
        from_clients(rows, test=(np.zeros((1, 3)), [0]), classes=2)


def test_statistics_of_digits():
    summary = statistics(partition(load("digits"), clients=100, kind="iid", seed=0))
    assert (summary.clients, summary.rows, summary.smallest, summary.median, summary.largest) == (
        100,
        1437,
        14,
        14.0,
        15,
    )
    assert 7 < summary.labels_per_client < 9


def test_what_kind_of_numbers_a_client_has_does_not_round_anothers():
    # rounded to a double first, it becomes another float32
    mine = np.array([[2**60 + 2**36 + 1, 3]], dtype=np.int64)

    def read(others):
        clients = {"a": (mine, [1]), "b": others}
        return (
            from_clients(clients, test=(np.zeros((1, 2)), [0]), classes=2)
            .dataset.features[0]
            .tobytes()
        )

    alone = read(([], []))
    assert all(
        read((np.ones((1, 2), dtype=kind), [0.0])) == alone
        for kind in (np.float64, np.uint64, np.float32, bool)
    )
