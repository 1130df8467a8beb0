"""What is sent to a client: a task is plain data, and all that a client needs besides its own rows,
state and randomness.

Guarantee: a task says nothing about other clients' rows, budgets or answers. `to_bytes` and
`from_bytes` are exact inverses; bytes that are not a task are refused with one line. Randomness is
not sent: a task cannot make a client's noise predictable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.arrays import Float32Array, FloatArray, IntArray
from fedspend.basics.tensors import pack, unpack
from fedspend.client.shaping import UNSHAPED, Shape
from fedspend.errors import InvalidInput
from fedspend.models.optimisers import OPTIMIZERS, Descent
from fedspend.noise.grid import Grid
from fedspend.noise.numbers import FEWEST_STEPS, MOST_STEPS, NumberGrid

FORMAT = "fedspend task 1"
# fields of a `RoundTask` that are grids
_GRIDS: Mapping[str, type[Any]] = {"grid": Grid, "bit_grid": NumberGrid, "metric": NumberGrid}
_OWN = ("client", "number", "clip_norm", "coin")
_LARGEST = 1 << 53  # of whole numbers
_ABOUT = {"format", *_OWN, "shared", "training", "records", *_GRIDS}
_ARRAYS = {"parameters", "asked"}  # and those of records, which have their own prefix


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: by SGD or Adam on the mean loss of each batch (`models.optimisers`), and
    the shaping of its update.

    Exactly one of `steps` and `epochs` is set. A client with fewer examples than a batch uses all
    of them in every step; a client with none has a zero update.
    """

    batch_size: int
    steps: int | None = None
    epochs: int | None = None
    momentum: float = 0.0
    shape: Shape = UNSHAPED
    optimizer: str = "sgd"
    weight_decay: float = 0.0
    proximal: float = 0.0
    gradient_clip: float | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InvalidInput("give exactly one of local_steps and local_epochs")

    @property
    def descent(self) -> Descent:
        return Descent(
            self.optimizer, self.momentum, self.weight_decay, self.proximal, self.gradient_clip
        )


@dataclass(frozen=True, eq=False)
class RoundTask:
    """The part of a task that is the same for all clients of a round."""

    round: int  # counted from 0
    # the model that everyone starts from, in the order of `module.parameters()`
    parameters: Float32Array
    training: LocalTraining
    lr: float
    size: int  # how many numbers a client sends
    run: str = ""
    plan: str = ""  # hash of the plan
    layers: tuple[int, ...] | None = None  # sizes of the pieces for per-layer clipping
    grid: Grid | None = None  # discrete noise: contributions are whole numbers of its steps
    # standard deviation of the noise that each client adds itself (distributed noise)
    own_deviation: float = 0.0
    bit: bool = False  # whether clients report if their update was within the clip
    # distributed noise: the bit's grid, and the noise that each client adds to it itself
    bit_grid: NumberGrid | None = None
    # whether clients report how well `parameters` do on rows that they hold out, and on which grid
    metric: NumberGrid | None = None
    asked: IntArray | None = None  # indices of the public rows to vote on, in place of an update

    @cached_property
    def about(self) -> dict[str, Any]:
        """All but the arrays, as plain JSON values; made once, since every client gets it."""
        apart = ("parameters", "asked", "training", *_GRIDS)
        names = [field.name for field in fields(self) if field.name not in apart]
        grids = {name: getattr(self, name) for name in _GRIDS}
        return {
            "shared": {name: getattr(self, name) for name in names},
            "training": asdict(self.training),
            **{name: None if grid is None else asdict(grid) for name, grid in grids.items()},
        }


@dataclass(frozen=True, eq=False)
class RecordTerms:
    """The terms of a client's own records in this round: their rates and steps, one entry per
    record, and the noise.
    """

    rate: FloatArray  # (records,)
    steps: FloatArray  # (records,) how many local steps a record takes part in, from the first on
    # (local steps,) what the sum of gradients of each step is divided by: planned, never counted
    batch: FloatArray
    clip: float
    noise_multiplier: float
    by_norm: bool = False  # records pay for their own gradients' norms, out of `norm_budget`
    # (records,) squared norms, in squared clips, over all rounds
    norm_budget: FloatArray | None = None
    # the client has planned its records itself: nothing is said here about any of them
    at_silo: bool = False


