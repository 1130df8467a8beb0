"""What the suites from the raw file on share: files as a consortium would keep them, and an engine
that keeps what every client contributed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.basics.threads import single_threaded
from fedspend.client.contribution import Reply
from fedspend.client.task import ClientTask
from fedspend.configuration.config import any_config
from fedspend.noise.randomness import Randomness
from fedspend.runs.setup import Setup, from_config

COLUMNS = ("a", "b", "c", "d", "e")
FORMS = ("csv", "declared", "numbers", "texts", "parquet", "npz", "images", "folders")
SICK = ("no", "maybe", "yes")


@dataclass(frozen=True)
class Row:
    """One line of a file, before it is written down in one form or another."""

    client: str
    values: tuple[float, ...]
    label: int
    record: str = ""
    split: str = "train"

    @property
    def image(self) -> np.ndarray:
        """An image that follows from the row alone."""
        seed = [self.label, *(round(1e4 * abs(value)) for value in self.values)]
        return np.random.default_rng(seed).random((1, 12, 12), dtype=np.float32)


def rows_of(client: str, count: int, seed: int, scale: float = 1.0) -> list[Row]:
    """The n-th row is record `client-n`, whatever the seed. Every fifth is a test row, where the
    file has a column for that.
    """
    generator = np.random.default_rng(seed)
    return [
        Row(
            client,
            tuple(round(scale * x, 4) for x in generator.normal(size=len(COLUMNS))),
            int(generator.integers(3)),
            f"{client}-{n}",
            "test" if n % 5 == 4 else "train",
        )
        for n in range(count)
    ]


def mixed(found: dict[str, list[Row]]) -> list[Row]:
    """One file for all, as a consortium would keep it: rows of all clients mixed, in an order that
    follows from each row alone.
    """
    rows = [row for own in found.values() for row in own]
    return sorted(rows, key=lambda row: (row.values, row.client, row.record))


def write_rows(
    folder: Path, rows: Sequence[Row], form: str = "csv", *, records: bool = False
) -> dict[str, Any]:
    """The files, with rows to test on and public ones; and what the config says about them."""
    test, public = rows_of("test", 9, 7), rows_of("public", 12, 8)
    files = {"rows": rows, "test": test, "public": public}
    if form == "declared":
        return write_declared(folder, files)
    if form == "numbers":
        write_declared(folder, files)
        return number_of(folder)
    if form == "texts":
        return write_texts(folder, files)
    if form == "parquet":
        return write_parquet(folder, files)
    if form == "folders":
        return write_folders(folder, files)
    if form == "csv":
        for name, some in files.items():
            header = ",".join(["hospital", *(["patient"] if records else []), *COLUMNS, "sick"])
            lines = [
                ",".join(
                    [
                        row.client,
                        *([row.record] if records else []),
                        *(f"{value:.4f}" for value in row.values),
                        str(row.label),
                    ]
                )
                for row in some
            ]
            (folder / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
        return {
            "name": "csv",
            "path": str(folder / "rows.csv"),
            "test_path": str(folder / "test.csv"),
            "label": "sick",
            "client": "hospital",
            "classes": 3,
        } | ({"record": "patient"} if records else {})

    def features(some: Sequence[Row]) -> np.ndarray:
        return np.array([row.image if form == "images" else row.values for row in some])

    named = {"patient": np.array([row.record for row in rows])} if records else {}
    np.savez(
        folder / "rows.npz",
        features=features(rows),
        label=np.array([row.label for row in rows]),
        client=np.array([row.client for row in rows]),
        test_features=features(test),
        test_label=np.array([row.label for row in test]),
        **named,
    )
    np.savez(folder / "public.npz", features=features(public))
    return {"name": "npz", "path": str(folder / "rows.npz"), "classes": 3} | (
        {"record": "patient"} if records else {}
    )


def write_declared(folder: Path, files: dict[str, Sequence[Row]]) -> dict[str, Any]:
    """Tables of which much must be declared: semicolons and decimal commas, words, unlisted words,
    cells without a value, and numbers outside of their bounds.
    """
    for name, some in files.items():
        lines = [
            ";".join(
                [
                    row.client,
                    row.record,
                    *(f"{value:.4f}".replace(".", ",") for value in row.values[:3]),
                    "ABCD"[min(3, int(abs(2 * row.values[3])))],
                    "" if row.values[4] > 0.5 else f"{row.values[4]:.4f}".replace(".", ","),
                    SICK[row.label],
                ]
            )
            for row in some
        ]
        header = ";".join(["hospital", "patient", *COLUMNS, "sick"])
        (folder / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    return {
        "name": "csv",
        "path": str(folder / "rows.csv"),
        "test_path": str(folder / "test.csv"),
        "label": "sick",
        "labels": list(SICK),
        "client": "hospital",
        "record": "patient",
        "bounds": {"a": [-1, 1]},
        "categories": {"d": ["A", "B"]},
        "other": ["d"],
        "missing": {"e": 0.25},
        "indicators": ["e"],
    }


def number_of(folder: Path) -> dict[str, Any]:
    """The same tables, where one of the columns is to be predicted."""
    return {
        "name": "csv",
        "path": str(folder / "rows.csv"),
        "test_path": str(folder / "test.csv"),
        "label": "b",
        "label_bounds": [-1, 2],
        "client": "hospital",
        "columns": ["a", "c"],
    }


def write_texts(folder: Path, files: dict[str, Sequence[Row]]) -> dict[str, Any]:
    """A line of text for each row: its numbers, digit by digit."""
    for name, some in files.items():
        lines = [f"{row.client},{''.join(str(abs(one)) for one in row.values)}" for row in some]
        (folder / f"{name}.csv").write_text("\n".join(["hospital,line", *lines]) + "\n")
    return {
        "name": "csv",
        "path": str(folder / "rows.csv"),
        "test_path": str(folder / "test.csv"),
        "label": "line",
        "text": "line",
        "vocabulary": "0123456789.",
        "max_length": 6,
        "client": "hospital",
    }


def write_parquet(folder: Path, files: dict[str, Sequence[Row]]) -> dict[str, Any]:
    """Typed columns, some of whose cells have no value."""
    import pyarrow
    from pyarrow import parquet

    for name, some in files.items():
        columns: dict[str, list[Any]] = {
            column: [row.values[n] for row in some] for n, column in enumerate(COLUMNS)
        }
        columns["e"] = [None if value > 0.5 else value for value in columns["e"]]
        columns["hospital"] = [row.client for row in some]
        columns["patient"] = [row.record for row in some]
        columns["sick"] = [row.label for row in some]
        parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")
    return {
        "name": "parquet",
        "path": str(folder / "rows.parquet"),
        "test_path": str(folder / "test.parquet"),
        "label": "sick",
        "classes": 3,
        "client": "hospital",
        "record": "patient",
        "missing": {"e": 0.25},
    }


def write_folders(folder: Path, files: dict[str, Sequence[Row]]) -> dict[str, Any]:
    """Images of 6 x 6, a folder for each client and in it one for each label."""
    from PIL import Image

    places = {
        "rows": lambda row: f"rows/{row.client}/{row.label}",
        "test": lambda row: f"test/{row.label}",
        "public": lambda _: "public",
    }
    for name, some in files.items():
        for row in some:
            place = folder / places[name](row)
            place.mkdir(parents=True, exist_ok=True)
            pixels = (255 * row.image[0, :6, :6]).astype(np.uint8)
            Image.fromarray(pixels).save(place / f"{row.record}.png")
    return {
        "name": "images",
        "path": str(folder / "rows"),
        "test_path": str(folder / "test"),
        "classes": 3,
        "image_size": [1, 5, 5],
    }


def with_split(data: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """The same CSV file with a column that says which rows are to test on, in place of a file of
    them.
    """
    path = Path(data["path"])
    header, *lines = path.read_text().splitlines()
    marked = [f"{line},{row.split}" for line, row in zip(lines, rows, strict=True)]
    path.write_text("\n".join([f"{header},part", *marked]) + "\n")
    return {key: value for key, value in data.items() if key != "test_path"} | {"split": "part"}


def merged(config: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    return {
        section: config.get(section, {}) | options.get(section, {})
        for section in {*config, *options}
    }


def repeatable(config: dict[str, Any]) -> Setup:
    """The run that the config describes, real or not. Afterwards its chance is seeded, so that two
    runs can be compared: what a real run would refuse has been refused by then.
    """
    with single_threaded():  # on a busy machine, threads wait for each other longer than they work
        setup = from_config(any_config(config))
    return replace(setup, randomness=Randomness(setup.randomness.seed))


@dataclass(frozen=True)
class Given:
    """What a client contributed, and within which clip."""

    vector: bytes
    bit: float | None
    clip: float  # in units of the vector
    metric: float | None = None

    @property
    def norm(self) -> float:
        return float(np.linalg.norm(np.frombuffer(self.vector)))


class Recording:
    """Runs another engine and keeps what every client contributed."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.outside, self.name = inner, inner.outside, inner.name
        self.kept: dict[str, Given] = {}

    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Reply]:
        asked = {task.client: task for task in tasks}
        for reply in self._inner.run(tasks):
            own = reply.contribution
            grid = asked[own.client].shared.grid
            clip = asked[own.client].clip_norm / (1.0 if grid is None else grid.step)
            self.kept[own.client] = Given(own.vector.tobytes(), own.bit, clip, own.metric)
            yield reply

    def close(self) -> None:
        self._inner.close()
