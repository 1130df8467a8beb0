"""Fuzzing of what fedspend reads from others, guided by coverage (atheris).

    python tools/fuzz.py TARGET --seconds N [--corpus DIR]   # goes on with what it has found so far
    python tools/fuzz.py --list                              # targets, and how long each has run
    python tools/fuzz.py TARGET --try FILE ...               # says what is wrong with an input
    python tools/fuzz.py TARGET --keep FILE ...              # puts inputs into tests/fuzz_seeds.zip

The property: on any bytes, a reader gives a value that its writer can write again and that reads
back as the same, or raises `InvalidInput` or `Refused` with one readable line. It takes no more
than two seconds of processor time and 1 GiB for an input of 1 MiB. It writes nothing outside of
temporary folders, starts nothing, and opens no connection.

Inputs are also changed by their structure: values in JSON, messages, files of tensors, and tables;
digests and links are then computed anew, so that the search gets behind the checks of them. What
breaks the property goes into build/fuzz/TARGET/found, the smallest input of each kind, and the
search goes on. `tests/test_fuzz_seeds.py` tries the inputs of tests/fuzz_seeds.zip without atheris.
"""

from __future__ import annotations

import argparse
import atexit
import base64
import csv
import gzip
import hashlib
import importlib.util
import io
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ARCHIVE, KEPT = ROOT / "tests/before/v0_2/files.tar.xz", ROOT / "tests/fuzz_seeds.zip"
BUILD = ROOT / "build/fuzz"
MOST_SECONDS, MOST_BYTES, MOST_WORDS = 2.0, 1 << 30, 2000
RUNS = (
    "votes-finished",
    "records-finished",
    "plain-finished",
    "people-replanned",
    "metric-stopped",
)


class Broken(BaseException):
    """The property does not hold. No `Exception`, so that no reader catches it."""


# --- what a reader must not do --------------------------------------------------------------------

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod"}
_STARTS = {
    *("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "subprocess.Popen"),
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class"),
}
_allowed = ""  # while a reader is watched: the folder of its temporary files
_done: list[str] = []  # what it did, even if it caught our objection


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if not _allowed:
        return
    bad = event in _STARTS or (event == "import" and args[0].startswith("psycopg"))
    if event == "open":
        bad = bool(args[2] & _WRITING) and not _temporary(args[0], -1)
    elif event in _CHANGES:
        bad = not _temporary(args[0], args[-1])
    elif event == "sqlite3.connect":
        bad = args[0] != ":memory:" and not _temporary(args[0], -1)
    if bad:
        _done.append(f"{event} {args[0]!r}")
        raise Broken(_done[-1])


def _temporary(name: Any, folder: Any) -> bool:
    if isinstance(name, int):
        return True  # a file that is open already
    path = os.fsdecode(name)
    if isinstance(folder, int) and folder >= 0:
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    return os.path.abspath(path).startswith(_allowed)


sys.addaudithook(_watch)


def check(name: str, body: bytes, *, timed: bool = True) -> None:
    """Read an input; raises `Broken` if the property does not hold."""
    global _allowed
    read = TARGETS[name].prepared(body)
    if read is None:
        return
    _done.clear()
    started, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    others, tempfile.tempdir = tempfile.tempdir, f"{scratch()}/tmp"
    _allowed = tempfile.tempdir
    try:
        read()
    except Exception as error:
        _check_error(error)
    finally:
        _allowed, tempfile.tempdir = "", others
    took = time.process_time() - started
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) << 10
    if _done:
        raise Broken(f"it does {_done[0]}")
    if timed and took > MOST_SECONDS * max(1.0, len(body) / (1 << 20)):
        raise Broken(f"it takes too long: {took:.0f} s")
    if more > MOST_BYTES:
        raise Broken(f"it takes too much memory: {more >> 30} GiB")


