"""Users' own data sets, partitions, models, losses, metrics, policies, methods and server steps.

A Python file registers them, and a config can then name them:

    import fedspend
    from fedspend.data import rows

    def read(folder, seed, *, path):
        ...
        return rows(features, labels, classes=3, client_of=hospital)

    fedspend.register("data set", "our-registry", read, help="admissions of 2019", keys=("path",))

Guarantee: users' entries pass the same checks as built-in ones, when they are registered and when
they are used. A data set counts as private unless it says that it is public. A policy's schedules
are sealed at their budgets; a method cannot begin a round that costs more than its plan
(`server.methods.guarded`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fedspend.basics.choices import choose
from fedspend.basics.registry import Entry
from fedspend.basics.removed import refuse_removed
from fedspend.errors import InvalidInput

Flags = dict[str, bool | str]
_files: set[Path] = set()


def register(
    kind: str,
    name: str,
    make: Callable[..., Any],
    *,
    help: str,
    keys: Iterable[str] = (),
    **flags: bool | str,
) -> Entry:
    """Give `make` a name that configs and Python can use from now on.

    | `kind` | how `make` is called: what it returns | flags |
    |---|---|---|
    | "data set" | `make(folder, seed, **keys)`: rows | `public`, `natural` |
    | "partition" | `make(labels, clients, generator, **keys)`: each row's client number | |
    | "model" | `make(input_shape, classes, **keys)`: a module | |
    | "policy" | `make(ask, **keys)`: relative noise by round, or a pair with rates | |
    | "method" | `make(given, **keys)`: a `server.methods.base.Method` | |
    | "server step" | `make(parameters, update, first, second, lr)`: what these become | |
    | "loss" | `make(output, target, **keys)`: one number a row | `targets` |
    | "metric" | `make(outputs, targets)`: a number | `share`, `lower` |

    `keys` are what it takes from its section of the config: keys that the section has, or new ones.
    A policy or a method takes new ones only, a metric none. `targets` says what a loss compares
    with: "classes", "binary", "numbers", "several" (labels), "tokens", or "kept", the default: as
    they are. A metric is a `share` if it lies between 0 and 1; `lower` if less is better. `help`
    says in a line what it is, for lists.

    Returns:
        The entry.

    Raises:
        InvalidInput: the name is taken, or `make`, `keys` or a flag does not fit the kind.

    `fedspend.register("policy", "late", late, help="spends late")`
    """
    if not callable(make):
        raise InvalidInput(
            f"{kind} {name!r} needs a function that makes it, got {type(make).__name__}"
        )
    refuse_removed(f"fedspend.register({kind!r})")
    entry = _ENTER[choose("kind of entry", kind, _ENTER)](name, make, help, tuple(keys), flags)
    _files.update(_file_of(make))
    return entry


def files_of_own() -> frozenset[Path]:
    """The files of what was registered, as far as it came from files."""
    return frozenset(_files)


def _file_of(make: Callable[..., Any]) -> list[Path]:
    try:
        return [Path(inspect.getfile(inspect.unwrap(make))).resolve()]
    except TypeError:  # built in, or an object that can be called
        return []


def _data_set(
    name: str, make: Callable[..., Any], help: str, keys: tuple[str, ...], flags: Flags
) -> Entry:
    from fedspend.data.loading import DATA_SETS, DataSet

    _only_flags("data set", flags, ("public", "natural"))
    public, natural = flags.get("public") is True, flags.get("natural") is True
    return DATA_SETS.add(DataSet(name, help, keys, make, public=public, natural=natural))


def _partition(
    name: str, make: Callable[..., Any], help: str, keys: tuple[str, ...], flags: Flags
) -> Entry:
    from fedspend.data.partition import PARTITIONS, Partition

    _only_flags("partition", flags, ())
    return PARTITIONS.add(Partition(name, help, keys, make))


def _model(
    name: str, make: Callable[..., Any], help: str, keys: tuple[str, ...], flags: Flags
) -> Entry:
    from fedspend.models.building import MODELS, Model

    _only_flags("model", flags, ())
    return MODELS.add(Model(name, help, keys, make))


def _policy(
    name: str, make: Callable[..., Any], help: str, keys: tuple[str, ...], flags: Flags
) -> Entry:
    from fedspend.planning.policies import POLICIES
    from fedspend.planning.policies.shaped import own_policy

    _only_flags("policy", flags, ())
    return POLICIES.add(own_policy(name, help, _new("policy", keys, "privacy"), make))


def _method(
    name: str, make: Callable[..., Any], help: str, keys: tuple[str, ...], flags: Flags
) -> Entry:
    from fedspend.planning.policies.table import OURS
    from fedspend.server.methods.base import MethodEntry
    from fedspend.server.methods.table import METHODS

    _only_flags("method", flags, ())
    return METHODS.add(
        MethodEntry(
            name,
            help,
            _new("method", keys, "method"),
            make=make,
            policies=OURS,
            own_policies=True,
        )
    )


def _server_step(
    name: str, make: Callable[..., Any], help: str, keys: tuple[str, ...], flags: Flags
) -> Entry:
    from fedspend.server.steps import SERVER_STEPS, ServerStep

    _only_flags("server step", flags, ())
    if keys:
        raise InvalidInput(f"a server step takes no keys, got {keys[0]!r}")
    return SERVER_STEPS.add(ServerStep(name, help, (), make))


def _loss(
    name: str, make: Callable[..., Any], help: str, keys: tuple[str, ...], flags: Flags
) -> Entry:
    from fedspend.tasks.kinds import KEPT, KINDS
    from fedspend.tasks.table import LOSSES, Loss

    flags = dict(flags)
    targets = choose("kind of target", flags.pop("targets", KEPT), KINDS)
    _only_flags("loss", flags, ())
    return LOSSES.add(
        Loss(name, help, _new("loss", keys, "task"), of_rows=make, targets=str(targets))
    )


def _own_metric(
    name: str, make: Callable[..., Any], help: str, keys: tuple[str, ...], flags: Flags
) -> Entry:
    from fedspend.tasks.table import METRICS, Metric, of_two

    _only_flags("metric", flags, ("share", "lower"))
    if keys:
        raise InvalidInput(f"a metric takes no keys, got {keys[0]!r}")
    share, lower = flags.get("share") is True, flags.get("lower") is True
    return METRICS.add(Metric(name, help, measure=of_two(make, name), share=share, lower=lower))


def _new(kind: str, keys: tuple[str, ...], section: str) -> tuple[str, ...]:
    """Refuse keys that the section has: what a setting means must not depend on who reads it."""
    from fedspend.configuration.sections import SECTIONS

    taken = next((key for key in keys if key in SECTIONS[section]), None)
    if taken is not None:
        raise InvalidInput(
            f"your own {kind} cannot take {taken!r}, which [{section}] already has; give the key "
            "another name"
        )
    return keys


def _only_flags(kind: str, flags: Flags, known: tuple[str, ...]) -> None:
    for flag, value in flags.items():
        if flag not in known or not isinstance(value, bool):
            raise InvalidInput(
                f"{kind} entries have no flag {flag}={value!r}; known flags: "
                f"{', '.join(known) or 'none'}"
            )


_ENTER: dict[str, Callable[[str, Callable[..., Any], str, tuple[str, ...], Flags], Entry]] = {
    "data set": _data_set,
    "partition": _partition,
    "model": _model,
    "policy": _policy,
    "method": _method,
    "loss": _loss,
    "metric": _own_metric,
    "server step": _server_step,
}
