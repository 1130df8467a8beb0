"""Tasks, contributions and greetings as the content of Flower messages.

Guarantee: what is read is exactly what was written, bit for bit; a record of another version, with
a part missing, a part too many, or an array of the wrong length or type is refused with one line
that does not quote its content. Nothing is executed, and no pickle is read. A task says nothing
about randomness, and an answer holds a contribution or one of a few fixed words, nothing else.

The arrays of a message are Flower arrays of their own, so that the model, which is the same for
every client of a round, is stored once at the SuperLink and not once for each client.

How long an answer is says nothing about what is in it: its facts are padded to one length, and its
numbers are masked. Flower does not transmit an array that the SuperLink has already, so that the
zeros of a second client that does not take part would otherwise not be sent at all.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedspend.basics.arrays import PIECE
from fedspend.basics.tensors import unpack
from fedspend.client.contribution import Contribution
from fedspend.client.task import ClientTask
from fedspend.errors import InvalidInput

WIRE = "fedspend wire 3"
# how messages are addressed: Flower runs the function of the node's app that has this name
HELLO, TASK = "query.fedspend_hello", "train.fedspend_task"
LOOK = "query.fedspend_look"

_RAW = "fedspend.raw"  # the numbers themselves, little-endian, in C order
_MASKED = "fedspend.masked"  # a fresh key, and then the same bytes, each changed by it
_KEY = 16  # bytes
_ROOM = 64  # characters by which the facts of an answer may differ in length: two numbers
_TYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
}
_LONGEST = 4096  # characters of what a node says besides its numbers
_ABOUT, _ARRAYS = "fedspend.about", "fedspend.arrays"

# Why a node does not answer a task. Fixed words: a sentence could quote the node's rows.
REASONS: Mapping[str, str] = {
    "task": "it could not read the task",
    "client": "the task is for another client",
    "simulation": "its rows are real, and the server's randomness is seeded",
    "unprotected": "its rows are real, and the task has no clip, run or plan",
    "plan": "it has approved no slice of this run's plan",
    "terms": "the task has other terms than the slice that it has approved",
    "oversampled": "it is asked more often than the planned rates can explain",
    "account": "its own account does not allow the task",
    "replayed": "the task is of a round that it has passed",
    "changed": "the task differs from the one that it answered in this round",
    "records": "the server and it do not agree whether single records are protected",
    "offer": "its records' budgets, or its account of them, do not allow the terms",
    "certificate": "the plan is not one that it handed a certificate in for",
    "planned": "the task is not the one that it planned its records for",
    "failed": "its work failed; its own log says why",
}


@dataclass(frozen=True)
class Hello:
    """What a server says before the first task."""

    simulation: bool  # the server's randomness is seeded, so that this run protects nobody
    parameters: int  # how many numbers the model has
    size: int  # how many numbers a client sends
    plan: str = ""  # root of the slices of this run; empty where there are none
    loss: str = ""  # what clients descend: the name of it, for each has the code itself
    model: str = ""  # tells models of the same size apart (`models.flat.fingerprint`)
    # records that stay at their silos (`records.silos`): first the terms are offered, then comes
    # the plan with everybody's certificate; all of it is public
    silo_offer: str = ""
    silo_plan: str = ""


@dataclass(frozen=True)
class Introduction:
    """What a node says about itself. All of it is public: nothing depends on its rows."""

    client: str
    version: str  # of fedspend
    simulation: bool
    parameters: int
    loss: str
    model: str
    certificate: str = ""  # of a silo: a commitment to the plan of its own records
    meaning: str = ""  # what it declares of its rows, in digests (`data.meaning`)


@dataclass(frozen=True)
class Refusal:
    """A node's answer to a task that it does not do."""

    reason: str


@dataclass(frozen=True)
class Look:
    """A server asks how a node is, before any run."""


@dataclass(frozen=True)
class Condition:
    """How a node is. Nothing of it depends on its rows, and nothing on its budget."""

    client: str
    version: str  # of fedspend
    flwr: str
    torch: str
    simulation: bool
    unit: str  # what it protects: client or record
    parameters: int
    ledger: bool  # whether its own ledger is there
    clock: float  # seconds since 1970, by its own clock
    meaning: str = ""  # as in an introduction


