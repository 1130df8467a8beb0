"""Processes that run a `fedspend` command and start at once: forked from one that has everything
loaded. For tests of what happens to a process, and not of how Python starts.

Guarantee: a command has the environment of whoever starts it, a session of its own (so that a
signal can be sent to all of it), and hears Ctrl-C, even where the tests ignore it, as in the
background of a shell.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LOADED = ("fedspend.report.html", "fedspend.runs.training", "fedspend.runs.comparison", "psycopg")


class ForkServer:
    """Starts commands, until it is left as a context."""

    def __init__(self) -> None:
        self._outputs = tempfile.TemporaryDirectory(prefix="fedspend-outputs-")
        self._started = 0
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        )
        assert self._answer() == "ready"

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        # said, since a process that was forked meanwhile may keep the pipe open
        self._server.stdin.write("null\n")
        self._server.stdin.close()
        self._server.wait(timeout=60)
        self._outputs.cleanup()

    def start(self, *argv: object, folder: Path | None = None, held: int | None = None) -> Process:
        """With `held`, a run waits for its kill once it has played so many rounds: none ends before
        it is shot, however fast the machine is.
        """
        self._started += 1
        output = Path(self._outputs.name) / str(self._started)
        output.mkdir()
        pid = self.ask(
            argv=[str(argument) for argument in argv],
            folder=str(folder or Path.cwd()),
            output=str(output),
            held=held,
            environment={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return Process(self, pid, output)

    def ask(self, **asked: Any) -> Any:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._server.stdout is not None
        return json.loads(self._server.stdout.readline())


class Process:
    """A command that was started."""

    def __init__(self, server: ForkServer, pid: int, output: Path) -> None:
        self._server, self.pid, self._output = server, pid, output
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, minus the signal that ended it, or None while it goes on."""
        if self._code is None:
            self._code = self._server.ask(pid=self.pid)
        return self._code

    def wait(self, timeout: float = 120.0) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < until, "it did not end in time"
            time.sleep(0.01)
        return code

    def kill(self, kind: int = signal.SIGKILL) -> None:
        os.kill(self.pid, kind)

    @property
    def out(self) -> str:
        return (self._output / "out").read_text()

    @property
    def err(self) -> str:
        return (self._output / "err").read_text()


def serve() -> None:
    """Forks a command for every line that asks for one, and says of others how they ended."""
    import torch

    torch.set_num_threads(1)
    for module in LOADED:
        importlib.import_module(module)
    say("ready")
    for line in sys.stdin:
        asked = json.loads(line)
        if asked is None:
            return
        if "pid" in asked:
            ended, status = os.waitpid(asked["pid"], os.WNOHANG)
            say(os.waitstatus_to_exitcode(status) if ended else None)
        elif child := os.fork():
            say(child)
        else:
            run(**asked)


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def run(
    argv: list[str], folder: str, output: str, held: int | None, environment: dict[str, str]
) -> None:
    """The command, in this process, which ends with it."""
    from fedspend.cli.main import main

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate((os.devnull, f"{output}/out", f"{output}/err")):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    if held is not None:
        hold_after(held)
    sys.exit(main(argv))


def hold_after(rounds: int) -> None:
    """Once this process has committed so many rounds, it only waits."""
    from fedspend.runs.directory import RunDirectory

    commit, left = RunDirectory.commit, iter(range(rounds - 1))

    def held(self: RunDirectory, *given: Any) -> None:
        commit(self, *given)
        while next(left, None) is None:
            signal.pause()

    RunDirectory.commit = held  # type: ignore[method-assign]


if __name__ == "__main__":
    serve()
