"""Which method a config asks for.

Guarantee: a config that names none means the same method everywhere, and its plan is that of
`fedspend plan`: by its policy, which is by default `optimal` within each client's own budget.
"""

from __future__ import annotations

from fedspend.basics.choices import near
from fedspend.configuration.config import Config
from fedspend.errors import InvalidInput
from fedspend.server.methods.table import DEFAULT, METHODS


def method_of(config: Config) -> str:
    """Its name, which need not be that of a method; else the one that its policy is for."""
    policy = config.privacy.policy
    implied = (entry.name for entry in METHODS if policy in entry.policies)
    return config.method.name or next(implied, DEFAULT)


def known_method(config: Config) -> str:
    """Its name; refuses one that no method has."""
    name = method_of(config)
    if name not in METHODS:
        raise InvalidInput(
            f"method must be one of {', '.join(METHODS.names)}; got {name!r}"
            + near(name, METHODS.names, "; ")
        )
    return name