def _check_error(error: Exception) -> None:
    from fedspend.errors import InvalidInput, Refused

    if not isinstance(error, InvalidInput | Refused):
        place = [one for one in traceback.extract_tb(error.__traceback__) if "fedspend" in one[0]]
        where = f"{Path(place[-1].filename).name}:{place[-1].lineno}" if place else "?"
        raise Broken(f"{type(error).__name__} at {where}") from error
    _check_words(str(error))


def _check_words(words: str) -> None:
    if not (words.isprintable() and 0 < len(words) <= MOST_WORDS):
        raise Broken(f"not one readable line: {words[:60]!a}, {len(words)} characters")


def _same(first: Any, second: Any) -> None:
    if first != second:
        raise Broken("what was written again reads back as another")


def _as_findings(said: dict[str, Any]) -> None:
    json.dumps(said)
    for one in said["checks"]:
        _check_words(one["detail"])


# --- the readers ----------------------------------------------------------------------------------

Reading = Callable[[], None]
Mutation = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Target:
    """A reader: how it is called on bytes, how these are changed, and what it starts from."""

    prepared: Callable[[bytes], Reading | None]  # None: nobody could hand these bytes over
    mutated: Mutation
    seeds: str  # files of version 0.2


@cache
def scratch() -> Path:
    """A folder for this process; only what is in `tmp` may be written by a reader."""
    folder = Path(tempfile.mkdtemp(prefix="fedspend-fuzz-"))
    (folder / "tmp").mkdir()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def archived(*patterns: str) -> Path:
    """The files of version 0.2 with these names, unpacked."""
    folder = Path(tempfile.mkdtemp(dir=scratch(), prefix="v02-"))
    with tarfile.open(ARCHIVE) as archive:
        named = [
            one for one in archive if any(fnmatch(one.name, f"./{pattern}") for pattern in patterns)
        ]
        archive.extractall(folder, members=named, filter="data")
    return folder


def _file(body: bytes, name: str = "input") -> Path:
    path = scratch() / name
    path.write_bytes(body)
    return path


def _each(*readers: Callable[[], object]) -> Reading:
    """All of the readers, whatever the others say."""

    def read() -> None:
        for one in readers:
            try:
                one()
            except Exception as error:
                _check_error(error)

    return read


def prepare_plan(body: bytes) -> Reading:
    from fedspend.planning.protocol import load_any_plan

    path = _file(body)

    def read() -> None:
        text = load_any_plan(path).file_text()
        _same(load_any_plan(_written(text)).file_text(), text)

    return read


def prepare_slice(body: bytes) -> Reading:
    from fedspend.approval.rotation import read_rotation
    from fedspend.approval.slices import OFFER_FILE, load_offer, load_slice, read_slice
    from fedspend.ledger.chain import Head
    from fedspend.planning.plan_json import parsed_text

    path, folder = _file(body), archived("consortium/first/*") / "consortium/first"
    (folder / OFFER_FILE).write_bytes(body)

    def read() -> None:
        found = load_slice(path)
        _same(read_slice(parsed_text(found.to_bytes())).to_bytes(), found.to_bytes())

    def head() -> None:
        found = Head.load(path)
        _same(Head(**json.loads(found.body)), found)

    return _each(read, lambda: load_offer(folder).root, lambda: read_rotation(path), head)


