"""Whether this machine computes the same bits as the one where the vectors were made.

Guarantee: `computed` uses nothing of fedspend, only the kinds of kernels that its runs use:
products, batched products, convolutions, softmax, sums in float64, and numpy's functions and
generators. If its bytes and torch's version are those that are stored, then a seeded run must give
the stored bits; if not, last bits may differ although nothing is wrong.
"""

from __future__ import annotations

import numpy as np
import scipy
import torch
from scipy import special
from torch.nn import functional


def computed() -> bytes:
    """The bytes of a small fixed computation on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        parts = [*_products(), *_convolutions(), *_functions()]
    finally:
        torch.set_num_threads(threads)
    # one sum for each part would hide differences that cancel, and all bytes would be many: every
    # seventh number is kept
    return b"".join(np.ascontiguousarray(part.reshape(-1)[::7]).tobytes() for part in parts)


def versions() -> str:
    return f"torch {torch.__version__}, numpy {np.__version__}, scipy {scipy.__version__}"


def _normal(generator: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(generator.standard_normal(shape).astype(np.float32))


def _products() -> list[np.ndarray]:
    generator = np.random.Generator(np.random.Philox(1))
    parts = []
    for rows, inputs, outputs in (
        (8, 6, 3),
        (10, 64, 10),
        (8, 64, 8),
        (16, 6, 5),
        (60, 6, 3),
        (360, 64, 10),
        (1, 128, 10),
    ):
        x, weight = (
            _normal(generator, rows, inputs),
            _normal(generator, outputs, inputs).requires_grad_(),
        )
        bias = _normal(generator, outputs).requires_grad_()
        labels = torch.arange(rows) % outputs
        scores = functional.linear(x, weight, bias)
        loss = functional.cross_entropy(scores, labels)
        loss.backward()
        parts += [
            scores.detach(),
            scores.detach().softmax(dim=1),
            loss.detach(),
            weight.grad,
            bias.grad,
        ]
    left, right = _normal(generator, 8, 10, 64), _normal(generator, 8, 64, 10)
    parts += [torch.bmm(left, right), torch.baddbmm(_normal(generator, 8, 1, 10), left, right)]
    long = _normal(generator, 8, 6090)
    parts += [
        torch.linalg.vector_norm(long, dim=1, dtype=torch.float64),
        long.double().sum(dim=1),
        long.square().sum(dim=1),
    ]
    parts += [torch.zeros(6090, dtype=torch.float64).add_(long[0], alpha=0.3)]
    return [part.numpy() for part in parts]


def _convolutions() -> list[np.ndarray]:
    generator = np.random.Generator(np.random.Philox(2))
    parts = []
    for rows, size in ((8, 8), (1, 8), (10, 8), (360, 8)):
        x = _normal(generator, rows, 1, size, size)
        weights = [
            _normal(generator, 16, 1, 3, 3).requires_grad_(),
            _normal(generator, 32, 16, 3, 3).requires_grad_(),
        ]
        for weight in weights:
            x = functional.max_pool2d(functional.conv2d(x, weight, padding=1).relu(), 2)
        x.square().sum().backward()
        parts += [x.detach(), *(weight.grad for weight in weights)]
    return [part.numpy() for part in parts]


def _functions() -> list[np.ndarray]:
    generator = np.random.Generator(np.random.Philox(3))
    normal, uniform = generator.standard_normal(500), generator.random(500)
    matrix = generator.standard_normal((20, 30))
    return [
        normal,
        uniform,
        generator.dirichlet(np.full(5, 0.3), 4),
        generator.permutation(100),
        np.exp(normal),
        np.log(uniform),
        np.log1p(uniform),
        np.expm1(normal),
        np.logaddexp(normal, uniform),
        uniform**1.7,
        np.sqrt(uniform),
        special.gammaln(10 * uniform),
        special.log_ndtr(normal),
        special.logsumexp(matrix, axis=0),
        matrix @ matrix.T,
        np.atleast_1d(np.linalg.norm(matrix)),
        normal.cumsum(),
        np.atleast_1d(normal.sum()),
        np.atleast_1d(normal.mean()),
    ]
