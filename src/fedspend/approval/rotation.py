"""The rotation of a node's key: a statement that both ledgers enter.

Guarantee: a statement is signed with the old key, so that nobody but its owner can hand its place
on; one that was altered, or is signed with another key, is refused. If the old key is lost nobody
can sign, and the server's people have to be sure by other means: they must say so.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedspend.basics.files import write_whole
from fedspend.errors import FedspendError, InvalidInput, Refused
from fedspend.planning.plan_json import canonical, parsed, readable

FORMAT, VERSION = "fedspend-key-rotation", 1


@dataclass(frozen=True)
class Rotation:
    """Public keys are PEM, as `engines.flower.keys` reads them."""

    client: str
    old: str
    new: str
    signature: str | None = None

    def statement(self) -> bytes:
        """The bytes that are signed."""
        said = {"client": self.client, "old": self.old, "new": self.new}
        return f"{FORMAT}-{VERSION}\n{canonical(said)}".encode()

    def save(self, path: Path) -> None:
        body = {"format": FORMAT, "version": VERSION} | asdict(self)
        write_whole(path, readable(body).encode(), private=False)

    def check(self) -> None:
        """Refuse a statement that its old key did not sign."""
        if self.signature is None:
            raise Refused(
                f"the rotation of client {self.client!r}'s key is not signed with the old key; if "
                "that is lost, and you are sure of the client by other means, add --lost"
            )
        if not _signed(self.old, self.signature, self.statement()):
            raise Refused(
                f"the rotation of client {self.client!r}'s key is not signed with the old key: it "
                "was changed, or is not from this client"
            )


def read_rotation(path: str | Path) -> Rotation:
    try:
        content = parsed(Path(path))
    except FedspendError as error:
        raise InvalidInput(
            f"{path}: {str(error).replace('not a plan', 'not a rotation')}"
        ) from None
    known = content.pop("format", None) == FORMAT and content.pop("version", None) == VERSION
    signature = content.get("signature")
    client, old, new = (content.get(name) for name in ("client", "old", "new"))
    sound = all(isinstance(one, str) and one for one in (client, old, new))
    if not (known and sound and set(content) == {"client", "old", "new", "signature"}):
        raise InvalidInput(f"{path} is not a rotation of this version, or is damaged")
    if not (signature is None or isinstance(signature, str)):
        raise InvalidInput(f"{path}: the signature is damaged")
    return Rotation(str(client), str(old), str(new), signature)


def signed_by(private: str | Path, rotation: Rotation) -> Rotation:
    """The statement, signed with the old private key in a file."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from fedspend.engines.flower.keys import private_of

    key: Any = private_of(private)
    said = rotation.statement()
    made = key.sign(said, _ecdsa()) if isinstance(key, EllipticCurvePrivateKey) else key.sign(said)
    return Rotation(rotation.client, rotation.old, rotation.new, base64.b64encode(made).decode())


def _signed(public: str, signature: str, statement: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key: Any = load_pem_public_key(public.encode())
        made = base64.b64decode(signature, validate=True)
        if isinstance(key, EllipticCurvePublicKey):
            key.verify(made, statement, _ecdsa())
        else:
            key.verify(made, statement)
    except (
        *(InvalidSignature, UnsupportedAlgorithm, binascii.Error),
        *(ValueError, TypeError, AttributeError),
    ):
        return False
    return True


def _ecdsa() -> Any:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA384

    return ECDSA(SHA384())
