"""Whatever parameters a server sends, one record moves a step's sum by at most the clip.

Layers are products: slopes too small to be squared in doubles, times inputs too large for anything
else, are a gradient of ordinary size. So the parameters here reach from 1e-300 to 1e300.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedspend.client.gradients import DenseSum, clipped_sum
from fedspend.client.norm_budgets import Payments
from fedspend.models.flat import flat_vector
from fedspend.tasks.task import CLASSIFY, task_of

WIDTH, LAYERS, CASES = 3, 9, 400


def chain(exponents, drawn, *, bias: bool):
    """A chain whose last hidden units are near `10 ** exponents`, each through factors that single
    precision holds. Some weights of the last layer are zero, so that a unit of any size may have a
    slope of any size.
    """
    layers: list[nn.Module] = []
    for _ in range(LAYERS - 1):
        layers += [nn.Linear(WIDTH, WIDTH, bias=bias), nn.ReLU()]
    module = nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH, bias=bias))
    with torch.no_grad():
        for layer in module:
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(torch.diag(torch.from_numpy(10.0 ** (exponents / (LAYERS - 1)))))
                if bias:
                    layer.bias.zero_()
        kept = drawn.random((WIDTH, WIDTH)) < drawn.choice([0.0, 0.3, 1.0])
        module[-1].weight.copy_(torch.from_numpy(drawn.choice([-1.0, 1.0], (WIDTH, WIDTH)) * kept))
        if bias:  # softmax is down to 1e-300 for all classes but one
            ends = ((1.0, 690.0), (355.0, 390.0))[drawn.integers(2)]
            module[-1].bias[1:] = -torch.from_numpy(drawn.uniform(*ends, WIDTH - 1))
    return module


def moved(summed, start, rows, wanted) -> float:
    """How far the first record moves the sum; scaled, as squares of small numbers are zero."""
    with_it, without = summed(start, rows, wanted), summed(start, rows[1:], wanted[1:])
    assert np.isfinite(with_it).all()
    far = with_it - without
    largest = float(np.abs(far).max())
    return 0.0 if largest == 0 else largest * float(np.linalg.norm(far / largest))


@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_no_record_decides_how_the_others_are_rounded(count):
    """Weights that cancel but for rounding, which is then made large: the gradients of the others
    are the same to the last bit, or they would move by whole clips.
    """
    for seed in range(20):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(104, 64), nn.ReLU(), nn.Linear(64, 2))
        with torch.no_grad():
            module[0].weight.mul_(1e3)
            module[0].weight[1::2] = module[0].weight[::2]
            module[0].bias.zero_()
            module[2].weight[:, ::2] = torch.randn(2, 32) * 1e30
            module[2].weight[:, 1::2] = -module[2].weight[:, ::2]
        rows, labels = torch.randn(count, 104), torch.zeros(count, dtype=torch.long)
        summed = clipped_sum(module, 1.0)
        assert moved(summed, flat_vector(module), rows, labels) <= 1 + 1e-9, seed


@pytest.mark.full
@pytest.mark.parametrize("clip", [1e-18, 1.0])
def test_no_record_moves_the_sum_by_more_than_the_clip(clip):
    """Nor by more than it has paid for, where each pays for the norm of its gradient."""
    drawn, reached = np.random.default_rng(7), 0
    for case in range(CASES):
        bias, squared = bool(case % 2), case % 4 < 2
        # most of all where squares vanish, and where they overflow
        ends = np.array([(-300, 300), (-168, -158), (140, 156)])
        module = chain(drawn.uniform(*ends[drawn.integers(3, size=WIDTH)].T), drawn, bias=bias)
        start = flat_vector(module)
        rows = torch.from_numpy(drawn.uniform(0.1, 1.0, (4, WIDTH)).astype(np.float32))
        task = task_of("squared") if squared else CLASSIFY
        wanted = torch.zeros(4, WIDTH) if squared else torch.zeros(4, dtype=torch.long)
        summed = clipped_sum(module, clip, task=task)
        assert isinstance(summed, DenseSum)
        far = moved(summed, start, rows, wanted)
        assert far <= clip * (1 + 1e-9), (case, far / clip)
        reached += far > clip / 2
        payments = Payments(clip)
        payments.begin(np.ones(1))
        alone = clipped_sum(module, clip, payments, task)(start, rows[:1], wanted[:1])
        paid = 1 - float(payments.left[0])
        assert float(np.linalg.norm(alone / clip)) ** 2 <= paid + 1e-15, case
    assert reached > CASES / 20, "or nothing was tested"
