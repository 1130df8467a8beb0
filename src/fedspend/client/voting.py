"""The votes that a client sends in place of an update (AE-DPFL; Zhu et al. 2020): for each public
row asked about, the class that its local model prefers.

Guarantee: a client contributes one vector to a round, with one vote for each row asked about and a
norm equal to the client's clip. It goes through the same bound, sum and noise as an update, so the
plan accounts for it and zeroing a client moves the sum by at most its clip.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from fedspend.client.task import ClientTask
from fedspend.errors import InvalidInput
from fedspend.models.evaluation import scores
from fedspend.models.fresh import fresh


def check_asked(task: ClientTask, public_rows: torch.Tensor | None) -> None:
    """Refuse to be asked about rows that are not there: a mistake, whatever a client holds."""
    asked = task.shared.asked
    if (
        asked is None
        or public_rows is None
        or not (asked.min() >= 0 and asked.max() < len(public_rows))
    ):
        raise InvalidInput(
            f"client {task.client!r} is asked about public rows that it does not have; give every "
            "client the same public rows"
        )


def votes(
    task: ClientTask, update: torch.Tensor, module: nn.Module, public_rows: torch.Tensor | None
) -> torch.Tensor:
    """Ones for the chosen classes, scaled to the client's clip, (rows asked about * classes,).

    A client whose model did not move casts no vote. A client whose model or scores are not finite
    sends NaN, which the bound discards like a diverged update.
    """
    asked = task.shared.asked
    assert asked is not None
    assert public_rows is not None
    cast = torch.zeros(len(asked), task.shared.size // len(asked))
    if bool(update.any()):
        scored = scores(
            fresh(module),
            torch.from_numpy(task.shared.parameters) + update,
            public_rows[torch.from_numpy(asked)],
        )
        if bool(torch.isfinite(update).all()) and bool(torch.isfinite(scored).all()):
            cast.scatter_(
                1, scored.argmax(dim=1, keepdim=True), task.clip_norm / math.sqrt(len(asked))
            )
        else:
            cast.fill_(math.nan)
    return cast.view(-1)
