"""`fedspend flower check`: what is wrong with a deployment, before round 1.

Guarantee: only looks; nothing is created, charged, approved or sent, except that a connection to
the SuperLink is opened and closed. Every finding says what to do. Nothing that is found at a node
quotes its rows.
"""

from __future__ import annotations

import datetime
import os
import platform
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

import fedspend
from fedspend.approval.node_config import account_of, state_folder
from fedspend.approval.slices import load_offer
from fedspend.basics.findings import Finding, guarded, none_failed
from fedspend.basics.words import counted
from fedspend.budgets.csv_file import read_budgets_csv
from fedspend.configuration.config import Config, load_config, needed
from fedspend.configuration.data_inputs import Source, is_real
from fedspend.configuration.effects import refuse_without_effect
from fedspend.configuration.method_name import known_method
from fedspend.configuration.silo_inputs import offer_of, silos_of
from fedspend.data.meaning import Agreement, parts_of
from fedspend.engines.flower.keys import check_covers, read_keys
from fedspend.engines.table import ENGINES
from fedspend.errors import FedspendError, InvalidInput
from fedspend.flower.loopback import QUIET
from fedspend.flower.node import Node, open_node
from fedspend.ledger import Ledger
from fedspend.ledger.storage import is_url, may_hold_ledger, path_of
from fedspend.server.methods.table import protects_records

TESTED = "1.41"  # the version of Flower that this was tested with
SOON = 30  # days before a certificate ends
APP_FILES = {"pyproject.toml", "README.md", "fedspend_app/__init__.py"}
APP_FILES |= {"fedspend_app/client.py", "fedspend_app/server.py"}
_WAIT = 5.0  # seconds for a connection
Verdict = tuple[bool | None, str]  # None: a note


@dataclass(frozen=True)
class Checked:
    """What was found on one machine."""

    config: str
    role: str  # server or node
    checks: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return none_failed(self.checks)

    def to_dict(self) -> dict[str, Any]:
        listed = [one.to_dict() for one in self.checks]
        return {"config": self.config, "role": self.role, "ok": self.ok, "checks": listed}


def check(
    config: str | Path,
    *,
    superlink: str | None = None,
    tls: str | Path | None = None,
    app: str | Path | None = None,
    server: str | Path | None = None,
) -> Checked:
    """Check the machine of a server or of a node, whichever the config describes.

    `superlink` is HOST:PORT. `tls` is the folder of certificates (default: tls beside the config),
    `app` that of the app that Flower sends to nodes (at a server; default: app beside the config's
    folder, if it is there). `server` is the server's config, to compare a node's with (default: as
    in a project, if it is there).
    """
    path = Path(config)
    if not path.is_file():
        raise InvalidInput(f"there is no config {str(path)!r}; name the server's or a node's")
    found = load_config(path)
    role = "node" if found.node.client is not None else "server"
    here = path.resolve().parent
    folder = here / "tls" if tls is None else Path(tls)
    listed = _node(found, here, server) if role == "node" else _server(found, here, app)
    checks = [
        guarded("versions", versions),
        guarded("telemetry", quiet),
        *(guarded(name, one) for name, one in listed),
        guarded(
            "certificate", lambda: certificate(folder, superlink if role == "server" else None)
        ),
    ]
    authority = here / "server-ca.crt" if role == "node" else folder / "ca.crt"
    checks.append(guarded("superlink", lambda: reached(superlink, authority)))
    return Checked(str(path), role, checks)


# --- either machine -------------------------------------------------------------------------------


def versions() -> Verdict:
    found = {name: _version(name) for name in ("flwr", "torch")}
    words = f"fedspend {fedspend.__version__}, Python {platform.python_version()}, " + ", ".join(
        f"{name} {one or 'missing'}" for name, one in found.items()
    )
    missing = next((name for name, one in found.items() if one is None), None)
    if missing is not None:
        return False, f"{words}; install it: pip install 'fedspend[train,flower]'"
    if not str(found["flwr"]).startswith(f"{TESTED}."):
        return None, f"{words}; tested with flwr {TESTED}: pip install 'flwr~={TESTED}.0'"
    return True, f"{words}; must be the same fedspend everywhere"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def quiet() -> Verdict:
    wrong = [name for name, value in QUIET.items() if os.environ.get(name) != value]
    if wrong:
        words = " ".join(f"{name}={QUIET[name]}" for name in wrong)
        return None, (
            f"Flower's telemetry or update checks are on in this shell: export {words}, also for "
            "SuperLink and SuperNode (the project's scripts do)"
        )
    return True, "Flower's telemetry and update checks are off in this shell"


