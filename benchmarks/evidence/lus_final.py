"""LUS as Cheng et al. (2022) write it: the importance of a value is its update times the gradient
at the *final* local model. fedspend itself takes the gradient of the last step, which is there
already; this engine computes one more, over all rows of the client.

Guarantee: clients run one after the other as in the reference engine, and what is sent is shaped,
then bounded, like any other update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

NAME = "lus-final"


class FinalGradient:
    name, outside = NAME, False

    def __init__(self, work: Any) -> None:
        self._work = work

    def run(self, tasks: Sequence[Any]) -> Iterator[Any]:
        from fedspend.basics.threads import single_threaded
        from fedspend.client.work import finished

        for task in tasks:
            rows = self._work.rows(task.client)
            with single_threaded():
                update = shaped(task, rows, self._work.tools)
                yield finished(task, update, len(rows), self._work.tools)

    def close(self) -> None:
        pass


def shaped(task: Any, rows: Any, tools: Any) -> Any:
    """The update of a local training without LUS, then LUS at its end."""
    from fedspend.client.shaping import sparsify
    from fedspend.client.training import trained
    from fedspend.models.flat import layer_sizes

    training = task.shared.training
    lus, whole = training.shape.lus, replace(training.shape, lus=0.0)
    plain = replace(task, shared=replace(task.shared, training=replace(training, shape=whole)))
    update = trained(plain, rows, tools.module, tools.randomness, tools.goal)
    if lus > 0 and len(rows):
        slope = gradient(task.shared.parameters, update, rows, tools)
        sparsify(update[None], slope[None], layer_sizes(tools.module), lus)
    return update


def gradient(start: Any, update: Any, rows: Any, tools: Any) -> Any:
    """Of the mean loss over all rows of the client, at its final local model."""
    import copy

    import numpy as np
    import torch

    from fedspend.models.flat import load_vector, trainable

    local = copy.deepcopy(tools.module).train()
    load_vector(local, torch.from_numpy(start) + update)
    features, labels = rows.take(np.arange(len(rows)))
    tools.goal.mean(local(features), labels).backward()
    parameters = [parameter for _, parameter in trainable(local)]
    return torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1)
            for p in parameters
        ]
    )


def register() -> None:
    import fedspend

    fedspend.register(
        "engine",
        NAME,
        lambda work, _workers: FinalGradient(work),
        help="LUS at the final local model",
    )
