"""Clients as Python users have them: dicts, torch data sets and loaders, frames."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fedspend
from fedspend.errors import InvalidInput

NAMES = ("north", "south", "west")
SIZES = {"north": 9, "south": 14, "west": 6}


def rows_of(client: str) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(len(client))
    labels = generator.integers(0, 2, SIZES[client])
    features = generator.normal(size=(SIZES[client], 3)) + labels[:, None]
    return features.astype(np.float32), labels


CLIENTS = {client: rows_of(client) for client in NAMES}
TEST = rows_of("south")


@pytest.fixture(scope="module")
def plan():
    return fedspend.plan(dict.fromkeys(NAMES, 4.0), delta=1e-3, rounds=2, rate=1.0)


def trained(clients, plan, test=TEST, **options) -> list[np.ndarray]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    how = {"lr": 0.5, "batch_size": 4, "local_steps": 3, "randomness": "seeded"} | options
    result = fedspend.train(clients=clients, model=model, plan=plan, test=test, **how)
    return [value.detach().numpy() for value in result.model.parameters()]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def expected(plan):
    return trained(CLIENTS, plan)


class Counted(torch.utils.data.Dataset):
    """A data set that makes its rows when it is asked for them."""

    def __init__(self, client: str) -> None:
        self.rows = CLIENTS[client]

    def __len__(self) -> int:
        return len(self.rows[1])

    def __getitem__(self, n: int):
        return self.rows[0][n], int(self.rows[1][n])


class Streamed(IterableDataset):
    def __init__(self, client: str) -> None:
        self.rows = CLIENTS[client]

    def __iter__(self):
        yield from zip(*self.rows, strict=True)


def tensors(client: str) -> TensorDataset:
    return TensorDataset(*map(torch.from_numpy, CLIENTS[client]))


WAYS = {
    "tensors": lambda: {client: tuple(map(torch.from_numpy, CLIENTS[client])) for client in NAMES},
    "lists": lambda: {client: [x.tolist() for x in CLIENTS[client]] for client in NAMES},
    "tensor data sets": lambda: {client: tensors(client) for client in NAMES},
    "own data sets": lambda: {client: Counted(client) for client in NAMES},
    "streams": lambda: {client: Streamed(client) for client in NAMES},
    "loaders": lambda: {client: DataLoader(tensors(client), batch_size=4) for client in NAMES},
    "another order": lambda: {client: CLIENTS[client] for client in reversed(NAMES)},
    "a list": lambda: [CLIENTS[client] for client in NAMES],
    "a list of data sets": lambda: [Counted(client) for client in NAMES],
}


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize("way", WAYS)
def test_the_same_rows_train_the_same_model_however_they_are_given(plan, expected, way):
    assert same(trained(WAYS[way](), plan), expected)


def test_test_rows_may_be_a_data_set(plan, expected):
    assert same(trained(CLIENTS, plan, test=tensors("south")), expected)


# --- data frames ----------------------------------------------------------------------------------


def frame(names=NAMES) -> pd.DataFrame:
    parts = [
        pd.DataFrame(CLIENTS[name][0], columns=["a", "b", "c"]).assign(
            hospital=name, sick=np.array(["no", "yes"])[CLIENTS[name][1]]
        )
        for name in names
    ]
    joined = pd.concat(parts, ignore_index=True)
    joined.index = [f"p{n}" for n in range(len(joined))]
    return joined


DECLARED = {"client": "hospital", "label": "sick", "labels": ["no", "yes"]}


def test_a_frame_with_a_column_of_clients_trains_the_same_model(plan, expected):
    assert same(trained(frame(), plan, **DECLARED), expected)
    test = frame(["south"]).drop(columns="hospital")
    assert same(trained(frame(), plan, test=test, **DECLARED), expected)


def test_the_order_of_other_clients_rows_does_not_matter(plan, expected):
    mixed = frame().sort_values("hospital", ascending=False, kind="stable")
    assert same(trained(mixed, plan, **DECLARED), expected)


def test_a_frame_for_each_client_trains_the_same_model(plan, expected):
    given = {name: frame([name]).drop(columns="hospital") for name in NAMES}
    assert same(trained(given, plan, label="sick", labels=["no", "yes"]), expected)


def test_levels_missing_cells_and_bounds_are_declared_for_frames_too(plan):
    given = frame()
    given["a"] = np.where(given["a"] > 1, np.nan, given["a"])
    given["b"] = pd.Categorical(np.where(given["b"] > 0, "high", "low"))
    how = DECLARED | {
        "missing": {"a": 0.5},
        "categories": {"b": ["low", "high"]},
        "columns": ["a", "b"],
        "bounds": {"a": [-1, 1]},
    }
    found = trained(given, plan, test=given, **how)
    assert np.isfinite(found[0]).all()
    assert found[0].shape == (2, 3)
    with pytest.raises(InvalidInput, match=r"clients, row 'p\d+': a is empty"):
        trained(given, plan, test=given, **how | {"missing": None})


def broken(column: str, value) -> pd.DataFrame:
    given = frame().astype({column: object})
    given.loc["p11", column] = value
    return given


BAD_FRAMES = [
    (lambda: broken("sick", "maybe"), {}, r"clients, row 'p11': sick 'maybe' is not among"),
    (lambda: broken("sick", None), {}, r"clients, row 'p11': sick is empty"),
    (lambda: broken("a", "many"), {}, r"clients, row 'p11': a must be a number"),
    (lambda: broken("a", float("inf")), {}, r"clients, row 'p11': a must be a number .* got inf"),
    (lambda: broken("hospital", None), {}, r"clients, row 'p11': hospital is empty"),
    (lambda: broken("hospital", "harbour"), {}, "client 'harbour' has rows but is not in the plan"),
    (lambda: broken("hospital", "North"), {}, "differ only by case"),
    (frame, {"client": "clinic"}, "unknown column in clients: 'clinic'"),
    (frame, {"client": "client", "columns": ["a"]}, "the data frame has no column 'client'"),
    (frame, {"labels": None}, "classes is missing"),
    (lambda: frame().assign(split="train"), {}, "says which rows are for testing"),
    (lambda: frame().iloc[:0], {}, "clients: there are columns but no row"),
    (lambda: pd.concat([frame(), frame()[["a"]]], axis=1), {}, "column 'a' is listed twice"),
]


@pytest.mark.parametrize(("given", "options", "told"), BAD_FRAMES)
def test_a_bad_frame_is_refused_in_one_line_that_names_the_row(plan, given, options, told):
    with pytest.raises(InvalidInput, match=told) as refusal:
        trained(given(), plan, **DECLARED | options)
    assert "\n" not in str(refusal.value)


BAD = [
    (lambda: 3, "clients must be a dict of id"),
    (lambda: "north", "clients must be a dict of id"),
    (lambda: {"north": 3}, r"client 'north' must be \(features, labels\), .* got int"),
    (lambda: {"north": (1, 2, 3)}, "got tuple of length 3"),
    (
        lambda: {"north": DataLoader(tensors("north"), shuffle=True)},
        "DataLoader of client 'north' shuffles; make it with shuffle=False",
    ),
    (lambda: {"north": DataLoader(tensors("north"), 4, drop_last=True)}, "leaves rows out"),
    (
        lambda: {"north": TensorDataset(torch.zeros(3, 2))},
        r"client 'north': item 0 of its data set must be \(features, label\)",
    ),
    (lambda: [("north", CLIENTS["north"])], r"got list; write dict\(clients\)"),
    (lambda: iter(CLIENTS.items()), r"got dict_itemiterator; write dict\(clients\)"),
    (lambda: pd.Series(CLIENTS), r"got Series; write dict\(clients\)"),
    (lambda: {"north": frame(), "south": CLIENTS["south"]}, "client 'south' is tuple, and others"),
    (lambda: {"nord": CLIENTS["north"]}, "client 'nord' has rows but is not in the plan"),
    (lambda: {"north": (CLIENTS["north"][0][:3], CLIENTS["north"][1])}, "3 rows of features and 9"),
    (lambda: {"north": (np.full((2, 3), np.nan), [0, 1])}, r"nan"),
    (lambda: {"north": (np.zeros((2, 3)), [0, 7])}, r"7"),
    (lambda: {"north": (np.array([["x"] * 3]), [0])}, "must be numbers"),
]


@pytest.mark.parametrize(("given", "told"), BAD)
def test_bad_clients_are_refused_in_one_line(plan, given, told):
    with pytest.raises(InvalidInput, match=told) as refusal:
        trained(given(), plan)
    assert "\n" not in str(refusal.value)


def test_declarations_are_for_frames_and_misspelt_options_are_named(plan):
    with pytest.raises(InvalidInput, match="labels says how a data frame is read"):
        trained(CLIENTS, plan, labels=["no", "yes"])
    with pytest.raises(InvalidInput, match=r"'batchsize'; did you mean 'batch_size'"):
        trained(CLIENTS, plan, batchsize=3)


def test_one_clients_cells_change_no_other_clients_rows():
    """What is made of a frame, client by client, before anything is trained."""
    from fedspend.runs.given_clients import as_clients

    how = DECLARED | {"missing": {"a": 0.5}, "bounds": [-2, 2], "indicators": ["a"]}
    before, _, _ = as_clients(frame(), None, how, ())
    other = frame()
    mine = other["hospital"] == "north"
    other.loc[mine, "a"] = np.nan
    other.loc[mine, "b"] = 1e30
    after, _, _ = as_clients(pd.concat([other, other[mine]]), None, how, ())
    for client in ("south", "west"):
        assert before[client][0].tobytes() == after[client][0].tobytes()
        assert before[client][1].tobytes() == after[client][1].tobytes()
    assert len(after["north"][1]) == 2 * len(before["north"][1])
