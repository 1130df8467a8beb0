"""Plots of a design search: its front by loss and privacy, and its solutions by rounds and noise.

They follow Figures 2, 3 and 6 of Gu et al. (2023): dots are experiments, lines are theory. Privacy
is shown twice, as the paper's proxy and as the real epsilon.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedspend.basics.arrays import BoolArray, FloatArray
from fedspend.basics.files import write_whole
from fedspend.basics.words import counted
from fedspend.design.analysis import Findings
from fedspend.report.plots import COLOURS, GREY, LOOK

THEORY = COLOURS[1]
RATES = tuple(colour for colour in COLOURS if colour != THEORY)
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


def front_plot(findings: Findings, path: str | Path, chosen: dict[str, Any] | None = None) -> None:
    """Plot all points, the non-dominated ones, and the recommended one."""
    with rc_context(LOOK):
        figure = Figure(figsize=(11.5, 4.4), layout="constrained")
        panels = [
            (
                "Loss against the paper's proxy of privacy",
                "proxy",
                findings.proxy,
                findings.front,
                "f₂ = √(qT) / σ",
            ),
            (
                "Loss against real privacy",
                "epsilon",
                findings.epsilon,
                findings.real_front,
                f"ε after training  (δ = {findings.search.delta:g})",
            ),
        ]
        for axes, (title, name, privacy, front, words) in zip(
            figure.subplots(1, len(panels)), panels, strict=True
        ):
            _cloud(axes, findings, privacy, front)
            if chosen is not None:
                star = {
                    "color": THEORY,
                    "markersize": 17,
                    "markeredgecolor": "white",
                    "label": "recommended",
                }
                axes.plot(chosen[name], chosen["loss"], "*", **star)
            axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color="#222222")
            axes.set_xscale("log")
            _plain_log(axes)
            axes.set_xlabel(words)
            axes.set_ylabel("test loss, mean over seeds")
            axes.legend(frameon=False, labelcolor="#333333")
        _save(figure, path)


def _cloud(axes: Axes, findings: Findings, privacy: FloatArray, front: BoolArray) -> None:
    seen = findings.counted
    axes.scatter(
        privacy[seen],
        findings.loss[seen],
        s=3,
        color="#c4c4c4",
        linewidths=0,
        label="settings",
        rasterized=True,
    )
    order = np.argsort(privacy[front], kind="stable")
    axes.plot(
        privacy[front][order],
        findings.loss[front][order],
        "-",
        color=COLOURS[0],
        linewidth=1,
        alpha=0.6,
    )
    axes.scatter(
        privacy[front],
        findings.loss[front],
        s=9,
        color=COLOURS[0],
        linewidths=0,
        label="not dominated",
        zorder=3,
    )
    if (picked := findings.on_curve()) and findings.k is not None:
        x, y = zip(*((privacy[n, t - 1], findings.loss[n, t - 1]) for n, t in picked), strict=True)
        words = f"on k σ² T = q K,  k = {findings.k.k:.3g}"
        axes.scatter(
            x, y, s=42, facecolors="none", edgecolors=THEORY, linewidths=1.3, label=words, zorder=4
        )
    # The losses of failed trainings would flatten everything else.
    axes.set_ylim(0.95 * findings.loss[front].min(), 1.05 * findings.loss[front].max())


def solutions_plot(findings: Findings, path: str | Path) -> None:
    """Plot non-dominated (T, sigma) and the curve `k sigma^2 T = q K` for the estimated k."""
    search = findings.search
    rounds, level, rate = findings.solutions()
    rates = sorted({one.rate for one in search.candidates})
    free = len(rates) > 1
    with rc_context(LOOK):
        figure = Figure(figsize=(6.6, 4.6), layout="constrained")
        axes = figure.subplots()
        scale = np.sqrt(rate) if free else np.ones_like(rate)
        for colour, mark, q in zip(RATES * len(rates), MARKS * len(rates), rates, strict=False):
            mine = rate == q
            words = f"q = {q:g}" if free else "not dominated in experiment"
            axes.scatter(
                rounds[mine],
                (level / scale)[mine],
                s=11,
                marker=mark,
                color=colour if free else "#222222",
                linewidths=0,
                label=words,
            )
        if findings.k is not None:
            t = np.linspace(1, search.rounds, 400)
            share = search.clients * (1.0 if free else rates[0])
            for_k = {
                name: np.sqrt(share / (value * t))
                for name, value in zip(("k", "low", "high"), findings.k[:3], strict=True)
                if value > 0
            }
            axes.plot(
                t,
                for_k["k"],
                color=THEORY,
                linewidth=2,
                label=f"k σ² T = q K,  k = {findings.k.k:.3g}",
            )
            if "low" in for_k and np.isfinite(findings.k.high):
                axes.fill_between(
                    t,
                    for_k["high"],
                    for_k["low"],
                    color=THEORY,
                    alpha=0.13,
                    linewidth=0,
                    label="95% interval of k",
                )
        top = max(one.noise_level / (np.sqrt(one.rate) if free else 1) for one in search.candidates)
        axes.set_ylim(0, 1.08 * top)
        axes.set_xlim(0, search.rounds * 1.02)
        axes.set_xlabel("rounds T")
        axes.set_ylabel("σ / √q" if free else "noise level σ")
        axes.set_title(
            "Pareto solutions", loc="left", fontsize=13, fontweight="bold", color="#222222"
        )
        facts = (
            f"K = {search.clients}, {'free q' if free else f'q = {rates[0]:g}'}, "
            f"{counted(len(search.seeds), 'seed')}"
        )
        axes.set_title(facts, loc="right", fontsize=9.5, color=GREY)
        axes.legend(frameon=False, labelcolor="#333333", fontsize=9)
        _save(figure, path)


def _plain_log(axes: Axes) -> None:
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    )
    axes.xaxis.set_minor_formatter(NullFormatter())


def _save(figure: Figure, path: str | Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=Path(path).suffix.lower().removeprefix("."), dpi=110)
    write_whole(Path(path), buffer.getvalue())
