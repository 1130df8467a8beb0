"""A client's own rows: a view of arrays that may hold other clients' rows too, which shows only its
own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedspend.basics.arrays import IntArray
from fedspend.models.inputs import as_input


@dataclass(frozen=True, eq=False)
class Rows:
    """`numbers` are this client's rows in `features` and `labels`; positions count from 0 within
    them. A listed record without a row has a position, too, and a negative number.
    """

    features: torch.Tensor
    labels: torch.Tensor
    numbers: IntArray
    integers: bool = False  # whether the model takes whole numbers, such as tokens

    def __len__(self) -> int:
        return len(self.numbers)

    def there(self, positions: IntArray) -> IntArray:
        """Those positions that have a row."""
        return positions[self.numbers[positions] >= 0]

    def take(self, positions: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.from_numpy(self.numbers[positions])
        features = self.features.index_select(0, chosen)
        return as_input(features, integers=self.integers), self.labels.index_select(0, chosen)
