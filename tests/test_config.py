"""Config files: what is read, and that everything else is refused with FILE:LINE."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspend.configuration.config import config_of, load_config
from fedspend.configuration.sections import SECTIONS
from fedspend.configuration.toml_lines import value_lines
from fedspend.errors import InvalidInput

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart.toml"


def config_file(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "run.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path | None, *overrides: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        load_config(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_quickstart_reads():
    config = load_config(QUICKSTART)
    assert config.data.clients == 100
    assert [group["epsilon"] for group in config.privacy.groups] == [10, 20, 30]
    assert config.method.name == "time-adaptive"
    assert config.privacy.noise == "central"
    assert not config.given("privacy.noise")
    line = QUICKSTART.read_text().splitlines().index("rounds = 25") + 1
    assert config.where("train.rounds") == f"{QUICKSTART}:{line}"


def test_every_key_is_explained_and_its_default_is_good():
    for keys in SECTIONS.values():
        for key in keys.values():
            assert key.help
            assert key.wanted
            assert key.default is None or key.read(key.default) == key.default


@pytest.mark.parametrize(
    ("content", "line", "names"),
    [
        ("[privacy]\nepsilom = 1\n", 2, "unknown key 'epsilom' in [privacy]; did you mean 'epsilon'?"),
        ("\n\n[privacyy]\nrate = 1\n", 3, "unknown section 'privacyy'; did you mean 'privacy'?"),
        ("[zzz]\n", 1, "known are data, model"),
        ("rate = 0.5\n", 1, "unknown section 'rate'"),
        ("privacy = 3\n", 1, "[privacy]"),
        ("[privacy]\nrate = 'high'\n", 2, "rate in [privacy] must be a number above 0 and at most 1, got 'high'"),
        ("[privacy]\nrate = nan\n", 2, "got nan"),
        ("[privacy]\nrate = 0\n", 2, "got 0"),
        ("[privacy]\nrate = 1.01\n", 2, "got 1.01"),
        ("[privacy]\nrate = true\n", 2, "got True"),
        ("[privacy]\ndelta = 1\n", 2, "below 1"),
        ("[privacy]\ndelta = -1e-5\n", 2, "delta"),
        ("[privacy]\nepsilon = inf\n", 2, "got inf"),
        (f"[privacy]\nepsilon = 1{'0' * 400}\n", 2, "more than 60 digits"),
        (f"[privacy]\nepsilon = 1{'0' * 5000}\n", 1, "not valid TOML"),
        ("[privacy]\nclip = 0\n", 2, "clip"),
        ("[privacy]\ntransition = 1.5\n", 2, "transition"),
        ("[privacy]\ntransition = 0\n", 2, "transition"),
        ("[privacy]\naccountant = 'gdp'\n", 2, '"rdp", "pld"'),
        ("[privacy]\nweights = [1, 2, -1]\n", 2, "weights"),
        ("[privacy]\nweights = []\n", 2, "weights"),
        ("[privacy]\ngroups = []\n", 2, "groups"),
        ("[privacy]\ngroups = [1, 2]\n", 2, "groups"),
        ("[privacy]\ngroups = [\n  {epsilon = 1},\n  {epsilom = 2},\n]\n", 4, "'epsilom' in group 2 of [privacy]"),
        ("[privacy]\ngroups = [\n  {epsilon = 1},\n  # {\n  {epsilon = 1, share = -1},\n]\n", 5, "share in group 2"),
        ("[privacy]\ngroups = [\n  {share = 1},\n]\n", 3, "no epsilon"),
        ("[[privacy.groups]]\nepsilon = 1\n[[privacy.groups]]\nepsilon = nan\n", 4, "group 2"),
        ("privacy.groups = [{epsilon=1}]\nprivacy.rate = 2\n", 2, "rate"),
        ("[privacy]\nepsilon = 1\nbudgets = 'a.csv'\n", 3, "both epsilon and budgets"),
        ("[privacy]\nbudgets = ''\n", 2, "budgets"),
        ("[train]\nrounds = 25.0\n", 2, "whole number"),
        ("[train]\nrounds = 0\n", 2, "whole number"),
        ("[train]\nseed = -1\n", 2, "seed"),
        ("[data]\nclients = 2026-01-01\n", 2, "clients"),
        ("[data]\nclients = 10\n[data]\n", 3, "not valid TOML"),
        ("[data]\nclients = 10\nclients = 11\n", 3, "not valid TOML"),
        ("[privacy]\nrate == 1\n", 2, "not valid TOML"),
        ("[privacy]\nrate = \n", 2, "not valid TOML"),
        ("[privacy]\ngroups = [\n", 3, "not valid TOML"),
        (b"[privacy]\n# \xff\n", 2, "UTF-8"),
        ("\r\n[privacy]\r\nrate = 7\r\n", 3, "rate"),
        ('[data]\nname = """\n[privacy]\nx = 1\n"""\n', 2, "name"),
        ('[data]\nname = """\\\n  [privacy]\\\n  """\nclients = 0\n', 5, "clients"),
        ('[data]\n"clients" = 0\n', 2, "clients"),
    ],
)
def test_bad_files_name_file_and_line(tmp_path, content, line, names):
    path = config_file(tmp_path, content)
    message = refusal(path)
    assert message.startswith(f"{path}:{line}: ")
    assert names in message


def test_deep_nesting_is_refused(tmp_path):
    refusal(config_file(tmp_path, "[privacy]\nweights = " + "[" * 5000 + "]" * 5000))


def test_byte_order_mark(tmp_path):
    assert load_config(config_file(tmp_path, "\ufeff[train]\nrounds = 3\n")).train.rounds == 3


FILES = ("data.path", "data.test_path", "data.public_path", "privacy.budgets", "ledger.location")


@pytest.mark.parametrize("name", FILES)
def test_files_are_found_from_the_config_that_names_them(name, tmp_path, monkeypatch):
    section, key = name.split(".")
    (tmp_path / "configs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    path = config_file(tmp_path / "configs", f"[{section}]\n{key} = '../file.csv'\n")
    wanted = str(tmp_path / "file.csv")
    monkeypatch.chdir(tmp_path)
    assert load_config("configs/run.toml").value(name) == wanted
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_config("../configs/run.toml").value(name) == load_config(path).value(name) == wanted, "wherever one stands"
    assert load_config(path, [f"{name}=other.csv"]).value(name) == str(tmp_path / "elsewhere/other.csv"), "typed here, found here"
    assert config_of({section: {key: "other.csv"}}).value(name) == str(tmp_path / "elsewhere/other.csv")
    assert load_config(config_file(tmp_path, f"[{section}]\n{key} = '/data/x.csv'\n")).value(name) == "/data/x.csv"


def test_a_ledger_on_a_server_is_no_file(tmp_path):
    path = config_file(tmp_path, "[ledger]\nlocation = 'postgresql://me@host/accounts'\n")
    assert load_config(path).ledger.location == "postgresql://me@host/accounts"
    path = config_file(tmp_path, "[ledger]\nlocation = 'sqlite:accounts.db'\n")
    assert load_config(path).ledger.location == str(tmp_path / "accounts.db")
    assert "mysql:// is not known" in refusal(config_file(tmp_path, "[ledger]\nlocation = 'mysql://host'\n"))


def test_every_file_in_a_config_is_placed():
    named = {f"{section}.{key}" for section, keys in SECTIONS.items() for key, one in keys.items() if one.placed is not None}
    assert named == set(FILES)
    for section, keys in SECTIONS.items():
        for key, one in keys.items():
            assert "file" not in one.help.split() or f"{section}.{key}" in FILES, f"{section}.{key} names a file"


def test_overrides():
    config = load_config(QUICKSTART, ["privacy.rate=0.8", "privacy.policy=uniform", "train.rounds = 7", "train.rounds=8"])
    assert (config.privacy.rate, config.privacy.policy, config.train.rounds) == (0.8, "uniform", 8)
    assert config.where("privacy.rate") == "--set privacy.rate=0.8"
    assert load_config(None, ["privacy.rate=1"]).privacy.rate == 1.0
    assert load_config(None, ["privacy.weights=[1, 2]"]).privacy.weights == [1.0, 2.0]


def test_an_override_takes_the_place_of_the_files_budgets():
    config = load_config(QUICKSTART, ["privacy.epsilon=5"])
    assert config.privacy.epsilon == 5
    assert not config.given("privacy.groups")


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("privacy.rate", "section.key=value"),
        ("rate=1", "section.key=value"),
        ("=", "section.key=value"),
        ("privacy.rat=0.5", "did you mean 'rate'"),
        ("privcy.rate=0.5", "did you mean 'privacy'"),
        ("privacy.rate=", "no value"),
        ("privacy.rate=high", "got 'high'"),
        ("privacy.rate=nan", "got nan"),
        ("privacy.groups=[{epsilon=1", "not a valid TOML value"),
        ("privacy.groups=[{epsilon=nan}]", "group 1"),
        ("privacy.groups.0.epsilon=1", "unknown key"),
        ("privacy.rate=1\n[train]", "not a valid TOML value"),
    ],
)
def test_bad_overrides_are_named(override, names):
    with pytest.raises(InvalidInput) as caught:
        load_config(None, [override])
    assert str(caught.value).startswith(f"--set {override}")
    assert names in str(caught.value)


def paths(value, prefix=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*prefix, key)
        yield from paths(inner, (*prefix, key))


SCALARS = st.sampled_from(
    ["1", "-2.5", "true", '"a ] } # ="', "'[x'", '"""two\n[lines] \\" """', "'''\n{'''", "1979-05-27 07:32:00", "nan"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[ # [\n" + ",\n".join(items) + "\n]"),
        st.lists(inner, max_size=3).map(lambda items: "{" + ", ".join(f"k{n} = {item}" for n, item in enumerate(items)) + "}"),
    ),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.sampled_from(["[s{n}]", "[[t]]", "[[t.u]]", '["q.{n}"]', "# comment ["]), VALUES), max_size=6))
def test_lines_cover_exactly_the_paths_that_tomllib_finds(parts):
    text = "".join(f"{header.format(n=n)}\nkey{n} . x = {value}\n" for n, (header, value) in enumerate(parts))
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = value_lines(text)
    assert set(lines) == set(paths(document))
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())