def silo_terms(clip: float, noise_multiplier: float) -> RecordTerms:
    """What a server tells a client that has planned its own records."""
    none = np.zeros(0)
    return RecordTerms(none, none, none, clip, noise_multiplier, at_silo=True)


@dataclass(frozen=True, eq=False)
class ClientTask:
    """One client's task. `number` is its place in the roster, used only for seeds.

    `coin` is set where everyone is asked in every round: the rate at which the client decides by
    itself whether it takes part (`client.participation`). None: whoever is asked takes part.
    """

    client: str
    number: int
    clip_norm: float  # infinite: no bound
    shared: RoundTask
    records: RecordTerms | None = None
    coin: float | None = None

    def parts(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """The task as arrays, and everything else as plain JSON values."""
        arrays: dict[str, npt.NDArray[Any]] = {"parameters": self.shared.parameters}
        if self.shared.asked is not None:
            arrays["asked"] = self.shared.asked
        about: dict[str, Any] = {"format": FORMAT, "client": self.client, "number": self.number}
        about["clip_norm"] = None if np.isinf(self.clip_norm) else self.clip_norm
        about["coin"] = self.coin
        about |= self.shared.about
        if self.records is not None:
            terms = {field.name: getattr(self.records, field.name) for field in fields(RecordTerms)}
            arrays |= {
                f"records.{name}": value
                for name, value in terms.items()
                if isinstance(value, np.ndarray)
            }
            about["records"] = {
                name: value for name, value in terms.items() if not isinstance(value, np.ndarray)
            }
        return arrays, about

    def to_bytes(self) -> bytes:
        return pack(*self.parts())

    @classmethod
    def from_bytes(cls, body: bytes) -> ClientTask:
        return cls.from_parts(*unpack(body, "a task"))

    @classmethod
    def from_parts(
        cls, arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]
    ) -> ClientTask:
        """The inverse of `parts`; refuses anything else, also parts that it does not know."""
        if about.get("format") != FORMAT:
            raise InvalidInput(
                f"this is not a task of this version: its format is {about.get('format')!r}, not "
                f"{FORMAT!r}"
            )
        of_records = "records." if "records" in about else None
        unknown = sorted({*map(str, about)} - _ABOUT) + sorted(
            name
            for name in arrays
            if name not in _ARRAYS and not (of_records and name.startswith(of_records))
        )
        if unknown:
            raise InvalidInput(
                f"a task has a part {unknown[0]!r} that this version does not know; use the same "
                "version of fedspend everywhere"
            )
        try:
            task = cls(
                client=about["client"],
                number=about["number"],
                clip_norm=np.inf if about["clip_norm"] is None else about["clip_norm"],
                shared=_shared(arrays, about),
                records=None if "records" not in about else _records(arrays, about["records"]),
                coin=about["coin"],
            )
            broken = [name for name, sound in _parts(task) if not sound]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidInput(
                f"a task is damaged ({type(error).__name__}: {error}); send it again"
            ) from None
        if broken:
            raise InvalidInput(f"a task is damaged: its {broken[0]} is not valid; send it again")
        return task


