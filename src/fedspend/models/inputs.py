"""Whether a model takes whole numbers, such as tokens of a text, or floating-point numbers.

Guarantee: the model alone decides, on made-up rows of zeros; no row of anybody is looked at. Data
sets keep features as float32, which holds whole numbers exactly up to 2^24; larger ones are refused
where they are meant as such (`check_whole`), and so are those that the model has no place for
(`check_known`): a run that failed when such a row is drawn would tell that it was.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedspend.errors import InvalidInput

LARGEST = 2**24  # whole numbers up to here are exact in float32


def as_input(features: torch.Tensor, *, integers: bool) -> torch.Tensor:
    return features.long() if integers else features


def takes_integers(
    module: nn.Module, row_shape: tuple[int, ...], *, given_integers: bool = False
) -> bool:
    """Whether the model is given whole numbers: because it takes nothing else, or because it takes
    them, too, and the rows were whole numbers (`given_integers`).

    >>> takes_integers(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 2)), (2,))
    True
    >>> takes_integers(nn.Linear(2, 2), (2,), given_integers=True)
    False
    """
    if not _reads(module, torch.zeros(2, *row_shape, dtype=torch.int64)):
        return False
    return given_integers or not _reads(module, torch.zeros(2, *row_shape))


def _reads(module: nn.Module, rows: torch.Tensor) -> bool:
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            copy.deepcopy(module).eval()(rows)
    except Exception:  # whatever a user's own module raises
        return False
    return True


def check_whole(what: str, features: npt.NDArray[Any]) -> None:
    """Refuse features that a model for whole numbers cannot have."""
    bad = ~(np.abs(features) <= LARGEST) | (features != np.floor(features))
    if bad.any():
        at = np.argwhere(bad)[0]
        place = ", ".join(map(str, at))
        raise InvalidInput(
            f"{what}[{place}] is {features[tuple(at)]}, and the model takes whole numbers up to "
            f"{LARGEST:,}; number the tokens from 0"
        )


def check_known(what: str, module: nn.Module, features: npt.NDArray[Any]) -> None:
    """Refuse whole numbers that the model has no place for, such as tokens outside its vocabulary.

    The smallest and the largest number of every place are tried together, as two rows.
    """
    if not len(features):
        return
    ends = np.stack([features.min(axis=0), features.max(axis=0)])
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            copy.deepcopy(module).eval()(torch.from_numpy(ends).long())
    except IndexError:
        raise InvalidInput(
            f"{what} go from {ends.min():.0f} to {ends.max():.0f}, and the model has no place for "
            "some of them; number the tokens from 0, below the model's vocabulary"
        ) from None
    except Exception:  # it reads other rows; whatever a user's own module raises on these
        return