Greeting = TypeVar("Greeting", Hello, Introduction, Refusal, Look, Condition)


def task_content(task: ClientTask, arrays: ArrayRecord | None = None) -> RecordDict:
    """The content of the message that brings a task.

    `arrays` are those of another task of the same round, to share: see `arrays_of`.
    """
    own, about = task.parts()
    return _content("task", about, _packed(own) if arrays is None else arrays)


def arrays_of(task: ClientTask) -> ArrayRecord | None:
    """The arrays that every client of the round gets; None if each has some of its own."""
    own = task.records is not None and not task.records.at_silo
    return None if own else _packed(task.parts()[0])


def read_task(content: RecordDict) -> ClientTask:
    about, arrays = _read("task", content)
    return ClientTask.from_parts(arrays, about)


def sent_content(contribution: bytes) -> RecordDict:
    """The content of the message that brings a contribution, from the contribution's bytes."""
    arrays, about = unpack(contribution, "a contribution")
    length = _ROOM + len(_text({**about, "bit": None, "metric": None}))
    return _content("contribution", about, _masked(arrays), length)


def read_answer(content: RecordDict) -> Contribution | Refusal:
    """A contribution, or why there is none."""
    if _kind(content) == _word(Refusal):
        return _refusal(content)
    about, arrays = _read("contribution", content)
    return Contribution.from_parts(arrays, about)


def read_introduction(content: RecordDict) -> Introduction | Refusal:
    """Who a node is, or why it takes no part."""
    if _kind(content) == _word(Refusal):
        return _refusal(content)
    return read_greeting(Introduction, content)


def _refusal(content: RecordDict) -> Refusal:
    refusal = read_greeting(Refusal, content)
    if refusal.reason not in REASONS:
        raise InvalidInput("a node refused for a reason that this version does not know")
    return refusal


def read_condition(content: RecordDict) -> Condition | Refusal:
    """How a node is, or why it does not say."""
    if _kind(content) == _word(Refusal):
        return _refusal(content)
    return read_greeting(Condition, content)


def greeting_content(said: Hello | Introduction | Refusal | Look | Condition) -> RecordDict:
    return _content(_word(type(said)), asdict(said), ArrayRecord())


def read_greeting(kind: type[Greeting], content: RecordDict) -> Greeting:
    about, arrays = _read(_word(kind), content)
    wanted = {field.name: field.type for field in fields(kind)}
    good = not arrays and set(about) == set(wanted)
    if not (good and all(type(about[name]).__name__ == wanted[name] for name in wanted)):
        raise InvalidInput(f"a message of kind {_word(kind)!r} has other parts than it should")
    return kind(**about)


def size_of(content: RecordDict) -> int:
    """How many bytes of content a message carries, without Flower's own headers."""
    about, arrays = content.get(_ABOUT), content.get(_ARRAYS)
    text = about.get("body", "") if isinstance(about, ConfigRecord) else ""
    inside = arrays.values() if isinstance(arrays, ArrayRecord) else ()
    return len(str(text).encode()) + sum(len(array.data) for array in inside)


def _word(kind: type[Any]) -> str:
    return kind.__name__.lower()


def _content(
    kind: str, about: Mapping[str, Any], arrays: ArrayRecord, length: int = 0
) -> RecordDict:
    """A message, its facts padded to a length if one is given."""
    body = _text(about).ljust(length)
    return RecordDict(
        {_ABOUT: ConfigRecord({"wire": WIRE, "kind": kind, "body": body}), _ARRAYS: arrays}
    )


def _text(about: Mapping[str, Any]) -> str:
    return json.dumps(about, allow_nan=False, sort_keys=True)


def _masked(arrays: Mapping[str, npt.NDArray[Any]]) -> ArrayRecord:
    """The arrays under a mask of their own: two that are the same do not look it."""
    found = {}
    for name, values in arrays.items():
        key = os.urandom(_KEY)
        body = b"".join((key, _changed(_as_sent(values).reshape(-1).view(np.uint8), key).data))
        found[name] = Array(dtype=values.dtype.name, shape=values.shape, stype=_MASKED, data=body)
    return ArrayRecord(found)


