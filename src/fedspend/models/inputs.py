"""Whether a model takes whole numbers, such as tokens of a text, or floating-point numbers.

Guarantee: the model alone decides, on made-up rows of zeros; no row of anybody is looked at. Data
sets keep features as float32, which holds whole numbers exactly up to 2^24; larger ones are refused
where they are meant as such (`check_whole`).
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
