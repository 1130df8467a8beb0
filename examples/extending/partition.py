"""A partition: clients hold rows in blocks, as they stand in the file. For simulations.

    fedspend --load examples/extending/partition.py train examples/quickstart.toml -o runs/blocks \\
        --set data.partition=blocks --set method.name=idp-fedavg --set train.rounds=3
"""

import numpy as np

import fedspend


def blocks(labels, clients, _generator):
    """The client of each row: the first so many rows are the first client's, and so on."""
    return np.arange(len(labels)) * clients // len(labels)


fedspend.register("partition", "blocks", blocks, help="consecutive rows")