def _changed(body: npt.NDArray[np.uint8], key: bytes) -> npt.NDArray[np.uint8]:
    """The body, each byte changed by the key; the same again changes it back. The key travels with
    it: it hides nothing from whoever can read the message.
    """
    words = np.frombuffer(key, "<u8")
    # no two words of the mask are the same: start, start + step, ..., modulo 2^64, with odd steps
    start, step = words[:1], words[1:] | np.uint64(1)
    mask = np.arange(PIECE, dtype="<u8") * step + start
    changed = np.empty_like(body)
    for begin in range(0, body.size, mask.nbytes):
        here = body[begin : begin + mask.nbytes]
        there = changed[begin : begin + mask.nbytes]
        np.bitwise_xor(here, mask.view(np.uint8)[: here.size], out=there)
        mask += step * mask.size
    return changed


def _packed(arrays: Mapping[str, npt.NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord({name: _array(values) for name, values in arrays.items()})


def _array(values: npt.NDArray[Any]) -> Array:
    body = _as_sent(values).tobytes()
    return Array(dtype=values.dtype.name, shape=values.shape, stype=_RAW, data=body)


def _as_sent(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(values, dtype=_TYPES[values.dtype.name])


def _kind(content: RecordDict) -> str:
    """The kind of a message of this version; anything else is refused."""
    if not isinstance(content, RecordDict) or set(content) != {_ABOUT, _ARRAYS}:
        raise InvalidInput("a message is not one of fedspend's: it has other records")
    about, arrays = content[_ABOUT], content[_ARRAYS]
    if not (isinstance(about, ConfigRecord) and isinstance(arrays, ArrayRecord)):
        raise InvalidInput("a message is not one of fedspend's: its records are of another kind")
    if about.get("wire") != WIRE:
        raise InvalidInput(
            f"a message is not of this version of fedspend, which speaks {WIRE!r}; use the same "
            "version everywhere"
        )
    if set(about) != {"wire", "kind", "body"} or not all(type(x) is str for x in about.values()):
        raise InvalidInput("a message has other parts than it should; send it again")
    return str(about["kind"])


def _read(kind: str, content: RecordDict) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    found, body = _kind(content), str(content[_ABOUT]["body"])
    if found != kind:
        raise InvalidInput(f"a message of kind {kind!r} was expected; send it again")
    if kind not in ("task", "hello") and len(body) > _LONGEST:  # it may be shown to the operator
        raise InvalidInput(f"a {kind} is too long; send it again")
    try:
        about = json.loads(body, parse_constant=_no_constant)
        about.items()
    except (ValueError, AttributeError, RecursionError):
        raise InvalidInput(f"a {kind} is damaged: it cannot be read; send it again") from None
    arrays = {str(name): _numbers(kind, array) for name, array in _items(content[_ARRAYS])}
    return about, arrays


def _items(record: Any) -> Iterable[tuple[str, Array]]:
    found: Iterable[tuple[str, Array]] = record.items()
    return found


def _no_constant(_: str) -> None:
    raise ValueError("not a JSON number")


def _numbers(kind: str, array: Array) -> npt.NDArray[Any]:
    shape = tuple(array.shape)
    masked = kind == "contribution"
    known = array.stype == (_MASKED if masked else _RAW) and array.dtype in _TYPES
    if not known or not all(type(length) is int and length >= 0 for length in shape):
        raise InvalidInput(f"a {kind} has an array of a kind that it may not have; send it again")
    dtype, body = _TYPES[array.dtype], array.data
    if len(body) != math.prod(shape) * dtype.itemsize + (_KEY if masked else 0):
        raise InvalidInput(f"a {kind} has an array of the wrong length; send it again")
    found: npt.NDArray[Any]
    if masked:
        found = _changed(np.frombuffer(body, np.uint8)[_KEY:], body[:_KEY]).view(dtype)
    else:
        found = np.frombuffer(body, dtype).copy()  # torch wants memory that may be written to
    try:
        return found.reshape(shape).astype(array.dtype, copy=False)
    except (ValueError, OverflowError):  # more dimensions, or longer ones, than numpy has
        raise InvalidInput(f"a {kind} has an array of the wrong shape; send it again") from None
