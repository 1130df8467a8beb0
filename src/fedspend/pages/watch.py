"""A run's report, live, while the run goes on.

Guarantee: the page is the report, made from the run's files whenever they change; it shows nothing
that the report would not show. Whoever may read the files may see the page, nobody else: it is
served under a token to this machine, by a process of who started it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedspend.errors import FedspendError, InvalidInput
from fedspend.pages.serving import Site
from fedspend.report.dates import dates_of
from fedspend.report.html import details
from fedspend.report.markup import Content, Markup, element
from fedspend.report.page import asset, document
from fedspend.report.run_data import RunData, load_runs
from fedspend.stored.files import CERTIFICATE, METRICS, MODEL, PLAN, RUN

_WATCHED = (RUN, PLAN, CERTIFICATE, METRICS, MODEL)


def watch_site(folder: Path, *, expected: bool = False) -> Site:
    """The page of the run in `folder`, which may be `expected` and not there yet."""
    if not expected and not RUN.of(folder).exists():
        raise InvalidInput(
            f"{folder} is no run directory: {RUN} is missing; name the directory that fedspend "
            "train writes"
        )
    return Site(
        pages={"": lambda: watch_page(folder)},
        asks={"version": lambda _: {"version": version(folder)}},
    )


def version(folder: Path) -> str:
    """Changes whenever a file changes that the report is made from."""
    found = hashlib.sha256()
    for file in _WATCHED:
        try:
            about = file.of(folder).stat()
        except OSError:
            continue
        found.update(f"{file} {about.st_mtime_ns} {about.st_size}\n".encode())
    return found.hexdigest()


def watch_page(folder: Path) -> str:
    seen = version(folder)  # first: what changes while the page is made is shown the next time
    try:
        (run,) = load_runs([folder])
        title, shown, finished = run.name, _report(folder, run), _finished(folder, run)
        words = (
            f"Finished: round {run.done} of {run.rounds}."
            if finished
            else f"Live: round {run.done} of {run.rounds} is done."
        )
    except FedspendError:  # nothing to report before the first round is over
        title, finished = folder.resolve().name, False
        words = "Waiting for the first round."
        shown = element("header", element("h1", title))
    style = asset("fedspend.report", "report.css") + asset("fedspend.pages", "watch.css")
    script = asset("fedspend.report", "report.js") + asset("fedspend.pages", "watch.js")
    return document(
        title,
        element("main", _status(words, seen, finished=finished), shown),
        style=style,
        script=script,
        served=True,
    )


def _report(folder: Path, run: RunData) -> Content:
    return details([run], dates_of([folder], [run.name]))


def _finished(folder: Path, run: RunData) -> bool:
    return run.done >= run.rounds and MODEL.of(folder).exists()


def _status(words: str, seen: str, *, finished: bool) -> Markup:
    return element(
        "p",
        element("span", words, id="words"),
        " ",
        element("span", id="updated"),
        class_="banner live",
        id="live",
        role="status",
        data_version=seen,
        data_finished=finished,
    )
