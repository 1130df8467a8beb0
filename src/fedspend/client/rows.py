"""A client's own rows: a view of arrays that may hold other clients' rows too, which shows only its
own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedspend.basics.arrays import IntArray


@dataclass(frozen=True, eq=False)
class Rows:
    """`numbers` are the indices of this client's rows in `features` and `labels`; positions count
    within them, from 0.
    """

    features: torch.Tensor
    labels: torch.Tensor
    numbers: IntArray

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, positions: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.from_numpy(self.numbers[positions])
        return self.features.index_select(0, chosen), self.labels.index_select(0, chosen)
