"""Writes a publication: one folder for everyone, and beside it one for the clients' openings.

Guarantee: `publication.json` is written last, so a folder that has one is complete. Openings are
never in the folder that is published; they are readable by their owner only. Nothing is
overwritten.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspend.basics.door import public
from fedspend.basics.files import make_folder, sync_folder, write_whole
from fedspend.basics.words import counted
from fedspend.client.state import file_name
from fedspend.errors import InvalidInput
from fedspend.planning.plan_json import readable
from fedspend.publishing.publication import finished, made
from fedspend.publishing.words import DOCUMENT, GUARANTEE, text
from fedspend.signing.keys import fingerprint, private_key, raw
from fedspend.signing.signatures import PUBLICATION, signed
from fedspend.stored.files import MODEL

OWNER = "owner.json"
CLIENTS = "clients"  # a folder in that of the openings: a client may be called "owner"


@dataclass(frozen=True, repr=False)
class Written:
    """Where a publication is, and where its openings are."""

    folder: Path
    openings: Path
    clients: int
    epsilon: float
    delta: float
    simulation: bool
    signed_by: str | None

    def __repr__(self) -> str:
        signed_by = "unsigned" if self.signed_by is None else f"signed by {self.signed_by}"
        told = "a simulation, " if self.simulation else ""
        return (
            f"<publication {self.folder}: {told}{counted(self.clients, 'client')}, epsilon "
            f"{self.epsilon:.4g}, delta {self.delta:g}, {signed_by}; private openings in "
            f"{self.openings}>"
        )


def default_folder(run: Path) -> Path:
    whole = run.resolve()
    return whole.with_name(f"{whole.name}.publication")


def openings_beside(folder: Path) -> Path:
    whole = folder.resolve()
    return whole.with_name(f"{whole.name}.openings")


@public
def publish(
    run: str | Path,
    output: str | Path | None = None,
    *,
    ledger: str | Path | None = None,
    sign: str | Path | None = None,
) -> Written:
    """Write what a stranger may have of the finished run in the run directory `run`.

    Arguments:
        run: the directory of a finished run.
        output: the folder for the publication. Default: `RUN.publication`. The openings of its
            commitments go to `OUTPUT.openings`, which is private: hand each client its own.
        ledger: where the run's ledger is. Needed unless it is in the run directory: what a
            directory says about a ledger elsewhere is not followed.
        sign: a file with a private key (`fedspend.new_keys`). Default: it is not signed.

    Returns:
        A `Written`: `.folder`, `.openings`, how many clients there are, the epsilon and delta that
        are published, and who signed.

    Raises:
        InvalidInput: there is no finished run, its ledger is elsewhere and was not named, a folder
            exists already, or the key is none.
        Refused: the run cannot be published without saying too much.

        made = fedspend.publish("runs/first", sign="keys/fedspend.key")
        fedspend.verify_publication(made.folder, key="keys/fedspend.pub").ok
    """
    key = None if sign is None else private_key(sign)
    run, folder = Path(run), default_folder(Path(run)) if output is None else Path(output)
    openings = openings_beside(folder)
    _refuse_taken(folder, openings)
    found = finished(run, None if ledger is None else str(ledger))
    publication = made(found)
    from fedspend.basics.tensors import pack

    about = {"publication": publication.document["id"], "simulation": found.simulation}
    files = {
        MODEL.name: pack(found.arrays, about),
        GUARANTEE: text(publication.document, publication.bound).encode(),
    }
    document = publication.document | {
        "files": {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
    }
    signed_by = None
    if key is not None:
        document["signature"] = signed(PUBLICATION, document, key)
        signed_by = fingerprint(raw(key.public_key()))
    _write_openings(openings, publication.openings, publication.owner)
    make_folder(folder)
    for name, body in files.items():
        write_whole(folder / name, body, private=False)
    write_whole(folder / DOCUMENT, readable(document).encode(), private=False)
    return Written(
        folder,
        openings,
        len(publication.openings),
        document["guarantee"]["epsilon"],
        document["guarantee"]["delta"],
        found.simulation,
        signed_by,
    )


def _refuse_taken(folder: Path, openings: Path) -> None:
    for path in (folder, openings):
        if path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir()))):
            raise InvalidInput(f"{path} exists and is not overwritten; name another with -o")


def _write_openings(folder: Path, clients: dict[str, Any], owner: dict[str, Any]) -> None:
    """One file for each client. Many small files: they are made durable together."""
    make_folder(folder / CLIENTS, private=True)
    folder.chmod(0o700)
    for client, opening in clients.items():
        _write_private(folder / CLIENTS / f"{file_name(client)}.json", readable(opening).encode())
    _write_private(folder / OWNER, readable(owner).encode())
    for one in (folder / CLIENTS, folder):
        sync_folder(one)


def _write_private(path: Path, body: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(body)
