"""Whether what is said now is what a golden file says.

Guarantee: where the machine and the libraries are those on which the files were written, letter by
letter. Elsewhere last digits of numbers, and digests of what is trained, may differ although
nothing is wrong: there, numbers must agree to `CLOSE`, or to one step of the last digit shown, and
everything else letter by letter but for white space. Hashes of plans are compared on the same
machine only: they seal every digit, and matrix products round the last one otherwise elsewhere.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.metadata
import platform
import re
from functools import cache
from pathlib import Path

MACHINE = Path(__file__).parent / "files" / "machine.txt"
LIBRARIES = ("numpy", "scipy", "torch", "dp-accounting", "scikit-learn", "rich", "matplotlib")
CLOSE = 1e-4  # relative
NOTHING = 1e-9  # numbers as small as this are rounding errors themselves
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
_DIGEST = re.compile(r"(?m)^(model|releases) +[0-9a-f]{16,}$")
_HASH = re.compile(r"(?<![\w.])(?:[0-9a-f]{64}|[0-9a-f]{12})(?![\w])")
_RULE = re.compile(r"[─—]{3,}")


@cache
def machine() -> str:
    """What may change last digits: Python, the libraries, and how the processor rounds."""
    from before.v0_2 import probe

    kernels = hashlib.sha256(probe.computed()).hexdigest()
    versions = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    python = ".".join(platform.python_version_tuple()[:2])
    return "\n".join([f"python {python}", *versions, f"kernels {kernels[:16]}"]) + "\n"


def same_machine() -> bool:
    return MACHINE.exists() and MACHINE.read_text(encoding="utf-8") == machine()


def difference(stored: str, now: str, name: str, *, exactly: bool | None = None) -> str:
    """A unified diff, empty if they agree."""
    exactly = same_machine() if exactly is None else exactly
    if stored == now or (not exactly and alike(stored, now)):
        return ""
    lines = difflib.unified_diff(
        stored.splitlines(), now.splitlines(), f"{name} as written", f"{name} now", lineterm=""
    )
    return "\n".join(lines)


def alike(stored: str, now: str) -> bool:
    """Whether they agree but for rounding, digests of what was trained, and white space."""
    theirs, ours = _words(stored), _words(now)
    return len(theirs) == len(ours) and all(
        one == other or _close(one, other) for one, other in zip(theirs, ours, strict=True)
    )


def _words(text: str) -> list[str]:
    """Numbers, and what is between them without its white space."""
    text = _RULE.sub("", _HASH.sub("<hash>", _DIGEST.sub(r"\1", text)))
    parts, end = [], 0
    for found in _NUMBER.finditer(text):
        parts += ["".join(text[end : found.start()].split()), found[0]]
        end = found.end()
    return [*parts, "".join(text[end:].split())]


def _close(one: str, other: str) -> bool:
    if not (_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other)):
        return False
    if "." not in one + other and "e" not in one + other:
        return False  # counts are not rounded
    a, b = (float(word.replace(",", "")) for word in (one, other))
    step = max(_step(one), _step(other))
    return abs(a - b) <= max(CLOSE * max(abs(a), abs(b)), 1.01 * step, NOTHING)


def _step(word: str) -> float:
    """The value of the last digit that is shown, where so few are shown that rounding is seen."""
    digits = word.partition("e")[0].partition(".")[2]
    return 10.0 ** -len(digits) if 0 < len(digits) <= 6 and "e" not in word else 0.0
