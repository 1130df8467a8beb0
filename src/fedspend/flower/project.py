"""`fedspend flower new`: a folder with everything that server and nodes of a federation need.

Guarantee: an existing folder is left alone; what is written holds no key, no row, and no budget but
those that the server's own config names; the app holds two files that call the installed fedspend,
because Flower sends all of it to every node. Every command that the README shows is complete.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedspend.basics.csv_rows import read_table
from fedspend.basics.toml_text import config_text, toml
from fedspend.basics.words import counted
from fedspend.budgets.csv_file import read_budgets_csv
from fedspend.budgets.identity import read_ids
from fedspend.client.state import file_name
from fedspend.configuration.config import Config, load_config
from fedspend.configuration.method_name import known_method
from fedspend.configuration.sections import SECTIONS
from fedspend.data.columns import CsvFrame
from fedspend.data.tables import TABLE_OPTIONS, TableOptions
from fedspend.errors import InvalidInput
from fedspend.server.methods.table import METHODS, protects_records
from fedspend.stored.files import LEDGER

PORT = 9092
ROWS = "rows.csv"  # of a node, in its own folder
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")  # in shell scripts, and as a folder
# what of [data] says which rows there are, and where; the rest says how a file is read
_PLACES = ("path", "test_path", "public_path", "name", "client", "split", "clients", "partition")
_CHOICES = ("validation", "share", "test_share", "leave_out", "alpha", "shards", "public_share")
_OF_RECORDS = ("record", "budget")


@dataclass(frozen=True)
class Project:
    """What a config says about a federation."""

    config: Config
    clients: tuple[str, ...]
    budgets: Mapping[str, float]  # by client; empty where records have them
    records: bool
    host: str
    port: int

    @classmethod
    def read(
        cls, config: str | Path, clients: Sequence[str] = (), host: str = "", port: int = PORT
    ) -> Project:
        found = load_config(config)
        method = known_method(found)
        if METHODS[method].unit is None:
            raise InvalidInput(
                f"method {method!r} protects nobody, so there is nothing to deploy; choose another"
            )
        if found.data.name not in (None, "csv"):
            raise InvalidInput(
                f"{found.where('data.name')}: a project is made for CSV files, and data.name is "
                f"{found.data.name!r}; make it with CSV files, then change the configs of server "
                "and nodes by hand"
            )
        records = protects_records(method)
        listed = {} if records else _budgets(found)
        names = read_ids([*clients] or [*listed] or found.engine.silos or [], what="client")
        if not names:
            raise InvalidInput(
                "the config lists no clients: name them with --clients north,south (or in a file "
                "of budgets, privacy.budgets; for records engine.silos)"
            )
        for name in names:
            if not _SAFE.match(name):
                raise InvalidInput(
                    f"client {name!r}: ids in a project may have letters, digits, '.', '_' and "
                    "'-', because they name folders and are typed in commands; choose another"
                )
            if listed and name not in listed:
                raise InvalidInput(f"client {name!r} has no budget in {found.privacy.budgets}")
        if not (_SAFE.match(host or "localhost") and 1 <= port <= 65535):
            raise InvalidInput(f"{host}:{port} is not a host name and a port; give --host, --port")
        return cls(found, names, listed, records, host or "localhost", port)

    def write(self, folder: Path) -> list[Path]:
        """Write everything, into a folder that is not there yet; the files."""
        if folder.exists():
            raise InvalidInput(f"{folder} exists already; remove it, or choose another folder")
        folder.mkdir(mode=0o700, parents=True)
        for made in ("app", "app/fedspend_app", "server", "server/flwr", "server/public", "nodes"):
            (folder / made).mkdir(mode=0o700)
        try:
            return [_put(folder / name, text) for name, text in self._files(folder)]
        except BaseException:
            shutil.rmtree(folder)
            raise

    def _files(self, folder: Path) -> Iterator[tuple[str, str]]:
        yield "README.md", self._readme()
        yield "keys.sh", template("keys.sh")
        yield "app/pyproject.toml", template("app.toml")
        yield "app/fedspend_app/__init__.py", '"""Calls the fedspend that is installed."""\n'
        for side in ("server", "client"):
            text = f"from fedspend.flower.{side}_app import {side}_app\n\napp = {side}_app()\n"
            yield f"app/fedspend_app/{side}.py", text
        yield "server/training.toml", self._training(folder / "server")
        for script in ("superlink.sh", "env.sh", "register.sh", "run.sh", "superlink.service"):
            yield f"server/{script}", template(script, BIND=self._bind, PORT=self.port)
        yield (
            "server/flwr/config.toml",
            f'[superlink]\ndefault = "consortium"\n\n[superlink.consortium]\n'
            f'address = "{self.host}:{self.port}"\n'
            f"root-certificates = {toml(str(folder.resolve() / 'server' / 'tls' / 'ca.crt'))}\n",
        )
        for client in self.clients:
            own = {"CLIENT": client, "FOLDER": client, "HOST": self.host, "PORT": self.port}
            (folder / "nodes" / client).mkdir(mode=0o700)
            yield f"nodes/{client}/node.toml", self._node(client)
            for script in ("supernode.sh", "supernode.service"):
                yield f"nodes/{client}/{script}", template(script, **own)

    @property
    def _bind(self) -> str:
        """Where the SuperLink listens: on this machine alone, if that is all that is named."""
        return "127.0.0.1" if self.host in ("localhost", "127.0.0.1") else "0.0.0.0"

    # --- configs ---

    @cached_property
    def _columns(self) -> dict[str, list[str]]:
        """The columns of features by name, from the file of public rows: then their order in a
        node's file does not matter, and one that it lacks is noticed there.
        """
        given = self.config.values.get("data", {})
        if "columns" in given or "text" in given or "test_path" not in given:
            return {}
        how = TableOptions(**{key: given[key] for key in TABLE_OPTIONS if key in given})
        written = {key: given[key] for key in ("separator", "decimal") if key in given}
        header = CsvFrame(read_table(given["test_path"], **written)).header
        return {"columns": how.used(header)}

    def _training(self, folder: Path) -> str:
        """The server's config: the given one, without anybody's rows."""
        values = {section: dict(given) for section, given in self.config.values.items()}
        data = values.setdefault("data", {})
        if "test_path" not in data:
            raise InvalidInput(
                "a server has evaluation rows only, and the config names none of its own: set "
                "data.test_path"
            )
        for key in ("path", "client", "split", "clients", "partition", *_CHOICES, *_OF_RECORDS):
            data.pop(key, None)
        data |= {"name": "csv"} | self._columns
        privacy = values.setdefault("privacy", {})
        privacy.setdefault("randomness", "os")
        if self.records:
            for key in ("budgets", "epsilon", "preferences"):
                privacy.pop(key, None)
        engine = values.setdefault("engine", {})
        engine |= {"name": "flower", "keys": "keys.csv"}
        engine.pop("workers", None)
        if self.records:
            engine["silos"] = list(self.clients)
        else:
            engine["slices"] = "slices"
        values["ledger"] = {"location": LEDGER.name}
        values.pop("node", None)
        for section, key in (
            ("data", "test_path"),
            ("data", "public_path"),
            ("privacy", "budgets"),
            ("privacy", "influence"),
        ):
            if key in values.get(section, {}):
                values[section][key] = _copied(values[section][key], folder)
        about = "The server of a federation: public terms and rows to evaluate on; nobody's rows."
        return f"# {about}\n\n{config_text(values)}"

    def _node(self, client: str) -> str:
        data, given = {"name": "csv", "path": ROWS}, self.config.values.get("data", {})
        left_out = (*_PLACES, *_CHOICES, *(() if self.records else _OF_RECORDS))
        data |= {key: value for key, value in given.items() if key not in left_out} | self._columns
        node: dict[str, Any] = {"client": client, "key": "node.key"}
        privacy: dict[str, Any] = {"randomness": self.config.privacy.randomness or "os"}
        values = {"node": node, "data": data}
        values |= {
            section: dict(self.config.values[section])
            for section in ("task", "model")
            if section in self.config.values
        }
        if self.records:
            node["unit"] = "record"
            data.setdefault("record", "id")
            data.setdefault("budget", "epsilon")
            privacy["delta"] = self.config.privacy.delta
        else:
            node |= {"budget": self.budgets[client], "delta": self.config.privacy.delta}
        known = {key: value for key, value in node.items() if key in SECTIONS["node"]}
        values |= {"node": known, "privacy": privacy, "ledger": {"location": LEDGER.name}}
        if privacy["randomness"] == "seeded":
            values["train"] = {"seed": self.config.train.seed}
        about = f"The node of {client}: its own rows, randomness, budget and account."
        return f"# {about}\n\n{config_text(values)}"

    # --- words ---

    def _readme(self) -> str:
        shown = self.clients[0]
        return (
            template(
                "README.md",
                WHO=f"{counted(len(self.clients), 'node')} ({', '.join(self.clients)})",
                ROWS=ROWS,
                BUDGETS=_BUDGETS_OF_RECORDS if self.records else _BUDGETS_OF_CLIENTS,
                APPROVE="" if self.records else _APPROVE,
                ACCOUNTS=_ACCOUNTS_OF_RECORDS if self.records else _ACCOUNTS_OF_CLIENTS,
            )
            .replace("@HOST@", self.host)
            .replace("@SLICE@", f"{file_name(shown)}.slice.json")
            .replace("@CLIENT@", shown)
            .replace("@LEDGER@", LEDGER.name)
        )


_BUDGETS_OF_CLIENTS = """
Budgets by client are in the server's file of budgets. What a node allows over all runs is its own
number, `budget` in its `node.toml`: correct it there."""
_BUDGETS_OF_RECORDS = """
Each record has an id and a budget in that file (the columns that `record` and `budget` in
`node.toml` name). Neither leaves the node: it plans its own records for the server's public terms,
and refuses terms that its config does not allow."""
_APPROVE = """
The server plans, and makes for each node the part of the plan that is its own:

