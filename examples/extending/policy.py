"""A policy: more precision in the last rounds. One file, and its name works in a config.

    fedspend --load examples/extending/policy.py plan --epsilon 2:10,8:10 --delta 1e-3 \\
        --rounds 20 --rate 0.5 --policy late

It says how the noise falls; how much of it there is, the budget decides. Every schedule is sealed
at its budget and verified like those of our own policies.
"""

import numpy as np

import fedspend


def late(ask, *, share=0.25, factor=0.5):
    """Relative noise of each round: `factor` in the last `share` of the rounds, 1 before."""
    begins = ask.rounds - max(1, round(share * ask.rounds))
    return np.where(np.arange(ask.rounds) < begins, 1.0, factor)


fedspend.register(
    "policy", "late", late, help="less noise in the last rounds", keys=("share", "factor")
)
