"""Policies: how a budget becomes noise and sampling rates, round by round. One file per kind.

Guarantee: whatever a policy returns has been sealed with the exact kernel, so no schedule spends
more than its budget. All policies spend it to within 1e-7 but `spend-as-you-go-literal`, which
subtracts epsilons. Only budgets and public parameters enter.

| policy | rates | noise |
|---|---|---|
| `uniform` | constant | constant (IDP-FedAvg) |
| `strictest` | constant | constant, everyone at the smallest budget (DP-FedAvg) |
| `spend-as-you-go` | low before the transition round | recalibrated to what is left |
| `spend-as-you-go-literal` | as above | Algorithm 1 of Kiani et al. (2025) with T-t+1 |
| `weights`, `geometric` | constant | `s * weight_t ** -0.5` |
| `optimal` | constant | where it does the least harm to the final model |
| `individual-rates` | by client, constant in time | constant |
| your own (`shaped`) | as your function says | as your function says, scaled to the budget |
"""

from fedspend.planning.policies.base import (
    Policy,
    Spending,
    Terms,
    Wish,
    by_itself,
    one_for_all,
)
from fedspend.planning.policies.saving import assign_saving_rates
from fedspend.planning.policies.table import POLICIES, policy_for, with_key
from fedspend.planning.policies.weighted import round_weights

__all__ = [
    "POLICIES",
    "Policy",
    "Spending",
    "Terms",
    "Wish",
    "assign_saving_rates",
    "by_itself",
    "one_for_all",
    "policy_for",
    "round_weights",
    "with_key",
]
