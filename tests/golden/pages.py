"""The HTML of reports, and all that a stranger is given of a run.

Guarantee: every word, number and table of a page is here, one tag to a line. Left out by name:
styles, scripts and what is drawn inside an svg (its texts stay), and pictures as data.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from golden import configs
from golden.session import Session, here


def page_of(name: str) -> str:
    with here() as folder:
        session = Session(folder)
        PAGES[name](session)
        return session.text()


def in_lines(page: str) -> str:
    """A page with a line for each tag and text."""
    page = re.sub(r"(<(style|script)\b[^>]*>).*?(</\2>)", r"\1left out\3", page, flags=re.DOTALL)
    page = re.sub(r"(<svg\b[^>]*>)(.*?)(</svg>)", _texts_of, page, flags=re.DOTALL)
    page = re.sub(r'"data:[^"]*"', '"data: left out"', page)
    lines = re.sub(r"(<[^>]*>)", r"\n\1\n", page).splitlines()
    return "\n".join(line.strip() for line in lines if line.strip())


def _texts_of(svg: re.Match[str]) -> str:
    texts = re.findall(r"<(?:text|title|desc)\b[^>]*>(.*?)</", svg[2], flags=re.DOTALL)
    words = [re.sub(r"<[^>]*>", "", text).strip() for text in texts]
    return f"{svg[1]}{' | '.join(word for word in words if word)}{svg[3]}"


def _page(session: Session, name: str) -> None:
    session.note(name, in_lines((session.folder / name).read_text(encoding="utf-8")))


def report_of(kind: str) -> Callable[[Session], None]:
    def report(session: Session) -> None:
        session.write("run.toml", configs.CONFIGS[kind])
        session.run("train run.toml -o run --quiet")
        _page(session, "run/report.html")

    return report


def comparison(session: Session) -> None:
    """The report of two runs side by side."""
    for kind in ("idp-fedavg", "saving"):
        session.write(f"{kind}.toml", configs.CONFIGS[kind])
        session.run(f"train {kind}.toml -o {kind} --quiet")
    session.run("report idp-fedavg saving -o both.html --quiet")
    _page(session, "both.html")


def publication(session: Session) -> None:
    session.write("run.toml", configs.CONFIGS["idp-fedavg"])
    session.run("train run.toml -o run --quiet")
    session.run("publish run -o public")
    session.show_json("public/publication.json")
    for path in _texts(session.folder / "public"):
        session.note(f"public/{path.name}", path.read_text(encoding="utf-8"))
    session.show_json("public.openings/owner.json")
    session.show_json("public.openings/clients/0.json")


def _texts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.txt"))


PAGES: dict[str, Callable[[Session], None]] = {
    "report-of-clients": report_of("saving"),
    "report-of-records": report_of("rpdp"),
    "report-without-privacy": report_of("fedavg"),
    "report-of-two": comparison,
    "publication": publication,
}
