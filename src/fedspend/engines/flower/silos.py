"""Before a run over silos: its terms are offered to all of them, and each hands in a certificate.

Guarantee: every silo of the roster has answered, by its own key, or nothing begins. What comes back
is a commitment: it says nothing about records, budgets, or how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedspend.engines.base import Elsewhere
from fedspend.engines.flower.line import Line
from fedspend.engines.flower.nodes import Nodes
from fedspend.engines.flower.wire import Hello
from fedspend.errors import InvalidInput


def handed_in(
    there: Elsewhere, silos: Sequence[str], offer: str, *, simulation: bool
) -> dict[str, str]:
    """The certificate of each silo for the terms of `offer`."""
    if there.keys is None and not simulation:
        raise InvalidInput(
            "a real run needs the nodes' public keys: name a file of keys with engine.keys"
        )
    hello = Hello(simulation, parameters=0, size=0, silo_offer=offer)
    line = Line(there.grid, there.patience.deadline)
    nodes = Nodes(line, silos, hello, there.keys, meaning=there.meaning)
    nodes.wait_for_all(there.patience.deadline)
    return {silo: nodes.handed_in[silo] for silo in silos}
