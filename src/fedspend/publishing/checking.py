"""The check of a publication: by a stranger, and by a client with its opening.

Guarantee: whatever the folder holds, the answer is a list of findings, never an exception, in
bounded time. If it is ok, the stated epsilon was recomputed from the stated rounds by accountants
that share no code with the planner, the words say what the numbers say, and every file is the one
that is listed. What nobody without the run can check is said, not passed over: that every client's
own schedule costs no more than the bound can be checked by that client alone, with its opening.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspend.basics.door import public
from fedspend.basics.findings import Finding, guarded, none_failed, summed_up, table_of
from fedspend.basics.words import counted, span
from fedspend.errors import FedspendError
from fedspend.planning.plan_json import Content, built, canonical, from_runs, hash_of
from fedspend.planning.protocol import AnyPlan, plan_kinds
from fedspend.publishing.publication import FORMAT, SAME_NOISE, VERSION, plan_guarantee
from fedspend.publishing.words import DOCUMENT, GUARANTEE, SIMULATION, text
from fedspend.signing.commitments import opens
from fedspend.signing.keys import public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

# Limits of what is looked at: a forged publication must not take hours.
MOST_BYTES, MOST_ROUNDS, MOST_ORDERS = 1 << 28, 100_000, 2_000
_KEYS = {
    "format": str,
    "version": int,
    "id": str,
    "made": str,
    "simulation": bool,
    "guarantee": dict,
    "bound": dict,
    "run": dict,
    "certificate": dict,
    "releases": list,
    "commitments": dict,
    "files": dict,
}
_COMMITTED = ("noise", "plan", "ledger")


@dataclass(repr=False)
class Checked:
    """What was checked in a publication, and what it promises."""

    folder: str
    checks: list[Finding] = field(default_factory=list)
    document: Content | None = None
    words: str = ""

    @property
    def ok(self) -> bool:
        return bool(self.checks) and none_failed(self.checks)

    @property
    def simulation(self) -> bool | None:
        return None if self.document is None else self.document["simulation"]

    def __repr__(self) -> str:
        return f"<publication {self.folder}: {summed_up(self.checks)}>"

    def _repr_html_(self) -> str:
        return table_of(self.checks).html(repr(self).strip("<>"))

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "publication": self.folder,
            "ok": self.ok,
            "simulation": self.simulation,
            "checks": [one.to_dict() for one in self.checks],
        }
        if self.document is not None and self.words:
            found["guarantee"] = self.document["guarantee"]
        return found


class Wrong(FedspendError):
    """A check of a publication that failed."""


@public
def verify_publication(
    folder: str | Path, *, key: str | Path | None = None, opening: str | Path | None = None
) -> Checked:
    """Check a publication (`fedspend publish`), as a stranger or as one of its clients.

    Arguments:
        folder: the publication.
        key: a file with a public key: it must be signed by that key.
        opening: the file that a client was handed: that client's own budget, schedule and claim are
            checked, too.

    Returns:
        A `Checked`: `.ok`, and `.checks` with a finding each. What is wrong with the publication
        or the opening is said there and raises nothing.

    Raises:
        InvalidInput: `key` is no public key.

    `fedspend.verify_publication("runs/first.publication", key="keys/fedspend.pub").ok`
    """
    return _checked(
        Path(folder),
        None if key is None else public_key(key),
        None if opening is None else Path(opening),
    )


def _checked(folder: Path, key: Ed25519PublicKey | None, opening: Path | None) -> Checked:
    result = Checked(str(folder))
    form = guarded("form", lambda: _read(folder, result))
    result.checks.append(form)
    document = result.document
    if document is None:
        return result
    bound: list[AnyPlan] = []
    result.checks += [
        guarded("signature", lambda: _check_signature(document, key)),
        guarded("guarantee", lambda: _check_guarantee(document, bound)),
        guarded("files", lambda: _check_files(folder, document)),
    ]
    if bound:
        result.checks.append(guarded("words", lambda: _check_words(folder, result, bound[0])))
    result.checks += [
        guarded("certificate", lambda: _check_certificate(document)),
        guarded("releases", lambda: _check_releases(document)),
        guarded("budgets", lambda: _check_commitments(document)),
    ]
    if document["simulation"]:
        result.checks.append(Finding("simulation", None, SIMULATION))
    if opening is not None:
        result.checks += _opened(document, bound[0] if bound else None, opening)
    return result


# --- the document ---------------------------------------------------------------------------------


def _read(folder: Path, result: Checked) -> tuple[bool, str]:
    document = _json(folder / DOCUMENT)
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise Wrong(
            f"it is not a publication of version {VERSION}, the only one that this fedspend reads"
        )
    for name, kind in _KEYS.items():
        if type(document.get(name)) is not kind:
            raise Wrong(f"{DOCUMENT} is damaged: {name} is missing or of the wrong kind")
    unknown = sorted(set(document) - {*_KEYS, "signature"})
    if unknown:
        raise Wrong(f"{DOCUMENT} has an unknown key {unknown[0]!r}")
    if not re.fullmatch(r"[0-9a-f]{32}", document["id"]):
        raise Wrong(f"{DOCUMENT} is damaged: its id is not one")
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", document["made"]):
        raise Wrong(f"{DOCUMENT} is damaged: its date is not one")
    result.document = document
    return True, f"publication {document['id'][:12]} of {document['made']}"


def _json(path: Path) -> Content:
    with _opened_file(path) as file:
        body = file.read(MOST_BYTES + 1)
    if len(body) > MOST_BYTES:
        raise Wrong(f"{path} is larger than {MOST_BYTES >> 20} MiB")
    try:
        content = json.loads(body, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Wrong(f"{path} is damaged: it is not readable JSON") from None
    if not isinstance(content, dict):
        raise Wrong(f"{path} is damaged: it is not a JSON object")
    return content


@contextmanager
def _opened_file(path: Path) -> Iterator[BufferedReader]:
    """A plain file, open for reading; a pipe could keep us waiting for ever."""
    if not path.is_file():
        raise Wrong(f"{path.name} is missing, or is not a file")
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise Wrong(f"{path.name} cannot be read: {error.strerror}") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A key that is there twice could be read in two ways."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _check_signature(document: Content, key: Ed25519PublicKey | None) -> tuple[bool | None, str]:
    from fedspend.signing.signatures import PUBLICATION, check

    if "signature" not in document:
        if key is not None:
            raise Wrong("it is not signed, by this key or any other")
        return None, "not signed: nobody vouches for it, and anyone could have made it"
    statement = {name: value for name, value in document.items() if name != "signature"}
    name = check(PUBLICATION, statement, document["signature"], key)
    if key is None:
        return None, f"signed by {name}; give --key to check whose key that is"
    return True, f"signed by {name}, the key that was given"


def _check_guarantee(document: Content, found: list[AnyPlan]) -> tuple[bool, str]:
    """Recompute the stated epsilon from the stated rounds, independently."""
    bound = _plan(document["bound"])
    guarantee = document["guarantee"]
    if len(bound.names) != 1:
        raise Wrong("the bound must be that of one made-up unit")
    if set(guarantee) != {*plan_guarantee(bound), "epsilon", "lifetime"}:
        raise Wrong("the guarantee lacks a part, or has one too many")
    for name, true in plan_guarantee(bound).items():
        if guarantee[name] != true:
            raise Wrong(f"the guarantee's {name} is not that of its rounds")
    stated = guarantee["epsilon"]
    if type(stated) not in (int, float) or stated != bound.budget[0]:
        raise Wrong("the stated epsilon is not the one that its rounds were checked for")
    if type(guarantee["lifetime"]) is not bool:
        raise Wrong("the guarantee does not say whether earlier runs count, too")
    verdict = bound.verify()
    if not verdict.ok:
        raise Wrong(f"epsilon {guarantee['epsilon']:g} was not reproduced: {verdict.failures[0]}")
    found.append(bound)
    by = sorted({one.accountant for one in verdict.checks if one.accountant != "none"})
    clients = len(document["commitments"].get("clients") or ())
    note = (
        f"; delta is at least 1 / {clients}, which would permit exposing one client completely"
        if guarantee["delta"] * clients >= 1
        else ""
    )
    return True, (
        f"epsilon at most {guarantee['epsilon']:g} at delta {guarantee['delta']:g}, reproduced "
        f"from {counted(bound.rounds, 'round')} by {', '.join(by)}{note}"
    )


def _plan(content: Content) -> AnyPlan:
    """The plan in a document, with limits on its size."""
    kind = next((kind for kind in plan_kinds() if content.get("format") == kind.format), None)
    if kind is None:
        raise Wrong("the bound is not a plan that this fedspend can read")
    rounds = content.get("rounds") or (content.get("terms") or {}).get("rounds")
    if not (type(rounds) is int and 1 <= rounds <= MOST_ROUNDS):
        raise Wrong(f"a plan of more than {MOST_ROUNDS:,} rounds is not checked here")
    if not 1 <= len(content["orders"]) <= MOST_ORDERS:
        raise Wrong(f"a plan with more than {MOST_ORDERS:,} orders is not checked here")
    return built(kind, dict(content))


def _check_files(folder: Path, document: Content) -> tuple[bool, str]:
    for name, digest in document["files"].items():
        if Path(name).name != name or name in ("", ".", "..", DOCUMENT):
            raise Wrong(f"{name!r} is not the name of a file of a publication")
        with _opened_file(folder / name) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            raise Wrong(f"{name} is not the file that was published: its digest differs")
    strange = sorted(
        path.name for path in folder.iterdir() if path.name not in {DOCUMENT, *document["files"]}
    )
    note = f"; not part of it: {', '.join(map(repr, strange[:5]))}" if strange else ""
    return True, f"{counted(len(document['files']), 'file')}, each the one that is listed{note}"


def _check_words(folder: Path, result: Checked, bound: AnyPlan) -> tuple[bool, str]:
    document = result.document
    assert document is not None
    result.words = text(document, bound)
    if GUARANTEE not in document["files"]:
        raise Wrong(f"there is no {GUARANTEE}")
    if (folder / GUARANTEE).read_bytes() != result.words.encode():
        raise Wrong(f"{GUARANTEE} does not say what the numbers say")
    return True, f"{GUARANTEE} says what the numbers say"


def _check_certificate(document: Content) -> tuple[None, str]:
    stated = document["certificate"]
    if stated.get("ok") is not True or not isinstance(stated.get("checks"), list):
        raise Wrong("its certificate does not say that the plan was verified")
    checks = counted(len(stated["checks"]), "check")
    return None, (
        f"the publisher states that the whole plan passed {checks}; only someone who has the "
        "plan can repeat them"
    )


def _check_releases(document: Content) -> tuple[None, str]:
    digests, about = document["releases"], document["run"]
    lost = sum(digest is None for digest in digests)
    if not all(
        digest is None or (isinstance(digest, str) and re.fullmatch(r"[\w-]{43}", digest))
        for digest in digests
    ):
        raise Wrong("a digest of a release is damaged")
    if (len(digests), lost) != (about.get("rounds"), about.get("lost")):
        raise Wrong("there is not one digest for each round")
    bound = document["bound"]
    if len(digests) != (bound.get("rounds") or (bound.get("terms") or {}).get("rounds")):
        raise Wrong("the guarantee is for another number of rounds than were released")
    return None, (
        f"digests of {counted(len(digests) - lost, 'release')}"
        + (f", {counted(lost, 'round')} without one, spent all the same" if lost else "")
        + "; whoever has the releases can compare them"
    )


def _check_commitments(document: Content) -> tuple[None, str]:
    stated = document["commitments"]
    clients = stated.get("clients")
    if set(stated) != {"clients", *_COMMITTED} or not isinstance(clients, list) or not clients:
        raise Wrong("the commitments are damaged")
    for one in (*clients, *(stated[name] for name in _COMMITTED)):
        if not (isinstance(one, str) and re.fullmatch(r"[0-9a-f]{64}", one)):
            raise Wrong("a commitment is damaged")
    if clients != sorted(set(clients)):
        raise Wrong("the clients' commitments must be sorted, and all different")
    return None, (
        f"behind commitments of {counted(len(clients), 'client')}; that none costs more than the "
        "bound, each client can check for itself (--open)"
    )


# --- openings -------------------------------------------------------------------------------------


def _opened(document: Content, bound: AnyPlan | None, path: Path) -> list[Finding]:
    opening: list[Content] = []
    first = guarded("opening", lambda: _check_opening(document, path, opening))
    if not opening or bound is None:
        return [first]
    content, noise = opening
    part: list[AnyPlan] = []
    return [
        first,
        guarded("own budget", lambda: _check_own(content, bound, part)),
        guarded("own noise", lambda: _check_noise(content, noise, part)),
    ]


def _check_opening(document: Content, path: Path, found: list[Content]) -> tuple[bool, str]:
    opening, id, stated = _json(path), document["id"], document["commitments"]
    if opening.get("publication") != id:
        raise Wrong("the opening belongs to another publication")
    if opening.get("format") == "fedspend-owner-opening":
        plan, head = (opens(name, stated[name], opening.get(name)) for name in ("plan", "ledger"))
        if not (_of(plan, id) and _of(head, id)):
            raise Wrong("the owner's opening does not fit: plan or ledger is another one")
        assert plan is not None
        assert head is not None
        return True, f"the owner's: plan {plan.get('hash')!r}, ledger head {head.get('head')!r}"
    own = _opening_of_client(opening, stated["clients"])
    noise = opens("noise", stated["noise"], opening.get("noise"))
    if not (_of(own, id) and _of(noise, id)):
        raise Wrong(
            "the opening fits none of the commitments: its content was changed, or it is not of "
            "this publication"
        )
    assert own is not None
    assert noise is not None
    found += [own, noise]
    return True, f"client {own.get('client')!r} is one of those committed to"


def _opening_of_client(opening: Content, clients: list[str]) -> Content | None:
    from fedspend.signing.commitments import commitment

    try:
        content = opening["content"]
        stated = commitment("client", bytes.fromhex(opening["opening"]), content)
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and stated in set(clients) else None


def _of(content: Content | None, id: str) -> bool:
    return content is not None and content.get("publication") == id


def _check_own(content: Content, bound: AnyPlan, found: list[AnyPlan]) -> tuple[bool, str]:
    """Recompute the client's own claim, and compare it with the bound for all."""
    stored = {"orders": bound.content()["orders"]} | content["plan"]
    part = _plan(stored | {"hash": hash_of(canonical(stored))})
    if part.clients != (content["client"],):
        raise Wrong("the opening's schedule is that of another client")
    verdict = part.verify()
    if not verdict.ok:
        raise Wrong(f"the claim was not reproduced: {verdict.failures[0]}")
    if not bound.covers(part):
        raise Wrong("the bound that was published does not cover this client's schedule")
    found.append(part)
    claim = f"epsilon {part.epsilon.max():.6g} at delta {part.delta:g}"
    whose = (
        "its budget is" if part.unit == "client" else f"budgets of its {part.budget.size} records:"
    )
    return True, (
        f"{whose} {span(part.budget)}, the run spends at most {claim}, reproduced independently "
        "and within the published bound; compare the budget with the one that you gave"
    )


def _check_noise(content: Content, noise: Content, part: list[AnyPlan]) -> tuple[bool, str]:
    """All clients hold an opening of the same noise, so it cannot be told differently to each."""
    if not part:
        raise Wrong("not checked, because the schedule could not be read")
    noise_multiplier, rounds = part[0].update_noise, part[0].rounds
    clip, deviation = (
        from_runs(runs, rounds) for runs in (content["clip_norm"], noise["deviation"])
    )
    off = np.abs(clip[:, None] * noise_multiplier / deviation[:, None] - 1)
    if not (np.all(clip > 0) and np.all(off <= SAME_NOISE)):
        raise Wrong("its clip and its noise multiplier do not give the noise of the other clients")
    return True, (
        f"clip {span(clip)} and noise multipliers give the noise that every client was told: "
        f"deviation {span(deviation)}"
    )
