"""The file of keys: which public key is which client's node.

Guarantee: every client has one key and every key one client; a line that is not a public key is
refused, and so is a private one, which nobody else should have.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedspend.basics.choices import choose
from fedspend.basics.csv_rows import read_table
from fedspend.basics.files import write_whole
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


def short(key: str) -> str:
    """What people compare, as `ssh-keygen -lf` prints it, of a key as `read_keys` gives it."""
    found = load_pem_public_key(key.encode()).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(found.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def read_public(path: str | Path) -> str:
    """The public key in a file as ssh-keygen writes it."""
    try:
        found = _public_key(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        found = None
    if found is None:
        raise InvalidInput(f"{str(path)!r} holds no public key as ssh-keygen writes it (.pub)")
    return found


def public_of(path: str | Path) -> str:
    """The public key that belongs to a private one in a file, as `read_keys` gives it."""
    return _as_pem(private_of(path).public_key())


def private_of(path: str | Path) -> Any:
    """The private key in a file."""
    try:
        return load_ssh_private_key(Path(path).read_bytes(), None)
    except OSError as error:
        raise InvalidInput(f"cannot read the key {str(path)!r}: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidInput(
            f"{str(path)!r} holds no private key without a passphrase, as ssh-keygen writes it"
        ) from None


def replaced(path: str | Path, old: str, new: str) -> bool:
    """Put a new key in the place of an old one in a file of keys; whether it is there now."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    pairs = [line.partition(",") for line in lines]
    listed = [_public_key(key.strip('" ')) if comma else None for _, comma, key in pairs]
    if old not in listed:
        return new in listed
    at = listed.index(old)
    ssh = load_pem_public_key(new.encode()).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    lines[at] = f"{pairs[at][0]},{ssh.decode()}"
    write_whole(Path(path), ("\n".join(lines) + "\n").encode())
    return True


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
    return _as_pem(key)


def _as_pem(key: Any) -> str:
    body: bytes = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return body.decode().strip()