def _shared(arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> RoundTask:
    terms, training = dict(about["shared"]), dict(about["training"])
    found: RoundTask = _exactly(
        RoundTask,
        terms
        | {
            "parameters": arrays["parameters"],
            "training": _exactly(
                LocalTraining, training | {"shape": _exactly(Shape, training["shape"])}
            ),
            "layers": None if terms["layers"] is None else tuple(terms["layers"]),
            **{
                name: None if about[name] is None else _exactly(kind, about[name])
                for name, kind in _GRIDS.items()
            },
            "asked": arrays.get("asked"),
        },
    )
    return found


def _records(arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> RecordTerms:
    own = {
        name.removeprefix("records."): value
        for name, value in arrays.items()
        if name.startswith("records.")
    }
    found: RecordTerms = _exactly(RecordTerms, dict(about) | own)
    return found


def _exactly(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Needs a value for every field: a default must not replace one that was lost in transit."""
    if set(values) != {field.name for field in fields(kind)}:
        raise ValueError(f"{kind.__name__} has other parts")
    return kind(**values)


def _parts(task: ClientTask) -> Iterator[tuple[str, bool]]:
    """The parts of a task, and whether each is valid. Clients rely on it: a clip of NaN would not
    bound anything, because no norm compares as above it.
    """
    shared, training, grid, asked = (
        task.shared,
        task.shared.training,
        task.shared.grid,
        task.shared.asked,
    )
    yield "client", type(task.client) is str and task.client != ""
    yield "number", _count(task.number)
    yield "clip", task.clip_norm == np.inf or _number(task.clip_norm)
    yield "coin", task.coin is None or (_number(task.coin) and task.coin <= 1)
    yield "round", _count(shared.round)
    yield "size", _count(shared.size, 1)
    yield "parameters", shared.parameters.dtype == np.float32 and shared.parameters.ndim == 1
    yield "learning rate", _number(shared.lr)
    yield "own_deviation", _number(shared.own_deviation)
    yield "bit", type(shared.bit) is bool
    yield "bit_grid", shared.bit_grid is None or (shared.bit and _number_grid(shared.bit_grid))
    yield "metric", shared.metric is None or _number_grid(shared.metric)
    yield "run and plan", type(shared.run) is str and type(shared.plan) is str
    lengths = (training.steps, training.epochs)
    yield (
        "batches",
        _count(training.batch_size, 1) and all(one is None or _count(one) for one in lengths),
    )
    yield "momentum", _number(training.momentum)
    yield "optimizer", training.optimizer in OPTIMIZERS
    yield "weight decay", _number(training.weight_decay)
    yield "proximal term", _number(training.proximal)
    yield "gradient clip", training.gradient_clip is None or _number(training.gradient_clip)
    if asked is None:
        yield "size", shared.size == shared.parameters.size
    else:
        yield (
            "public rows",
            asked.dtype == np.int64
            and asked.ndim == 1
            and asked.size > 0
            and shared.size % asked.size == 0,
        )
    if shared.layers is not None:
        yield (
            "layers",
            all(_count(size, 1) for size in shared.layers) and sum(shared.layers) == shared.size,
        )
    if grid is not None:
        yield (
            "grid",
            _number(grid.step)
            and grid.step > 0
            and _count(grid.bits, 1)
            and grid.dimension == shared.size,
        )
    if task.records is not None:
        yield "records", _fit(task.records)


def _fit(terms: RecordTerms) -> bool:
    of_records = [terms.rate, terms.steps] + (
        [terms.norm_budget] if terms.norm_budget is not None else []
    )
    return (
        all(
            one.dtype == np.float64 and one.ndim == 1 and bool((one >= 0).all())
            for one in (*of_records, terms.batch)
        )
        and len({one.size for one in of_records}) == 1
        and (_number(terms.clip) and terms.clip > 0 and _number(terms.noise_multiplier))
        and type(terms.by_norm) is bool
        and not (terms.by_norm and terms.norm_budget is None)
        and type(terms.at_silo) is bool
        and not (terms.at_silo and (terms.by_norm or terms.rate.size or terms.batch.size))
    )


def _number_grid(grid: NumberGrid) -> bool:
    """Whether the grid is as fine as it must be; its steps are a power of two."""
    return (
        _count(grid.steps, FEWEST_STEPS)
        and grid.steps <= MOST_STEPS
        and grid.steps & (grid.steps - 1) == 0
        and _number(grid.own_deviation)
    )


def _number(value: object) -> bool:
    """Whether the value is a finite number of at least 0; a whole one must be exact as a float."""
    if isinstance(value, float):
        return 0 <= value < np.inf
    return _count(value)


def _count(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value <= _LARGEST
