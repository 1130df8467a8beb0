"""Whether a client takes part in a round, decided by the client itself.

Guarantee: a client takes part with exactly the probability that its task names, independently of
everyone else and of its rows: Poisson sampling, as planned. In real runs the coin is drawn from the
client's own operating system, so that no task can predict it. In simulations it is the draw that
the server would have made, so that the cohort is the same whoever draws it.
"""

from __future__ import annotations

from fedspend.client.task import ClientTask
from fedspend.noise.randomness import Randomness


def takes_part(task: ClientTask, randomness: Randomness) -> bool:
    """One coin for a task. On a machine of its own a client draws it once for a round: a task that
    comes again is answered with the bytes that were sent before (`client.answering`).
    """
    if task.coin is None:
        return True
    if not randomness.simulation:
        return bool(randomness.uniform(1, "cohort", task.shared.round)[0] < task.coin)
    chances = randomness.uniform(task.number + 1, "cohort", task.shared.round)
    return bool(chances[task.number] < task.coin)
