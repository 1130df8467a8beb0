"""What MkDocs does not do by itself: the generated reference, and links that leave docs/.

Guarantee: every link in the site leads to something in the site. Files of the repository that pages
link to (examples, benchmarks) are copied into it; a link to a folder becomes plain text.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import reference

ROOT = Path(__file__).parents[1]
ALSO = {  # pages that lie at the top of the repository
    "CHANGELOG.md": "about/changelog.md",
    "CONTRIBUTING.md": "about/contributing.md",
    "SECURITY.md": "about/security.md",
}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    for name, text in reference.pages():
        files.append(File.generated(config, name, content=text))
    for source, name in ALSO.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    for copied in _linked(files):
        place = f"files/{copied}"
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / copied)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = _place(page.file.src_uri)

    def changed(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        place = os.path.normpath(os.path.join(os.path.dirname(here), target))
        if place in ALSO:
            to = ALSO[place]
        elif place.startswith("docs/"):
            to = place.removeprefix("docs/")
        elif (ROOT / place).is_file():
            to, anchor = f"files/{place}", ""
        elif (ROOT / place).is_dir():
            return text
        else:
            return found[0]  # MkDocs complains
        return f"[{text}]({os.path.relpath(to, os.path.dirname(page.file.src_uri))}{anchor})"

    return LINK.sub(changed, markdown)


def _place(src_uri: str) -> str:
    """Where a page lies in the repository."""
    for source, name in ALSO.items():
        if src_uri == name:
            return source
    return f"docs/{src_uri}"


def _linked(files: Files) -> set[str]:
    """Files outside docs/ that a page links to."""
    found = set()
    for file in files.documentation_pages():
        here = _place(file.src_uri)
        for _, target, _ in LINK.findall(file.content_string):
            place = os.path.normpath(os.path.join(os.path.dirname(here), target))
            outside = place not in ALSO and not place.startswith(("docs/", ".."))
            if outside and (ROOT / place).is_file():
                found.add(place)
    return found
