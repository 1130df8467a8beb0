"""How a client says no to a task.

Apart from `answering`, so that a client's account can be read without what trains it (torch).
"""

from __future__ import annotations

from fedspend.errors import Refused


class Declined(Refused):
    """A task that this client does not do. `reason` may be told to the server, the text may not."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
