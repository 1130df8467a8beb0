"""A look at every connected node, before any run: `flwr run ... check=true`.

Guarantee: nothing is trained, planned, charged or approved, at the server or at a node. Every
client of the roster, and every node that stands for nobody, is one finding that says what to do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message

import fedspend
from fedspend.basics.findings import Finding, none_failed
from fedspend.budgets.csv_file import read_budgets_csv
from fedspend.configuration.config import Config, load_config, needed
from fedspend.configuration.data_inputs import Source, is_real
from fedspend.configuration.method_name import known_method
from fedspend.configuration.silo_inputs import silos_of
from fedspend.data.meaning import Agreement
from fedspend.engines.flower.keys import read_keys
from fedspend.engines.flower.line import Clock, Line
from fedspend.engines.flower.wire import (
    LOOK,
    REASONS,
    Condition,
    Look,
    Refusal,
    greeting_content,
    read_condition,
)
from fedspend.errors import InvalidInput, Refused
from fedspend.server.methods.table import protects_records

LOG = logging.getLogger("fedspend.flower")
CLOCKS = 60.0  # seconds by which a node's clock may differ
_POLL = 0.5


def look(grid: Any, config: Path, clock: Clock | None = None) -> list[Finding]:
    """What is wrong with the nodes, in the log; refuses if anything is."""
    settings = load_config(config)
    found = findings(grid, settings, clock)
    words = {True: "pass", False: "FAIL", None: "note"}
    for one in found:
        LOG.info("%s  %s: %s", words[one.good], one.check, one.words)
    if not none_failed(found):
        wrong = sum(one.good is False for one in found)
        raise Refused(f"{wrong} of {len(found)} findings must be put right before a run")
    LOG.info("everyone is here, and nothing is wrong")
    return found


def findings(grid: Any, config: Config, clock: Clock | None = None) -> list[Finding]:
    keys = None if config.engine.keys is None else read_keys(config.engine.keys)
    wanted = roster(config, keys)
    owner = {} if keys is None else {key: client for client, key in keys.items()}
    line = Line(grid, config.engine.deadline, clock)
    answers = _answers(line, len(wanted), config.engine.deadline)
    meaning = Agreement(Source(config).meaning)
    told: dict[str, Finding] = {}
    strangers: list[Finding] = []
    for node, (key, answer) in answers.items():
        whose = owner.get(key.decode("ascii", "replace").strip())
        client = whose if answer is None or isinstance(answer, Refusal) else answer[0].client
        one = Finding(*_judged(node, whose, answer, config, meaning, keyed=keys is not None))
        if client not in wanted:
            strangers.append(Finding(f"node {node}", False, f"{one.words}; not on the roster"))
        elif client in told:
            strangers.append(Finding(str(client), False, "is there twice; stop one of its nodes"))
        else:
            told[str(client)] = one
    missing = "no node is connected for it: start its SuperNode, and see its log"
    return [told.get(client, Finding(client, False, missing)) for client in wanted] + strangers


def roster(config: Config, keys: Mapping[str, str] | None) -> tuple[str, ...]:
    if protects_records(known_method(config)):
        return silos_of(config, None if keys is None else tuple(keys))
    return read_budgets_csv(needed(config.privacy.budgets, "privacy.budgets")).clients


Answer = tuple[Condition, float] | Refusal | None  # how it is and how far its clock is off


def _answers(line: Line, wanted: int, seconds: float) -> dict[int, tuple[bytes, Answer]]:
    """What every connected node says, by node; waits for as many as there should be."""
    found: dict[int, tuple[bytes, Answer]] = {}
    open_: dict[str, tuple[int, float]] = {}
    end = line.clock.now() + seconds
    while True:
        new = {node: key for node, key in line.nodes().items() if node not in found}
        content = greeting_content(Look())
        ids = line.send([(node, content) for node in new], LOOK, seconds)
        open_ |= {one: (node, time.time()) for one, node in zip(ids, new, strict=True)}
        found |= {node: (key, None) for node, key in new.items()}
        for reply in line.replies(list(open_)):
            node, sent = open_.pop(reply.metadata.reply_to_message_id, (None, 0.0))
            if node is not None:
                found[node] = (found[node][0], _read(reply, sent))
        if (len(found) >= wanted and not open_) or line.clock.now() >= end:
            return found
        line.clock.sleep(_POLL)


def _read(reply: Message, sent: float) -> Answer:
    """The answer, and by how many seconds the node's clock is before or after ours, at least."""
    if reply.has_error():
        return Refusal("failed")
    try:
        said = read_condition(reply.content)
    except InvalidInput:
        return Refusal("task")
    if isinstance(said, Refusal):
        return said
    now = time.time()
    return said, min(0.0, said.clock - sent) + max(0.0, said.clock - now)


def _judged(
    node: int,
    whose: str | None,
    answer: Answer,
    config: Config,
    meaning: Agreement,
    *,
    keyed: bool,
) -> tuple[str, bool | None, str]:
    name = whose or f"node {node}"
    if answer is None:
        return name, False, "is connected and does not answer; see the log of its SuperNode"
    if isinstance(answer, Refusal):
        return name, False, f"{REASONS[answer.reason]}: run fedspend flower check there"
    said, off = answer
    unit = "record" if protects_records(known_method(config)) else "client"
    ours = f"{fedspend.__version__}, flwr {version('flwr')}, torch {torch.__version__}"
    theirs = f"{said.version}, flwr {said.flwr}, torch {said.torch}"
    other = meaning.difference(said.meaning)
    for wrong, words in (
        (keyed and whose is None, "its key is not in the file of keys: add it, or disconnect it"),
        (keyed and whose != said.client, f"it says it is {said.client!r}, with a key of {whose!r}"),
        (
            said.version != fedspend.__version__,
            f"has fedspend {theirs}, and this is {ours}: install the same",
        ),
        (
            said.unit != unit,
            f'protects {said.unit}s, and the run {unit}s: set node.unit = "{unit}" there',
        ),
        (
            said.simulation and is_real(config),
            'draws from a seed, which protects nobody: privacy.randomness = "os" there',
        ),
        (
            not said.simulation and not is_real(config),
            "has real rows, and the server's randomness is seeded",
        ),
        (bool(other), other),
        (
            abs(off) > CLOCKS,
            f"its clock is {abs(off):,.0f} seconds {'ahead' if off > 0 else 'behind'}: set it",
        ),
    ):
        if wrong:
            return said.client, False, words
    meaning.heard(said.client, said.meaning)
    account = "its ledger is there" if said.ledger else "its ledger begins with its first run"
    about = (
        f"fedspend {theirs}, a model of {said.parameters:,} numbers, {account}, clock within "
        f"{CLOCKS:.0f} seconds"
    )
    same = (said.flwr, said.torch) == (version("flwr"), str(torch.__version__))
    return said.client, True if same else None, about if same else f"{about}; here {ours}"
