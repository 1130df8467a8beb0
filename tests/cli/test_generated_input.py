"""Generated bad input: whatever a config, a flag, a file or an argument holds, the answer is one
line and the right exit code, and nothing is left behind.

200 in `make test-full`, more with FEDSPEND_BAD_INPUTS=1000. The seed of each is its number, so that
one that fails can be repeated alone. Not all of it is bad by chance: then the command may go
through.
"""

import os
import random
import warnings

import pytest
from lib.configs import small, write_toml

from fedspend.basics.toml_text import config_text
from fedspend.cli.main import main
from fedspend.configuration.sections import SECTIONS

HOW_MANY = int(os.environ.get("FEDSPEND_BAD_INPUTS", "200"))
# commands that read a config and stop at what is wrong with it; those that serve pages do not end
ASKED = ("plan", "train", "verify", "explain", "report", "predict", "publish", "ledger", "data")

VALUES = (
    *(0, -1, -0.0, 1e-320, 1e308, 2**63, -(2**63), 10**40, 0.5, 7, True, False),
    *("", " ", "abc", "nan", "-inf", "a\nb", "\x00", "\u202e", "💥" * 3, "x" * 5000, "../..", "/"),
    *([], [[]], [0], [-1.0], [1, "a"], ["a", "a"], {}, {"a": 1}, [{}], [{"epsilon": -1}]),
    *(float("nan"), float("inf"), -float("inf")),
)
FLAG_VALUES = (
    *("", " ", "abc", "-1", "0", "1e999", "nan", "inf", "1,2", "1:2:3", "5:", ":5", "0x10", "٣"),
    *("--", "=", "a=b", "train.lr=", "train.lr=-1", "nope.nope=1", "train=1", "a.b.c=2", "\x00"),
    *("/", ".", "/dev/null", "/proc/self/mem", "nowhere/at/all", "postgresql://", "sqlite:", "💥"),
)
FILES = {
    "empty": b"",
    "zeros": bytes(300),
    "text": b"hello\n",
    "latin": "client,epsilon\nM\xfcller,1\n".encode("latin-1"),
    "utf16": "client,epsilon\na,1\n".encode("utf-16"),
    "halved": b'{"format": "fedspend-plan", "rou',
    "deep": b"[" * 5000,
    "list": b"[1, 2, 3]",
    "numbers": b'{"rounds": 1e999, "clients": "x"}',
    "no_rows": b"client,epsilon\n",
    "uneven": b"client,epsilon\na,1,2\nb\n",
    "twice": b"client,epsilon\na,1\na,2\n",
    "negative": b"client,epsilon\na,-1\n",
    "words": b"client,epsilon\na,many\n",
    "quoted": b'client,epsilon\n"a,1\n',
    "toml": b"[train\nrounds = 3",
    "doubled": b"[train]\nrounds = 3\nrounds = 4\n",
    "zip": b"PK\x03\x04" + bytes(60),
    "gzip": b"\x1f\x8b" + bytes(60),
    "pickle": b"\x80\x04K\x01.",
}


def a_config(draw, folder):
    """A config that trains, with something in it replaced, added, renamed or dropped."""
    content = small()
    for _ in range(draw.choice((1, 1, 1, 2))):
        section = draw.choice([name for name in SECTIONS if name not in ("node",)])
        key = draw.choice(list(SECTIONS[section]))
        kind = draw.randrange(5)
        if kind < 3:
            content.setdefault(section, {})[key] = draw.choice(VALUES)
        elif kind == 3 and content.get(section):
            content[section].pop(draw.choice(list(content[section])))
        else:
            content.setdefault(section, {})[key + draw.choice("sx_")] = 1
    path = folder / "config.toml"
    try:
        text = config_text(content)
    except (TypeError, ValueError):
        text = "[data]\nname = \n"
    path.write_text(text.encode("utf-8", "replace").decode(), encoding="utf-8")
    return path


def of_config(draw, folder):
    path = a_config(draw, folder)
    if draw.random() < 0.5:
        return ["plan", str(path), "--quiet"]
    return ["train", str(path), "-o", str(folder / "run"), "--quiet"]


def of_flags(draw, folder):
    """A command line that may be right, with flags of that command and values from a hat."""
    from fedspend.cli.main import build_parser

    name = draw.choice(ASKED)
    _, parsers = build_parser()
    known = [
        one
        for action in parsers[name]._actions
        for one in action.option_strings
        if one not in ("-h", "--help", "--watch")
    ]
    argv = [name, *draw.choices(FLAG_VALUES, k=draw.randrange(2))]
    for _ in range(draw.randrange(1, 4)):
        argv.append(draw.choice(known) if known and draw.random() < 0.9 else "--what")
        if draw.random() < 0.8:
            argv.append(draw.choice(FLAG_VALUES))
    if name in ("train", "plan") and draw.random() < 0.5:
        write_toml(folder / "good.toml", small())
        argv.insert(1, str(folder / "good.toml"))
    return argv


def of_files(draw, folder):
    """Files that hold something else than their names say."""
    name = draw.choice(list(FILES))
    body = FILES[name]
    if draw.random() < 0.3 and body:
        at = draw.randrange(len(body))
        body = body[:at] + bytes([draw.randrange(256)]) + body[at + 1 :]
    path = folder / f"file.{draw.choice(('csv', 'json', 'toml', 'npz', 'parquet', 'key'))}"
    path.write_bytes(body)
    good = folder / "good.toml"
    write_toml(good, small())
    terms = ["--rounds", "2", "--rate", "1", "--delta", "1e-3", "--quiet"]
    return draw.choice(
        (
            ["plan", "--budgets", str(path), *terms],
            ["plan", str(path), "--quiet"],
            ["train", str(path), "-o", str(folder / "run"), "--quiet"],
            ["train", str(good), "--plan", str(path), "-o", str(folder / "run"), "--quiet"],
            ["train", str(good), "--sign", str(path), "-o", str(folder / "run"), "--quiet"],
            ["train", str(good), "--ledger", str(path), "-o", str(folder / "run"), "--quiet"],
            ["verify", str(path)],
            ["explain", str(path)],
            ["report", str(path)],
            ["report", str(folder)],
            ["predict", str(folder), str(path)],
            ["publish", str(folder)],
            ["ledger", "show", "--ledger", str(path)],
            ["ledger", "register", str(path), "--delta", "1e-5", "--ledger", str(folder / "no.db")],
            ["data", "check", str(path)],
        )
    )


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.full(but_every=5)
@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("seed", range(HOW_MANY))
def test_a_bad_command_is_one_line_and_leaves_nothing_behind(seed, tmp_path, monkeypatch, capsys):
    draw = random.Random(seed)
    monkeypatch.chdir(tmp_path)
    argv = (of_config, of_flags, of_files)[seed % 3](draw, tmp_path)
    argv = [argument.replace("\x00", "\\0") for argument in argv]  # no system passes it on
    before = contents(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = main(argv)
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("warning: ")]
    assert code in (0, 1, 2), (argv, captured.err)
    assert "Traceback" not in captured.err
    if code:
        said = [line for line in lines if line.startswith("fedspend: ")]
        assert len(said) == 1 == len(lines) or (code == 1 and captured.out), (argv, lines)
        assert contents(tmp_path) == before, (argv, lines)
