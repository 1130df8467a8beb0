"""Exit codes, signals and the log: what a script around the command can rely on."""

import errno
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest
from lib.configs import small, write_toml

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


@pytest.mark.usefixtures("quick_verify")
def test_the_log_tells_rounds_and_the_end_with_times(run, config, tmp_path):
    log = tmp_path / "run.log"
    assert run("train", config, "-o", tmp_path / "run", "--quiet", "--log", log).code == 0
    lines = log.read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (INFO|WARNING|ERROR) ", x) for x in lines)
    said = "\n".join(lines)
    assert "fedspend train" in lines[0]
    assert [f"round {t}/4" in said for t in (1, 2, 3, 4)] == [True] * 4
    assert lines[-1].endswith("ended with exit code 0")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    log.chmod(0o644)  # made by something else before
    # it goes on in the same file, and has what went wrong
    assert run("train", config, "-o", tmp_path / "run", "--quiet", "--log", log).code == 2
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    more = log.read_text().splitlines()
    assert more[: len(lines)] == lines
    assert "is not empty" in more[-2]
    assert more[-1].endswith("ended with exit code 2")


@pytest.mark.usefixtures("quick_verify")
def test_the_log_of_a_real_run_does_not_tell_how_long_rounds_took(run, tiny, tmp_path):
    config, log = tmp_path / "real.toml", tmp_path / "run.log"
    tiny["privacy"]["randomness"] = "os"
    write_toml(config, tiny)
    args = ("train", config, "-o", tmp_path / "run", "--project", "p", "--quiet", "--log", log)
    done = run(*args)
    assert done.code == 0, done.err
    lines = log.read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if "round 1/4" in line)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:", lines[0])
    assert all(re.match(r"\d{4}-\d\d-\d\d [A-Z]", line) for line in lines[first:])
    assert len(lines[first:]) == 5


@pytest.mark.usefixtures("quick_verify")
def test_the_log_of_a_real_run_has_no_count_of_updates_that_were_dropped(run, tmp_path):
    """It depends on rows: the operator hears of it, and no file keeps it."""
    values = ("3e38", "-3e38", "3e38", "-3e38")
    rows = ["client,a,label", *(f"{c},{x},{n % 2}" for c in "xy" for n, x in enumerate(values))]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    data = {"name": "csv", "path": "rows.csv", "classes": 2}
    log = tmp_path / "run.log"
    config = write_toml(tmp_path / "real.toml", small("plain", data=data, train__lr=1e6))
    done = run("train", config, "-o", tmp_path / "run", "--project", "p", "--log", log)
    assert done.code == 0, done.err
    assert "updates were not finite" in done.err
    assert "not finite" not in log.read_text()


def test_the_log_has_no_password(run, config, tmp_path):
    log = tmp_path / "run.log"
    where = "postgresql://ann:hush-hush@127.0.0.1:9/none"
    args = ("train", config, "-o", tmp_path / "r", "--ledger", where, "--log", log)
    assert run(*args).code == 3
    assert "hush-hush" not in log.read_text()
    assert "127.0.0.1" in log.read_text()


@pytest.mark.parametrize("name", [".", "nowhere/x.log", "tiny.toml/x.log"])
def test_a_log_that_cannot_be_written_is_refused_first(refused, config, tmp_path, name):
    said = refused("train", config, "-o", tmp_path / "run", "--log", tmp_path / name)
    assert "--log" in said


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_log_on_a_full_disk_never_stops_the_command(run):
    done = run("glossary", "epsilon", "--log", "/dev/full")
    assert done.code == 0
    assert done.err == "warning: cannot write the log: No space left on device\n"
