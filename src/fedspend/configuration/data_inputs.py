"""The data that a config names, and which client holds which rows. Planning needs no torch for it.

Guarantee: if the data names clients, the partition is `natural` unless the config says otherwise:
rows go to clients by id, and hold-out and samples are decided row by row. Your own rows are dealt
to made-up clients in simulations only.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedspend import data
from fedspend.budgets.identity import hint_alike, read_ids
from fedspend.budgets.population import numbered
from fedspend.configuration.config import Config, needed
from fedspend.configuration.sections import NONE, PRIVATE, SECTIONS
from fedspend.data import Dataset, Federation
from fedspend.data.dataset import Rows, without_tests_of
from fedspend.data.loading import DATA_SETS, FILES, NATURAL, OWN, TABLES, read
from fedspend.data.meaning import summary
from fedspend.data.partition import PARTITIONS
from fedspend.engines.table import ENGINES
from fedspend.errors import InvalidInput
from fedspend.tasks.kinds import BINARY, CLASSES, IN_WORDS, KEPT
from fedspend.tasks.table import CLASSIFICATION, LOSSES


def options_of(name: str) -> tuple[str, ...]:
    """The keys of [data] that a data set takes, whether it is built in or a user's own entry."""
    if name not in DATA_SETS:
        return ()
    return tuple(
        key for key in DATA_SETS[name].keys if key in SECTIONS["data"] or name in DATA_SETS.own
    )


def is_real(config: Config) -> bool:
    """Whether a run protects someone: randomness from the OS, the default for your own data."""
    return (config.privacy.randomness or ("os" if config.data.name in OWN else "seeded")) == "os"


# whose evaluation rows are
PUBLIC_ROWS, CLIENTS, NOBODY = "public", "clients", "nobody"


