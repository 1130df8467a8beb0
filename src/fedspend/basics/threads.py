"""One torch thread at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread, since threads change the order of sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Use one torch thread, and restore torch's global generator afterwards."""
    with one_thread(), torch.random.fork_rng(devices=[]):
        yield