def prepare_wire(body: bytes) -> Reading | None:
    from fedspend.client.contribution import Contribution
    from fedspend.engines.flower import wire
    from fedspend.records.silos import Offer, plan_text, read_plan_text

    try:
        content = message_of(json.loads(body))
    except Exception:
        return None  # not a message that Flower would hand over

    def parts(found: Any, again: Any) -> None:
        (arrays, about), (others, same) = found.parts(), again.parts()
        _same(str(about), str(same))
        _same(
            {name: (one.dtype, one.shape, one.tobytes()) for name, one in arrays.items()},
            {name: (one.dtype, one.shape, one.tobytes()) for name, one in others.items()},
        )

    def task() -> None:
        found = wire.read_task(content)
        parts(found, wire.read_task(wire.task_content(found)))

    def answer() -> None:
        found = wire.read_answer(content)
        if isinstance(found, Contribution):
            parts(found, wire.read_answer(wire.sent_content(found.to_bytes())))

    def hello() -> None:
        found = wire.read_greeting(wire.Hello, content)
        _same(wire.read_greeting(wire.Hello, wire.greeting_content(found)), found)
        if found.silo_offer:
            offer = Offer.from_text(found.silo_offer)
            _same(Offer.from_text(offer.to_text()), offer)
        if found.silo_plan:
            plan = read_plan_text(found.silo_plan)
            _same(read_plan_text(plan_text(plan)).hash, plan.hash)

    return _each(
        task,
        answer,
        hello,
        lambda: wire.read_introduction(content),
        lambda: wire.read_condition(content),
        lambda: wire.read_greeting(wire.Look, content),
    )


def message_of(said: dict[str, Any]) -> Any:
    """A Flower message from its JSON, as tests/before/v0_2 keeps messages."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {
        one["name"]: Array(
            dtype=one["dtype"],
            shape=tuple(one["shape"]),
            stype=one["stype"],
            data=base64.b64decode(one["data"]),
        )
        for one in said["arrays"]
    }
    return RecordDict(
        {"fedspend.about": ConfigRecord(said["about"]), "fedspend.arrays": ArrayRecord(arrays)}
    )


def prepare_export(body: bytes) -> Reading:
    from fedspend.ledger.export_check import audit_export

    path = _file(body)
    return lambda: _as_findings(audit_export(path).to_dict())


_replaced: list[tuple[Path, bytes]] = []  # files of run directories, and what they hold


def prepare_run(body: bytes) -> Reading | None:
    """Bytes are RUN/FILE, a line break, and the content of that file in that run directory."""
    from fedspend.report.dates import Dates
    from fedspend.report.html import render
    from fedspend.report.run_data import load_run
    from fedspend.runs.directory import RunDirectory
    from fedspend.runs.verifying import verify_run
    from fedspend.stored.files import FILES

    where, _, content = body.partition(b"\n")
    run, _, name = where.decode("latin-1").partition("/")
    if run not in RUNS or name not in {file.name for file in FILES}:
        return None
    while _replaced:
        _replaced[-1][0].write_bytes(_replaced.pop()[1])
    folder = archived(*(f"runs/{one}/*" for one in RUNS)) / "runs" / run
    _replaced.append(
        (folder / name, (folder / name).read_bytes() if (folder / name).exists() else b"")
    )
    (folder / name).write_bytes(content)
    found = RunDirectory(folder)

    def facts() -> None:
        json.dumps(found.stored.facts().content)

    return _each(
        facts,
        lambda: found.ledger_location(None),
        lambda: found.ledger_project(""),
        found.metrics,
        lambda: render([load_run(folder, run)], Dates("2026-01-01", {})),
        lambda: _as_findings(verify_run(folder).to_dict()),
    )


def prepare_checkpoint(body: bytes) -> Reading:
    from fedspend.runs.checkpoints import pack_kept, pack_state, read_kept, read_state
    from fedspend.stored.files import CHECKPOINT, RELEASE

    folder = scratch()
    for file in (CHECKPOINT, RELEASE):
        _file(body, file.name)

    def state(sealed: bool) -> None:
        found = read_state(folder, sealed=sealed)
        _again(
            folder,
            CHECKPOINT.name,
            lambda one: pack_state(one.state, one.metrics)[0],
            found,
            lambda there: read_state(there, sealed=True),
        )

    def kept(sealed: bool) -> None:
        found = read_kept(folder, sealed=sealed)
        _again(
            folder,
            RELEASE.name,
            lambda one: pack_kept(one.round, one.kept)[0],
            found,
            lambda there: read_kept(there, sealed=True),
        )

    return _each(lambda: state(True), lambda: state(False), lambda: kept(True), lambda: kept(False))


def _again(folder: Path, name: str, pack: Callable[[Any], bytes], found: Any, read: Any) -> None:
    body = pack(found)
    there = folder / "tmp"
    (there / name).write_bytes(body)
    _same(pack(read(there)), body)


def prepare_publication(body: bytes) -> Reading | None:
    """Bytes are a publication's name, a line break, and JSON with its document and an opening."""
    from fedspend.publishing.checking import verify_publication

    where, _, content = body.partition(b"\n")
    if where.decode("latin-1") not in PUBLICATIONS:
        return None
    folder = (
        archived(*(f"publications/{one}/*" for one in PUBLICATIONS))
        / "publications"
        / where.decode()
    )
    opening = None
    try:
        both = json.loads(content)
        content, opening = (json.dumps(both[name]).encode() for name in ("publication", "opening"))
    except Exception:
        pass
    (folder / "publication.json").write_bytes(content)
    path = _file(opening or content, "opening.json")
    return lambda: _as_findings(verify_publication(folder, opening=path).to_dict())