@dataclass(frozen=True, eq=False)
class Source:
    """The data of a config, read once and only when it is needed.

    `secret` is the key of a real run's hold-out; without one, the key is made from the seed.
    """

    config: Config
    secret: bytes | None = None

    @property
    def name(self) -> str:
        return needed(self.config.data.name, "data.name")

    @property
    def seed(self) -> int:
        return self.config.train.seed

    @property
    def elsewhere(self) -> bool:
        """Whether the clients keep their rows on machines of their own, so that none are here."""
        return ENGINES[self.config.engine.name].elsewhere and self.name in FILES

    @cached_property
    def rows(self) -> Rows:
        options = {key: self.config.value(f"data.{key}") for key in options_of(self.name)}
        if self.elsewhere:
            options = self._tests_alone(options)
        for key in ("public_path", "record"):
            if self.config.given(f"data.{key}") and key not in options_of(self.name):
                instead = (
                    "; drop it, and set part of the data set aside with public_share"
                    if key == "public_path"
                    else "; drop it"
                )
                raise InvalidInput(
                    f"{key} is for your own data ({', '.join(FILES)}), but the data set is "
                    f"{self.name!r}{instead}"
                )
        if is_real(self.config):
            _refuse_one_file_for_two(self.config, options)
        kind = LOSSES[self.config.task.loss or CLASSIFICATION].targets
        if self.name == "npz" and kind != CLASSES:  # tables declare it by their columns
            options["targets"] = kind
        found = read(
            self.name,
            seed=self.seed,
            **{key: value for key, value in options.items() if value is not None},
        )
        found = self._for_loss(found, kind)
        return found.only_tests() if self.elsewhere else found

    @property
    def meaning(self) -> str:
        """What the rows mean to the model, to be compared with what they mean elsewhere."""
        return summary(self.rows, self.config.model.features)

    def _for_loss(self, rows: Rows, kind: str) -> Rows:
        """The rows, if their targets are what the loss takes."""
        if kind == BINARY and rows.kind == CLASSES and rows.classes == 2:
            return replace(rows, kind=BINARY)
        if kind not in (rows.kind, KEPT):
            loss = self.config.task.loss or CLASSIFICATION
            raise InvalidInput(
                f"loss {loss!r} needs {IN_WORDS[kind]}, and data set {self.name!r} has "
                f"{IN_WORDS[rows.kind]}; choose another loss (task.loss)"
            )
        return rows

    def _tests_alone(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options that read the file of evaluation rows, which is all that a server has."""
        engine = f'engine "{self.config.engine.name}"'
        for key in ("path", "client", "split", "record", "budget", "clients"):
            if self.config.given(f"data.{key}"):
                raise InvalidInput(
                    f"{self.config.where(f'data.{key}')}: with {engine} each client keeps its own "
                    f"rows, so {key} does not belong in the server's config; drop it"
                )
        if self.name not in TABLES or options.get("test_path") is None:
            raise InvalidInput(
                f"with {engine} the server has evaluation rows only; give them as a CSV file: "
                'data.name = "csv" and data.test_path'
            )
        for key in ("validation", "share"):
            if self.config.given(f"data.{key}"):
                raise InvalidInput(
                    f"{self.config.where(f'data.{key}')}: with {engine} there are no training "
                    f"rows here to choose among; drop {key}"
                )
        return options | {"path": options["test_path"], "test_path": None}

    @cached_property
    def partition(self) -> str:
        """The config's partition; by default natural if the data names clients, otherwise iid.

        The rows are read only if nothing else decides.
        """
        config = self.config
        if self.elsewhere:
            return self._natural_alone()
        if config.given("data.partition"):
            return str(config.data.partition)
        own = self.name in OWN
        named = self.name in NATURAL or (
            own and (config.given("data.client") or self.rows.client_of is not None)
        )
        return "natural" if named else "iid"

    def _natural_alone(self) -> str:
        chosen = self.config.data.partition
        if chosen not in (None, "natural"):
            raise InvalidInput(
                f"{self.config.where('data.partition')}: partition {chosen!r} deals rows, and the "
                'clients keep theirs; drop it, or set data.partition = "natural"'
            )
        return "natural"

    @property
    def natural(self) -> bool:
        return self.partition == "natural"

    @cached_property
    def test_rows(self) -> str:
        """Whose rows the evaluation rows are. Only a public data set's own, and those of
        `test_path`, are public by themselves: other files hold rows of clients.
        """
        config = self.config
        if config.data.validation > 0 and (self.natural or config.evaluation.mode != PRIVATE):
            return CLIENTS
        if self.name not in OWN or config.given("data.test_path"):
            return PUBLIC_ROWS
        return NOBODY if self.rows.test_features is None else CLIENTS

    @property
    def stated(self) -> bool:
        """Whether the config may say of its evaluation rows that they are public: they are arrays
        of their own, of which no client is named.
        """
        return (
            self.config.data.validation == 0
            and self.name not in TABLES
            and self.rows.test_features is not None
            and self.rows.test_client_of is None
        )

    @cached_property
    def dataset(self) -> Dataset:
        config = self.config
        # Rows of a real run are real, dealt out or not, and none of them may affect where another
        # goes.
        by_row = self.natural or is_real(config)
        # made-up clients hold out what they were dealt
        later = config.evaluation.mode == PRIVATE and not self.natural
        made = data.load(
            self.name,
            rows=self.rows,
            validation=0.0 if later else config.data.validation,
            seed=self.seed,
            by_row=by_row,
            secret=self.secret,
            untested=is_real(config) and config.evaluation.mode in (None, NONE),
        )
        made = data.sample(
            made, share=config.data.share, test_share=config.data.test_share, by_row=by_row
        )
        if config.data.public_share is not None:
            made = data.set_aside(made, share=config.data.public_share, seed=self.seed)
        return made

    @property
    def left_out(self) -> tuple[str, ...]:
        """Ids whose rows are not used."""
        if self.config.data.leave_out is None:
            return ()
        if not self.natural:
            raise InvalidInput(
                f"{self.config.where('data.leave_out')}: leave_out names clients, but partition "
                f"{self.partition!r} deals rows to made-up ones; drop one of the two"
            )
        return read_ids(self.config.data.leave_out, what="data.leave_out: client")

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The clients that the data names, except those left out."""
        named = self.rows.clients
        if self.elsewhere and not self.config.given("privacy.budgets"):
            raise InvalidInput(
                "the clients keep their rows themselves, so nothing here names them; list them in "
                "a file of budgets (privacy.budgets), or in a ledger"
            )
        if named is None:
            raise InvalidInput(
                f"data set {self.name!r} names no clients, so partition 'natural' cannot be used; "
                "choose iid or dirichlet"
            )
        out = set(self.left_out)
        return tuple(client for client in named if client not in out)


# --- who the clients are, if only the data says so ------------------------------------------------


def clients_of(source: Source, listed: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """Ids of the clients where no file of budgets and no ledger lists them: those of the data, or
    numbers of made-up ones. If a file of records has listed them: those, or some of them.
    """
    config = source.config
    if not source.natural:
        count = needed(config.data.clients, "data.clients")
        refuse_dealing(source, count)
        return numbered(count)
    wanted, ids = config.data.clients, source.ids if listed is None else listed
    named_by = "the data names" if listed is None else "the file of budgets lists"
    if wanted is None or wanted == len(ids):
        return checked_left_out(source, ids)
    if is_real(config):
        raise InvalidInput(
            f"{config.where('data.clients')}: clients = {wanted}, but {named_by} "
            f"{len(ids)}, and choosing among them at random is for simulations; drop "
            "clients, and leave clients out by id with data.leave_out"
        )
    return data.choose_among(checked_left_out(source, ids), wanted, source.seed, source.name)


def _refuse_one_file_for_two(config: Config, options: Mapping[str, Any]) -> None:
    """Refuse rows of clients under the name of public ones: a slip that tells what they are."""
    path = options.get("path")
    for key in ("test_path", "public_path"):
        other = options.get(key)
        if path is None or other is None or not (os.path.exists(path) and os.path.exists(other)):
            continue
        if os.path.samefile(path, other):
            raise InvalidInput(
                f"{config.where(f'data.{key}')}: {key} is the file of data.path itself, and its "
                "rows are the clients', not public; name a file of public rows, or hold rows out "
                "with data.validation or data.split"
            )


def checked_left_out(source: Source, listed: Sequence[str]) -> tuple[str, ...]:
    """`listed` itself; refuses a name under leave_out that neither it nor the data has."""
    if not source.left_out:
        return tuple(listed)
    tested = source.rows.test_client_of
    known = {
        *listed,
        *(source.rows.clients or ()),
        *(() if tested is None else map(str, set(tested.tolist()))),
    }
    for client in source.left_out:
        if client not in known:
            raise InvalidInput(
                f"{source.config.where('data.leave_out')}: client {client!r} under leave_out is "
                f"neither in the data nor among the clients{hint_alike(client, known)}; correct "
                "it or drop it"
            )
    return tuple(listed)


def refuse_dealing(source: Source, clients: int) -> None:
    """Refuse to deal your own rows to made-up clients in a real run: that would protect nobody."""
    if source.name in OWN and clients > 1 and is_real(source.config):
        raise InvalidInput(
            f"partition {source.partition!r} deals your own rows to {clients} made-up clients, "
            "which is a simulation; name the "
            'clients with data.client, a column of the data, or set privacy.randomness = "seeded" '
            "to simulate"
        )


def refuse_nameless(config: Config, partition: str) -> None:
    """Refuse lasting accounts for unnamed clients: a number could be anyone in the next run."""
    named = (
        partition == "natural"
        or config.given("privacy.budgets")
        or config.ledger.spend == "remaining"
    )
    if not named and is_real(config) and config.data.name in OWN:
        raise InvalidInput(
            "a ledger that outlives the run needs named clients, but nothing names them here; "
            "give a client column (data.client) or a file of budgets (privacy.budgets), or "
            'simulate (privacy.randomness = "seeded")'
        )


# --- federations ----------------------------------------------------------------------------------


def federation_of(config: Config | Source, clients: int | None = None) -> Federation:
    """Which client holds which rows, for all clients of the data.

    `clients` says how many to make up if the data is dealt.
    """
    source = config if isinstance(config, Source) else Source(config)
    if source.natural:
        ids = clients_of(source)
        return data.by_id(without_tests_of(source.dataset, source.left_out), ids)
    return dealt(
        source, needed(source.config.data.clients, "data.clients") if clients is None else clients
    )


def joined(
    source: Source, clients: Sequence[str], roster: Collection[str], listed_in: str | None
) -> Federation:
    """The rows of these natural clients, by id.

    A client may have no rows; an id in the data that is not on the roster is refused. The test rows
    of clients on the roster that do not take part are not used either. Without `listed_in`, the
    roster came from the data itself.
    """
    known = {*checked_left_out(source, tuple(roster)), *source.left_out}
    stranger = next((client for client in source.ids if client not in known), None)
    if stranger is not None and listed_in is not None:
        advice = (
            "register it (fedspend ledger register)"
            if listed_in.startswith("the ledger ")
            else "give it a budget there"
        )
        raise InvalidInput(
            f"client {stranger!r} has rows in the data but is not in "
            f"{listed_in}{hint_alike(stranger, known)}; {advice}, or list it under data.leave_out"
        )
    return data.by_id(without_tests_of(source.dataset, known - set(clients)), clients)


def dealt(source: Source, clients: int) -> Federation:
    """All rows, dealt to this many made-up clients."""
    assert source.left_out == ()
    refuse_dealing(source, clients)
    config = source.config
    return data.partition(
        source.dataset,
        clients=clients,
        kind=source.partition,
        seed=source.seed,
        **{key: config.value(f"data.{key}") for entry in PARTITIONS for key in entry.keys},
    )
