"""How good a model is said to be: on whose rows, and who may see it.

Guarantee: in a real run, exact numbers are written down only if they were measured on public rows.
Rows that came out of clients (held out, or marked as test rows in the file of the clients) are
measured privately, noised and paid for, or not at all. In a simulation exact numbers are always
there, marked by whose rows they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.configuration.data_inputs import CLIENTS, NOBODY, PUBLIC_ROWS, Source, is_real
from fedspend.configuration.sections import NONE, PRIVATE, PUBLIC
from fedspend.data import Federation
from fedspend.data.dataset import HOLD_OUT
from fedspend.data.row_choice import chosen_rows
from fedspend.errors import InvalidInput
from fedspend.server.methods.table import METHODS

SIMULATION = "simulation"  # exact numbers about rows of clients, which a real run must not show


@dataclass(frozen=True)
class Evaluation:
    """How a run is evaluated. `exact`: whether exact numbers are written down."""

    mode: str  # public, private, none, or simulation
    rows: str  # whose rows the evaluation rows are: public, clients, or nobody
    exact: bool


ON_PUBLIC_ROWS = Evaluation(PUBLIC, PUBLIC_ROWS, exact=True)


def check_mode(source: Source, method: str) -> None:
    """Refuse a mode that is not possible here."""
    config, asked = source.config, source.config.evaluation.mode
    if source.elsewhere and asked == PRIVATE:
        raise InvalidInput(
            f'{config.where("evaluation.mode")}: mode = "{asked}" needs rows that clients hold '
            'out, and here they keep all of theirs; choose "public" or "none"'
        )
    if asked == PUBLIC and is_real(config) and source.test_rows == CLIENTS and not source.stated:
        raise InvalidInput(
            f'{config.where("evaluation.mode")}: mode = "public", but the evaluation rows came out '
            "of clients; give public ones (data.test_path, and no data.validation), or choose "
            "another mode"
        )
    if asked == PRIVATE:
        check_private(source, method, config.where("evaluation.mode"))


def evaluation_of(source: Source) -> Evaluation:
    """What the config asks for, or the default."""
    asked, rows = source.config.evaluation.mode, source.test_rows
    if not is_real(source.config):
        label = PUBLIC if rows == PUBLIC_ROWS else SIMULATION
        return Evaluation(PRIVATE if asked == PRIVATE else label, rows, exact=True)
    if source.stated and asked == PUBLIC:
        rows = PUBLIC_ROWS
    mode = asked or (PUBLIC if rows == PUBLIC_ROWS else NONE)
    return Evaluation(mode, rows, exact=mode == PUBLIC)


def check_private(source: Source, method: str, where: str) -> None:
    """A private metric is paid by clients with budgets, out of rows that they hold out."""
    unit = METHODS[method].unit
    if unit != "client":
        why = (
            "held-out records would have to pay from their own accounts, which is not built"
            if unit == "record"
            else "it has no budgets to pay from"
        )
        raise InvalidInput(
            f'{where}: mode = "private" is for methods that protect clients, not for {method!r}: '
            f"{why}; choose another mode"
        )
    held = source.config.data.validation > 0 or source.rows.test_client_of is not None
    if not held:
        raise InvalidInput(
            f'{where}: mode = "private" needs rows that clients hold out; set data.validation, for '
            "example to 0.2"
        )


# --- which rows clients hold out ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Numbers of the rows that each client holds out: among the test rows, or where rows were
    dealt, among the training rows, which then are in no shard.
    """

    among_tests: bool
    shards: tuple[IntArray, ...]  # in the order of the federation's clients


def hold_out(source: Source, federation: Federation) -> tuple[Federation, HeldOutRows]:
    """The federation without what its clients hold out for private metrics, and that."""
    tested = federation.dataset.test_client_of
    if tested is not None:
        names = np.array([str(client) for client in tested.tolist()])
        order = np.argsort(names, kind="stable")
        first, last = (
            np.searchsorted(names[order], federation.clients, side=side)
            for side in ("left", "right")
        )
        shards = tuple(order[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True))
        return federation, HeldOutRows(True, shards)
    return dealt_out(federation, source.config.data.validation, source.seed, source.secret)


def dealt_out(
    federation: Federation, share: float, seed: int, secret: bytes | None
) -> tuple[Federation, HeldOutRows]:
    """The same where rows were dealt to made-up clients: each row decides for itself."""
    dataset = federation.dataset
    owner = np.full(len(dataset.labels), "", dtype=object)
    for client, rows in zip(federation.clients, federation.shards, strict=True):
        owner[rows] = client
    held = chosen_rows(owner, dataset.features, dataset.labels, share, HOLD_OUT, seed, None, secret)
    kept = replace(federation, shards=tuple(rows[~held[rows]] for rows in federation.shards))
    return kept, HeldOutRows(False, tuple(rows[held[rows]] for rows in federation.shards))


__all__ = [
    "CLIENTS",
    "NOBODY",
    "ON_PUBLIC_ROWS",
    "PUBLIC_ROWS",
    "SIMULATION",
    "Evaluation",
    "HeldOutRows",
    "check_mode",
    "evaluation_of",
    "hold_out",
]
