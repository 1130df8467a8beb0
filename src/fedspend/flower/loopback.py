"""A federation on one machine: SuperLink and SuperNodes as processes of their own, with TLS and
node keys, talking over the loopback address only. For trying things out and for tests.

Guarantee: it listens on 127.0.0.1 and nowhere else, private keys are readable by their owner only,
and only processes that it started itself are ended.

    python -m fedspend.flower.loopback examples/flower --output runs/flower
    python -m fedspend.flower.loopback examples/flower --app examples/flower-adapter \\
        --run-config 'server="{folder}/server"' --output runs/adapter
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from fedspend.approval.node_config import node_ledger
from fedspend.approval.slices import load_slice
from fedspend.basics.files import write_whole
from fedspend.configuration.config import load_config
from fedspend.errors import FedspendError, InvalidInput
from fedspend.runs.slicing import make_slices
from fedspend.stored.files import REPORT

HOST = "127.0.0.1"
NAME = "loopback"  # of the connection, in Flower's own config
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
_DAYS = 2
_START, _STOP = 60.0, 15.0  # seconds


class NotStarted(FedspendError):
    """A process of the federation did not come up, or ended too early."""


def make_certificates(folder: Path) -> None:
    """A certificate for this machine, ca.crt that vouches for it, and server.key."""
    authority, server = (
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP384R1()),
    )
    root, name = _name("fedspend loopback authority"), _name("localhost")
    vouches = (
        _certificate(root, root, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
    certificate = (
        _certificate(name, root, server)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(folder / "ca.crt", vouches.public_bytes(Encoding.PEM), private=False)
    write_whole(folder / "server.crt", certificate.public_bytes(Encoding.PEM), private=False)
    write_whole(folder / "server.key", _private(server, PrivateFormat.PKCS8))


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def make_node_key(folder: Path) -> str:
    """A key pair, node.key and node.key.pub; the line of the public one."""
    key = ec.generate_private_key(ec.SECP384R1())
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_whole(folder / "node.key", _private(key, PrivateFormat.OpenSSH))
    write_whole(folder / "node.key.pub", line + b"\n", private=False)
    return line.decode()


def _private(key: ec.EllipticCurvePrivateKey, kind: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, kind, NoEncryption())


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


@dataclass
class Loopback:
    """A folder with an `app`, a `server` folder and a folder for each node under `nodes`. Only the
    app is ever sent to anybody.
    """

    folder: Path
    port: int = field(default_factory=free_port)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def made_from(cls, project: Path, folder: Path, app: Path | None = None) -> Loopback:
        """A copy of a project, with fresh certificates and keys; `app` in place of its own app."""
        if folder.exists():
            raise InvalidInput(f"{folder} exists already; remove it, or choose another folder")
        compiled = shutil.ignore_patterns("__pycache__")
        shutil.copytree(project, folder, ignore=compiled)
        if app is not None:
            shutil.rmtree(folder / "app")
            shutil.copytree(app, folder / "app", ignore=compiled)
        folder.chmod(0o700)
        made = cls(folder)
        make_certificates(folder / "tls")
        lines = [f"{client},{make_node_key(made.node(client))}\n" for client in made.clients]
        (folder / "server" / "keys.csv").write_text("client,key\n" + "".join(lines))
        (folder / "flwr").mkdir(mode=0o700)
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
            f'address = "{HOST}:{made.port}"\nroot-certificates = "{folder / "tls" / "ca.crt"}"\n'
        )
        return made

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(sorted(path.name for path in (self.folder / "nodes").iterdir()))

    def node(self, client: str) -> Path:
        return self.folder / "nodes" / client

    def approve(self, slices: str = "slices") -> None:
        """The server makes slices, and every client approves its own."""
        server = self.folder / "server"
        offer, files = make_slices(server / "training.toml", server / slices)
        for client, file in zip(offer.plan.clients, files, strict=True):
            shutil.copy(file, self.node(client))  # as if by a letter
            config = load_config(self.node(client) / "node.toml")
            node_ledger(config).approve(load_slice(self.node(client) / file.name))

    def start_superlink(self) -> None:
        tls = self.folder / "tls"
        self._start(
            "superlink",
            "flower-superlink",
            *("--host", HOST, "--port", str(self.port), "--enable-supernode-auth"),
            *("--ssl-certfile", tls / "server.crt", "--ssl-keyfile", tls / "server.key"),
            *("--ssl-ca-certfile", tls / "ca.crt", "--disable-runtime-dependency-installation"),
            home=self.folder / "flwr",
        )
        self._wait_for_port(self.port, "superlink")

    def register(self) -> None:
        """Make the nodes' public keys known to the SuperLink."""
        for client in self.clients:
            self.flwr("supernode", "register", self.node(client) / "node.key.pub", NAME)

    def start_node(self, client: str) -> None:
        own, port, tls = self.node(client), free_port(), self.folder / "tls"
        self._start(
            client,
            "flower-supernode",
            *("--superlink", f"{HOST}:{self.port}", "--root-certificates", tls / "ca.crt"),
            *("--auth-supernode-private-key", own / "node.key"),
            *("--host", HOST, "--port", str(port)),
            *("--ssl-certfile", tls / "server.crt", "--ssl-keyfile", tls / "server.key"),
            *("--ssl-ca-certfile", tls / "ca.crt"),
            # the second is for apps of others, which find the node's rows by it
            *("--node-config", f'fedspend="{own / "node.toml"}" folder="{own}"'),
            home=own / "flwr",
        )

    def submit(self, app: Path | None = None, /, **settings: Any) -> str:
        """Start a run, of `app` in place of the folder's own; its id at Flower."""
        given = " ".join(f"{key}={json.dumps(settings[key])}" for key in settings)
        return self.submit_as(given, app)

    def submit_as(self, given: str, app: Path | None = None) -> str:
        """The same, with a run config as Flower writes it."""
        app = app or self.folder / "app"
        told = json.loads(self.flwr("run", app, NAME, "--run-config", given, "--format", "json"))
        if "run-id" not in told:
            raise NotStarted(f"flwr run failed: {told}")
        return str(told["run-id"])

    def status(self, run: str) -> str:
        found = json.loads(self.flwr("list", NAME, "--run-id", run, "--format", "json"))
        return str(found["runs"][0]["status"])

    def flwr(self, *arguments: str | Path, seconds: float = 120.0) -> str:
        """One command of Flower's; what it prints."""
        done = subprocess.run(
            [_program("flwr"), *map(str, arguments)],
            env=self._environment(self.folder / "flwr"),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode != 0:
            raise NotStarted(f"flwr {arguments[0]} failed: {(done.stdout + done.stderr).strip()}")
        return done.stdout

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """End one of our processes with everything that it started."""
        process = self.running.pop(name)
        started = descendants(process.pid)
        _end((process.pid,), how)
        process.wait(_STOP)
        _end(started, signal.SIGKILL)

    def start(self) -> None:
        """The SuperLink, and then all nodes."""
        self.start_superlink()
        self.register()
        for client in self.clients:
            self.start_node(client)

    def restart(self) -> None:
        """Kill everything, as a power cut would, and start it again."""
        for name in tuple(self.running):
            self.kill(name)
        self.start()

    def stop(self) -> None:
        """End everything that was started here, nodes first."""
        for name in reversed(tuple(self.running)):
            process = self.running.pop(name)
            started = descendants(process.pid)
            _end((process.pid,), signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP)
            _end((process.pid, *started) if process.poll() is None else started, signal.SIGKILL)
            process.wait(_STOP)

    def _start(self, name: str, program: str, *arguments: str | Path, home: Path) -> None:
        home.mkdir(mode=0o700, exist_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [_program(program), *map(str, arguments)],
                env=self._environment(home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us, and we end it in our own time
            )

    def _environment(self, home: Path) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}

    def _wait_for_port(self, port: int, name: str) -> None:
        end = time.monotonic() + _START
        while time.monotonic() < end and self.running[name].poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex((HOST, port)) == 0:
                    return
            time.sleep(0.2)
        raise NotStarted(f"{name} did not start; see {self.folder / f'{name}.log'}")


def descendants(pid: int) -> tuple[int, ...]:
    """Everything that a process has started, and what that has started, as long as it is there.
    Linux only: elsewhere none is found, and each ends itself when its parent is gone.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found, waiting = [], [pid]
    while waiting:
        waiting += (own := children.get(waiting.pop(), []))
        found += own
    return tuple(found)


def _end(pids: Sequence[int], how: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, how)


def _program(name: str) -> str:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


@contextmanager
def federation(project: Path, folder: Path, app: Path | None = None) -> Iterator[Loopback]:
    """All of it running, until the block ends."""
    made = Loopback.made_from(project, folder, app)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def wait_for(made: Loopback, run: str, seconds: float = 600.0) -> tuple[str, str]:
    """Until the run has ended: how, and its log. Flower hands a log out until its run has ended;
    asking for the status again and again would start a process each time.
    """
    try:
        told = made.flwr("log", run, NAME, "--stream", seconds=seconds)
    except subprocess.TimeoutExpired:
        raise NotStarted(f"run {run} did not end within {seconds:g} seconds") from None
    return made.status(run), told


def settings_of(folder: Path, output: Path, extra: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "config": str(folder / "server" / "training.toml"),
        "output": str(output),
        **extra,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Try a federation on this machine.")
    parser.add_argument("project", type=Path, help="folder of the app, the server and the nodes")
    parser.add_argument("--output", type=Path, required=True, help="where everything is written")
    parser.add_argument(
        "--app", type=Path, help="a Flower app to run in place of the project's own"
    )
    parser.add_argument(
        "--run-config",
        help="what the app is told, as for flwr run; {folder} is where everything is",
    )
    args = parser.parse_args(argv)
    folder, app = args.output.resolve(), None if args.app is None else args.app.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is shut down
    with federation(args.project.resolve(), folder, app) as made:
        if args.run_config is None:
            made.approve()
            run = made.submit(**settings_of(folder, folder / "run", {}))
        else:
            run = made.submit_as(args.run_config.replace("{folder}", str(folder)))
        print(f"SuperLink and {len(made.clients)} nodes are running; training ...", flush=True)
        status, told = wait_for(made, run)
        print(told)
    report = REPORT.of(folder / "run")
    print(f"{status}; report: {report}" if report.exists() else status)
    return 0 if status == "finished:completed" else 1


if __name__ == "__main__":
    sys.exit(main())