def prepare_budgets(body: bytes) -> Reading:
    from fedspend.budgets.csv_file import read_budgets_csv
    from fedspend.engines.flower.keys import read_keys
    from fedspend.records.budget_file import read_record_budgets

    path = _file(body)

    def budgets() -> None:
        found = read_budgets_csv(path)
        columns = {"client": found.clients, "epsilon": found.epsilons.tolist()}
        for name in ("saving_rate", "transition", "group"):
            values = getattr(found, f"{name}s")
            if values is not None:
                columns[name] = list(values)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [columns, *zip(*columns.values(), strict=True)]
        )
        again = read_budgets_csv(_written(text.getvalue()))
        _same(
            (again.clients, again.epsilons.tolist(), str(again.groups)),
            (found.clients, found.epsilons.tolist(), str(found.groups)),
        )

    return _each(budgets, lambda: read_record_budgets(path), lambda: read_keys(path))


def _written(text: str) -> Path:
    path = scratch() / "tmp" / "again"
    path.write_text(text, encoding="utf-8", newline="")
    return path


# --- changes by structure -------------------------------------------------------------------------

_ODD = """[null, true, false, 0, 1, -1, 2, 3.5, 0.0, -0.0, 1e-320, 1e-9, 1e308, NaN, Infinity,
    2147483648, 9007199254740993, 9223372036854775808, -9223372036854775809, 10000000, 268435456,
    1e25, 10000000000000000000000000, "@deep@", "@long@", "@inf@", [], {}, [[]], [1], [[1, 2]],
    {"a": 1}, "", " ", "a", "0", "nan", "\\ud800", "two\\nlines", "\\u001b[2J", "\\u202e",
    "\\u0000", "/etc/passwd", "../x.db", "postgresql://127.0.0.1:1/x", "client", "rdp", "@many@"]"""
_CELLS = """1e5 1,000 1.000,5 1_0 \u0661 0x10 cafe\u0301 " "" nan -1 0 1e-320 1e999 \ud800 \x00
    \u202e client record epsilon saving_rate transition group key"""


