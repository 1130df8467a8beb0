"""One value per client, given by id, in the order of the clients, or once for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.budgets.identity import as_mapping, hint_alike
from fedspend.errors import InvalidInput


def by_client(name: str, values: Any, ids: Sequence[str]) -> Any:
    """Values by id as a column in the order of the clients; anything else is returned unchanged."""
    by_id = as_mapping(values)
    return values if by_id is None else column_of(name, by_id, ids)


def column_of(name: str, by_id: dict[str, Any], ids: Sequence[str]) -> list[Any]:
    """One value per client, found by its id; both sides must have the same clients."""
    missing = next((client for client in ids if client not in by_id), None)
    if missing is not None:
        raise InvalidInput(
            f"{name} has no value for client {missing!r}{hint_alike(missing, by_id)}; every client "
            "needs one"
        )
    listed = set(ids)
    stranger = next((client for client in by_id if client not in listed), None)
    if stranger is not None:
        raise InvalidInput(
            f"{name} has a value for {stranger!r}, which is not one of the "
            f"clients{hint_alike(stranger, listed)}; remove it, or add the client"
        )
    return [by_id[client] for client in ids]


def numbers_of(name: str, value: Any, clients: int) -> FloatArray:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"{name} must be a number or one number per client, got {value!r}"
        ) from None
    if array.shape not in ((), (1,), (clients,)):
        raise InvalidInput(
            f"{name} must be one number or one per client: got {array.size} for {clients} clients"
        )
    return np.array(np.broadcast_to(array, (clients,)))
