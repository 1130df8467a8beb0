"""The signature of a run: an owner of a key vouches for its plan, certificate, releases and model.

Guarantee: what is signed is made from the files of the run directory and the run's account, and
made anew when it is checked; a run of which any of them was changed since does not pass.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspend.basics.files import write_whole
from fedspend.basics.findings import Finding
from fedspend.basics.json_values import read_object
from fedspend.errors import FedspendError, InvalidInput
from fedspend.ledger.chain import Head
from fedspend.ledger.looking import open_to_look
from fedspend.signing.keys import fingerprint, private_key, raw
from fedspend.signing.signatures import RUN, NotSigned, check, signed
from fedspend.stored.files import CERTIFICATE, MODEL, SEEN_HEAD, SIGNATURE
from fedspend.stored.run import StoredRun

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

NAME = "signature"  # of the check


def key_of(sign: str | Path | None, folder: Path | None) -> Ed25519PrivateKey | None:
    """The key in the file `sign`, if a run in `folder` is to be signed."""
    if sign is not None and folder is None:
        raise InvalidInput("a run without a run directory cannot be signed; give output=")
    return None if sign is None else private_key(sign)


def sign_run(folder: Path, key: Ed25519PrivateKey, ledger: str | None) -> str:
    """Sign the finished run in `folder`, which has charged `ledger`; returns the fingerprint of the
    key.
    """
    statement = statement_of(folder, ledger)
    body = {"statement": statement, "signature": signed(RUN, statement, key)}
    text = json.dumps(body, indent=1, allow_nan=False) + "\n"
    write_whole(SIGNATURE.of(folder), text.encode(), private=SIGNATURE.private)
    return fingerprint(raw(key.public_key()))


def statement_of(folder: Path, ledger: str | None = None) -> dict[str, Any]:
    """What a signature of the run in `folder` vouches for; `ledger` is where its ledger is, if not
    in it.
    """
    stored = StoredRun(folder)
    facts, plan = stored.facts(), stored.plan()
    head = SEEN_HEAD.of(folder)
    return {
        "fedspend": facts.environment.get("fedspend"),
        "simulation": facts.simulation,
        "settings": _digest(facts.settings),
        "plan": None if plan is None else plan.hash,
        "certificate": _digest(stored.certificate()),
        "model": hashlib.sha256(MODEL.of(folder).read_bytes()).hexdigest(),
        "run": None if facts.ledger is None else facts.ledger.run,
        "ledger_head": str(Head.load(head)) if head.exists() else None,
        "releases": _releases(stored, ledger),
    }


def _digest(content: dict[str, Any] | None) -> str | None:
    if content is None:
        return None
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _releases(stored: StoredRun, ledger: str | None) -> dict[str, str] | None:
    """The digest of each release, from the account of the run; None without an account."""
    named = stored.facts().ledger
    if named is None:
        return None
    with open_to_look(named.location, stored.folder, ledger, project=named.project) as book:
        releases = book.run(named.run).releases
    return {str(round + 1): digest for round, digest in releases.items()}


def check_signature(
    folder: Path, key: Ed25519PublicKey | None, ledger: str | None = None
) -> Finding:
    """Whether the run in `folder` is signed, and by whom; never raises.

    With `key`, it must be signed by that key. `ledger` is where its ledger is, if not in it.
    """
    try:
        return Finding(NAME, *_checked(folder, key, ledger))
    except FedspendError as error:
        return Finding(NAME, False, " ".join(str(error).split()))
    except Exception as error:  # files that nobody would write may fail in any way
        return Finding(NAME, False, f"cannot be checked: damaged ({type(error).__name__})")


def _checked(
    folder: Path, key: Ed25519PublicKey | None, ledger: str | None
) -> tuple[bool | None, str]:
    found = read_object(SIGNATURE.of(folder))
    if found is None:
        if key is not None:
            raise NotSigned(f"the run is not signed: there is no {SIGNATURE}")
        return None, "the run is not signed: nobody vouches for it (fedspend train --sign KEY)"
    stated = found.get("statement")
    if not isinstance(stated, dict):
        raise NotSigned(f"{SIGNATURE} is damaged")
    name = check(RUN, stated, found.get("signature"), key)
    true = statement_of(folder, ledger)
    differing = sorted(part for part in {*true, *stated} if true.get(part) != stated.get(part))
    if differing:
        raise NotSigned(f"the run was changed after {name} had signed it: {', '.join(differing)}")
    covered = f"plan, {CERTIFICATE}, releases, {MODEL} and ledger head are as signed"
    if key is None:
        return None, f"signed by {name}, {covered}; give --key to check whose key that is"
    return True, f"signed by {name}, the key that was given; {covered}"
