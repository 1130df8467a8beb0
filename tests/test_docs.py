"""Pages: every link leads somewhere, the reference has everything, and the site needs no network.

`test_shown.py` runs what the pages show.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))
import reference  # noqa: E402

pytestmark = pytest.mark.full

TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in TOP)])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
FENCE = re.compile(r"^ *```.*?^ *```$", re.M | re.S)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings, and the site too."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    plain = (
        re.sub(r"[^\w\- ]", "", found.lower()) for found in re.findall(r"^#+ (.*)$", text, re.M)
    )
    return {heading.strip().replace(" ", "-") for heading in plain}


def links() -> list[tuple[Path, str, str]]:
    return [
        (page, target, anchor)
        for page in PAGES
        for target, anchor in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    ]


def test_every_link_in_the_repository_leads_somewhere():
    wrong = []
    for page, target, anchor in links():
        place = page if not target else Path(os.path.normpath(page.parent / target))
        if not place.exists() or (anchor and anchor not in anchors(place)):
            wrong.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert wrong == []
    assert len(links()) > 150


def test_pages_that_code_and_examples_name_are_there():
    named = set()
    for folder in ("src", "examples", "benchmarks", "tests"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".toml", ".md", ".sh"):
                named |= set(re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8")))
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_targets_of_make_that_pages_name_are_there():
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    code = re.compile(r"^```.*?^```$|`[^`\n]+`", re.M | re.S)
    shown = re.compile(r"(?:`|^ *|&& |; )(?:FEDSPEND_\w+=\S+ )*make ([a-z-]+)", re.M)
    named = {
        (page.name, target)
        for page in PAGES
        if page.name != "CHANGELOG.md"  # it says what was
        for part in code.findall(page.read_text(encoding="utf-8"))
        for target in shown.findall(part)
    }
    assert [one for one in sorted(named) if one[1] not in made] == []
    assert len({target for _, target in named}) >= 12


def test_the_readme_can_be_read_to_its_end():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 100


# --- the reference ---


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return dict(reference.pages())


def test_the_reference_has_every_command_and_option(made):
    from fedspend.cli.main import build_parser

    for name, parser in build_parser()[1].items():
        page = made[f"{reference.COMMANDS}/{name}.md"]
        assert f"({name}.md)" in made[f"{reference.COMMANDS}/index.md"]
        for _, child in (("", parser), *reference.actions(parser)):
            for action in child._actions:
                for option in action.option_strings:
                    assert f"`{option}" in page or f", {option}" in page, (name, option)


def test_the_reference_has_every_key_and_name(made):
    from fedspend.configuration.sections import SECTIONS
    from fedspend.planning.policies.table import POLICIES
    from fedspend.server.methods.table import METHODS

    for section, keys in SECTIONS.items():
        assert f"## [{section}]" in made["reference/configuration.md"]
        for key, about in keys.items():
            line = f"| `{key}` | {reference.cell(about.wanted)} |"
            assert line in made["reference/configuration.md"]
            assert about.help, (section, key)
    for name in (*POLICIES.names, *METHODS.names):
        assert f"| `{name}` |" in made["reference/names.md"]


def test_the_reference_has_every_public_name(made):
    import fedspend

    for name in set(fedspend.__all__) - {"__version__"}:
        assert f"## fedspend.{name}\n" in made["reference/python.md"]
    assert "Train from a config" in made["reference/python.md"]
    # what a docstring says of each argument is a list, also where it goes on in the next line
    assert "\n- `rounds`: how many rounds are planned.\n" in made["reference/python.md"]
    assert re.search(r"\n- `policy`: how a budget .* handed out\.\n", made["reference/python.md"])


# --- the site ---


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_is_built_without_a_warning_and_needs_no_network(site):
    """Strict: a link or an anchor that leads nowhere, or a page outside the menu, is an error."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    loads = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"(https?:)?//", re.I)
    for page in pages:
        assert not loads.search(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\W*https?:|@import", style.read_text(encoding="utf-8")), style


def test_links_of_the_site_lead_to_its_files(site):
    """Those that MkDocs does not look at too: files of the repository, pages made from the code."""
    wrong = [
        f"{page.relative_to(site)}: {target}"
        for page in site.rglob("*.html")
        if page.name != "404.html"
        for target in re.findall(
            r'href="(?!https?:|mailto:)([^"#?]+)', page.read_text(encoding="utf-8")
        )
        if not (page.parent / target).exists()
    ]
    assert wrong == []


def test_numbers_with_a_bar_do_not_break_a_table():
    assert reference.cell("a | b\n<c>") == "a \\| b &lt;c>"
