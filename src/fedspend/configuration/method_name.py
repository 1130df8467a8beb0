"""Which method a config asks for.

Guarantee: a config that names none means the same method everywhere.
"""

from __future__ import annotations

from fedspend.basics.choices import near
from fedspend.configuration.config import Config
from fedspend.errors import InvalidInput
from fedspend.server.methods.table import DEFAULT, METHODS


def method_of(config: Config) -> str:
    """Its name, which need not be that of a method."""
    return config.method.name or DEFAULT


def known_method(config: Config) -> str:
    """Its name; refuses one that no method has."""
    name = method_of(config)
    if name not in METHODS:
        raise InvalidInput(
            f"method must be one of {', '.join(METHODS.names)}; got {name!r}"
            + near(name, METHODS.names, "; ")
        )
    return name
