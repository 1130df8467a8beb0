"""Ed25519 key pairs, in files that other programs can read (PEM: PKCS #8 and SubjectPublicKeyInfo).

Guarantee: a private key is written readable by its owner only, never over another file, and is not
used if others can read it. The cryptography itself is that of the `cryptography` library.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedspend.basics.door import public
from fedspend.basics.files import make_folder, sync_folder
from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

PRIVATE, PUBLIC = "fedspend.key", "fedspend.pub"
_MOST_BYTES = 1 << 16  # of a key file; a real one has about a hundred


class KeyPair(NamedTuple):
    """The files of a new key pair; `fingerprint` is a short name of it, for people to compare."""

    private: Path
    public: Path

    @property
    def fingerprint(self) -> str:
        return fingerprint(raw(public_key(self.public)))

    def __repr__(self) -> str:
        return f"<KeyPair {self.fingerprint}: private {self.private}, public {self.public}>"


@public
def new_keys(folder: str | Path = ".") -> KeyPair:
    """Make an Ed25519 key pair: a private key to sign runs and publications with, and a public key
    for everyone who checks the signatures.

    Arguments:
        folder: where the two files go; it is made if missing. Default: this folder.

    Returns:
        A `KeyPair`: `.private` and `.public` are the files, `.fingerprint` is to be read out.

    Raises:
        InvalidInput: there are such files already; they are not overwritten.

    `fedspend.train("hospitals.toml", output="runs/a", sign=fedspend.new_keys("keys").private)`
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    folder = Path(folder)
    paths = KeyPair(folder / PRIVATE, folder / PUBLIC)
    for path in paths:
        if path.exists() or path.is_symlink():
            raise InvalidInput(f"{path} exists and is not overwritten; name another folder")
    make_folder(folder, private=True)
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    shared = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    _write_new(paths.private, private, 0o600)
    _write_new(paths.public, shared, 0o644)
    sync_folder(folder)
    return paths


def _write_new(path: Path, body: bytes, mode: int) -> None:
    """Write a file that does not exist yet, with its mode from the first byte on."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise InvalidInput(f"{path} exists and is not overwritten; name another folder") from None
    with os.fdopen(handle, "wb") as file:
        os.fchmod(file.fileno(), mode)  # whatever the umask says
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def private_key(path: str | Path) -> Ed25519PrivateKey:
    """The private key in a file that nobody but its owner can read."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    body = _read(path)
    try:
        key = load_pem_private_key(body, None)
    except (ValueError, TypeError, _unsupported()):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidInput(
            f"{str(path)!r} holds no Ed25519 private key without a passphrase; make one with: "
            "fedspend keys new"
        )
    if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
        raise InvalidInput(
            f"the private key {str(path)!r} can be read or changed by others; run chmod 600 on it, "
            "and make a new one if somebody may have seen it"
        )
    return key


def public_key(path: str | Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    body = _read(path)
    try:
        key = load_pem_public_key(body)
    except (ValueError, TypeError, _unsupported()):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        wrong = "a private key; give the public one" if b"PRIVATE KEY" in body else "no public key"
        raise InvalidInput(
            f"{str(path)!r} holds {wrong} ({PUBLIC} of fedspend keys new, Ed25519 in PEM)"
        )
    return key


def raw(key: Ed25519PublicKey) -> bytes:
    """The 32 bytes of a public key."""
    return key.public_bytes_raw()


def fingerprint(public: bytes) -> str:
    """A short name of a public key, for people to compare.

    >>> fingerprint(bytes(32))
    '66687aad-f862bd77-6c8fc18b-8e9f8e20'
    """
    digits = hashlib.sha256(public).hexdigest()
    return "-".join(digits[n : n + 8] for n in range(0, 32, 8))


def _read(path: str | Path) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise InvalidInput(f"cannot read the key {str(path)!r}: {error.strerror}") from None


def _unsupported() -> type[Exception]:
    from cryptography.exceptions import UnsupportedAlgorithm

    return UnsupportedAlgorithm
