"""The line to Flower: everything that is asked of its grid, and nothing else.

Guarantee: a grid that fails, that does not take a message, or that loses one on the way to the
SuperLink is told apart from a node that does not answer: it raises `TransportFailed`, and the round
stops. Time comes from a `Clock`, so that tests need not wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from flwr.app import Message, RecordDict

from fedspend.errors import OutsideFailed

T = TypeVar("T")
# Large models are fetched a few at a time: answers are added up as they come and not held.
_MOST_AT_ONCE, _MOST_NUMBERS = 64, 2**22


class TransportFailed(OutsideFailed):
    """Flower's own line broke; says nothing about any client."""


class Clock:
    """Seconds that only go forward."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Line:
    """A grid, made strict."""

    def __init__(self, grid: Any, patience: float, clock: Clock | None = None) -> None:
        """`patience`: seconds for which Flower may try to reach a SuperLink that is gone. It would
        try for ever, and a round must end.
        """
        self._grid, self.clock = grid, clock or Clock()
        tries = getattr(grid, "_retry_invoker", None)  # only the real grid has it
        if tries is not None:
            tries.max_time = patience

    def nodes(self) -> dict[int, bytes]:
        """The nodes that are connected, each with its public key (empty if it has none)."""
        return {int(one.node_id): bytes(one.public_key) for one in self._ask("get_nodes")}

    def send(self, contents: Sequence[tuple[int, RecordDict]], kind: str, ttl: float) -> list[str]:
        """Send one message to each of these nodes; the ids by which replies can be asked for."""
        ids: list[str] = []
        for first in range(0, len(contents), _MOST_AT_ONCE):
            some = contents[first : first + _MOST_AT_ONCE]
            messages = [Message(content, node, kind, ttl=ttl) for node, content in some]
            taken = list(self._ask("push_messages", messages))
            if len(taken) != len(some) or not all(isinstance(one, str) and one for one in taken):
                raise TransportFailed(
                    "the SuperLink did not take every message; see its log, and resume the run"
                )
            ids += taken
        return ids

    def replies(self, ids: Sequence[str], numbers: int = 1) -> Iterator[Message]:
        """The replies to these messages that have come, each of about so many numbers."""
        at_once = max(1, min(_MOST_AT_ONCE, _MOST_NUMBERS // max(1, numbers)))
        for first in range(0, len(ids), at_once):
            yield from self._ask("pull_messages", list(ids[first : first + at_once]))

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        """Whatever a grid raises, it is the transport that failed."""
        try:
            return list(getattr(self._grid, method)(*arguments))
        except Exception as error:
            raise TransportFailed(
                f"the line to the SuperLink failed ({type(error).__name__}: {error}); a round that "
                "had begun stays charged; check the SuperLink, and resume the run"
            ) from error
