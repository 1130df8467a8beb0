"""Which client holds which training rows: by the data's own client ids, or dealt to simulated
clients.

Guarantee: a federation holds row numbers into the shared arrays, never copies; every row belongs to
exactly one client (or to none, if its natural client takes no part). Rows of natural clients are
joined by id, never by position; a client without rows has an empty shard. Dealing pools all rows,
so it is for simulations; the same seed deals the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics import shards
from fedspend.basics.arrays import BoolArray, IntArray
from fedspend.basics.choices import only
from fedspend.basics.registry import Entry, Registry
from fedspend.budgets.identity import read_mapping
from fedspend.budgets.population import numbered
from fedspend.data.dataset import Bounds, Dataset, as_features, from_arrays, natural_ids
from fedspend.data.targets import as_targets
from fedspend.errors import InvalidInput, finite_number, whole_number
from fedspend.noise.randomness import Randomness
from fedspend.tasks.kinds import BY_CLASS, CLASSES, IN_WORDS

_MOST_ALPHA = 1e9  # equal shares to nine digits; beyond it the sampler overflows
BY_LABEL = ("dirichlet", "shards", "classes")  # partitions that deal rows by their class
ABSENT = -1  # in a shard: a record that is listed and has no row
# rounds of trading classes in pairs, many more than it takes to forget who began with what
_TRADES = 30


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set and, for each client, the numbers of its training rows.

    Where a file lists the records, `records` are their ids, client by client, and a shard has a
    place for each: `ABSENT` where it has no row.
    """

    dataset: Dataset
    clients: tuple[str, ...]
    shards: Sequence[IntArray]
    records: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        if not (len(self.clients) == len(self.shards) >= 1):
            raise InvalidInput(
                f"a federation needs one shard per client, got {len(self.clients)} clients, "
                f"{len(self.shards)} shards"
            )
        if len(set(self.clients)) < len(self.clients):
            twice = next(
                client for n, client in enumerate(self.clients) if client in self.clients[:n]
            )
            raise InvalidInput(f"client {twice!r} is listed twice; remove one")
        if self.records is not None and [*map(len, self.records)] != [*map(len, self.shards)]:
            raise InvalidInput("a federation of listed records needs a place for each in a shard")
        total = len(self.dataset.labels)
        if isinstance(self.shards, shards.Shards) and self.shards.end <= total:
            return  # no two of them have a row in common
        rows = np.concatenate(self.shards if self.records is None else self.held)
        if rows.size and not (rows.min() >= 0 and rows.max() < total):
            raise InvalidInput(
                f"a client holds row {rows.max() if rows.max() >= total else rows.min()}, but "
                f"there are {total} rows"
            )
        if (np.bincount(rows, minlength=1) > 1).any():
            raise InvalidInput(
                f"row {np.bincount(rows).argmax()} belongs to two clients; give every row to one"
            )

    @property
    def held(self) -> tuple[IntArray, ...]:
        """The rows that each client has."""
        return tuple(rows[rows != ABSENT] for rows in self.shards)


@dataclass(frozen=True)
class Partition(Entry):
    """`deal(labels, clients, generator, **keys)` gives the number of each row's client; None if the
    rows already have clients.
    """

    deal: Callable[..., IntArray] | None = None


def partition(
    dataset: Dataset, *, clients: int | None, kind: str, seed: int, **options: Any
) -> Federation:
    """Give the training rows of `dataset` to clients. `PARTITIONS` lists the kinds and the
    `options` each takes.

    `natural` uses the data set's own clients; with fewer `clients`, a seeded choice among them.
    """
    entry = PARTITIONS[kind]
    only("a partition", options, {key for known in PARTITIONS for key in known.keys})
    seed = whole_number("seed", seed, at_least=0)
    if entry.deal is None:
        names = clients_of(dataset)
        return by_id(
            dataset, names if clients is None else choose_among(names, clients, seed, dataset.name)
        )
    generator, rows = Randomness(seed).generator("data"), len(dataset.labels)
    count = whole_number("clients", clients, at_least=1)
    if count > rows:
        raise InvalidInput(
            f"clients must be at most the number of training rows, {rows:,}, got {count:,}"
        )
    used = {key: options[key] for key in entry.keys if options.get(key) is not None}
    if kind in BY_LABEL and dataset.kind not in BY_CLASS:
        raise InvalidInput(
            f"partition {kind!r} deals rows by their class, and targets here are "
            f"{IN_WORDS[dataset.kind]}; choose iid, or natural"
        )
    owner = check_dealt(kind, entry.deal(dataset.labels, count, generator, **used), rows, count)
    return Federation(dataset, numbered(count), shards.by_owner(owner, count))