```sh server
fedspend flower slices server/training.toml -o server/slices
```

Each node gets its file from there, and nobody else's; looks at it, approves it, and compares the
root with the others':

```sh node
cp server/slices/@SLICE@ nodes/@CLIENT@/approved.slice.json
fedspend node approve nodes/@CLIENT@/approved.slice.json --config nodes/@CLIENT@/node.toml
```

Slices are for one run. For another one, make and approve others, in another folder
(`engine.slices`).
"""
_ACCOUNTS_OF_CLIENTS = """
Each node has its own account:

```sh node
fedspend node balance --config nodes/@CLIENT@/node.toml
```
"""
_ACCOUNTS_OF_RECORDS = """
Each node has the account of its own records:

```sh node
fedspend ledger balance --unit record --ledger nodes/@CLIENT@/@LEDGER@
```
"""


def template(name: str, **values: object) -> str:
    text = files("fedspend.flower").joinpath("templates", name).read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", str(value))
    return text


def _budgets(config: Config) -> dict[str, float]:
    if config.privacy.budgets is None:
        raise InvalidInput(
            "the clients of a federation have names and budgets of their own: list them in a file "
            "of budgets (privacy.budgets)"
        )
    population = read_budgets_csv(config.privacy.budgets)
    return dict(zip(population.clients, population.epsilons.tolist(), strict=True))


def _copied(path: str, folder: Path) -> str:
    """A file that the server needs, beside its config; the name it has there."""
    source = Path(path)
    if not source.is_file():
        raise InvalidInput(f"there is no file {str(source)!r}, which the config names; correct it")
    shutil.copy(source, folder / source.name)
    (folder / source.name).chmod(0o600)
    return source.name


def _put(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700 if path.suffix == ".sh" else 0o600)
    return path
