"""A figure that shows itself in a notebook, and can be saved."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from fedspend.errors import InvalidInput
from fedspend.report.plots import LOOK, write_figure

ENDINGS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, repr=False)
class Drawing:
    """`.figure` is matplotlib's; `.save("plan.png")` writes it."""

    figure: Figure

    def save(self, path: str | Path) -> Path:
        """Write it as .png, .svg or .pdf."""
        if Path(path).suffix.lower() not in ENDINGS:
            raise InvalidInput(f"{str(path)!r} must end in {', '.join(ENDINGS)}")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            write_figure(self.figure, path)
        return Path(path)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")
            self.figure.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()

    def __repr__(self) -> str:
        return '<Drawing: a notebook shows it; .save("file.png") writes it>'


def drawing(draw: Callable[[], Figure]) -> Drawing:
    """What `draw` draws, in our look."""
    with rc_context(LOOK), warnings.catch_warnings():
        # a letter that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        return Drawing(draw())