def private(path: Path) -> str:
    """Why a file may be read by others; empty if it may not."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return f"{path} may be read by others (mode {mode:o}): chmod 600 {path}" if mode & 0o077 else ""


def certificate(folder: Path, superlink: str | None) -> Verdict:
    """A certificate, its key, and who vouches for it; at a server, for the name that nodes use."""
    files = [folder / name for name in ("ca.crt", "server.crt", "server.key")]
    missing = next((path for path in files if not path.is_file()), None)
    if missing is not None:
        return False, f"there is no {missing}; make it with keys.sh, or name its folder with --tls"
    if why := private(files[2]):
        return False, why
    authority, own = (x509.load_pem_x509_certificate(path.read_bytes()) for path in files[:2])
    key = load_pem_private_key(files[2].read_bytes(), None)
    if _raw(key.public_key()) != _raw(own.public_key()):
        return False, f"{files[2]} is not the key of {files[1]}; make both again with keys.sh"
    try:
        own.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False, f"{files[0]} does not vouch for {files[1]}; make both again with keys.sh"
    now = datetime.datetime.now(datetime.UTC)
    for path, one in zip(files, (authority, own), strict=False):
        if not one.not_valid_before_utc <= now <= one.not_valid_after_utc:
            return False, (
                f"{path} is valid from {one.not_valid_before_utc:%Y-%m-%d} to "
                f"{one.not_valid_after_utc:%Y-%m-%d}, and it is {now:%Y-%m-%d} here: make another "
                "with keys.sh, or set the clock"
            )
    names = _names(own)
    host = "localhost" if superlink is None else _host_of(superlink)[0]
    if host not in names:
        return False, (
            f"{files[1]} is for {', '.join(names)}, not for {host}: make another with "
            f"sh keys.sh server {host}"
        )
    left = (own.not_valid_after_utc - now).days
    words = f"{files[1]} is for {', '.join(names)}, until {own.not_valid_after_utc:%Y-%m-%d}"
    return (None, f"{words}: that is soon; renew it") if left < SOON else (True, words)


def _raw(key: Any) -> bytes:
    found: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return found


def _names(found: x509.Certificate) -> list[str]:
    try:
        listed = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = map(str, listed.get_values_for_type(x509.IPAddress))
    return [*listed.get_values_for_type(x509.DNSName), *addresses]


def _host_of(superlink: str) -> tuple[str, int]:
    host, _, port = superlink.rpartition(":")
    if not (host and port.isdecimal() and 1 <= int(port) <= 65535):
        raise InvalidInput(f"--superlink must be HOST:PORT, got {superlink!r}")
    return host.strip("[]"), int(port)


def reached(superlink: str | None, authority: Path) -> Verdict:
    """Whether a SuperLink answers, with a certificate that `authority` vouches for."""
    if superlink is None:
        return None, "not asked: name it with --superlink HOST:PORT to try the connection"
    host, port = _host_of(superlink)
    if not authority.is_file():
        return False, f"there is no {authority}; it is the server's tls/ca.crt"
    context = ssl.create_default_context(cafile=str(authority))
    try:
        with (
            socket.create_connection((host, port), _WAIT) as line,
            context.wrap_socket(line, server_hostname=host) as secured,
        ):
            return True, f"{superlink} answers with {secured.version()} and a good certificate"
    except ssl.SSLCertVerificationError as error:
        return False, (
            f"{superlink} answers with a certificate that is not good here "
            f"({error.verify_message}): check {authority}, the name of the host, and both clocks"
        )
    except ssl.SSLError as error:
        return False, f"{superlink} does not speak TLS ({error.reason}); start it with superlink.sh"
    except OSError as error:
        return False, (
            f"{superlink} cannot be reached ({error.strerror or error}): start the SuperLink, and "
            "open its port in the firewall"
        )


def ledger(location: str | None, unit: str, *, simulation: bool) -> Verdict:
    """Where the account is, or will be."""
    if location is None:
        return False, "no ledger is named: set ledger.location, so that every run is charged there"
    if not is_url(location):
        folder = Path(path_of(location)).resolve().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            return False, f"the folder {folder} of the ledger is not there, or not yours to write"
    if not may_hold_ledger(location):
        return None, f"{location} is not there yet; it begins with the first run that is charged"
    with Ledger.open(location) as book:
        if book.simulation != simulation:
            kind = "simulations" if book.simulation else "real runs"
            return False, f"{location} is for {kind}; name another with ledger.location"
        other = "record" if unit == "client" else "client"
        if len(book.accounts(other)):
            return False, (
                f"{location} has accounts of {other}s, which cannot pay for {unit}s; name another"
            )
        held = counted(len(book.accounts(unit)), f"{unit} account")
        return True, f"{location}: {book.state.entries:,} entries in an unbroken chain, {held}"


def declaration(mine: Callable[[], str], other: Path | None) -> Verdict:
    """What rows mean on this machine and, at a node, whether they mean the same to the server."""
    try:
        said = mine()
    except FedspendError:
        return None, "cannot be told until the rows can be read"
    words = ", ".join(f"{part} {digest}" for part, digest in parts_of(said).items())
    if other is None:
        return True, f"{words}; must be the same everywhere"
    if wrong := Agreement(Source(load_config(other)).meaning).difference(said, str(other)):
        return False, f"this node {wrong}"
    return True, f"{words}; the same as in {other}"


# --- the server -----------------------------------------------------------------------------------

Checks = Iterator[tuple[str, Callable[[], Verdict]]]


def _server(config: Config, here: Path, app: str | Path | None) -> Checks:
    unit = "record" if protects_records(known_method(config)) else "client"
    source = Source(config)
    yield "config", lambda: server_config(config, source)
    yield "declaration", lambda: declaration(lambda: source.meaning, None)
    yield "keys", lambda: keys_of(config)
    yield "roster", lambda: roster(config)
    if unit == "client":
        yield "slices", lambda: slices(config)
    yield "ledger", lambda: ledger(config.ledger.location, unit, simulation=not is_real(config))
    folder = here.parent / "app" if app is None else Path(app)
    yield "app", lambda: app_folder(folder, given=app is not None)


def server_config(config: Config, source: Source) -> Verdict:
    if not ENGINES[config.engine.name].elsewhere:
        return False, f'engine.name is {config.engine.name!r}; set engine.name = "flower"'
    refuse_without_effect(config)
    rows = source.rows.test_features
    count = 0 if rows is None else len(rows)
    kind = "a real run" if is_real(config) else "a SIMULATION, which protects nobody"
    return True, f"method {known_method(config)}, {counted(count, 'row')} to evaluate on, {kind}"


def keys_of(config: Config) -> Verdict:
    if config.engine.keys is None:
        if is_real(config):
            return False, "a real run needs the nodes' public keys: name a file with engine.keys"
        return None, "no file of keys: nodes are believed, which is for simulations"
    found = read_keys(config.engine.keys)
    mode = stat.S_IMODE(Path(config.engine.keys).stat().st_mode)
    if mode & 0o022:
        return False, (
            f"{config.engine.keys} may be changed by others (mode {mode:o}): whoever can, says who "
            f"is who; chmod 600 {config.engine.keys}"
        )
    return True, f"{counted(len(found), 'public key')}, one for each of {', '.join(found)}"


def roster(config: Config) -> Verdict:
    """Who takes part, and whether each has a key and a budget."""
    keys = None if config.engine.keys is None else read_keys(config.engine.keys)
    if protects_records(known_method(config)):
        silos = silos_of(config, None if keys is None else tuple(keys))
        terms = offer_of(config, silos).terms
        words = (
            f"{counted(len(silos), 'silo')}; {terms.rounds} rounds of {terms.local_steps} steps at "
            f"noise multiplier {terms.noise_multiplier:g}, delta {terms.delta:g}; budgets are "
            "theirs"
        )
    else:
        listed = read_budgets_csv(needed(config.privacy.budgets, "privacy.budgets"))
        silos = listed.clients
        low, high = float(listed.epsilons.min()), float(listed.epsilons.max())
        words = f"{counted(len(silos), 'client')} with budgets from {low:g} to {high:g}"
    if keys is not None:
        check_covers(keys, silos, str(config.engine.keys))
    return True, words


def slices(config: Config) -> Verdict:
    """What the clients are to approve."""
    if config.engine.slices is None:
        if is_real(config):
            return False, 'a real run needs slices that clients approve: engine.slices = "slices"'
        return None, "no slices: for simulations"
    place = Path(config.engine.slices)
    if not place.is_dir():
        return None, f"{place} is not there yet: fedspend flower slices makes it before a run"
    offer = load_offer(place)
    return True, f"{place}: run {offer.terms.run}, root {offer.root[:12]}; for one run"


def app_folder(folder: Path, *, given: bool) -> Verdict:
    """Flower sends all of it to every node."""
    if not folder.is_dir():
        words = f"there is no app in {folder}; name it with --app"
        return (False if given else None), words
    held = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    extra, missing = sorted(held - APP_FILES), sorted(APP_FILES - {"README.md"} - held)
    if extra:
        return False, (
            f"{folder} holds {', '.join(extra[:3])}, and Flower sends everything in it to every "
            "node: move it elsewhere"
        )
    if missing:
        return False, f"{folder} has no {missing[0]}; make a project with fedspend flower new"
    return True, f"{folder} holds the app and nothing else"


# --- a node ---------------------------------------------------------------------------------------


def _node(config: Config, here: Path, server: str | Path | None) -> Checks:
    simulation, opened = not is_real(config), cache(partial(open_node, config.path or {}))
    yield "client", lambda: node_rows(opened())
    yield "declaration", lambda: declaration(lambda: opened().meaning, _server_of(here, server))
    yield "randomness", lambda: randomness(config)
    yield "key", lambda: node_key(Path(config.value("node.key") or here / "node.key"))
    yield "state", lambda: state(state_folder(config))
    yield (
        "ledger",
        lambda: ledger(account_of(config).location, config.node.unit, simulation=simulation),
    )


def _server_of(here: Path, given: str | Path | None) -> Path | None:
    """The server's config: the one that is named, or that of the project, if it is there."""
    if given is not None:
        return Path(given)
    beside = here.parent.parent / "server" / "training.toml"
    return beside if beside.is_file() else None


