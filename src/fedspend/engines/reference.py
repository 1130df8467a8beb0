"""The reference engine: one client at a time, no optimisations. It also runs record-level tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedspend.client.contribution import Reply
from fedspend.client.task import ClientTask
from fedspend.client.work import contribute
from fedspend.engines.base import Workload
from fedspend.models.checking import check_module
from fedspend.models.fresh import refuse_memory_outside


class ReferenceEngine:
    name = "reference"
    outside = False

    def __init__(self, work: Workload) -> None:
        check_module(work.module)
        shape = tuple(work.features.shape[1:])
        refuse_memory_outside(work.module, shape, integers=work.integers)
        self._work = work

    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Reply]:
        for task in tasks:
            yield contribute(task, self._work.rows(task.client), self._work.tools)

    def close(self) -> None:
        pass
