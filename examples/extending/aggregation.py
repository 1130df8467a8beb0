"""An aggregation: the mean of the updates with the smallest norms. For simulations only.

    fedspend --load examples/extending/aggregation.py compare examples/quickstart.toml \\
        --methods dp-fedavg --vary train.aggregation=mean,smallest --seeds 2 --set train.rounds=3

When one client is zeroed, the planned sum moves by that client's clip at most; this one may move
further, so no plan pays for it. A run of it claims no epsilon and is not kept, and real runs refuse
it. In Python it needs no name: fedspend.train(..., aggregation=smallest).
"""

import numpy as np

import fedspend


def smallest(updates, rows):
    """One update out of those of the clients, (clients, parameters); `rows` says how many each
    has.
    """
    order = np.argsort(np.linalg.norm(updates, axis=1))
    return updates[order[: max(1, len(rows) // 2)]].mean(axis=0)


fedspend.register(
    "aggregation", "smallest", smallest, help="the mean of the half with the smallest norms"
)
