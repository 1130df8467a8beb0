"""Notices that an account suddenly stands for other rows than those it was charged for.

Guarantee: for every account of a real run on your own rows, an HMAC of them is kept under a key
that never leaves the data holder: one file, readable by its owner only, beside the ledger file (or
where `FEDSPEND_ROWS` says). The ledger has no more than a commitment to all of them under a fresh
random opening, from which nobody can test guesses; with it, a file that was lost, replaced or
restored from an old copy is noticed too. Rows that changed are refused until `accept-rows` is
recorded.

The file is written before the ledger's entry, and keeps what it held before, so a kill between the
two leaves a file that fits the ledger.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from fedspend.basics.files import write_whole
from fedspend.basics.json_values import read_object
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger.state import Accounts
from fedspend.ledger.storage import is_url

VARIABLE = "FEDSPEND_ROWS"
SUFFIX = ".rows"  # of the file beside a ledger file
_FORMAT, _VERSION = "fedspend-rows", 1
_PREFIX = b"fedspend-rows-1\n"

Macs = dict[str, str]  # HMAC of each account's rows, by name


def file_beside(ledger: Path) -> Path:
    """Where the HMACs are kept for a ledger that is a file."""
    return Path(f"{ledger.resolve()}{SUFFIX}")


def file_elsewhere(ledger_id: str, *, needed: bool) -> Path | None:
    """Where the user wants them kept (`FEDSPEND_ROWS`, a folder), if that is said. If a place is
    `needed`, because the ledger is on a server, it is the user's folder for data by default.
    """
    stated, home = os.environ.get(VARIABLE, ""), os.environ.get("HOME", "")
    if not (stated or needed):
        return None
    if not stated:
        data = os.environ.get("XDG_DATA_HOME", "")
        if not (os.path.isabs(data) or os.path.isabs(home)):
            raise InvalidInput(
                f"there is no home directory to keep HMACs of rows in; name a folder: {VARIABLE}"
            )
        folder = Path(data) if os.path.isabs(data) else Path(home) / ".local" / "share"
        stated = str(folder / "fedspend" / "rows")
    return Path(stated).expanduser() / f"{ledger_id}.json"


@dataclass(frozen=True)
class _Kept:
    """One state of the accounts of one unit: their HMACs, and the opening of the commitment."""

    opening: str
    macs: Macs

    @property
    def seal(self) -> str:
        text = json.dumps(self.macs, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(_PREFIX + bytes.fromhex(self.opening) + text.encode()).hexdigest()


class RowSeals:
    """The private file at `path`, read when it is needed; `group` is a project and unit."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, ledger_id: str, location: str) -> RowSeals:
        """Those of a ledger that lies with the data holder: where the user wants them, or beside
        it.
        """
        elsewhere = file_elsewhere(ledger_id, needed=is_url(location))
        return cls(elsewhere or file_beside(Path(location)))

    def changed(
        self, accounts: Accounts, group: str, digests: Mapping[str, bytes]
    ) -> tuple[list[str], list[str]]:
        """Names whose rows are not those that were sealed, and names that are not sealed yet.

        `digests` are those of the rows that are there now, by account name.
        """
        content = self._read()
        holder = content["holder"]
        kept = self._fitting(content, accounts, group)
        changed, fresh = [], []
        for name, digest in digests.items():
            sealed_by = accounts.rows_of.get(name)
            if sealed_by is None:
                fresh.append(name)
            elif sealed_by != holder or kept is None:
                raise Refused(
                    f"{self.path} cannot tell whether the rows of {name!r} are still the same: it "
                    f"is {'another' if sealed_by != holder else 'an older'} file than the one that "
                    "noted them; restore that one, or record with fedspend ledger accept-rows that "
                    "rows may be new"
                )
            elif name not in kept.macs or not hmac.compare_digest(
                kept.macs[name], _mac(content, name, digest)
            ):
                changed.append(name)
        return changed, fresh

    def sealed(
        self, accounts: Accounts, group: str, digests: Mapping[str, bytes], fresh: Sequence[str]
    ) -> dict[str, str]:
        """Write the file with the rows of `fresh` added; what its ledger entry says."""
        content = self._read()
        before = self._fitting(content, accounts, group) or _Kept(secrets.token_hex(32), {})
        macs = before.macs | {name: _mac(content, name, digests[name]) for name in fresh}
        now = _Kept(secrets.token_hex(32), macs)
        groups = content["groups"] | {group: [vars(now), vars(before)]}
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        body = json.dumps(content | {"groups": groups}, allow_nan=False) + "\n"
        write_whole(self.path, body.encode())
        return {"holder": content["holder"], "seal": now.seal}

    def _fitting(self, content: dict[str, Any], accounts: Accounts, group: str) -> _Kept | None:
        """What was kept when the ledger's last entry about it was written; None if nothing fits."""
        stated = accounts.row_seals.get(content["holder"])
        try:
            kept = [_Kept(**one) for one in content["groups"].get(group, [])]
            return next((one for one in kept if one.seal == stated), None)
        except (TypeError, ValueError, AttributeError):
            raise InvalidInput(f"{self.path} is damaged; restore it from a copy") from None

    def _read(self) -> dict[str, Any]:
        """The file's content; a fresh key and holder where there is none yet."""
        content = read_object(self.path)
        if content is None:
            return {
                "format": _FORMAT,
                "version": _VERSION,
                "holder": secrets.token_hex(16),
                "key": secrets.token_hex(32),
                "groups": {},
            }
        if not (
            content.get("format") == _FORMAT
            and content.get("version") == _VERSION
            and _is_hex(content.get("holder"), 16)
            and _is_hex(content.get("key"), 32)
            and isinstance(content.get("groups"), dict)
        ):
            raise InvalidInput(f"{self.path} is damaged; restore it from a copy")
        return content


def _is_hex(text: Any, size: int) -> bool:
    try:
        return isinstance(text, str) and len(bytes.fromhex(text)) == size
    except ValueError:
        return False


def _mac(content: dict[str, Any], name: str, digest: bytes) -> str:
    """HMAC of an account's rows, under the data holder's key."""
    text = name.encode("utf-8", "surrogatepass")
    # the digest has a fixed length and comes last
    return hmac.digest(bytes.fromhex(content["key"]), text + b"\n" + digest, "sha256").hex()


def refuse_changed(unit: str, changed: Sequence[str], location: str, project: str) -> None:
    if changed:
        others = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise Refused(
            f"the rows of {unit} {changed[0]!r}{others} are not those that its account was charged "
            "for; put the right ones back, or record that the change is meant: fedspend ledger "
            f"accept-rows {quote(changed[0])} --reason WORDS --ledger {location}"
            + (f" --project {quote(project)}" if project else "")
            + (f" --unit {unit}" if unit != "client" else "")
        )
