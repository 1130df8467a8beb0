"""What docs/results/time.md has of networks that are trained from scratch."""

from __future__ import annotations

from itertools import product

import networks
from experiment import Finished, outcome
from judging import Gain, cut, over
from networks import BUDGETS, NETWORKS, SPENDING, WITH_LARGE_CLIPS
from over_time import SCHEDULES
from over_time_page import COLUMNS, ROWS, Cells, cell, choice_of
from tables import markdown


def trained(results: Finished) -> str:
    """The same for networks that are trained from scratch."""
    body, missing = [], []
    for name, budgets in product(NETWORKS, BUDGETS):
        made: Cells = {
            (schedule, spending): outcome(results, networks.arm(name, budgets, schedule, spending))
            for schedule, spending in product(SCHEDULES, SPENDING)
        }
        if not any(one is not None for one in made.values()):
            missing.append(f"{name} {budgets}")
            continue
        for spending in SPENDING:
            title = f"{name}, {budgets}: {ROWS[spending]}"
            body.append([title, *(cell(made, schedule, spending) for schedule in COLUMNS)])
        chosen = (choice_of(made[schedule, "uniform"]) for schedule in COLUMNS)
        body.append(["*learning rate, clip (tried)*", *chosen])
    table = markdown(["Fashion-MNIST", *COLUMNS.values()], body)
    return _with_missing([table] if body else [], missing)


def with_large_clips(results: Finished) -> str:
    """Annealed, at the clip that was chosen and at one that is too large."""
    body, missing = [], []
    for budgets in BUDGETS:
        name = WITH_LARGE_CLIPS
        for times, make in (
            (1.0, lambda *one: networks.arm(*one[:2], "annealed", one[2])),
            (networks.TOO_LARGE, networks.with_large_clip),
        ):
            made: Cells = {
                ("annealed", spending): outcome(results, make(name, budgets, spending))
                for spending in SPENDING
            }
            if any(one is not None for one in made.values()):
                found = made["annealed", "uniform"]
                clip = "-" if found is None else f"{found.choice[1]:g}"
                told = "chosen" if times == 1 else f"{times:g} times the chosen one"
                cells = (cell(made, "annealed", spending) for spending in SPENDING)
                body.append([f"{name}, {budgets}, clip {clip}: {told}", *cells])
            else:
                missing.append(f"{name} {budgets}, {times:g} times the clip")
    headings = [COLUMNS["annealed"], *(ROWS[spending] for spending in SPENDING)]
    return _with_missing([markdown(headings, body)] if body else [], missing)


def gains_at_large_clips(results: Finished) -> dict[tuple[float, ...], Gain | None]:
    """What saving gains at a clip that is too large for the noise, by budgets; annealed."""
    return {
        budgets: over(
            results,
            *(
                networks.with_large_clip(WITH_LARGE_CLIPS, budgets, spending)
                for spending in ("exact", "uniform")
            ),
        )
        for budgets in BUDGETS
    }


def _with_missing(parts: list[str], missing: list[str]) -> str:
    """What there is, and what of the networks is not run."""
    if missing:
        parts = [*parts, f"{'; '.join(missing)}: {cut(networks.STUDY)}."]
    return "\n\n".join(parts)