def check_dealt(kind: str, owner: Any, rows: int, clients: int) -> IntArray:
    """Checks that every row was given to one of the clients."""
    array = np.asarray(owner)
    if (
        array.shape != (rows,)
        or array.dtype.kind not in "iu"
        or not (array.min() >= 0 and array.max() < clients)
    ):
        raise InvalidInput(
            f"partition {kind!r} must give each of {rows:,} rows the number of one of {clients:,} "
            f"clients, counted from 0; it gave {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.int64)


def from_clients(
    clients: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    test: tuple[npt.ArrayLike, npt.ArrayLike],
    classes: int,
    bounds: Bounds | None = None,
    name: str = "arrays",
    kind: str = CLASSES,
) -> Federation:
    """A federation from each client's own (features, labels); a client without rows is kept.

    >>> clients = {"a": ([[0.5]], [1]), "b": ([], [])}
    >>> federation = from_clients(clients, test=([[0.0]], [0]), classes=2)
    >>> federation.clients, [len(rows) for rows in federation.shards]
    (('a', 'b'), [1, 0])
    """
    named = read_mapping(clients)
    return of_named(named, test=test, classes=classes, bounds=bounds, name=name, kind=kind)


def of_named(
    clients: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    test: tuple[npt.ArrayLike, npt.ArrayLike],
    classes: int,
    bounds: Bounds | None = None,
    name: str = "arrays",
    kind: str = CLASSES,
) -> Federation:
    """Like `from_clients`, for names that have already been normalised."""
    parts = {
        client: (np.asarray(features), np.asarray(labels))
        for client, (features, labels) in clients.items()
    }
    for client, (features, labels) in parts.items():
        if len(features) != len(labels):
            raise InvalidInput(
                f"client {client!r} has {len(features)} rows of features and {len(labels)} labels; "
                "make them the same"
            )
    # Converted client by client: if joined first, one client's number type would decide how
    # another's values are rounded.
    full = [
        (
            as_features(f"features of client {client!r}", features),
            as_targets(f"labels of client {client!r}", labels, kind),
        )
        for client, (features, labels) in parts.items()
        if len(labels)
    ]
    if not full:
        raise InvalidInput("no client has a single row; give at least one")
    if len({features.shape[1:] for features, _ in full}) > 1:
        raise InvalidInput(
            "rows must have the same shape at every client, got "
            f"{sorted({features.shape[1:] for features, _ in full})}"
        )
    if len({(labels.shape[1:], labels.dtype) for _, labels in full}) > 1:
        raise InvalidInput(
            "targets must have the same shape and type at every client, got "
            f"{sorted({f'{labels.dtype}{labels.shape[1:]}' for _, labels in full})}"
        )
    features = np.concatenate([features for features, _ in full])
    labels = np.concatenate([labels for _, labels in full])
    data = from_arrays(
        features,
        labels,
        classes=classes,
        test_features=test[0],
        test_labels=test[1],
        bounds=bounds,
        name=name,
        kind=kind,
    )
    ends = np.cumsum([len(labels) for _, labels in parts.values()])
    return Federation(data, tuple(parts), tuple(np.split(np.arange(len(labels)), ends[:-1])))


# --- natural clients ------------------------------------------------------------------------------


def clients_of(dataset: Dataset) -> tuple[str, ...]:
    """The ids of all natural clients, in order."""
    if dataset.client_of is None:
        raise InvalidInput(
            f"data set {dataset.name!r} names no clients, so partition 'natural' cannot be used; "
            "choose iid or dirichlet"
        )
    return natural_ids(dataset.client_of) if dataset.clients is None else dataset.clients


def by_id(dataset: Dataset, clients: Sequence[str]) -> Federation:
    """A federation of these natural clients, in this order. A client without rows has an empty
    shard; rows of other clients are not used.
    """
    assert dataset.client_of is not None
    return Federation(dataset, tuple(clients), rows_by_id(dataset.client_of, clients))


def rows_by_id(client_of: npt.NDArray[Any], clients: Sequence[str]) -> Sequence[IntArray]:
    """Which rows each of these clients has; none, if the clients keep their rows themselves."""
    return shards.by_id(client_of, clients)


def choose_among(names: Sequence[str], clients: int, seed: int, data: str) -> tuple[str, ...]:
    """A seeded choice among natural clients, in their order; for simulations."""
    count = whole_number("clients", clients, at_least=1)
    if count > len(names):
        raise InvalidInput(
            f"clients must be at most the {len(names):,} that data set {data!r} names, got "
            f"{count:,}"
        )
    chosen = np.sort(Randomness(seed).generator("data").permutation(len(names))[:count])
    return tuple(names[n] for n in chosen)


# --- how rows are dealt ---------------------------------------------------------------------------


def _read_alpha(alpha: float | None) -> float:
    if alpha is None:
        raise InvalidInput(
            "partition 'dirichlet' needs alpha, for example alpha = 0.1; smaller is more uneven"
        )
    number = finite_number("alpha", alpha)
    if not number > 0:
        raise InvalidInput(f"alpha must be positive, got {alpha!r}")
    return min(number, _MOST_ALPHA)


def _equal_parts(rows: int, parts: int) -> IntArray:
    """The part that each of `rows` places belongs to; part sizes differ by at most one."""
    return np.arange(rows, dtype=np.int64) * parts // rows


def _iid(labels: IntArray, clients: int, generator: np.random.Generator) -> IntArray:
    owner = np.empty(len(labels), dtype=np.int64)
    owner[generator.permutation(len(labels))] = _equal_parts(len(labels), clients)
    return owner


def _dirichlet(
    labels: IntArray, clients: int, generator: np.random.Generator, alpha: float | None = None
) -> IntArray:
    alpha = _read_alpha(alpha)
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(generator.dirichlet(np.full(clients, alpha)))
        # A place belongs to the client whose stretch of (0, 1) contains its middle; the last end is
        # 1 up to rounding.
        owner[rows] = np.searchsorted(ends / ends[-1], (np.arange(len(rows)) + 0.5) / len(rows))
    return owner


def _label_shards(
    labels: IntArray, clients: int, generator: np.random.Generator, shards: int = 2
) -> IntArray:
    each = whole_number("shards", shards, at_least=1)
    pieces = clients * each
    if pieces > len(labels):
        raise InvalidInput(
            f"clients * shards must be at most the number of training rows, {len(labels):,}, got "
            f"{pieces:,}"
        )
    shuffled = generator.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner_of_piece = generator.permutation(pieces) // each
    owner = np.empty(len(labels), dtype=np.int64)
    owner[by_label] = owner_of_piece[_equal_parts(len(labels), pieces)]
    return owner


def _few_classes(
    labels: IntArray,
    clients: int,
    generator: np.random.Generator,
    classes_per_client: int | None = None,
) -> IntArray:
    present, each = np.unique(labels), classes_per_client
    if each is None:
        raise InvalidInput(
            "partition 'classes' needs classes_per_client, for example classes_per_client = 5"
        )
    each = whole_number("classes_per_client", each, at_least=1)
    if each > present.size:
        raise InvalidInput(
            "classes_per_client must be at most the number of classes in the data, "
            f"{present.size}, got {each}"
        )
    if clients * each < present.size:
        raise InvalidInput(
            f"clients * classes_per_client must be at least {present.size}, so that every class "
            f"has a client, got {clients * each}"
        )
    held = _who_holds_what(clients, each, present.size, generator)
    owner = np.empty(len(labels), dtype=np.int64)
    for number, label in enumerate(present):
        rows, holders = (
            generator.permutation(np.flatnonzero(labels == label)),
            np.flatnonzero(held[:, number]),
        )
        owner[rows] = holders[_equal_parts(len(rows), len(holders))]
    return owner


def _who_holds_what(
    clients: int, each: int, classes: int, generator: np.random.Generator
) -> BoolArray:
    """Who holds which class, (clients, classes): `each` classes per client, holders per class equal
    up to one, otherwise random.

    Classes are first handed out in turn. Then clients trade in random pairs: the classes that only
    one of the two holds are shuffled and split in half.
    """
    held = np.zeros((clients, classes), dtype=bool)
    in_turn = generator.permutation(classes)[np.arange(clients * each) % classes]
    held[np.repeat(np.arange(clients), each), in_turn] = True
    for _ in range(_TRADES):
        one, other = np.split(generator.permutation(clients)[: clients // 2 * 2], 2)
        tradable = held[one] != held[other]
        # 2 sorts after everything that can be traded
        lots = np.where(tradable, generator.random(tradable.shape), 2.0)
        gets = tradable & (
            2 * lots.argsort(axis=1).argsort(axis=1) < tradable.sum(axis=1, keepdims=True)
        )
        held[one], held[other] = (
            np.where(tradable, gets, held[one]),
            np.where(tradable, ~gets, held[other]),
        )
    return held


PARTITIONS: Registry[Partition] = Registry(
    "partition",
    Partition("iid", "shuffled, in equal parts", deal=_iid),
    Partition(
        "dirichlet",
        "each class is divided by proportions drawn from Dirichlet(alpha, ..., alpha); a client "
        "may get no rows",
        ("alpha",),
        deal=_dirichlet,
    ),
    Partition(
        "shards",
        "sorted by label and cut into clients * shards pieces; each client gets shards of them at "
        "random",
        ("shards",),
        deal=_label_shards,
    ),
    Partition(
        "classes",
        "each client gets classes_per_client random classes; each class is divided equally among "
        "the clients that hold it",
        ("classes_per_client",),
        deal=_few_classes,
    ),
    Partition("natural", "by the data set's own clients"),
    section="data",
)


# --- summary --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statistics:
    """How rows are spread over clients. Computed from the rows themselves, so it is for simulations
    and for the operator, not for publication.
    """

    clients: int
    rows: int
    smallest: int
    median: float
    largest: int
    empty: int
    labels_per_client: float  # mean over clients that have rows


def statistics(federation: Federation) -> Statistics:
    sizes = np.array([len(rows) for rows in federation.shards])
    kinds = [
        len(np.unique(federation.dataset.labels[rows])) for rows in federation.shards if len(rows)
    ]
    return Statistics(
        clients=len(sizes),
        rows=int(sizes.sum()),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        empty=int((sizes == 0).sum()),
        labels_per_client=float(np.mean(kinds)) if kinds else 0.0,
    )