def node_rows(node: Node) -> Verdict:
    unit = "each record" if node.silo is not None else "the client as a whole"
    return True, (
        f"{node.client}: its rows can be read, the model has {node.parameters:,} numbers; "
        f"{unit} is protected"
    )


def randomness(config: Config) -> Verdict:
    if is_real(config):
        return True, "this node's noise comes from its own operating system"
    return None, 'this node draws from a seed, which protects nobody: privacy.randomness = "os"'


def node_key(path: Path) -> Verdict:
    if not path.is_file():
        return False, f"there is no key {path}; make it with sh keys.sh node CLIENT"
    if why := private(path):
        return False, why
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False, f"{path} is not a private key as ssh-keygen writes it, without a passphrase"
    if not (isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp384r1"):
        return False, f"{path} is of another kind: ssh-keygen -t ecdsa -b 384 -N '' -f {path}"
    public = Path(f"{path}.pub")
    if public.is_file() and _raw(load_ssh_public_key(public.read_bytes())) != _raw(
        key.public_key()
    ):
        return False, f"{public} is not the public key of {path}; give the server the right one"
    return True, f"{path} is a private key that its owner alone can read"


def state(folder: Path) -> Verdict:
    if not folder.exists():
        if not os.access(folder.parent, os.W_OK):
            return False, f"{folder.parent} is not yours to write, and {folder} must be made there"
        return None, f"{folder} is not there yet; it begins with the first answer"
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        return False, f"{folder} is open to others (mode {mode:o}): chmod 700 {folder}"
    if not os.access(folder, os.W_OK):
        return False, f"{folder} is not yours to write: run this as the user of the SuperNode"
    return True, f"{folder} is this node's alone"
