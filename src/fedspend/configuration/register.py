"""A user's own entries: data sets, partitions and models that a config may name, from a Python
file.

    import fedspend
    from fedspend.data import rows

    def read(folder, seed, *, path):
        ...
        return rows(features, labels, classes=3, client_of=hospital)

    fedspend.register("data set", "our-registry", read, help="admissions of 2019", keys=("path",))

Guarantee: what is entered passes the same checks as what is ours, when it is entered and when it is
used. A data set is taken for private unless it says that it is public.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fedspend.basics.choices import choose
from fedspend.basics.registry import Entry
from fedspend.errors import InvalidInput


def register(
    kind: str,
    name: str,
    make: Callable[..., Any],
    *,
    help: str,
    keys: Iterable[str] = (),
    **flags: bool,
) -> Entry:
    """Give `make` a name that configs and Python may use from now on; the entry itself.

    `kind` is "data set" (`make(folder, seed, **keys)` gives rows; flags `public`, `natural`),
    "partition" (`make(labels, clients, generator, **keys)` gives each row's client number) or
    "model" (`make(input_shape, classes, **keys)` gives a module). `keys` are what it takes from its
    section.
    """
    if not callable(make):
        raise InvalidInput(
            f"{kind} {name!r} needs a function that makes it, got {type(make).__name__}"
        )
    return _ENTER[choose("kind of entry", kind, _ENTER)](name, make, help, tuple(keys), flags)


def _data_set(
    name: str, make: Callable[..., Any], help: str, keys: tuple[str, ...], flags: dict[str, bool]
) -> Entry:
    from fedspend.data.loading import DATA_SETS, DataSet

    _only_flags("data set", flags, ("public", "natural"))
    return DATA_SETS.add(DataSet(name, help, keys, make, **flags))


def _partition(
    name: str, make: Callable[..., Any], help: str, keys: tuple[str, ...], flags: dict[str, bool]
) -> Entry:
    from fedspend.data.partition import PARTITIONS, Partition

    _only_flags("partition", flags, ())
    return PARTITIONS.add(Partition(name, help, keys, make))


def _model(
    name: str, make: Callable[..., Any], help: str, keys: tuple[str, ...], flags: dict[str, bool]
) -> Entry:
    from fedspend.models.building import MODELS, Model

    _only_flags("model", flags, ())
    return MODELS.add(Model(name, help, keys, make))


def _only_flags(kind: str, flags: dict[str, bool], known: tuple[str, ...]) -> None:
    for flag, value in flags.items():
        if flag not in known or not isinstance(value, bool):
            raise InvalidInput(
                f"a {kind} has no flag {flag}={value!r}; known are {', '.join(known) or 'none'}"
            )


_ENTER: dict[
    str, Callable[[str, Callable[..., Any], str, tuple[str, ...], dict[str, bool]], Entry]
] = {
    "data set": _data_set,
    "partition": _partition,
    "model": _model,
}
