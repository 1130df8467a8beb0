"""Synthetic data: Gaussian clusters, one per class, clipped to fixed bounds, scaled to [-1, 1]."""

from __future__ import annotations

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.data.dataset import Features, Rows
from fedspend.errors import finite_number, whole_number
from fedspend.noise.randomness import Randomness

_BOUND = 4.0  # standard deviations of the noise
_STREAM = 3


def make_synthetic(
    seed: int,
    *,
    examples: int = 2000,
    features: int = 20,
    classes: int = 4,
    separation: float = 1.0,
) -> Rows:
    """`examples` training rows and a quarter as many test rows; classes are equally frequent.

    `separation` is the standard deviation of the class centres' coordinates, relative to that of
    the noise.
    """
    classes = whole_number("classes", classes, at_least=2)
    examples = whole_number("examples", examples, at_least=classes)
    columns = whole_number("features", features, at_least=1)
    generator = Randomness(seed).generator("data", _STREAM)
    centres = finite_number("separation", separation) * generator.standard_normal(
        (classes, columns)
    )

    def draw(count: int) -> tuple[Features, IntArray]:
        labels = generator.permutation(np.arange(count) % classes)
        values = centres[labels] + generator.standard_normal((count, columns))
        return (np.clip(values, -_BOUND, _BOUND) / _BOUND).astype(np.float32), labels

    train, test = draw(examples), draw(max(classes, examples // 4))
    return Rows(train[0], train[1], classes, test[0], test[1])
