"""`fedspend new`: a folder that runs as it is, from one of six templates.

Guarantee: an existing folder is left alone, and one that could not be finished is removed; nobody
else on this machine may read it, because budgets will be in it. What is written are the project's
own examples, which have one source: `examples` in the repository, carried by the wheel.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from fedspend.errors import InvalidInput

_REPOSITORY = Path(__file__).parents[3]


@dataclass(frozen=True)
class Template:
    """`copies` are files of `examples`, by the name that each has in the new folder."""

    help: str
    copies: Mapping[str, str] = field(default_factory=dict)
    make: Callable[[Path], None] | None = None  # makes folder and README; else copies is all
    needs: Mapping[str, str] = field(default_factory=lambda: {"torch": "train"})  # module: extra


def write(folder: Path, name: str) -> list[Path]:
    """Write the template's folder, which must not be there yet; its files."""
    if name not in TEMPLATES:
        raise InvalidInput(f"there is no template {name!r}; use one of {', '.join(TEMPLATES)}")
    if not folder.name:
        raise InvalidInput("give a name for the new folder, for example: fedspend new first")
    if folder.exists() or folder.is_symlink():
        raise InvalidInput(f"{folder} exists already; remove it, or choose another name")
    template = TEMPLATES[name]
    begin = _empty if template.make is None else template.make
    texts = {copy: _standing_alone(_example(of), of) for copy, of in template.copies.items()}
    if template.make is None:
        texts["README.md"] = _readme(name)
    begin(folder)
    try:
        for copy, text in texts.items():
            _put(folder / copy, text)
    except BaseException:
        shutil.rmtree(folder)
        raise
    return sorted(path for path in folder.rglob("*") if path.is_file())


def missing_extras(name: str) -> list[str]:
    """The extras of fedspend that the template's commands need and that are not installed."""
    return [extra for module, extra in TEMPLATES[name].needs.items() if find_spec(module) is None]


def _empty(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True)


def _federation(folder: Path) -> None:
    """The project of `fedspend flower new`."""
    from fedspend.flower.project import Project

    Project.read(examples() / "flower" / "server" / "training.toml").write(folder)


TEMPLATES = {
    "quickstart": Template(
        "100 simulated clients with three budgets, on bundled images",
        {"quickstart.toml": "quickstart.toml", "saving.toml": "saving.toml"},
    ),
    "own-data": Template(
        "a CSV file, a budget for every client in it, and their accounts: put yours in its place",
        {name: f"own-data/{name}" for name in ("training.toml", "make_rows.py")},
    ),
    "hospitals": Template(
        "three hospitals, and a budget for every patient",
        {
            name: f"hospitals/{name}"
            for name in ("hospitals.toml", "patients.csv", "make_patients.py")
        },
    ),
    "records": Template(
        "budgets drawn for 1,437 images, and the rules that could use them, compared",
        {"digits.toml": "records/digits.toml"},
    ),
    "flower": Template(
        "a server and three nodes on machines of their own, or all on this one",
        {
            f"nodes/{client}/rows.csv": f"flower/nodes/{client}/patients.csv"
            for client in ("north", "south", "harbour")
        },
        make=_federation,
        needs={"torch": "train", "flwr": "flower"},
    ),
    "notebook": Template(
        "plan, check and train from Python, in a Jupyter notebook",
        {"first.ipynb": "notebook/first.ipynb"},
    ),
}


def examples() -> Path:
    """The examples: in the package if it was installed from a wheel, else in the repository."""
    for place in (Path(str(files("fedspend"))) / "examples", _REPOSITORY / "examples"):
        if (place / "quickstart.toml").is_file():
            return place
    raise InvalidInput("this installation has no examples; install fedspend again, from its wheel")


def _example(name: str) -> str:
    return (examples() / name).read_text(encoding="utf-8")


def _standing_alone(text: str, source: str) -> str:
    """Without the folders that the example's own commands name: its neighbours lie beside it."""
    folder = Path("examples", source).parent
    return text.replace(f"{folder.as_posix()}/", "").replace("examples/", "")


def _readme(name: str) -> str:
    place = files("fedspend.starting").joinpath("readmes", f"{name}.md")
    return place.read_text(encoding="utf-8")


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
