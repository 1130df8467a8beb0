"""Tables of benchmarks on pages of the documentation."""

from __future__ import annotations

from pathlib import Path


def written(path: Path, mark: str, text: str) -> None:
    """Put the text between the two marks of a page."""
    before, _, rest = path.read_text().partition(mark)
    _, found, after = rest.partition(mark)
    if not found:
        raise SystemExit(f"{path} has no two lines {mark}")
    path.write_text(f"{before}{mark}\n{text}\n{mark}{after}")
