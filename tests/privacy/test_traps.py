"""Every trap of `traps.py`: it is not there, and if it were, its check would notice."""

from __future__ import annotations

from pathlib import Path

import pytest
from privacy.traps import TRAPS, Mutation, Trap

from fedspend.errors import FedspendError

WITH_MUTATIONS = [
    pytest.param(trap, mutation, id=f"{trap.name}, {mutation.__name__}")
    for trap in TRAPS
    for mutation in trap.mutations
]


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
def test_the_trap_is_not_there(trap: Trap, tmp_path: Path, quick_verify: None) -> None:  # noqa: ARG001
    trap.check(tmp_path)


@pytest.mark.parametrize(("trap", "mutation"), WITH_MUTATIONS)
def test_the_trap_would_be_noticed(
    trap: Trap,
    mutation: Mutation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quick_verify: None,  # noqa: ARG001
) -> None:
    """By an assertion of the check, or because the software itself refuses."""
    mutation(monkeypatch)
    with pytest.raises((AssertionError, FedspendError, pytest.fail.Exception)):
        trap.check(tmp_path)


def test_every_trap_has_a_name_of_its_own_and_can_be_built_in() -> None:
    assert len({trap.name for trap in TRAPS}) == len(TRAPS)
    assert all(trap.mutations for trap in TRAPS)
