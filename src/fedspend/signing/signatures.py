"""A signature of a statement: of a run (`SIGNATURE` in its directory) or of a publication.

Guarantee: what is signed is the statement's canonical JSON under a prefix that names its kind, so a
signature of one kind never fits another. A statement that was altered, another key, or a damaged
signature does not verify: `check` raises `NotSigned`, and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from fedspend.errors import FedspendError
from fedspend.signing.keys import fingerprint, raw

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

RUN, PUBLICATION = "fedspend-run", "fedspend-publication"


class NotSigned(FedspendError):
    """There is no signature, or it is not one by this key over this statement."""


def canonical(kind: str, statement: dict[str, Any]) -> bytes:
    """The bytes that are signed: equal statements give equal bytes, whatever their layout.

    >>> canonical(RUN, {"b": 1, "a": "é"})
    b'fedspend-run\\n{"a":"\\\\u00e9","b":1}'
    """
    text = json.dumps(statement, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{kind}\n{text}".encode()


def signed(kind: str, statement: dict[str, Any], key: Ed25519PrivateKey) -> dict[str, str]:
    """A signature, with the public key that checks it."""
    return {
        "kind": kind,
        "algorithm": "Ed25519",
        "public_key": _text(raw(key.public_key())),
        "signature": _text(key.sign(canonical(kind, statement))),
    }


def check(
    kind: str, statement: dict[str, Any], signature: Any, key: Ed25519PublicKey | None = None
) -> str:
    """The fingerprint of the key that signed; raises `NotSigned`.

    Without `key` the signature is checked with the key that it names itself. That shows that
    nothing was changed since, not who signed.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not isinstance(signature, dict):
        raise NotSigned("it is not signed: nobody vouches for it")
    if signature.get("kind") != kind or signature.get("algorithm") != "Ed25519":
        raise NotSigned(f"its signature is damaged, or is not one of a {kind}")
    try:
        stated, made = (_bytes(signature.get(name)) for name in ("public_key", "signature"))
        known = Ed25519PublicKey.from_public_bytes(stated)
        body = canonical(kind, statement)
    except (ValueError, TypeError, RecursionError):
        raise NotSigned("its signature is damaged") from None
    if key is not None and raw(key) != stated:
        raise NotSigned(
            f"it is signed by another key, {fingerprint(stated)}, not by {fingerprint(raw(key))}"
        )
    try:
        known.verify(made, body)
    except InvalidSignature:
        raise NotSigned(
            f"its signature by {fingerprint(stated)} does not fit: it was changed after it was "
            "signed, or forged"
        ) from None
    return fingerprint(stated)


def _text(body: bytes) -> str:
    return base64.b64encode(body).decode()


def _bytes(text: Any) -> bytes:
    if not isinstance(text, str):
        raise ValueError
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError from None
