"""Slices: what each client is shown of a plan, all bound by one root.

Guarantee: a slice holds the terms that everybody is shown, the client's own column, and a path to
the root. Whoever holds one can check that it belongs to the root, and nobody can make another
column for it. It says nothing about the columns of others: their leaves are commitments under
secret openings, because a plain hash would let anyone try budgets, which are few round numbers. A
root is made for one run, whose id is among the terms.

A client's clip depends on everybody's noise; among very few clients it gives the others' away.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.accounting.smoothing import FEWEST_STEPS
from fedspend.approval.tree import climbed, is_hash, levels, path_of
from fedspend.basics.arrays import FloatArray
from fedspend.basics.files import make_folder, write_whole
from fedspend.client.state import file_name
from fedspend.errors import FedspendError, InvalidInput, Refused
from fedspend.noise.grid import FEWEST_BITS, FINE_BITS, FINE_STEPS
from fedspend.planning.clipping import LARGEST_CLIP, SMALLEST_CLIP
from fedspend.planning.plan import Plan
from fedspend.planning.plan_file import CLIENT_PLAN
from fedspend.planning.plan_json import (
    Content,
    built,
    canonical,
    from_runs,
    hash_of,
    parsed,
    readable,
    to_runs,
)
from fedspend.signing.commitments import BYTES, commitment, new_opening
from fedspend.stored.files import PLAN

SLICE, OFFER, VERSION = "fedspend-slice", "fedspend-offer", 1
SLICE_SUFFIX = ".slice.json"
OFFER_FILE, PLAN_FILE = "offer.json", PLAN.name  # in a folder of slices
_KIND = "slice"  # of the commitments
_PREFIX = b"fedspend-plan-root-1\n"
MOST_ROUNDS = 1_000_000  # a short slice must not fill the memory of a node
NOISE = ("central", "distributed", "discrete", "discrete-distributed")


@dataclass(frozen=True)
class Terms:
    """What every client of a run is shown. None of it depends on one client's budget, except that
    noise on bits and metrics may have been chosen for the smallest.
    """

    run: str  # its id, at the server and in every node's ledger
    simulation: bool
    method: str
    clients: int
    rounds: int
    size: int  # how many numbers a client sends
    noise: str  # who adds it and of which kind, as in the config
    bits: int | None  # of the grid; None: real numbers, in simulations only
    grid_steps: int | None  # how many steps of the grid noise, or a client's part of it, has
    planned_clips: bool  # False: the clip follows earlier releases
    votes: bool  # clients send votes on public rows in place of updates
    own_coins: bool  # everyone is asked in every round, and takes part by a coin of its own
    bit_noise: float | None  # deviation of the noise on the sum of clip bits; None: no bits
    metric_noise: float | None  # the same of private metrics

    def __post_init__(self) -> None:
        for name, sound in (
            ("run", isinstance(self.run, str) and self.run != ""),
            ("simulation", type(self.simulation) is bool),
            ("method", isinstance(self.method, str)),
            ("clients", _count(self.clients)),
            ("rounds", _count(self.rounds) and self.rounds <= MOST_ROUNDS),
            ("size", _count(self.size)),
            ("noise", self.noise in NOISE),
            ("bits", self._bits_are_sound()),
            ("grid_steps", self._steps_are_sound()),
            ("planned_clips", type(self.planned_clips) is bool),
            ("votes", type(self.votes) is bool),
            ("own_coins", type(self.own_coins) is bool),
            ("bit_noise", _deviation(self.bit_noise)),
            ("metric_noise", _deviation(self.metric_noise)),
        ):
            if not sound:
                raise InvalidInput(f"its {name} is not valid")

    def _bits_are_sound(self) -> bool:
        """A real run has a grid."""
        if self.bits is None:
            return self.simulation is True
        kind = self.bits != FINE_BITS if self.discrete else self.bits == FINE_BITS
        return _count(self.bits) and self.bits >= FEWEST_BITS and kind

    def _steps_are_sound(self) -> bool:
        """Noise is as fine as the proofs need that claims rest on: coarser noise is neither
        continuous nor, where there are shares of it, a discrete Gaussian once they are added up.
        """
        if self.bits is None:
            return self.grid_steps is None
        least = FINE_STEPS if self.bits == FINE_BITS else FEWEST_STEPS
        return type(self.grid_steps) is int and self.grid_steps >= least

    @property
    def distributed(self) -> bool:
        return self.noise.endswith("distributed")

    @property
    def discrete(self) -> bool:
        return self.noise.startswith("discrete")


def _count(value: object) -> bool:
    return type(value) is int and value >= 1


def _deviation(value: object) -> bool:
    return value is None or (type(value) is float and 0 < value < np.inf)


@dataclass(frozen=True, eq=False)
class Slice:
    """One client's slice, with its path already climbed: `root` is what it leads to."""

    terms: Terms
    own: Content  # the content of the leaf
    opening: str
    path: list[list[str]]
    root: str
    plan: Plan  # of this client alone, its clips counted from 1
    clip_norm: FloatArray | None  # (rounds,); None: the clip follows releases

    @property
    def client(self) -> str:
        return self.plan.clients[0]

    @property
    def key(self) -> str | None:
        """Fingerprint of the client's node key when the slice was made; None: it has none."""
        found: str | None = self.own["key"]
        return found

    def content(self) -> Content:
        return {
            "format": SLICE,
            "version": VERSION,
            "root": self.root,
            "terms": asdict(self.terms),
            "opening": self.opening,
            "path": self.path,
            "own": self.own,
        }

    def to_bytes(self) -> bytes:
        return readable(self.content()).encode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what the slice says, for the node's ledger."""
        return hashlib.sha256(canonical(self.content()).encode()).hexdigest()