def change(value: Any, rng: random.Random) -> None:
    """Change a few values inside JSON."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        place, another = _place(value, rng), _place(value, rng)
        if place is None or another is None:
            return
        inside, key = place
        old, what = inside[key], rng.randrange(8)
        if what == 0 and isinstance(inside, dict):
            del inside[key]
        elif what == 0:
            inside.pop(key)
        elif what == 1 and isinstance(inside, dict):
            inside[rng.choice([*inside, "a", ""])] = old
        elif what == 1:
            inside[key:key] = [old] * rng.choice((1, 1, 2, 100))
        elif what == 2:
            inside[key] = json.loads(json.dumps(another[0][another[1]]))
        elif what in (3, 4) and isinstance(old, int | float) and abs(old) < 1e300:
            others = (old + 1, old - 1, -old, old * 2, old * 1000, float(old), str(old))
            inside[key] = rng.choice(others)
        elif what == 3 and isinstance(old, str):
            inside[key] = rng.choice(
                (old[:-1], old + "a", old.upper(), old * 2, f" {old}", old[::-1])
            )
        else:
            inside[key] = rng.choice(json.loads(_ODD))


def _place(value: Any, rng: random.Random) -> tuple[Any, Any] | None:
    """Somewhere in JSON; long lists of numbers do not hide what is above them."""
    found = None
    while isinstance(value, dict | list) and value:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        found, value = (value, key), value[key]
        if rng.random() < 0.3:
            break
    return found


def dumped(value: Any, rng: random.Random) -> bytes:
    """JSON; also such as no program writes: long numbers, deep nesting, keys that come twice."""
    text, many = json.dumps(value), rng.choice((10, 500, 5000, 50_000))
    text = text.replace('"@deep@"', "[" * many + "]" * many)
    text = text.replace('"@long@"', "1" + "0" * many).replace('"@inf@"', "1e999")
    text = text.replace('"@many@"', json.dumps("x" * many))
    if rng.random() < 0.03 and isinstance(value, dict) and value:
        text = f"{{{json.dumps(rng.choice(list(value)))}: 1, {text[1:]}"
    return text.encode()


def by_json(seal: Callable[[Any], None] = lambda _: None) -> Mutation:
    """Change JSON, and seal it again."""

    def mutated(body: bytes, rng: random.Random) -> bytes:
        value = json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        change(value, rng)
        with suppress(Exception):
            seal(value)
        return dumped(value, rng)

    return mutated


def by_line(inner: Mutation) -> Mutation:
    def mutated(body: bytes, rng: random.Random) -> bytes:
        first, line, rest = body.partition(b"\n")
        kind = (
            mutate_lines
            if first.endswith(b"jsonl")
            else mutate_tensors
            if first.endswith(b"tensors")
            else inner
        )
        return first + line + kind(rest, rng)

    return mutated


def mutate_lines(body: bytes, rng: random.Random) -> bytes:
    lines = [json.loads(one) for one in body.splitlines()]
    change(lines, rng)
    return b"".join(dumped(one, rng) + b"\n" for one in lines)


def seal_plan(content: Any) -> None:
    from fedspend.planning.plan_json import canonical, hash_of

    content.pop("hash", None)
    content["hash"] = hash_of(canonical(content))


def seal_slice(content: Any) -> None:
    from fedspend.approval import slices

    if "own" in content:
        leaf = slices.commitment("slice", bytes.fromhex(content["opening"]), content["own"])
        text = slices.canonical(
            {"terms": content["terms"], "tree": slices.climbed(leaf, content["path"])}
        )
        content["root"] = hashlib.sha256(slices._PREFIX + text.encode()).hexdigest()
    else:
        plan = slices.Plan.load(archived("consortium/first/*") / "consortium/first/plan.json")
        terms = slices.Terms(**content["terms"])
        content["plan"] = plan.hash
        content["root"] = slices.Offer(terms, plan, content["openings"], content["keys"]).root


def mutate_wire(body: bytes, rng: random.Random) -> bytes:
    said = json.loads(body)
    if rng.random() < 0.6:
        about = json.loads(said["about"]["body"])
        texts = [name for name in ("silo_offer", "silo_plan") if about.get(name)]
        if texts and rng.random() < 0.8:
            name = rng.choice(texts)
            about[name] = by_json(seal_plan if name == "silo_plan" else lambda _: None)(
                about[name].encode(), rng
            ).decode()
        else:
            change(about, rng)
        said["about"]["body"] = dumped(about, rng).decode()
    elif said["arrays"] and rng.random() < 0.7:
        one = rng.choice(said["arrays"])
        one["dtype"] = rng.choice(("float32", "float64", "int32", "int64", one["dtype"]))
        one["shape"] = rng.choice(([], [0], [1], [2, 2], [5], [7], one["shape"], [0, 1 << 40]))
        size = 4 if one["dtype"].endswith("32") else 8
        for length in one["shape"]:
            size = min(size * length, 1 << 16)
        made = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size)))
        one["data"] = base64.b64encode(made + bytes(16 if "mask" in one["stype"] else 0)).decode()
    else:
        change(said, rng)
    return dumped(said, rng)


def mutate_export(body: bytes, rng: random.Random) -> bytes:
    from fedspend.ledger import chain, export, state

    document = json.loads(body)
    entries = document["entries"]
    if rng.random() < 0.2:
        change(document, rng)
        return dumped(document, rng)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(entries))
        if rng.random() < 0.2:  # another order
            entries.insert(rng.randrange(len(entries)), entries.pop(at))
        else:
            said = json.loads(entries[at]["text"])
            change(said, rng)
            entries[at]["text"] = dumped(said, rng).decode()
    previous, found = chain.START, state.State()
    with suppress(Exception):
        for n, entry in enumerate(entries, 1):
            text = entry["text"].encode()
            previous = chain.link(previous, n, text)
            entry |= {"number": n, "hash": previous.hex()}
            found.apply(n, chain.parse(n, text), previous)
        document |= {"ledger": found.id, "simulation": found.simulation, "head": str(found.head)}
        if rng.random() < 0.3:
            document["balances"] = export._balances(found.of(""))
            projects = {one: export._balances(found.of(one)) for one in found.projects}
            document["projects"] = projects
    return dumped(document, rng)


def mutate_tensors(body: bytes, rng: random.Random) -> bytes:
    import numpy as np

    from fedspend.basics.tensors import pack, seal, unpack

    length = int.from_bytes(body[:8], "little")
    if rng.random() < 0.3:
        header = json.loads(body[8 : 8 + length])
        change(header, rng)
        text = dumped(header, rng)
        return len(text).to_bytes(8, "little") + text + body[8 + length :]
    arrays, about = unpack(body, "it")
    sealed = about.pop("digest", None) is not None
    if rng.random() < 0.6:
        change(about, rng)
    else:
        name = rng.choice(list(arrays))
        one = arrays.pop(name)
        kind = rng.choice(("f4", "f8", "i4", "i8", "f2", "u1", "?", one.dtype.str))
        shape = rng.choice(((), (0,), (1,), (3,), (2, 2), one.shape, (one.size,), (0, 1 << 40)))
        filled = np.full(shape, rng.choice((0, 1, np.nan, np.inf, 1e300)), "f8").astype(kind)
        if rng.random() < 0.8:
            arrays[rng.choice((name, name, name, "a", "memory.a", "best", "votes"))] = filled
    return seal(arrays, about)[0] if sealed or rng.random() < 0.5 else pack(arrays, about)


def seal_publication(both: Any) -> None:
    from fedspend.signing.commitments import commitment

    document, opening = both["publication"], both["opening"]
    seal_plan(document["bound"])
    stated = document["commitments"]
    for kind, one in (("client", opening), ("noise", opening.get("noise"))):
        made = commitment(kind, bytes.fromhex(one["opening"]), one["content"])
        if kind == "noise":
            stated["noise"] = made
        else:
            stated["clients"] = sorted({*stated["clients"], made})


def mutate_table(body: bytes, rng: random.Random) -> bytes:
    """Change cells of a table, and how it is written."""
    text = body.decode("utf-8", "surrogateescape")
    mark = rng.choice([*(one for one in ",;\t|" if one in text), ","])
    rows = [row.split(mark) for row in text.split("\n")]
    for _ in range(rng.choice((1, 1, 2, 4))):
        row, what = rng.choice(rows), rng.randrange(6)
        at = rng.randrange(len(row))
        if what == 0:
            rows.insert(rng.randrange(len(rows)), list(row))
        elif what == 1 and len(row) > 1:
            row.pop(at)
        elif what == 2:
            row.insert(at, row[at])
        elif what == 3:
            cell = row[at]
            row[at] = rng.choice((f'"{cell}"', f"{cell}\u00a0", cell.upper(), f"{cell}\u200b"))
        else:
            row[at] = rng.choice((*_CELLS.split(), "", "x" * 5000, "two\nlines"))
    mark, end = rng.choice((mark, mark, mark, *",;\t|")), rng.choice(("\n", "\n", "\r\n", "\r"))
    return end.join(map(mark.join, rows)).encode("utf-8", "surrogateescape")


PUBLICATIONS = ("clients", "records", "votes", "people")
TARGETS = {
    "plan": Target(prepare_plan, by_json(seal_plan), "plans/*"),
    "slice": Target(
        prepare_slice, by_json(seal_slice), "*.slice.json */offer.json */rotation.json"
    ),
    "wire": Target(prepare_wire, mutate_wire, "wire/*"),
    "export": Target(prepare_export, mutate_export, "ledgers/clients.json ledgers/simulated.json"),
    "run": Target(prepare_run, by_line(by_json()), " ".join(f"runs/{run}/*" for run in RUNS)),
    "checkpoint": Target(prepare_checkpoint, mutate_tensors, "*/checkpoint.saf* */release.saf*"),
    "publication": Target(
        prepare_publication, by_line(by_json(seal_publication)), "publications/*"
    ),
    "budgets": Target(
        prepare_budgets, mutate_table, "*people*.csv wishes.csv */budgets.csv */keys.csv"
    ),
}


# --- the search -----------------------------------------------------------------------------------


def seeds(name: str) -> dict[str, bytes]:
    """What the search starts from."""
    found, folder = dict(kept(name)), archived(*TARGETS[name].seeds.split())
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        body, at = path.read_bytes(), path.relative_to(folder)
        if name == "run":
            body = "/".join(at.parts[1:]).encode() + b"\n" + body
        elif name == "publication":
            if at.name != "publication.json" or at.parts[1] not in PUBLICATIONS:
                continue
            opening = next((folder / f"publications/{at.parts[1]}.openings/clients").glob("*"))
            both = {"publication": json.loads(body), "opening": json.loads(opening.read_bytes())}
            body = at.parts[1].encode() + b"\n" + json.dumps(both).encode()
        label, pieces = str(at).replace("/", "-"), [body]
        if name == "wire":
            pieces = [json.dumps(one).encode() for one in _messages(json.loads(body))]
        found |= {f"{label}.{n}": one for n, one in enumerate(pieces) if len(one) < 1 << 17}
    return found


def _messages(said: Any) -> Iterator[Any]:
    """The messages in a file of version 0.2."""
    if isinstance(said, dict) and {"about", "arrays"} <= set(said):
        yield said
    for one in said.values() if isinstance(said, dict) else ():
        yield from _messages(one)


def kept(name: str) -> dict[str, bytes]:
    """The inputs that git has."""
    if not KEPT.exists():
        return {}
    with zipfile.ZipFile(KEPT) as archive:
        names = [one for one in archive.namelist() if one.startswith(f"{name}/")]
        return {one.partition("/")[2]: archive.read(one) for one in names}


def keep(name: str, paths: Sequence[str]) -> None:
    with zipfile.ZipFile(KEPT, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in map(Path, paths):
            archive.writestr(
                zipfile.ZipInfo(f"{name}/{path.name}"), path.read_bytes(), zipfile.ZIP_DEFLATED, 9
            )


def note(name: str, error: Broken, body: bytes) -> None:
    """Keep the smallest input of each kind of what went wrong."""
    words = str(error)
    kind = hashlib.sha256(
        "".join(one for one in words if not one.isdigit() or " at " in words).encode()[:60]
    ).hexdigest()[:12]
    path = BUILD / name / "found" / kind
    if not path.exists() or len(body) < path.stat().st_size:
        if not path.exists():
            print(f"\nFOUND {path}: {words}", flush=True)
        path.write_bytes(body)
        path.with_suffix(".txt").write_text(
            f"{words}\n{''.join(traceback.format_exception(error))}", errors="replace"
        )


def search(name: str, arguments: list[str]) -> None:
    """The search itself, in a process of its own: libFuzzer ends it."""
    import atheris

    sys.dont_write_bytecode = True
    target = TARGETS[name]

    def try_one(body: bytes, timed: bool = True) -> None:
        try:
            check(name, body, timed=timed)
        except Broken as error:
            note(name, error, body)

    def mutate(body: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.8:
            with suppress(Exception):
                made = target.mutated(body, rng)
                if len(made) <= most:
                    return made
        return atheris.Mutate(body, most)

    with atheris.instrument_imports(include=["fedspend"]):
        for body in list(seeds(name).values())[:40]:  # imports what readers import when called
            try_one(body, timed=False)
    atheris.Setup([sys.argv[0], *arguments], try_one, custom_mutator=mutate)
    atheris.Fuzz()


def run(name: str, seconds: int, corpus: Path) -> int:
    """Search for a while; 1 if anything was ever found that is still wrong."""
    for folder in (corpus, BUILD / name / "found"):
        folder.mkdir(parents=True, exist_ok=True)
    for label, body in seeds(name).items():
        (corpus / label).write_bytes(body)
    flags = [f"-max_total_time={seconds}", "-max_len=131072", "-timeout=120", "-rss_limit_mb=6000"]
    flags += [f"-artifact_prefix={BUILD / name / 'found'}/", "-report_slow_units=120"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    code = subprocess.run(
        [sys.executable, __file__, name, "--inside", str(corpus), *flags], env=environment
    ).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    total = time_of(name) + took
    (BUILD / name / "time").write_text(f"{total:.0f}\n")
    found = [one for one in sorted((BUILD / name / "found").iterdir()) if one.suffix != ".txt"]
    print(f"{name}: {took:.0f} s of processor time now, {total:.0f} s in all; {len(found)} found")
    return 1 if code or found else 0


def time_of(name: str) -> float:
    """Seconds of processor time that a target was fuzzed for."""
    path = BUILD / name / "time"
    return float(path.read_text()) if path.exists() else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz what fedspend reads from others.")
    parser.add_argument("target", nargs="?", choices=list(TARGETS))
    parser.add_argument("--list", action="store_true", help="targets, and how long each has run")
    parser.add_argument("--seconds", type=int, default=60, help="how long to search")
    parser.add_argument("--corpus", type=Path, help="a folder of inputs that grows")
    parser.add_argument("--try", nargs="+", dest="tried", metavar="FILE", help="say what is wrong")
    parser.add_argument("--keep", nargs="+", metavar="FILE", help="into tests/fuzz_seeds.zip")
    parser.add_argument("--inside", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.list or given.target is None:
        for name in TARGETS:
            print(f"{name:12} {time_of(name):8.0f} s")
        return 0
    if given.tried or given.keep:
        for path in given.tried or ():
            try:
                check(given.target, Path(path).read_bytes())
                print(f"{path}: ok")
            except Broken as error:
                traceback.print_exception(error)
        keep(given.target, given.keep or ())
        return 0
    if importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed: .venv/bin/python -m pip install -e '.[fuzz]'")
    if given.inside:
        search(given.target, given.inside)
    return run(given.target, given.seconds, given.corpus or BUILD / given.target / "corpus")


if __name__ == "__main__":
    sys.exit(main())
