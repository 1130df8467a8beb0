"""What a publication promises, in words that follow from its numbers alone.

Guarantee: a checker writes the words again and compares them, so no publication can say more in
words than in numbers. The words therefore belong to the format: to change them, raise its version.
"""

from __future__ import annotations

from typing import Any

from fedspend.basics.words import counted
from fedspend.planning.protocol import AnyPlan, Unit

DOCUMENT, GUARANTEE = "publication.json", "guarantee.txt"  # the files of a publication

PROTECTED: dict[Unit, str] = {
    "client": "one client, with everything it holds",
    "record": "one record",
}
SIMULATION = (
    "SIMULATION. Its randomness was seeded, so it protects nobody. A real run under the same plan "
    "would keep the promise below."
)


def sentences(document: dict[str, Any], bound: AnyPlan) -> list[str]:
    """The promise of a publication whose bound was read; simulations say so first."""
    guarantee, unit = document["guarantee"], bound.unit
    clients = counted(len(document["commitments"]["clients"]), "client")
    everyone = f"each of {clients}" if unit == "client" else f"every record of {clients}"
    found = [SIMULATION] if document["simulation"] else []
    found += [
        f"Protected: {PROTECTED[unit]}.",
        f"Promise: epsilon at most {guarantee['epsilon']:g} at delta {guarantee['delta']:g}, for "
        f"{everyone}, over {counted(bound.rounds, 'round')}.",
        f"Neighbouring data: {guarantee['adjacency']}.",
        f"Against: {guarantee['observer']}.",
    ]
    if guarantee["lifetime"]:
        found.append(
            "This is what the run adds. Earlier runs on the same accounts count too; each client "
            "can ask for its total."
        )
    found.append(
        f"Every {unit} has a budget of its own, and none is shown. Each client can check its own "
        "with the opening that it was handed: fedspend verify PUBLICATION --open OPENING.json"
    )
    return found


def text(document: dict[str, Any], bound: AnyPlan) -> str:
    """The file that people read."""
    head = f"Publication {document['id']}, made {document['made']} with fedspend."
    return "\n\n".join([head, *sentences(document, bound)]) + "\n"
