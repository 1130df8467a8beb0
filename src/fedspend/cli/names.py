"""The names of built-in entries, for help that appears before numpy is loaded.

A test holds them to the registries. Once a file of your own is loaded, the registries are read.
"""

from __future__ import annotations

NAMES = {
    "policies": (
        "uniform, strictest, spend-as-you-go, spend-as-you-go-literal, weights, geometric, "
        "optimal, individual-rates"
    ),
    "methods": (
        "fedavg, dp-fedavg, idp-fedavg, time-adaptive, adaptive-clip, dp-fedsgd, ae-dpfl, rpdp, "
        "minimum, dropout, filter, privacy-free"
    ),
    "accountants": "rdp, pld",
}


def registered() -> dict[str, str]:
    """The same from the registries."""
    from fedspend.accounting.accountants import ACCOUNTANTS
    from fedspend.planning.policies import POLICIES
    from fedspend.server.methods.table import METHODS

    return {
        "policies": ", ".join(POLICIES.names),
        "methods": ", ".join(METHODS.names),
        "accountants": ", ".join(ACCOUNTANTS.names),
    }
