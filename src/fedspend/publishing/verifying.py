"""`fedspend.verify`: checks a plan, a run directory or a publication, whichever it is given.

Guarantee: the command line and Python ask here what a path holds, and get the same findings. Only
what a directory needs is imported for it, so a plan is checked without torch.
"""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from fedspend.basics.door import public
from fedspend.basics.progress import OnProgress
from fedspend.errors import InvalidInput
from fedspend.planning.protocol import AnyPlan
from fedspend.publishing.words import DOCUMENT, GUARANTEE
from fedspend.stored.files import FILES, PLAN, RUN
from fedspend.verification.verify import Verification
from fedspend.verification.verify import verify as verify_plan

if TYPE_CHECKING:
    from fedspend.publishing.checking import Checked
    from fedspend.runs.verifying import RunVerification

OF_PLAN, OF_RUN, OF_PUBLICATION = "a plan file", "a run directory", "a publication"
_NOT_FOR = {
    OF_PLAN: ("ledger", "key", "open"),
    OF_RUN: ("colluders", "seed", "max_pld", "open"),
    OF_PUBLICATION: ("colluders", "seed", "max_pld", "ledger"),
}


@overload
def verify(
    plan: AnyPlan,
    *,
    colluders: int | None = None,
    progress: OnProgress | None = None,
    seed: int | None = None,
    max_pld: int | None = None,
) -> Verification: ...


@overload
def verify(
    plan: str | Path,
    *,
    colluders: int | None = None,
    progress: OnProgress | None = None,
    seed: int | None = None,
    max_pld: int | None = None,
    ledger: str | Path | None = None,
    key: str | Path | None = None,
    opening: str | Path | None = None,
) -> Verification | RunVerification | Checked: ...


@public
def verify(
    plan: AnyPlan | str | Path,
    *,
    colluders: int | None = None,
    progress: OnProgress | None = None,
    seed: int | None = None,
    max_pld: int | None = None,
    ledger: str | Path | None = None,
    key: str | Path | None = None,
    opening: str | Path | None = None,
) -> Verification | RunVerification | Checked:
    """Check a plan against everything it promises; or a whole run directory, or a publication.

    Arguments:
        plan: a plan of clients or of records; or a path, as for `fedspend verify`: of a plan file,
            of a run directory (as `verify_run`) or of a publication (as `verify_publication`).
        colluders: plans: how many clients collude among the observers, by default 10; refused for
            a plan of records.
        progress: plans: called with (done, total).
        seed, max_pld: plans of clients: which schedules (default: 0), and at most how many
            (default: 200), are also read by dp-accounting.
        ledger: run directories: where the run's ledger is. Needed unless it is in the directory.
        key: run directories and publications: a file with a public key, which must have signed it.
        opening: publications: the file that a client was handed, which is checked, too.

    Returns:
        A `Verification` of a plan, with `.failures`; a `RunVerification` of a run directory or a
        `Checked` of a publication, with `.checks`. What is wrong raises no error: `.ok` is False,
        and they say why.

    Raises:
        InvalidInput: there is nothing of that kind at the path, or an argument is not for it.
        Refused: a plan file was altered after it was saved.

    >>> from fedspend import plan
    >>> verify(plan([2.0, 8.0], delta=1e-2, rounds=3, rate=1.0, accountant="rdp")).ok
    True

    `verify("runs/first").checks`, `verify("runs/first/plan.json").failures`
    """
    given = {
        "colluders": colluders,
        "seed": seed,
        "max_pld": max_pld,
        "ledger": ledger,
        "key": key,
        "open": opening,
    }
    kind = kind_of(plan, **given) if isinstance(plan, str | Path) else OF_PLAN
    if kind == OF_RUN:
        from fedspend.runs.verifying import verify_run

        return verify_run(str(plan), ledger=ledger, key=key)
    if kind == OF_PUBLICATION:
        from fedspend.publishing.checking import verify_publication

        if opening is not None and not Path(opening).is_file():
            raise InvalidInput(f"--open {str(opening)!r}: there is no such file")
        return verify_publication(str(plan), key=key, opening=opening)
    if not isinstance(plan, str | Path):
        if not hasattr(plan, "verify"):
            raise InvalidInput(
                "plan must be a plan, or the path of a plan file, a run directory or a "
                f"publication; got {type(plan).__name__}"
            )
        _refuse_others(OF_PLAN, "the plan", given)
    if isinstance(colluders, int) and colluders < 1:
        raise InvalidInput(f"--colluders must be at least 1, got {colluders}")
    asked: dict[str, int] = {
        name: value
        for name, value in (("colluders", colluders), ("seed", seed), ("max_pld", max_pld))
        if value is not None
    }
    return verify_plan(plan, progress=progress, **asked)


def kind_of(name: str | Path, **given: Any) -> str:
    """What there is to verify at a path. Refuses what was `given` and is not for it."""
    path = Path(name)
    if not path.exists():
        raise InvalidInput(
            f"there is no {str(name)!r}; name a plan file, a run directory or a publication"
        )
    if path.is_dir():
        kind = OF_PUBLICATION if (path / DOCUMENT).exists() else OF_RUN
    else:
        _refuse_part_of_run(path)
        _refuse_of_another_kind(path)
        kind = OF_PLAN
    _refuse_others(kind, repr(str(name)), given)
    return kind


def _refuse_others(kind: str, shown: str, given: dict[str, Any]) -> None:
    for name in _NOT_FOR[kind]:
        if given.get(name) is not None:
            flag = name.replace("_", "-")
            raise InvalidInput(f"--{flag} is not for {kind}, and {shown} is one; drop it")


def _refuse_part_of_run(path: Path) -> None:
    """A file of a run directory is checked with its run; its plan may be checked alone."""
    if path.name in {one.name for one in FILES if one is not PLAN} and RUN.of(path.parent).exists():
        whole = shlex.join(["fedspend", "verify", str(path.parent)])
        raise InvalidInput(f"{str(path)!r} is not a plan; it belongs to a run: {whole}")


def _refuse_of_another_kind(path: Path) -> None:
    """A file that is recognised as something else than a plan: what is it, and what checks it?"""
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(16) == b"SQLite format 3\0":
            check = shlex.join(["fedspend", "ledger", "verify", "--ledger", str(path)])
            raise InvalidInput(f"{str(path)!r} is a database and no plan; if a ledger: {check}")
    if path.suffix == ".toml":
        plan = f"{shlex.join(['fedspend', 'plan', str(path)])} -o plan.json"
        raise InvalidInput(f"{str(path)!r} is a config and no plan; plan it first: {plan}")
    if path.name in (DOCUMENT, GUARANTEE) and (path.parent / DOCUMENT).exists():
        whole = shlex.join(["fedspend", "verify", str(path.parent)])
        raise InvalidInput(f"{str(path)!r} is not a plan; it belongs to a publication: {whole}")
