"""The policies, and which of them a method, a saving rate or weights imply."""

from __future__ import annotations

from fedspend.basics.choices import near
from fedspend.basics.registry import Registry
from fedspend.basics.removed import refuse_removed
from fedspend.errors import InvalidInput
from fedspend.planning.policies.base import Policy
from fedspend.planning.policies.constant import STRICTEST, UNIFORM
from fedspend.planning.policies.individual import INDIVIDUAL_RATES
from fedspend.planning.policies.optimal import OPTIMAL
from fedspend.planning.policies.saving import EXACT, LITERAL
from fedspend.planning.policies.weighted import GEOMETRIC, WEIGHTS

POLICIES: Registry[Policy] = Registry(
    "policy",
    UNIFORM,
    STRICTEST,
    EXACT,
    LITERAL,
    WEIGHTS,
    GEOMETRIC,
    OPTIMAL,
    INDIVIDUAL_RATES,
    section="privacy",
)
OURS = POLICIES.names
# Under these a schedule is a function of its own budget and public terms (`strictest`: of the
# smallest budget). The others compare budgets, and of a user's own nothing is known.
BY_OWN_BUDGET = tuple(
    one.name for one in (UNIFORM, STRICTEST, EXACT, LITERAL, WEIGHTS, GEOMETRIC, OPTIMAL)
)
DEFAULT = OPTIMAL.name  # where nothing names or implies another


def with_key(key: str) -> tuple[str, ...]:
    """The policies that use this key of [privacy]."""
    return tuple(policy.name for policy in POLICIES if key in policy.keys)


def policy_for(
    method: str | None, policy: str | None, *, saves: bool, weighted: bool = False
) -> str:
    """The policy that was named, if the method allows it; else what a saving rate or weights imply;
    else the method's own, and without a method `optimal`.

    >>> policy_for("dp-fedavg", None, saves=False), policy_for(None, None, saves=True)
    ('strictest', 'spend-as-you-go')
    >>> policy_for(None, None, saves=False), policy_for("time-adaptive", None, saves=False)
    ('optimal', 'optimal')
    """
    refuse_removed(f"privacy.policy={policy}")
    if policy is not None and policy not in POLICIES:
        raise InvalidInput(
            f"policy must be one of {', '.join(POLICIES.names)}; got {policy!r}"
            + near(policy, POLICIES.names, "; ")
        )
    implied = "spend-as-you-go" if saves else "weights" if weighted else None
    if method is None:
        return policy or implied or DEFAULT
    allowed = policies_of_method(method)
    if policy is None:
        return implied if implied in allowed else allowed[0]
    if policy not in allowed:
        raise InvalidInput(
            f"policy {policy!r} contradicts method {method!r}, which needs "
            f"{' or '.join(allowed)}; drop one of the two"
        )
    return policy


def policies_of_method(method: str) -> tuple[str, ...]:
    """The policies that a method allows, its default first.

    Refuses a method that has no plan of clients.
    """
    from fedspend.server.methods.table import METHODS

    planned = [entry.name for entry in METHODS if entry.policies]
    if method in METHODS and METHODS[method].unit is None:
        raise InvalidInput(
            f"method {method!r} is not private, so it has no plan; use one of {', '.join(planned)}"
        )
    if method not in planned:
        raise InvalidInput(
            f"method must be one of {', '.join(planned)}; got {method!r}"
            + near(method, planned, "; ")
        )
    entry = METHODS[method]
    return (*entry.policies, *(POLICIES.own if entry.own_policies else ()))
