"""The file of keys: which public key is which client's node.

Guarantee: every client has one key and every key one client; a line that is not a public key is
refused, and so is a private one, which nobody else should have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from fedspend.basics.choices import choose
from fedspend.basics.csv_rows import read_table
from fedspend.budgets.csv_file import Lines, read_ids
from fedspend.errors import InvalidInput


def read_keys(path: str | Path) -> dict[str, str]:
    """Client -> public key, as Flower writes it (PEM). The file has the columns client and key; a
    key is a line as in the file that ssh-keygen writes: `ecdsa-sha2-nistp384 AAAA...`.
    """
    table = read_table(path)
    for column in ("client", "key"):
        choose(f"column in {table.name}:", column, table.header)
    clients = read_ids(table.raw("client"), Lines(table.name, table.lines), "client")
    keys: dict[str, str] = {}
    for client, key, line in zip(clients, table.raw("key"), table.lines, strict=True):
        found, where = _public_key(key), f"{table.name}:{line}"
        if found is None:
            raise InvalidInput(
                f"{where}: the key of client {client!r} is not a public key as ssh-keygen writes "
                "it (ecdsa-sha2-nistp384 ...); copy it from the node's .pub file"
            )
        if found in keys.values():
            raise InvalidInput(
                f"{where}: client {client!r} has a key that another client has; give each its own"
            )
        keys[client] = found
    return keys


def fingerprint(keys: Mapping[str, str]) -> str:
    """Says whether two files name the same keys."""
    lines = "".join(f"{client}\n{key}\n" for client, key in sorted(keys.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def check_covers(keys: Mapping[str, str], roster: tuple[str, ...], where: str) -> None:
    """Every client of the roster needs a key, and no other key may be listed."""
    for client in roster:
        if client not in keys:
            raise InvalidInput(f"{where}: there is no key for client {client!r}; add it")
    stranger = next((client for client in keys if client not in roster), None)
    if stranger is not None:
        raise InvalidInput(f"{where}: client {stranger!r} is not on the roster; remove its key")


def _public_key(line: str) -> str | None:
    try:
        key = load_ssh_public_key(line.strip().encode())
    except (ValueError, UnsupportedAlgorithm):
        return None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode().strip()
