"""The plot of trade-off curves: the best membership test's true and false positive rates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fedspend.accounting.tradeoff import TradeOff
from fedspend.report.plots import COLOURS, GREY, STYLES

FPR = np.geomspace(1e-4, 1.0, 81)


def tradeoff_figure(curves: Mapping[str, TradeOff], title: str) -> Figure:
    """Tests do most harm on the left, where few are wrongly accused."""
    figure = Figure(figsize=(7.5, 5.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(FPR, FPR, color=GREY, linewidth=1, linestyle=":", label="guessing")
    for n, (name, curve) in enumerate(curves.items()):
        axes.plot(
            FPR,
            curve.tpr(FPR),
            color=COLOURS[n % len(COLOURS)],
            linestyle=STYLES[n // len(COLOURS) % len(STYLES)],
            label=name,
        )
    axes.set_xscale("log")
    axes.set_xlim(FPR[0], 1.0)
    axes.set_ylim(0.0, 1.02)
    axes.xaxis.set_major_formatter(lambda x, _: f"{100 * x:g}%")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("wrongly accused (false positives)")
    axes.set_ylabel("recognised, at most (true positives)")
    axes.legend(frameon=False, loc="best", fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color="#333333")
    return figure
