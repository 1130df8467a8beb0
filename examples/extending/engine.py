"""An engine: clients run in another order, last one first.

    fedspend --load examples/extending/engine.py train examples/quickstart.toml -o runs/backwards \\
        --set engine.name=backwards --set method.name=idp-fedavg --set train.rounds=3

An engine takes tasks and yields replies, in any order. What a client contributes must not depend on
who else is there: `tests/contracts` says how that is checked.
"""

import fedspend
from fedspend.client.work import contribute


class Backwards:
    name, outside = "backwards", False

    def __init__(self, work):
        self._work = work

    def run(self, tasks):
        for task in reversed(tasks):
            yield contribute(task, self._work.rows(task.client), self._work.tools)

    def close(self):
        pass


fedspend.register(
    "engine", "backwards", lambda work, _workers: Backwards(work), help="the last client first"
)
