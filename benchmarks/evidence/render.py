"""Writes the numbers and figures of the results pages from the results files.

    python benchmarks/evidence/render.py            # make results: re-renders every page
    python benchmarks/evidence/render.py --check    # exits 1 if a page and its files disagree

Guarantee: everything between `<!-- NAME: begin -->` and `<!-- NAME: end -->` in a page is made here
from files in benchmarks/evidence/results and benchmarks/speed/results, or computed where nothing
has to be trained (plans, accounting, theory); what is typed says what a setting is. Nothing is
trained.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

import figures
import over_time_page
import papers_page
import records_page
import speed_page
import time_page
from experiment import Finished

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
RESULTS = HERE / "results"
Block = Callable[[Finished], str]

BLOCKS: dict[str, dict[str, Block]] = {
    "results/time.md": time_page.BLOCKS,
    "results/time-choices.md": over_time_page.CHOICES,
    "results/papers.md": papers_page.BLOCKS,
    "results/records.md": records_page.BLOCKS,
    "results/speed.md": speed_page.BLOCKS,
    "results/index.md": {"map": papers_page.map_of_results, **speed_page.IN_THE_MAP},
    "../README.md": {"gains": papers_page.in_the_readme},
}


def everything(folder: Path) -> Finished:
    """All finished runs, of every file."""
    return Finished.read(folder / "time.jsonl", also=sorted(folder.glob("*.jsonl")))


def rendered(text: str, blocks: dict[str, Block], results: Finished) -> str:
    """The page with every block made anew. Refuses a block that is missing or that nobody makes."""
    for name, block in blocks.items():
        pattern = re.compile(
            rf"(<!-- {re.escape(name)}: begin -->\n).*?(<!-- {re.escape(name)}: end -->)", re.DOTALL
        )
        body = block(results).strip()
        text, count = pattern.subn(lambda found, body=body: f"{found[1]}{body}\n{found[2]}", text)
        if count != 1:
            raise SystemExit(f"block {name!r} is {count} times in its page; it must be there once")
    strangers = set(re.findall(r"<!-- (\S+): begin -->", text)) - set(blocks)
    if strangers:
        raise SystemExit(f"nobody makes block {min(strangers)!r}")
    return text


def disagreements(docs: Path = DOCS, folder: Path = RESULTS, *, write: bool = False) -> list[str]:
    """The pages and figures that differ from their files; with `write`, they are brought up to
    date.
    """
    results, wrong = everything(folder), []
    for name, blocks in BLOCKS.items():
        page = docs / name
        text = page.read_text(encoding="utf-8")
        made = rendered(text, blocks, results)
        if made != text:
            wrong.append(name)
            if write:
                page.write_text(made, encoding="utf-8")
    for name, picture in figures.FIGURES.items():
        if not picture.agrees(docs / name, results):
            wrong.append(name)
            if write:
                picture.write(docs / name, results)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    wrong = disagreements(write=not args.check)
    for name in wrong:
        print(f"docs/{name}: {'differs from the results files' if args.check else 'written'}")
    return int(args.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
