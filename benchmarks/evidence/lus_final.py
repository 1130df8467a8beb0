"""LUS as Cheng et al. (2022) write it: the importance of a value is its update times the gradient
at the *final* local model. fedspend itself takes the gradient of the last step, which is there
already; this engine computes one more, over all rows of the client.

Guarantee: clients are trained as in the reference engine, dense models in products of many clients
as in the dense one; what is sent is shaped, then bounded, like any other update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

NAME = "lus-final"


class FinalGradient:
    """One client after the other."""

    name, outside = NAME, False

    def __init__(self, work: Any) -> None:
        self._work = work

    def run(self, tasks: Sequence[Any]) -> Iterator[Any]:
        yield from map(self.reply, tasks)

    def reply(self, task: Any) -> Any:
        from fedspend.basics.threads import single_threaded
        from fedspend.client.training import trained
        from fedspend.client.work import finished

        rows, tools = self._work.rows(task.client), self._work.tools
        with single_threaded():
            update = trained(whole(task), rows, tools.module, tools.randomness, tools.goal)
            shape(task, update, rows, tools, copied(tools.module))
            return finished(task, update, len(rows), tools)

    def close(self) -> None:
        pass


def fast(work: Any) -> Any:
    """The engine for models whose clients train together; another's are trained one by one."""
    from fedspend.engines.dense import DenseEngine
    from fedspend.engines.slopes import slope_of
    from fedspend.models.linear import supports

    class Together(DenseEngine):
        name = NAME

        def __init__(self, work: Any) -> None:
            super().__init__(work)
            self._one_by_one: Any = FinalGradient(work).reply
            self._local = copied(work.module)  # a dense model remembers nobody

        def _updates(self, tasks: Sequence[Any]) -> Iterator[Any]:
            updates = super()._updates([whole(task) for task in tasks])
            for task, update in zip(tasks, updates, strict=True):
                rows = self._work.rows(task.client)
                shape(task, update, rows, self._work.tools, self._local)
                yield update

    dense = supports(work.module) and slope_of(work.task) is not None
    return Together(work) if dense else FinalGradient(work)


def whole(task: Any) -> Any:
    """The task without LUS."""
    training = task.shared.training
    without = replace(training, shape=replace(training.shape, lus=0.0))
    return replace(task, shared=replace(task.shared, training=without))


def shape(task: Any, update: Any, rows: Any, tools: Any, local: Any) -> None:
    """LUS in place, at the end of a local training without it; `local` is a copy of the module."""
    from fedspend.client.shaping import sparsify
    from fedspend.models.flat import layer_sizes

    lus = task.shared.training.shape.lus
    if lus > 0 and len(rows):
        slope = gradient(task.shared.parameters, update, rows, tools.goal, local)
        sparsify(update[None], slope[None], layer_sizes(tools.module), lus)


def copied(module: Any) -> Any:
    import copy

    return copy.deepcopy(module).train()


def gradient(start: Any, update: Any, rows: Any, goal: Any, local: Any) -> Any:
    """Of the mean loss over all rows of the client, at its final local model."""
    import numpy as np
    import torch

    from fedspend.models.flat import load_vector, trainable

    load_vector(local, torch.from_numpy(start) + update)
    features, labels = rows.take(np.arange(len(rows)))
    parameters = [parameter for _, parameter in trainable(local)]
    loss = goal.mean(local(features), labels)
    slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(one) if slope is None else slope).detach().reshape(-1)
            for one, slope in zip(parameters, slopes, strict=True)
        ]
    )


def register() -> None:
    from fedspend.engines.table import ENGINES, EngineEntry

    ENGINES.add(EngineEntry(NAME, "LUS at the final local model", make=lambda work, _: fast(work)))
