"""The figures of docs/results/time.md, from the results files.

A figure carries a digest of its numbers and of this file: `render` draws it anew when the results
files say something else or it is drawn in another way, and a test notices if nobody did.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import influence
import influence_page
import over_time_page
from experiment import Finished
from judging import Gain
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from over_time import AS_SHIPPED, LARGE, SCHEDULES, SHIPPED, TIGHT
from over_time_page import COLUMNS, NAMES
from untuned_page import gain_as_shipped

from fedspend.report.plots import COLOURS, GREY, LOOK, write_figure

Numbers = dict[str, Any]  # as JSON has them
BLUE, RED = COLOURS[0], COLOURS[1]


@dataclass(frozen=True)
class Picture:
    """What a figure shows, from the results, and how that is drawn."""

    numbers: Callable[[Finished], Numbers]
    draw: Callable[[Numbers], Figure]

    def agrees(self, path: Path, results: Finished) -> bool:
        """Whether the file was drawn from these results."""
        return path.exists() and digest(self.numbers(results)) in path.read_text(encoding="utf-8")

    def write(self, path: Path, results: Finished) -> None:
        numbers = self.numbers(results)
        with rc_context(LOOK):
            figure = self.draw(numbers)
            write_figure(figure, path, description=digest(numbers))


def digest(numbers: Numbers) -> str:
    """
    >>> digest({"a": 1.0, "b": 2.0}) == digest({"b": 2.0, "a": 1.0}) != digest({"a": 1.0})
    True
    """
    body = json.dumps(numbers, sort_keys=True) + Path(__file__).read_text(encoding="utf-8")
    return "drawn from " + hashlib.sha256(body.encode()).hexdigest()[:16]


def rounded(gain: Gain) -> list[float | None]:
    return [None if value is None else round(value, 3) for value in gain]


# --- what saving gains ----------------------------------------------------------------------------


def saving(results: Finished) -> Numbers:
    """What saving gains over uniform spending: tuned, by data and budgets; not tuned; and in the
    paper.
    """
    every = over_time_page.every(results)
    found: Numbers = {"columns": COLUMNS, "lines": [_title(*pair) for pair in every]}
    found |= {"tuned": {}, AS_SHIPPED: {}}
    for schedule in SCHEDULES:
        found["tuned"][schedule] = {
            _title(*pair): rounded(gain)
            for pair, cells in every.items()
            if (gain := over_time_page.against_uniform(cells, schedule, "exact")) is not None
        }
        found[AS_SHIPPED][schedule] = {
            _title(data, budgets): rounded(gain)
            for data in SHIPPED
            for budgets in ((TIGHT, LARGE) if schedule == "annealed" else (TIGHT,))
            if (gain := gain_as_shipped(results, data, schedule, "exact", budgets)) is not None
        }
    found["paper"] = {
        _title(*pair): round(theirs - uniform, 2)
        for pair, (uniform, theirs, _) in over_time_page.PAPER.items()
    }
    return found


def _title(data: str, budgets: tuple[float, ...]) -> str:
    return f"{NAMES[data]}, {budgets}"


def draw_saving(numbers: Numbers) -> Figure:
    lines = numbers["lines"]
    figure = Figure(figsize=(11.5, 1.6 + 0.33 * len(lines)), layout="constrained")
    columns = numbers["columns"]
    panels = figure.subplots(1, len(columns), sharey=True, sharex=True)
    for axes, (schedule, title) in zip(panels, columns.items(), strict=True):
        axes.axvline(0, color="#333333", linewidth=1)
        if schedule == "annealed":
            _dots(axes, lines, {k: [v, None] for k, v in numbers["paper"].items()}, GREY, "x", 0.0)
        _dots(axes, lines, numbers[AS_SHIPPED][schedule], RED, "D", -0.22)
        _dots(axes, lines, numbers["tuned"][schedule], BLUE, "o", 0.12)
        axes.set_title(title.replace("; ", "\n"), fontsize=10.5)
        axes.grid(axis="y", visible=False)
    panels[0].set_yticks(range(len(lines)), lines)
    panels[0].invert_yaxis()
    panels[1].set_xlabel("points of accuracy that saving gains over uniform spending, 95% interval")
    marks = (
        ("learning rate and clip tuned", BLUE, "o"),
        ("not tuned", RED, "D"),
        ("the paper", GREY, "x"),
    )
    for label, colour, mark in marks:
        panels[0].plot([], [], color=colour, marker=mark, linestyle="", label=label)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return figure


def _dots(
    axes: Axes,
    lines: list[str],
    gains: Mapping[str, list[float | None]],
    colour: str,
    mark: str,
    shift: float,
) -> None:
    """A mark at every gain, with its interval; filled where that leaves 0 out."""
    for title, (mean, half) in gains.items():
        if title not in lines or mean is None:
            continue
        place = lines.index(title) + shift
        if half is not None:
            axes.plot([mean - half, mean + half], [place, place], color=colour, linewidth=1.5)
        clear = half is None or abs(mean) > half
        axes.plot(mean, place, mark, color=colour, markersize=5, mfc=colour if clear else "white")


# --- the harm of noise ----------------------------------------------------------------------------


def harm(results: Finished) -> Numbers:
    """How much harm the noise of a round does under uniform spending, relative to the worst one:
    that of a push of one size, times the variance of the round's noise, which falls with the clip.
    """
    found: Numbers = {"columns": COLUMNS, "rounds": list(influence.ROUNDS), "lines": {}}
    rounds = [t - 1 for t in influence.ROUNDS]
    for arm in influence.arms():
        harmed = influence.harmed(results, arm)
        if harmed is not None:
            title, schedule = influence_page.measured_arm(arm)
            harmed = harmed * influence.round_noise(arm)[rounds] ** 2
            relative = [round(float(value), 3) for value in harmed / harmed.max()]
            found["lines"].setdefault(schedule, {})[title] = relative
    return found


def draw_harm(numbers: Numbers) -> Figure:
    figure = Figure(figsize=(11.5, 4.2), layout="constrained")
    columns = numbers["columns"]
    panels = figure.subplots(1, len(columns), sharey=True)
    titles = {title: None for lines in numbers["lines"].values() for title in lines}
    colours = {
        name: COLOURS[n % len(COLOURS)]
        for n, name in enumerate(dict.fromkeys(_without(title) for title in titles))
    }
    for axes, (schedule, heading) in zip(panels, columns.items(), strict=True):
        for title, values in numbers["lines"].get(schedule, {}).items():
            shipped = title != _without(title)
            axes.plot(
                numbers["rounds"],
                values,
                color=colours[_without(title)],
                linestyle=(0, (2, 1.2)) if shipped else "-",
                marker=".",
                label=title,
            )
        axes.axhline(0, color="#333333", linewidth=1)
        axes.set_title(heading.replace("; ", "\n"), fontsize=10.5)
        axes.set_xlabel("round")
    panels[0].set_ylabel("harm of the round's noise\n(that of the worst round is 1)")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9
    )
    return figure


def _without(title: str) -> str:
    return title.removesuffix(f", {AS_SHIPPED}")


FIGURES = {
    "figures/time-saving.svg": Picture(saving, draw_saving),
    "figures/time-harm.svg": Picture(harm, draw_harm),
}
