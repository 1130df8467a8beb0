"""Public rows without labels, for methods whose clients vote on them.

Guarantee: the label of a row that was set aside is never read, not even to choose it. Such a row
belongs to no client and no budget protects it, so rows of your own data are never set aside: public
rows must then come from a separate file.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedspend.data.dataset import Dataset
from fedspend.errors import InvalidInput, finite_number
from fedspend.noise.randomness import Randomness

_STREAM = 4  # of role "data": independent of partition, hold-out and samples


def set_aside(dataset: Dataset, *, share: float, seed: int) -> Dataset:
    """The data set with this share of its training rows, drawn at random, made public without their
    labels.
    """
    part, total = finite_number("public_share", share), len(dataset.features)
    count = round(part * total)
    if not (0 < part < 1 and 1 <= count < total):
        raise InvalidInput(
            f"public_share must set some rows aside and leave some, got {share!r} of {total:,} "
            "training rows"
        )
    if not dataset.public:
        raise InvalidInput(
            "public_share would make rows of your own data public, and no budget would protect "
            "them; give public_path, a file of public rows"
        )
    if dataset.public_features is not None:
        raise InvalidInput("the data already has public rows; remove public_share")
    chosen = Randomness(seed).generator("data", _STREAM).permutation(total)
    asked, kept = np.sort(chosen[:count]), np.sort(chosen[count:])
    return replace(
        dataset,
        features=dataset.features[kept],
        labels=dataset.labels[kept],
        client_of=None if dataset.client_of is None else dataset.client_of[kept],
        budget_of=None if dataset.budget_of is None else dataset.budget_of[kept],
        record_of=None if dataset.record_of is None else dataset.record_of[kept],
        public_features=dataset.features[asked],
    )
