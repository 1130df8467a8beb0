"""A map of what `optimal` gains over `uniform`, by contraction and tail average."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from fedspend.design.gains import GainMap
from fedspend.report.plots import GREY, LOOK, write_figure


def gain_plot(gains: GainMap, path: str | Path) -> None:
    """Write the map as .png, .svg or .pdf."""
    with rc_context(LOOK | {"axes.grid": False}):
        write_figure(draw(gains), path)


def draw(gains: GainMap) -> Figure:
    figure = Figure(figsize=(1.6 + 0.95 * len(gains.tails), 5.2), layout="constrained")
    axes = figure.subplots()
    ratio = np.array(gains.ratio)
    axes.imshow(ratio, cmap="YlGnBu_r", vmin=0.0, vmax=1.15, aspect="auto")
    for row, column in np.ndindex(*ratio.shape):
        value = float(ratio[row, column])
        axes.text(
            column,
            row,
            f"{value:.2f}" if value <= 0.99 else "as good",
            ha="center",
            va="center",
            fontsize=10 if value <= 0.99 else 8.5,
            color="white" if value < 0.55 else "#222222" if value <= 0.99 else GREY,
        )
    axes.set_xticks(range(len(gains.tails)), [str(tail) for tail in gains.tails])
    axes.set_yticks(range(len(gains.contractions)), [f"{rho:g}" for rho in gains.contractions])
    axes.set_xlabel("tail average: iterates in the final model")
    axes.set_ylabel("contraction: what survives one round of a small change")
    axes.set_title(
        "Noise of optimal, as part of uniform's,\nif the contraction is known and stated",
        loc="left",
        fontsize=12,
        fontweight="bold",
    )
    figure.suptitle(
        f"variance in the final model; {gains.rounds} rounds at rate {gains.rate:g}",
        x=0.01,
        ha="left",
        fontsize=10,
        color=GREY,
    )
    return figure
