"""The finished runs of a tune or a sweep, so that one that was killed goes on with the rest.

Guarantee: a folder holds the runs of one base config only, and the grid may grow; another config is
refused, and so is a folder that holds something else. A line that a kill left incomplete is run
again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedspend.basics.files import append_line, as_line, make_folder, read_lines, write_whole
from fedspend.errors import InvalidInput
from fedspend.tuning.grid import Setting

SETTINGS, RUNS = "grid.json", "runs.jsonl"


class Kept:
    """The result of each setting and seed, in memory and, if there is a folder, one line each."""

    def __init__(
        self, folder: Path | None, settings: Sequence[Setting], what: str, **terms: Any
    ) -> None:
        """`what` is a tune or a sweep; `terms` are what its runs share beside their settings."""
        self._file = None if folder is None else folder / RUNS
        self._names = [setting.name for setting in settings]
        self._done: dict[tuple[str, int], dict[str, Any]] = {}
        if folder is None or self._file is None:
            return
        wanted = {"settings": shared_by(settings), **terms}
        if (folder / SETTINGS).exists():
            _check_same(folder, wanted, what)
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidInput(
                f"{folder} is not empty and is not the folder of a {what}; choose another folder"
            )
        else:
            make_folder(folder)
            body = json.dumps(wanted, indent=1, sort_keys=True, allow_nan=False) + "\n"
            write_whole(folder / SETTINGS, body.encode())
        lines = read_lines(self._file)
        for number, line in enumerate(lines, 1):
            self._remember(number, line)
        # drops an incomplete last line, which a kill may have left
        write_whole(self._file, b"".join(map(as_line, lines)))

    def _remember(self, number: int, line: dict[str, Any]) -> None:
        try:
            key = str(line.pop("setting")), int(line.pop("seed"))
            if not all(value is None or isinstance(value, int | float) for value in line.values()):
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InvalidInput(
                f"{self._file}:{number}: not the record of a run; remove this line or choose "
                "another folder"
            ) from None
        self._done[key] = dict(line)
        line |= {"setting": key[0], "seed": key[1]}

    def found(self, setting: int, seed: int) -> dict[str, Any] | None:
        return self._done.get((self._names[setting], seed))

    def add(self, setting: int, seed: int, found: dict[str, Any]) -> None:
        self._done[self._names[setting], seed] = found
        if self._file is not None:
            line = {"setting": self._names[setting], "seed": seed, **found}
            append_line(self._file, as_line(line))


def shared_by(settings: Sequence[Setting]) -> dict[str, Any]:
    """What all settings share: runs are kept for these only. The grid may grow."""
    setting = settings[0]
    varied = {*setting.values(), "train.seed", "engine.workers"}
    shared = {
        f"{section}.{key}": value
        for section, table in setting.config.values.items()
        for key, value in table.items()
        if f"{section}.{key}" not in varied
    }
    plain: dict[str, Any] = json.loads(json.dumps(shared, default=str, allow_nan=False))
    return plain


def _check_same(folder: Path, wanted: dict[str, Any], what: str) -> None:
    try:
        stored = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        flat = {**stored.pop("settings"), **stored}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(f"{folder / SETTINGS} is damaged; choose another folder") from None
    now = {**wanted["settings"], **{k: v for k, v in wanted.items() if k != "settings"}}
    for key in sorted(set(flat) | set(now)):
        if flat.get(key) != now.get(key):
            raise InvalidInput(
                f"{folder} holds another {what}: {key} was {flat.get(key)!r} and is now "
                f"{now.get(key)!r}; choose another folder"
            )
