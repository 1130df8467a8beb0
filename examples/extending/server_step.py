"""A server step: the sign of the noised mean, with momentum (Lion, Chen et al. 2023).

    fedspend --load examples/extending/server_step.py train examples/quickstart.toml -o runs/lion \\
        --set train.server_optimizer=lion --set train.server_lr=0.01 --set train.rounds=5

A server step sees what was released and what it remembers of that, never data, so it costs no
privacy whatever it does. In Python it needs no name: fedspend.train(..., server_optimizer=lion).
"""

import numpy as np

import fedspend


def lion(parameters, update, momentum, unused, lr):
    """The new parameters, and two vectors to remember; these begin as zeros."""
    step = np.sign(0.9 * momentum + 0.1 * update)
    return parameters + lr * step, 0.99 * momentum + 0.01 * update, unused


fedspend.register("server step", "lion", lion, help="the sign of the noised mean, with momentum")
