"""The model that a config names, and whether it fits the rows. A run on one machine and a node on
its own both make it here.

Guarantee: a model that mixes rows, or learns outside its parameters, is refused; so is a loss that
cannot take its output, and a user's own loss that mixes rows.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from fedspend import models
from fedspend.client.company import refuse_company
from fedspend.client.gradients import clipped_sum
from fedspend.configuration.config import Config, needed
from fedspend.data.dataset import Dataset, Rows
from fedspend.errors import FedspendError, InvalidInput
from fedspend.models.checking import refuse_mixing, tried_output
from fedspend.models.flat import flat_vector
from fedspend.models.inputs import check_known, check_whole, takes_integers
from fedspend.tasks.kinds import CLASSES, TOKENS, outputs_of
from fedspend.tasks.task import Task, tried


def build_model(config: Config, rows: Dataset | Rows) -> torch.nn.Module:
    """The config's model, for rows such as these. A module of your own may be beside the config."""
    if config.path is not None and str(config.path.resolve().parent) not in sys.path:
        sys.path.append(str(config.path.resolve().parent))
    return models.build(
        needed(config.model.name, "model.name"),
        input_shape=rows.features.shape[1:],
        outputs=outputs_of(rows.kind, rows.classes),
        seed=config.train.seed,
        every_place=rows.kind == TOKENS,
        **model_options(config),
    )


def model_options(config: Config) -> dict[str, Any]:
    """The config's model options; `hidden` is passed on even to models that will refuse it."""
    name = needed(config.model.name, "model.name")
    if ":" in name:
        return config.options("model", ("options",))
    keys = models.MODELS[name].keys if name in models.MODELS else ()
    more = ("options",) if ":" in (config.model.backbone or "") else ("hidden",)
    return config.options("model", {*keys, *more})


def integers_of(module: torch.nn.Module, rows: Dataset | Rows, *, given: bool = False) -> bool:
    """Whether the model takes whole numbers; refuses rows that are not, or that it cannot read."""
    shape = tuple(rows.features.shape[1:])
    if not takes_integers(module, shape, given_integers=given):
        return False
    for what in ("features", "test_features", "public_features"):
        found = getattr(rows, what)
        if found is not None:
            check_whole(what, found)
            check_known(what, module, found)
    return True


def check_fits(
    module: torch.nn.Module,
    task: Task,
    rows: Dataset | Rows,
    *,
    integers: bool,
    by_record: bool = False,
) -> None:
    """Refuse a model that mixes rows or learns outside its parameters, one whose output the loss
    cannot take, and a user's own loss that mixes rows; `by_record`, also one whose gradients cannot
    be taken record by record, or are rounded by a record's place.
    """
    refuse_mixing(module, tuple(rows.features.shape[1:]), integers=integers)
    output = tried_output(module, tuple(rows.features.shape[1:]), integers=integers)
    target = torch.zeros((2, *rows.labels.shape[1:]), dtype=torch.from_numpy(rows.labels[:0]).dtype)
    if task.targets in (CLASSES, TOKENS) and not (
        output.dim() == target.dim() + 1 and output.shape[-1] >= rows.classes
    ):
        wanted = (*target.shape, rows.classes)
        raise InvalidInput(
            f"for two rows the model must return shape {wanted}, one score per class, got "
            f"{tuple(output.shape)}"
        )
    try:
        tried(task, output, target)
        task.rows(output, target)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidInput(
            f"loss {task.name!r} cannot take the model's output of shape {tuple(output.shape)} "
            f"with targets of shape {tuple(target.shape)}: {reason}"
        ) from None
    if by_record:
        _check_by_record(module, task, tuple(rows.features.shape[1:]), target, integers=integers)


def _check_by_record(
    module: torch.nn.Module,
    task: Task,
    shape: tuple[int, ...],
    target: torch.Tensor,
    *,
    integers: bool,
) -> None:
    """Tried on made-up rows, so that no round is charged for a model that cannot do it."""
    made_up = torch.zeros((2, *shape), dtype=torch.int64 if integers else torch.float32)
    try:
        with torch.random.fork_rng(devices=[]):
            clipped_sum(module, 1.0, task=task)(flat_vector(module), made_up, target)
            refuse_company(module, task, _some_rows(shape, integers=integers), target[0])
    except FedspendError:
        raise
    except Exception as error:  # whatever torch or a user's own module raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidInput(
            f"the model's gradients cannot be taken record by record: {reason}; use layers that "
            "torch.func.vmap knows, and draw with nn.Dropout or torch.rand_like"
        ) from None


def _some_rows(shape: tuple[int, ...], *, integers: bool) -> torch.Tensor:
    """Not zero, so that gradients have something to round."""
    drawn = torch.rand((4, *shape), generator=torch.Generator().manual_seed(0))
    return (drawn < 0.5).long() if integers else drawn
