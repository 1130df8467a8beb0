"""Clients as Python users have them: dicts, torch data sets and loaders, data frames.

Guarantee: whatever is given becomes (features, labels) by client id, or a list of such pairs where
nothing names clients. Each client is read by itself, once. Loaders that shuffle are refused:
batches are drawn by the run, and rows that come in another order every time would make seeded runs
differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from fedspend.basics.choices import only
from fedspend.data.frames import frame_of, is_frame
from fedspend.data.tables import (
    TABLE_OPTIONS,
    Layout,
    TableOptions,
    labelled,
    layout_of,
    table_rows,
)
from fedspend.errors import InvalidInput

Pair = tuple[Any, Any]
KINDS = "(features, labels), a torch Dataset or DataLoader, or a data frame"


def as_clients(
    clients: Any, test: Any, options: Mapping[str, Any], known: Sequence[str]
) -> tuple[Any, Any, dict[str, Any]]:
    """Clients and test rows as arrays, and the options that are left for training, `known`."""
    declared = {key: options[key] for key in TABLE_OPTIONS if key in options}
    left = {key: options[key] for key in options if key not in declared or key in known}
    only("train(clients=...)", left, known)
    if not _has_frames(clients):
        _refuse_declarations(declared, known)
        return _by_client(clients), None if test is None else pair_of("test", test), left
    found, layout = _of_frames(clients, TableOptions(**declared))
    if test is not None and is_frame(test):
        test = labelled(layout, frame_of(test, "test"))
    elif test is not None:
        test = pair_of("test", test)
    if "classes" in known:
        left["classes"] = layout.target.classes
    return found, test, left


def _refuse_declarations(declared: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in declared:
        if key not in known:
            raise InvalidInput(
                f"{key} says how a data frame is read, and clients are given as arrays; drop it, "
                "or give clients as a data frame"
            )


# --- data frames ----------------------------------------------------------------------------------


def _has_frames(clients: Any) -> bool:
    if is_frame(clients):
        return True
    if not isinstance(clients, Mapping) or not any(map(is_frame, clients.values())):
        return False
    for client, value in clients.items():
        if not is_frame(value):
            raise InvalidInput(
                f"client {client!r} is {type(value).__name__}, and others are data frames; give "
                "all of them the same way"
            )
    return True


def _of_frames(clients: Any, how: TableOptions) -> tuple[dict[str, Pair], Layout]:
    """One frame with a column of clients, or a frame for each client."""
    if is_frame(clients):
        return _of_one_frame(clients, how)
    alone = replace(how, client=None)
    found: dict[str, Pair] = {}
    layout, first = None, None
    for client, value in clients.items():
        if not len(value):
            found[client] = ([], [])
            continue
        frame = frame_of(value, f"client {client!r}")
        layout = layout or layout_of(frame, alone)
        first = first or (client, frame.header)
        if frame.header != first[1]:
            raise InvalidInput(
                f"clients {first[0]!r} and {client!r} have different columns; give all frames the "
                "same, in one order"
            )
        found[client] = labelled(layout, frame)
    if layout is None:
        raise InvalidInput("no client has a single row; give at least one")
    return found, layout


def _of_one_frame(clients: Any, how: TableOptions) -> tuple[dict[str, Pair], Layout]:
    frame = frame_of(clients, "clients")
    layout = layout_of(frame, how)
    if layout.client is None:
        raise InvalidInput(
            "the data frame has no column 'client'; say which column names each row's client: "
            'client="hospital"'
        )
    if layout.split is not None:
        raise InvalidInput(
            f"column {layout.split!r} says which rows are for testing; give these as test=, and "
            "say split=None"
        )
    rows = table_rows(layout, frame)
    assert rows.client_of is not None
    names = rows.client_of.astype(str)
    return {
        name: (rows.features[names == name], rows.labels[names == name])
        for name in np.unique(names).tolist()
    }, layout


# --- arrays, data sets, loaders -------------------------------------------------------------------


def _by_client(clients: Any) -> Any:
    """Pairs by id, or a list of pairs."""
    if isinstance(clients, Mapping):
        return {client: pair_of(client, value) for client, value in clients.items()}
    listed = clients if isinstance(clients, tuple | list) else ()
    named = any(isinstance(one, tuple) and one and isinstance(one[0], str) for one in listed)
    if named or listed is not clients:
        raise InvalidInput(
            f"clients must be a dict of id: {KINDS}, or a list of these, got "
            f"{type(clients).__name__}; write dict(clients)"
        )
    return [pair_of(n, item) for n, item in enumerate(listed)]


def pair_of(who: Any, value: Any) -> Pair:
    """The features and labels of one client."""
    if isinstance(value, DataLoader):
        return _of_loader(who, value)
    if isinstance(value, Dataset):
        return _of_dataset(who, value)
    if isinstance(value, tuple | list) and len(value) == 2:
        return _plain(value[0]), _plain(value[1])
    said = type(value).__name__
    if isinstance(value, tuple | list):
        said += f" of length {len(value)}"
    raise InvalidInput(f"client {who!r} must be {KINDS}, got {said}")


def _of_loader(who: Any, loader: Any) -> Pair:
    if isinstance(loader.sampler, RandomSampler):
        raise InvalidInput(
            f"the DataLoader of client {who!r} shuffles; make it with shuffle=False, since batches "
            "are drawn by the run itself"
        )
    if loader.drop_last:
        raise InvalidInput(
            f"the DataLoader of client {who!r} leaves rows out; make it with drop_last=False"
        )
    parts = [_two(who, n, batch) for n, batch in enumerate(loader)]
    if not parts:
        return [], []
    return tuple(np.concatenate([one[k] for one in parts]) for k in range(2))  # type: ignore[return-value]


def _of_dataset(who: Any, rows: Any) -> Pair:
    counted = hasattr(rows, "__getitem__") and hasattr(rows, "__len__")
    items = (rows[n] for n in range(len(rows))) if counted else iter(rows)
    pairs = [_two(who, n, item) for n, item in enumerate(items)]
    return _together([x for x, _ in pairs]), _together([y for _, y in pairs])


def _two(who: Any, place: int, item: Any) -> Pair:
    if not (isinstance(item, tuple | list) and len(item) == 2):
        said = type(item).__name__
        raise InvalidInput(
            f"client {who!r}: item {place} of its data set must be (features, label), got {said}"
        )
    return np.asarray(_plain(item[0])), np.asarray(_plain(item[1]))


def _together(rows: list[Any]) -> Any:
    """Rows as one array; sequences of different length stay a list."""
    return np.stack(rows) if len({row.shape for row in rows}) == 1 else rows


def _plain(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
