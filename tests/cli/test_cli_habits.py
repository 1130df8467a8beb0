"""Exit codes, signals and the log: what a script around the command can rely on."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from lib.configs import write_toml

from fedspend.basics import files
from fedspend.cli import main as cli
from fedspend.errors import InvalidInput, OutsideFailed, Refused


@pytest.fixture
def config(tiny, tmp_path):
    path = tmp_path / "tiny.toml"
    return write_toml(path, tiny)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused("no"), 1),
        (InvalidInput("what?"), 2),
        (OutsideFailed("gone"), 3),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), 2),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 2),
        (OSError(errno.ENOSPC, "No space left on device"), 3),
        (OSError(errno.EIO, "Input/output error", "x"), 3),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 3),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), 3),
        (TimeoutError("timed out"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_failure_has_its_code_and_one_line(capsys, error, code):
    def fail():
        raise error

    assert cli.explained(fail) == code
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("fedspend: ")


def test_a_database_that_is_gone_is_3(refused, config, tmp_path):
    said = refused(
        *("train", config, "-o", tmp_path / "run"),
        *("--ledger", "postgresql://nobody@127.0.0.1:9/none", "--quiet"),
        code=3,
    )
    assert "cannot use the ledger" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.full(but=["5"])
@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("at", [1, 2, 3, 5, 8])
def test_a_disk_that_fills_up_leaves_whole_files_and_the_run_goes_on(
    run, config, tmp_path, monkeypatch, at
):
    """Every durable write goes through `os.fsync`; the `at`-th finds the disk full."""
    calls, sync = [], os.fsync

    def full(handle):
        calls.append(handle)
        if len(calls) == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", full)
        outcome = run("train", config, "-o", tmp_path / "run", "--quiet")
    assert outcome.code == 3
    assert outcome.err.splitlines() == ["fedspend: cannot write: No space left on device"]
    names = [path.name for path in (tmp_path / "run").rglob("*")] if at > 1 else []
    assert not [name for name in names if name.startswith(".")]  # nothing half written
    again = run("train", config, "-o", tmp_path / "run", "--resume", "--quiet")
    assert again.code == 0, again
    whole = run("train", config, "-o", tmp_path / "whole", "--quiet")
    assert whole.code == 0
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


SLOW = """
import signal, sys, time
from fedspend.cli import main as cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests
class Slow:
    HELP = DESCRIPTION = EXAMPLES = "slow"
    @staticmethod
    def add_arguments(parser): ...
    @staticmethod
    def run(args):
        try:
            print("begun", flush=True)
            time.sleep(600)
        finally:
            print("cleaned up", flush=True)
for name in list(cli.COMMANDS):
    cli.COMMANDS[name] = Slow
sys.exit(cli.main([sys.argv[1]]))
"""


@pytest.mark.full(but=["2"])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_sigterm_is_like_ctrl_c_in_every_command(sent):
    """`main` itself takes care of it, so one command stands for all."""
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, "audit"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "begun\n"
        process.send_signal(sent)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (130, "cleaned up\n", "fedspend: interrupted\n")


def test_the_handler_is_put_back_and_other_threads_do_without(run):
    before = signal.getsignal(signal.SIGTERM)
    assert run("glossary", "epsilon").code == 0
    assert signal.getsignal(signal.SIGTERM) is before
    codes = []
    thread = threading.Thread(target=lambda: codes.append(cli.main(["glossary", "epsilon"])))
    thread.start()
    thread.join()
    assert codes == [0]


def test_a_forked_worker_dies_of_sigterm_as_workers_do():
    with cli.sigterm_like_interrupt():
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, b"!")  # signals that come before a child is ready are lost
            time.sleep(30)
            os._exit(0)
        os.read(reader, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    assert os.WTERMSIG(status) == signal.SIGTERM
