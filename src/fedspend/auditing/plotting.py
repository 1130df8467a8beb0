"""The plot of an audit: claim and measurement for each group."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from fedspend.auditing.entry import Audit
from fedspend.basics.files import write_whole
from fedspend.report.plots import COLOURS, GREY, LOOK


def audit_plot(found: Audit, path: str | Path) -> None:
    """Draw to a .png, .svg or .pdf."""
    with rc_context(LOOK), warnings.catch_warnings():
        # a letter that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = draw(found)
        buffer = io.BytesIO()
        kind = Path(path).suffix.lower().removeprefix(".")
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        figure.savefig(buffer, format=kind, dpi=160, metadata=undated)
    write_whole(Path(path), buffer.getvalue())


def draw(found: Audit) -> Figure:
    figure = Figure(figsize=(8.0, 1.6 + 0.55 * len(found.groups)), layout="constrained")
    axes = figure.subplots()
    places = range(len(found.groups))
    for place, group in zip(places, found.groups, strict=True):
        colour = COLOURS[0] if group.ok else COLOURS[1]
        axes.barh(place, group.measured, height=0.45, color=colour)
        axes.plot([group.claimed] * 2, [place - 0.38, place + 0.38], color="#222222", lw=2)
        axes.annotate(
            f"{group.measured:.2f} of {group.claimed:.3g}",
            (max(group.measured, group.claimed), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color="#333333" if group.ok else COLOURS[1],
        )
    axes.set_yticks(list(places), [group.group for group in found.groups])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.18)
    axes.set_xlim(left=0)
    confidence = found.groups[0].confidence if found.groups else 0.95
    axes.set_xlabel(
        f"epsilon at delta {found.groups[0].delta:g}: bars are lower bounds at {confidence:.0%} "
        "confidence, lines are claims"
    )
    verdict = "no claim is contradicted" if found.ok else "a claim is broken"
    axes.set_title(
        f"{found.method}, {found.noise} noise, {found.runs:,} runs: {verdict}",
        loc="left",
        fontsize=10.5,
        color=GREY if found.ok else COLOURS[1],
    )
    return figure
