"""The secret that decides which rows the clients of a real run hold out.

Guarantee: drawn from the operating system for every run, kept in a file that only the owner reads
and nobody publishes. A run goes on with the key that it began with, or not at all: with another
one, rows that were held out would be trained on. Simulations, records (whose plan lists who is in
it) and runs of older versions have a key made from the seed.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from fedspend.configuration.config import Config
from fedspend.configuration.data_inputs import is_real
from fedspend.configuration.method_name import method_of
from fedspend.errors import InvalidInput
from fedspend.server.methods.table import protects_records
from fedspend.stored.files import HOLD_OUT
from fedspend.stored.run import StoredRun

HOLD_OUT_DIGEST = "hold_out"  # in `run.json`: the digest of the key
_BYTES = 32


def secret_of(config: Config, begun: Path | None) -> bytes | None:
    """The key of the run that has `begun` in this folder, or of a new one; None: from the seed."""
    if begun is not None:
        return stored_secret(begun)
    by_rows = is_real(config) and config.data.validation > 0
    if not by_rows or protects_records(method_of(config)):
        return None
    return secrets.token_bytes(_BYTES)


def stored_secret(folder: Path) -> bytes | None:
    """The key that a run began with; refuses to go on with another one."""
    expected = StoredRun(folder).facts().content.get(HOLD_OUT_DIGEST)
    if expected is None:
        return None
    path = HOLD_OUT.of(folder)
    try:
        found = path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read ({error.strerror}): without it nobody knows which rows the run "
            "holds out; restore it, or start a new run"
        ) from None
    if digest_of(found) != expected:
        raise InvalidInput(
            f"{path} is not the key that the run began with; restore it, or start a new run"
        )
    return found


def digest_of(secret: bytes) -> str:
    """A digest of the key. The key is 256 random bits, so this reveals nothing about it."""
    return hashlib.sha256(b"fedspend hold-out key" + secret).hexdigest()
