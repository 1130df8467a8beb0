"""What is new every time gets a name: random ids, times, durations, places, the version.

Guarantee: nothing else is changed, and the same value has the same name throughout a text, so that
a reader still sees which run an entry speaks of. Random ids are known because they are listened to
where they are drawn; what is derived from them is known by the name of its field (`FIELDS`).
"""

from __future__ import annotations

import contextlib
import datetime
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

SHORTEST = 10  # digits by which an id may be named; fewer could be a number by chance
# Of fields that hold times, durations, sizes of this process, keys, and digests of what has one.
FIELDS = (
    "began",
    "fingerprint",
    "inode",
    "made",
    "memory",
    "release",
    "seconds",
    "signature",
    "signed_by",
    "time",
    "when",
)
_ID = re.compile(rf"(?<![0-9a-zA-Z])[0-9a-f]{{{SHORTEST},}}(?![0-9a-zA-Z])")
# A digest of a file or an entry; plan hashes, which stay, are written sha256:...
_DIGEST = re.compile(r"(?<![0-9a-zA-Z])(?<!sha256:)[0-9a-f]{64}(?![0-9a-zA-Z])")
_SHORT = re.compile(r"(?<![0-9a-zA-Z])[0-9a-f]{12}(?![0-9a-zA-Z])")
_KEY = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{8}){3}|SHA256:[0-9A-Za-z+/]{43}")
_TIME = r"(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|\+00:00| UTC)?)?"
_PATTERNS = (
    (re.compile(r"\babout \d[\d.]* (?:s|min)\b"), "about <seconds> s"),
    (re.compile(r"^stderr: run \d+/\d+  \d+ s left\n", re.MULTILINE), ""),  # a line now and then
    (re.compile(r", \d+ s$", re.MULTILINE), ", <seconds> s"),
    (re.compile(r"\brelease [\w-]{12}(?= |\"|$)", re.MULTILINE), "release <release>"),
)


class Names:
    """Names for what one session says."""

    def __init__(self, folder: Path) -> None:
        self.places = {
            str(folder): "HERE",
            str(folder.parent / "home"): "HOME",
            str(folder.parent / "debian"): "DEBIAN",
            str(folder.parent): "ABOVE",
            str(Path(__file__).parents[2]): "REPOSITORY",
        }
        self.ids: list[str] = []
        self.hidden: set[str] = set()
        self.first = datetime.datetime.now(datetime.UTC)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Random ids that are drawn meanwhile are known afterwards."""

        def heard(draw: Callable[..., Any]) -> Callable[..., Any]:
            def drawn(*sizes: int) -> Any:
                value = draw(*sizes)
                self.ids.append(value if isinstance(value, str) else value.hex())
                return value

            return drawn

        with (
            mock.patch.object(secrets, "token_hex", heard(secrets.token_hex)),
            mock.patch.object(secrets, "token_bytes", heard(secrets.token_bytes)),
            mock.patch.object(secrets, "token_urlsafe", heard(secrets.token_urlsafe)),
        ):
            yield

    def normalised(self, text: str) -> str:
        from fedspend import __version__

        for place, name in self.places.items():
            text = text.replace(place, name)
        text = self._without_times(text)
        text = self._with_named_ids(text)
        text = self._without_digests(text)
        for field in FIELDS:
            text = re.sub(rf'("{field}": )(?:"[^"]*"|-?\d[\d.e-]*)', rf'\1"<{field}>"', text)
        for pattern, name in _PATTERNS:
            text = pattern.sub(name, text)
        return re.sub(rf"(?<![\d.]){re.escape(__version__)}(?![\d.])", "<version>", text)

    def hide(self, *values: str) -> None:
        """Hashes that have random ids in them, by which only the text itself knows them."""
        self.hidden.update(values)

    def _without_digests(self, text: str) -> str:
        found = {*_DIGEST.findall(text), *self.hidden}
        short = {one[:12] for one in found}
        text = _DIGEST.sub("<digest>", text)
        for value in self.hidden:
            text = text.replace(f"sha256:{value}", "sha256:<digest>")
        text = _SHORT.sub(lambda one: "<digest>" if one[0] in short else one[0], text)
        keys: dict[str, str] = {}
        return _KEY.sub(lambda one: keys.setdefault(one[0], f"<key {len(keys) + 1}>"), text)

    def _without_times(self, text: str) -> str:
        """Only the days of this session are taken out: others are what the texts say."""
        days = {self.first.date(), datetime.datetime.now(datetime.UTC).date()}
        for day in days:
            text = re.sub(
                rf"{day.isoformat()}{_TIME}",
                lambda found: "<time>" if len(found[0]) > 10 else "<day>",
                text,
            )
        return text

    def _with_named_ids(self, text: str) -> str:
        names: dict[str, str] = {}

        def name(found: re.Match[str]) -> str:
            for known in self.ids:
                if known.startswith(found[0]):
                    return names.setdefault(known, f"<id {len(names) + 1}>")
            return found[0]

        return _ID.sub(name, text)
