"""The finished runs of a comparison or a tune, so that one that was stopped goes on with
the rest.

Guarantee: a run is used again only for the settings, the files and the code that it was made with:
where these have changed, the folder is refused, and so is one that holds something else or that
another process is working in. Arms, settings and seeds may be added. A line that a kill left
incomplete is run again. Only the owner can read what is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedspend.basics.files import (
    append_line,
    as_line,
    make_folder,
    one_at_a_time,
    read_lines,
    write_whole,
)
from fedspend.basics.progress import OnProgress
from fedspend.configuration.config import Config
from fedspend.errors import InvalidInput
from fedspend.runs.origins import code_and_machine, digests_of_files
from fedspend.runs.parallel import in_parallel

SETTINGS, RUNS = "grid.json", "runs.jsonl"
ALL = "all settings"


class Kept:
    """What each run found, by the name of its setting and its seed: in memory and, if there is a
    file, one line each.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._found: dict[tuple[str, int], dict[str, Any]] = {}
        if file is None:
            return
        lines = read_lines(file)
        for number, line in enumerate(lines, 1):
            self._remember(number, line)
        # drops an incomplete last line, which a kill may have left
        write_whole(file, b"".join(map(as_line, lines)))

    def _remember(self, number: int, line: dict[str, Any]) -> None:
        try:
            found = dict(line)
            key = str(found.pop("setting")), int(found.pop("seed"))
            if not found or not all(map(_is_number_or_curve, found.values())):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise InvalidInput(
                f"{self._file}:{number}: not the record of a run; remove this line or choose "
                "another folder"
            ) from None
        self._found[key] = found

    def found(self, setting: str, seed: int) -> dict[str, Any] | None:
        return self._found.get((setting, seed))

    def keys(self) -> set[tuple[str, int]]:
        """The setting and the seed of each run that would be found again."""
        if self._file is None:
            return set(self._found)
        return {(line["setting"], line["seed"]) for line in read_lines(self._file)}

    def add(self, setting: str, seed: int, found: dict[str, Any]) -> None:
        self._found[setting, seed] = found
        if self._file is not None:
            append_line(self._file, as_line({"setting": setting, "seed": seed, **found}))


@contextmanager
def kept_in(
    folder: Path | None,
    what: str,
    configs: Mapping[str, Config],
    fixed: Mapping[str, Mapping[str, Any]],
) -> Iterator[Kept]:
    """The runs in `folder`, which nobody else works in meanwhile; without one, in memory only.

    `what` is a comparison or a tune; `configs` are its settings by name. `fixed` are
    tables of values that may not change when it goes on; tables may be added.
    """
    if folder is None:
        yield Kept()
        return
    now = {
        "kind": what,
        "made by": code_and_machine(),
        "files": digests_of_files(configs.values()),
        "settings": json.loads(json.dumps(fixed, default=str, allow_nan=False)),
    }
    before = _stored(folder, what)
    if before is not None:
        _check_same(folder, before, now)
        for name in ("files", "settings"):
            now[name] = {**before[name], **now[name]}
    make_folder(folder)
    with one_at_a_time(folder):
        body = json.dumps(now, indent=1, sort_keys=True, allow_nan=False) + "\n"
        write_whole(folder / SETTINGS, body.encode())
        yield Kept(folder / RUNS)


def run_missing(
    run: Callable[[Config, int], dict[str, Any]],
    configs: Mapping[str, Config],
    seeds: Sequence[int],
    kept: Kept,
    workers: int | None,
    progress: OnProgress | None,
) -> list[list[dict[str, Any]]]:
    """What every setting found with every seed; those that are not kept yet are run, and kept as
    soon as they end.
    """
    jobs = [(name, seed) for name in configs for seed in seeds]
    missing = [job for job in jobs if kept.found(*job) is None]
    try:
        in_parallel(
            run,
            [(configs[name], seed) for name, seed in missing],
            lambda number, found: kept.add(*missing[number], found),
            workers=workers,
            progress=progress,
            before=len(jobs) - len(missing),
        )
    except KeyboardInterrupt:
        if progress is not None:  # the last one may have been kept but not reported
            progress(len(kept.keys().intersection(jobs)), len(jobs))
        raise
    return [[kept.found(name, seed) or {} for seed in seeds] for name in configs]


def _stored(folder: Path, what: str) -> dict[str, Any] | None:
    """What the folder says that it holds; None if it is empty or not there."""
    if not (folder / SETTINGS).exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidInput(
                f"{folder} is not empty and is not the folder of a {what}; choose another folder"
            )
        return None
    try:
        found = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        tables = {name: dict(found.get(name, {})) for name in ("made by", "files", "settings")}
        return {"kind": found.get("kind", what), **tables}
    except (OSError, ValueError, TypeError, AttributeError):
        raise InvalidInput(f"{folder / SETTINGS} is damaged; choose another folder") from None


def _check_same(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse a folder whose runs would not be found again with what is given now."""
    what, choose = now["kind"], "choose another folder"
    if before["kind"] != what:
        raise InvalidInput(f"{folder} holds a {before['kind']} and not a {what}; {choose}")
    tables = [("made by", before["made by"], now["made by"])]
    tables += [
        (name, before["settings"][name], now["settings"][name])
        for name in now["settings"]
        if name in before["settings"]
    ]
    for name, was, wanted in tables:
        of = "" if name in ("made by", ALL) else f" of {name}"
        for key in sorted(set(was) | set(wanted)):
            if was.get(key) != wanted.get(key):
                raise InvalidInput(
                    f"{folder} holds another {what}: {key}{of} was {was.get(key)!r} and is now "
                    f"{wanted.get(key)!r}; {choose}"
                )
    for path, digest in now["files"].items():
        if before["files"].get(path, digest) != digest:
            raise InvalidInput(f"{folder} holds runs made before {path} was changed; {choose}")


def _is_number_or_curve(value: Any) -> bool:
    """Whether this is what a run found: a number, or one for each round; None where there is none.

    >>> [_is_number_or_curve(value) for value in (0.5, None, [0.1, None], [], "0.5")]
    [True, True, True, False, False]
    """
    values = value if isinstance(value, list) and value else [value]
    return all(one is None or isinstance(one, int | float) for one in values)