def load_slice(path: str | Path) -> Slice:
    """A slice from its file. One that is damaged is bad input, and one whose path does not lead to
    its root is refused; that it keeps its promise is for `Plan.verify` to say.
    """
    try:
        return read_slice(parsed(Path(path)))
    except FedspendError as error:
        said = str(error).replace("not a plan:", "not a slice:").replace("the plan:", "the slice:")
        raise type(error)(f"{path}: {said}") from None


def read_slice(content: Content) -> Slice:
    wanted = {"format", "version", "root", "terms", "opening", "path", "own"}
    _check_head(content, SLICE, wanted, "a slice")
    try:
        found = _slice(content)
    except FedspendError as error:
        raise InvalidInput(f"not a sound slice: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        raise InvalidInput("the slice is damaged: a part has the wrong type or length") from None
    if found.root != content["root"]:
        raise Refused(
            "the slice does not belong to the root that it names: it was changed, or its proof is "
            "forged; ask the server for another"
        )
    return found


def _slice(content: Content) -> Slice:
    own, terms = content["own"], _terms(content["terms"])
    if set(own) != {"plan", "clip_norm", "key"}:
        raise InvalidInput("its own part has other keys than it should")
    leaf = commitment(_KIND, bytes.fromhex(content["opening"]), own)
    tree = climbed(leaf, content["path"])
    if tree is None:
        raise InvalidInput("its path is damaged")
    plan = built(CLIENT_PLAN, own["plan"] | {"hash": hash_of(canonical(own["plan"]))})
    clip = None if own["clip_norm"] is None else from_runs(own["clip_norm"], terms.rounds)
    _check_together(terms, plan, clip, own["key"])
    root = root_of(terms, tree)
    return Slice(terms, own, content["opening"], content["path"], root, plan, clip)


def _check_together(terms: Terms, plan: Plan, clip: FloatArray | None, key: object) -> None:
    """Public terms and own column must be of one plan."""
    for what, same in (
        ("clients", len(plan.clients) == 1),
        ("rounds", plan.rounds == terms.rounds),
        ("kind of noise", plan.discrete == terms.discrete),
        ("grid_steps", not terms.discrete or plan.grid_steps == terms.grid_steps),
        ("bit_noise", plan.bit_noise == terms.bit_noise),
        ("metric_noise", plan.metric_noise == terms.metric_noise),
        ("clips", (clip is not None) == terms.planned_clips),
        ("key", key is None or (isinstance(key, str) and key != "")),
    ):
        if not same:
            raise InvalidInput(f"its own column and its terms do not agree on {what}")
    sound = clip is None or (clip >= SMALLEST_CLIP) & (clip <= LARGEST_CLIP)
    if not np.all(sound):
        raise InvalidInput(f"its clips are not all from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}")
    _ = plan.update_noise  # refuses bits and metrics that leave nothing for updates


def _terms(content: Any) -> Terms:
    if set(content) != {field.name for field in fields(Terms)}:
        raise InvalidInput("its terms have other keys than they should")
    return Terms(**content)


def _check_head(content: Content, format: str, keys: set[str], what: str) -> None:
    if content.get("format") != format or content.get("version") != VERSION:
        raise InvalidInput(
            f'this is not {what} of this version: it has "format" {content.get("format")!r}, '
            f'"version" {content.get("version")!r}'
        )
    if set(content) != keys:
        raise InvalidInput(f"{what} has other keys than it should; it is damaged")


def root_of(terms: Terms, tree: str) -> str:
    """What a run is bound to: the terms that all are shown, and everybody's column."""
    text = canonical({"terms": asdict(terms), "tree": tree})
    return hashlib.sha256(_PREFIX + text.encode()).hexdigest()


# --- at the server --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Offer:
    """All slices of one run, as the server keeps them: private, like the plan."""

    terms: Terms
    plan: Plan
    openings: tuple[str, ...]  # of each client's leaf, in the order of the plan
    keys: Mapping[str, str]  # client -> fingerprint of its node's key; empty: nobody has one

    def _own(self, number: int) -> Content:
        plan, client = self.plan, self.plan.clients[number]
        column = plan.schedules.clip_norm[:, int(plan.schedules.of_client[number])]
        return {
            "plan": plan.part_of(number).content(),
            "clip_norm": to_runs(column) if self.terms.planned_clips else None,
            "key": self.keys.get(client),
        }

    @cached_property
    def _leaves(self) -> list[Content]:
        return [self._own(number) for number in range(len(self.plan.clients))]

    @cached_property
    def _tree(self) -> list[list[str]]:
        opened = zip(self.openings, self._leaves, strict=True)
        return levels([commitment(_KIND, bytes.fromhex(secret), own) for secret, own in opened])

    @cached_property
    def root(self) -> str:
        return root_of(self.terms, self._tree[-1][0])

    def slice_of(self, number: int) -> Slice:
        return read_slice(
            {
                "format": SLICE,
                "version": VERSION,
                "root": self.root,
                "terms": asdict(self.terms),
                "opening": self.openings[number],
                "path": path_of(self._tree, number),
                "own": self._leaves[number],
            }
        )

    def save(self, folder: Path) -> list[Path]:
        """Write the plan, the offer and every client's slice; their files. The offer comes last:
        without it, the folder is not one of slices.
        """
        make_folder(folder, private=True)
        self.plan.save(folder / PLAN_FILE)
        written = []
        for number, client in enumerate(self.plan.clients):
            path = folder / f"{file_name(client)}{SLICE_SUFFIX}"
            write_whole(path, self.slice_of(number).to_bytes())
            written.append(path)
        body = {
            "format": OFFER,
            "version": VERSION,
            "root": self.root,
            "plan": self.plan.hash,
            "terms": asdict(self.terms),
            "openings": list(self.openings),
            "keys": dict(self.keys),
        }
        write_whole(folder / OFFER_FILE, readable(body).encode())
        return written


def new_offer(terms: Terms, plan: Plan, keys: Mapping[str, str]) -> Offer:
    """An offer under fresh openings."""
    openings = tuple(new_opening().hex() for _ in plan.clients)
    return Offer(terms, plan, openings, dict(keys))


def load_offer(folder: str | Path) -> Offer:
    """The offer in a folder of slices, with its plan; refuses one that is damaged."""
    folder = Path(folder)
    if not (folder / OFFER_FILE).exists():
        raise InvalidInput(
            f"{folder} holds no slices; make them with: fedspend flower slices CONFIG -o {folder}"
        )
    plan = Plan.load(folder / PLAN_FILE)
    try:
        content = parsed(folder / OFFER_FILE)
        wanted = {"format", "version", "root", "plan", "terms", "openings", "keys"}
        _check_head(content, OFFER, wanted, "an offer")
        offer = Offer(_terms(content["terms"]), plan, _openings(content, plan), content["keys"])
        sound = content["plan"] == plan.hash and is_hash(content["root"])
        same = sound and offer.root == content["root"]
    except FedspendError as error:
        said = str(error).replace("not a plan:", "not an offer:")
        raise InvalidInput(f"{folder / OFFER_FILE}: {said}") from None
    except (KeyError, TypeError, ValueError, AttributeError, json.JSONDecodeError):
        same = False
    if not same:
        raise Refused(
            f"{folder / OFFER_FILE} does not fit the plan beside it: one of them was changed since "
            "the slices were made; restore them, or make new slices"
        )
    return offer


def _openings(content: Content, plan: Plan) -> tuple[str, ...]:
    found: Sequence[str] = content["openings"]
    good = all(len(bytes.fromhex(one)) == BYTES for one in found)
    if not (good and len(found) == len(plan.clients) == len(set(found))):
        raise ValueError
    return tuple(found)
