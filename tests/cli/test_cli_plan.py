"""`fedspend plan`: what it shows and writes, and how it says no."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import fedspend

SAVING = Path(__file__).parents[2] / "examples" / "saving.toml"
PAPER = ("--epsilon", "10:34,20:43,30:23", "--delta", "1e-5", "--rounds", "25", "--rate", "0.9")
SMALL = ("plan", "--epsilon", "10:3,20:2", "--delta", "1e-5", "--rounds", "4", "--rate", "0.9")


def numbers(outcome) -> dict:
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


# --- what it shows --------------------------------------------------------------------------------


def test_the_table_of_a_plan(run):
    outcome = run("plan", SAVING)
    assert (outcome.code, outcome.err) == (0, "")
    for word in (
        "100 clients",
        "25 rounds",
        "1e-05",
        "spend-as-you-go",
        "rdp",
        "zero-out",
        "who took part",
        "Next:",
    ):
        assert word in outcome.out
    rows = [
        line.split()
        for line in outcome.out.splitlines()
        if line.split()[:1] in (["10"], ["20"], ["30"])
    ]
    assert [row[:3] for row in rows] == [
        ["10", "34", "2.424"],
        ["20", "43", "1.409"],
        ["30", "23", "1.045"],
    ]
    assert all(row[-1] == "0.00%" for row in rows)


@pytest.mark.full
def test_the_quickstart_has_the_default_policy_and_says_what_it_gains(run):
    shown = run("plan", SAVING.with_name("quickstart.toml"))
    assert (shown.code, shown.err) == (0, "")
    words = " ".join(shown.out.split())
    assert "policy optimal (method time-adaptive)" in words
    assert (
        "about 10% less noise (variance) in the final model than uniform, if contraction" in words
    )
    assert len(next(line for line in shown.out.splitlines() if "expects" in line)) < 140
    assert "accountant pld (auto" in words
    plain = numbers(run("plan", *PAPER, "--json"))
    assert plain["policy"] == "optimal"
    assert plain["expected"]["variance_of_uniform"] < 0.92
    assert plain["expected"]["worst"] <= 1.01


def test_narrow_terminal_gets_two_tables(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = run("plan", SAVING)
    assert outcome.out.count("budget") == 2
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "…" not in outcome.out


def test_json_agrees_with_the_plan(run, tmp_path):
    shown = numbers(run("plan", SAVING, "--json", "-o", tmp_path / "plan.json"))
    plan = fedspend.Plan.load(tmp_path / "plan.json")
    assert shown["hash"] == plan.hash
    assert (shown["rounds"], shown["delta"], shown["clients"], shown["policy"]) == (
        25,
        1e-5,
        100,
        "spend-as-you-go",
    )
    spent = plan.spent()
    for group, client in zip(shown["groups"], (0, 34, 77), strict=True):
        assert group["budget"]["mean"] == plan.budget[client]
        assert group["noise_multiplier"]["13"]["low"] == plan.noise_multiplier[12, client]
        assert group["clip_norm"]["25"]["high"] == plan.clip_norm[24, client]
        assert group["epsilon_spent"]["6"]["mean"] == spent[5, client]
        assert 0 <= group["unspent_fraction"]["high"] < 1e-3
    assert shown["noise_of_average"][0] == pytest.approx(
        plan.round_noise[0] / (100 * plan.round_rate[0])
    )


def test_flags_give_the_same_plan_as_the_config(run):
    flags = (
        "--saving-rate",
        "10:0.5,20:0.6,30:0.7",
        "--transition",
        "13",
        "--method",
        "time-adaptive",
        "--accountant",
        "rdp",
    )
    by_flags = numbers(run("plan", *PAPER, *flags, "--json"))
    assert by_flags["hash"] == numbers(run("plan", SAVING, "--json"))["hash"]


def test_csv_gives_the_same_schedules_and_its_group_names(run, tmp_path):
    table = tmp_path / "clients.csv"
    lines = [f"p{n},{10 if n % 2 else 20},0.5,2,{'clinic' if n % 2 else 'phone'}" for n in range(6)]
    table.write_text("client,epsilon,saving_rate,transition,group\n" + "\n".join(lines))
    shown = numbers(run("plan", "--budgets", table, *SMALL[3:], "--json"))
    assert [(g["group"], g["clients"], g["budget"]["mean"]) for g in shown["groups"]] == [
        ("clinic", 3, 10),
        ("phone", 3, 20),
    ]
    assert shown["policy"] == "spend-as-you-go"
    assert "clinic" in run("plan", "--budgets", table, *SMALL[3:]).out


def test_config_with_csv_beside_it(run, tmp_path):
    (tmp_path / "b.csv").write_text("client,epsilon\nx,3\ny,4\n")
    (tmp_path / "c.toml").write_text(
        "[privacy]\nbudgets = 'b.csv'\ndelta = 1e-5\nrate = 0.5\n[train]\nrounds = 3\n"
    )
    shown = numbers(run("plan", tmp_path / "c.toml", "--json"))
    assert [g["group"] for g in shown["groups"]] == ["3", "4"]


def test_flags_win_over_the_config(run):
    shown = numbers(
        run(
            "plan",
            SAVING,
            "--rounds",
            "4",
            "--rate",
            "0.8",
            "--transition",
            "2",
            "--epsilon",
            "5:7",
            "--saving-rate",
            "0.4",
            "--json",
        )
    )
    assert (shown["rounds"], shown["clients"], shown["round_rate"]) == (4, 7, [0.4, 0.8, 0.8, 0.8])
    assert numbers(run("plan", SAVING, "--set", "train.rounds=14", "--json"))["rounds"] == 14


@pytest.mark.parametrize(
    ("flags", "policy"),
    [(("--policy", "uniform"), "uniform"), (("--method", "dp-fedavg"), "strictest")],
)
def test_a_policy_or_method_flag_puts_the_configs_aside(run, flags, policy):
    outcome = run("plan", SAVING, *flags, "--json")
    assert outcome.err == ""
    assert numbers(outcome)["policy"] == policy


def test_weights(run):
    heavy_end = numbers(run(*SMALL, "--weights", "1,1,2,4", "--json"))
    assert heavy_end["policy"] == "weights"
    noise = heavy_end["groups"][0]["noise_multiplier"]
    assert noise["1"]["mean"] / noise["4"]["mean"] == pytest.approx(2, rel=1e-6)
    rising = numbers(run(*SMALL, "--weights", "geometric:1.21", "--json"))
    assert rising["policy"] == "geometric"
    assert rising["round_noise"][0] / rising["round_noise"][1] == pytest.approx(1.1, rel=1e-6)


def test_permuted_rates_go_up_with_the_budget(run):
    flags = ("--saving-rate", "10:0.8,20:0.2", "--json")
    plain, permuted = numbers(run(*SMALL, *flags)), numbers(run(*SMALL, *flags, "--permute-rates"))
    assert [g["sampling_rate"]["1"]["mean"] for g in plain["groups"]] == [0.8, 0.2]
    assert permuted["groups"][0]["sampling_rate"]["1"]["mean"] == pytest.approx((0.2 * 2 + 0.8) / 3)
    assert permuted["groups"][1]["sampling_rate"]["1"]["mean"] == pytest.approx(0.8)


@pytest.mark.full
def test_many_budgets_become_bands(run, tmp_path):
    table = tmp_path / "clients.csv"
    table.write_text("client,epsilon\n" + "".join(f"{n},{1 + n / 10}\n" for n in range(100)))
    outcome = run("plan", "--budgets", table, *SMALL[3:], "--plot", tmp_path / "p.png")
    assert outcome.code == 0
    assert "bands" in outcome.out
    shown = numbers(run("plan", "--budgets", table, *SMALL[3:], "--json"))
    assert shown["groups_are_bands"]
    assert sum(g["clients"] for g in shown["groups"]) == 100
    assert all(g["spent"]["high"] <= g["budget"]["high"] for g in shown["groups"])


@pytest.mark.full
def test_compare(run, tmp_path):
    plot = tmp_path / "compare.svg"
    outcome = run(
        "plan",
        SAVING,
        "--compare",
        "uniform,spend-as-you-go,strictest,geometric",
        "--plot",
        plot,
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert plot.read_bytes().lstrip().startswith(b"<?xml")
    for word in (
        "uniform",
        "spend-as-you-go",
        "strictest",
        "geometric",
        "66.67%",
        "noise of average",
    ):
        assert word in outcome.out
    shown = numbers(run("plan", SAVING, "--compare", "uniform,spend-as-you-go", "--json"))[
        "policies"
    ]
    assert list(shown) == ["uniform", "spend-as-you-go"]
    last = [shown[policy]["groups"][0]["noise_multiplier"]["25"]["mean"] for policy in shown]
    assert last[1] < last[0]


def test_quiet_prints_nothing(run, tmp_path):
    outcome = run(*SMALL, "--quiet", "-o", tmp_path / "plan.json.gz")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert fedspend.Plan.load(tmp_path / "plan.json.gz").rounds == 4


def test_large_delta_is_one_warning(run):
    outcome = run(
        "plan",
        "--epsilon",
        "10:3",
        "--delta",
        "0.5",
        "--rounds",
        "2",
        "--rate",
        "0.5",
        "--compare",
        "uniform,strictest",
    )
    assert outcome.code == 0
    assert outcome.err.startswith("warning: delta")
    assert outcome.err.count("\n") == 1


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.PDF", b"%PDF")]
)
def test_plots(run, tmp_path, name, start):
    assert run(*SMALL, "--plot", tmp_path / name).code == 0
    content = (tmp_path / name).read_bytes()
    assert content.startswith(start)
    assert len(content) > 5000
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.full
def test_output_is_not_replaced_by_something_else(run, refused, tmp_path):
    path = tmp_path / "plan.json"
    assert run(*SMALL, "-o", path).code == 0
    first = path.read_bytes()
    again = run(*SMALL, "-o", path)
    assert again.code == 0
    assert "already" in again.out
    assert "--force" in refused(*SMALL, "--clip", "2", "-o", path)
    assert path.read_bytes() == first
    assert run(*SMALL, "--clip", "2", "-o", path, "--force").code == 0
    assert path.read_bytes() != first
    path.write_text("my diary")
    assert "--force" in refused(*SMALL, "-o", path)


def test_unwritable_outputs(refused, tmp_path):
    (tmp_path / "d.json").mkdir()
    (tmp_path / "file").write_text("x")
    for flag, name in (
        ("-o", "plan.txt"),
        ("-o", "d.json"),
        ("-o", "no/such/plan.json"),
        ("-o", "file/plan.json"),
        ("--plot", "a.gif"),
        ("--plot", "no/a.png"),
        ("--plot", "png"),
    ):
        assert name in refused(*SMALL, flag, tmp_path / name)


@pytest.fixture
def ordinary_user(run):
    """Permissions do not bind the superuser: be somebody else for a while."""
    run(*SMALL)  # everything that will be imported is imported while its files can be read
    superuser = os.geteuid() == 0
    if superuser:
        os.seteuid(65534)
    yield
    if superuser:
        os.seteuid(0)


@pytest.mark.usefixtures("ordinary_user")
def test_permissions(run):
    with tempfile.TemporaryDirectory() as folder:
        locked, secret = Path(folder) / "locked", Path(folder) / "secret.csv"
        locked.mkdir(mode=0o500)
        secret.write_text("client,epsilon\na,1\n")
        secret.chmod(0)
        for argv in (
            [*SMALL, "-o", locked / "plan.json"],
            ["plan", "--budgets", secret, *SMALL[3:]],
        ):
            outcome = run(*argv)
            assert outcome.code == 2
            assert "Permission denied" in outcome.err
            assert len(outcome.err.splitlines()) == 1
        assert not list(locked.iterdir())


def test_a_full_disk_is_one_line(refused, monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device", str(tmp_path / "plan.json"))

    monkeypatch.setattr(fedspend.Plan, "save", full)
    assert "No space left" in refused(*SMALL, "-o", tmp_path / "plan.json", code=3)


def test_missing_files(refused, tmp_path):
    assert "nowhere.toml" in refused("plan", tmp_path / "nowhere.toml")
    assert "nowhere.csv" in refused("plan", "--budgets", tmp_path / "nowhere.csv", *SMALL[3:])
    refused("plan", tmp_path)
    refused("plan", "--budgets", tmp_path, *SMALL[3:])


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ([], "no command"),
        (["plna"], "did you mean 'plan'"),
        (["--versio"], "--version"),
        (["plan", "--epsilom", "1"], "did you mean '--epsilon'"),
        (["plan", "--epsilon"], "--epsilon"),
        (["plan", "a.toml", "b.toml"], "'b.toml'"),
        (["plan", "--epsilon", "1", "--budgets", "a.csv"], "not allowed with"),
        (["plan", "--rounds", "ten"], "'ten'"),
        (["plan", "--rounds", "2.5"], "'2.5'"),
        (["plan", "--rate", "x"], "'x'"),
        (["plan"], "--epsilon"),
        (["plan", "--epsilon", "10"], "--clients"),
        (["plan", "--epsilon", "10:2"], "delta is missing: give --delta, or delta under [privacy]"),
        (
            ["plan", "--epsilon", "10:2", "--delta", "1e-5"],
            "rounds is missing: give --rounds, or rounds under [train]",
        ),
        (
            ["plan", "--epsilon", "10:2", "--delta", "1e-5", "--rounds", "3"],
            "rate is missing: give --rate",
        ),
        (["plan", "--set", "privacy.epsilon=3"], "--clients"),
        (["plan", "--set", "privacy.rat=3"], "did you mean 'rate'"),
    ],
)
def test_bad_command_lines(refused, argv, names):
    assert names in refused(*argv)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--epsilon", "nan:3"], "nan"),
        (["--epsilon", "0:3"], "0"),
        (["--epsilon", "-1"], "-1"),
        (["--epsilon", "inf:3"], "inf"),
        (["--epsilon", "1e-9:3"], "1e-09"),
        (["--clients", "7"], "7"),
        (["--clients", "0"], "0"),
        (["--delta", "nan"], "delta"),
        (["--delta", "0"], "delta"),
        (["--delta", "1"], "delta"),
        (["--delta", "-1"], "delta"),
        (["--rate", "0"], "rate"),
        (["--rate", "1.5"], "rate"),
        (["--rate", "nan"], "rate"),
        (["--rounds", "0"], "rounds"),
        (["--rounds", "-3"], "rounds"),
        (["--rounds", "1000000000"], "1,000,000,000"),
        (["--clip", "0"], "clip"),
        (["--clip", "nan"], "clip"),
        (["--clip", "1e-170"], "clip must be positive, from 1e-30 to 1e+30, got 1e-170"),
        (["--accountant", "gdp"], "gdp"),
        (["--policy", "unifrom"], "unifrom"),
        (["--method", "fedavgg"], "fedavgg"),
        (["--method", "dp-fedavg", "--policy", "uniform"], "contradicts"),
        (["--saving-rate", "0.95"], "0.95"),
        (["--saving-rate", "0"], "saving"),
        (["--saving-rate", "nan"], "saving"),
        (["--saving-rate", "10:0.5"], "20"),
        (["--saving-rate", "10:0.5,20:0.5,30:0.5"], "30"),
        (["--saving-rate", "0.5", "--transition", "0"], "transition"),
        (["--saving-rate", "0.5", "--transition", "5"], "transition"),
        (["--saving-rate", "0.5", "--transition", "1.5"], "transition"),
        (["--policy", "spend-as-you-go"], "saving rate"),
        (["--permute-rates"], "--permute-rates"),
        (["--saving-rate", "0.5", "--permute-rates"], "--permute-rates"),
        (["--weights", "1,2"], "2"),
        (["--weights", "1,2,3,-4"], "-4"),
        (["--weights", "1,2,3,x"], "'x'"),
        (["--weights", "linear:2"], "linear"),
        (["--weights", "geometric:0"], "geometric"),
        (["--weights", "1,1,1,1", "--policy", "uniform"], "uniform"),
        (["--policy", "weights"], "weights"),
        (["--compare", "uniform,linear"], "linear"),
        (["--compare", "uniform,uniform"], "twice"),
        (["--compare", "uniform,spend-as-you-go"], "--saving-rate"),
        (["--compare", "weights"], "--weights"),
        (["--compare", "uniform", "--policy", "uniform"], "--policy"),
        (["--compare", "uniform", "-o", "x.json"], "--output"),
    ],
)
def test_bad_values(refused, flags, names, tmp_path):
    output = [] if "--compare" in flags else ["-o", tmp_path / "plan.json"]
    assert names in refused(*SMALL, *output, *flags)


@pytest.mark.full
def test_bad_config_and_csv_point_at_the_line(refused, tmp_path):
    config, table = tmp_path / "c.toml", tmp_path / "b.csv"
    config.write_text("[privacy]\nepsilom = 1\n")
    assert f"{config}:2: unknown key 'epsilom' in [privacy]; did you mean 'epsilon'?" in refused(
        "plan", config
    )
    table.write_text("client,epsilon\na,1\nb,\n")
    assert f"{table}:3: epsilon is empty" in refused("plan", "--budgets", table, *SMALL[3:])
    config.write_text("[data]\nclients = 3\n[privacy]\nbudgets = 'b.csv'\n")
    table.write_text("client,epsilon\na,1\n")
    assert "3 clients" in refused("plan", config)
    config.write_text(
        "[data]\nclients = 2\n[privacy]\ngroups = [{epsilon = 1}, {epsilon = 2}, {epsilon = 3}]\n"
    )
    assert f"{config}:4: group 3" in refused("plan", config)


def test_interruption(run, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedspend.configuration.planned.planned", interrupt)
    outcome = run(*SMALL)
    assert (outcome.code, outcome.err) == (130, "fedspend: interrupted\n")


# --- the process ----------------------------------------------------------------------------------


def test_help_is_light():
    """Help loads neither numpy nor anything that needs it. It takes 0.15 seconds of CPU on a quiet
    core, and may take 2 on a slow and busy one.
    """
    code = (
        "import sys, time\n"
        "from fedspend.cli.main import main\n"
        "codes = [main(argv) for argv in (['--help'], ['plan', '--help'], ['verify', '--help'], "
        "['--version'])]\n"
        "assert codes == [0, 0, 0, 0], codes\n"
        "heavy = {'numpy', 'scipy', 'torch', 'rich', 'matplotlib', 'dp_accounting'} & "
        "set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert time.process_time() < 2, time.process_time()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--saving-rate" in done.stdout
    assert fedspend.__version__ in done.stdout


@pytest.mark.full
def test_planning_loads_no_torch_and_survives_a_closed_pipe():
    code = (
        "import sys, os\n"
        "from fedspend.cli.main import main\n"
        "reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)\n"
        f"code = main({[*SMALL]!r})\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.full
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_output_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedspend", *SMALL],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert done.stderr == "fedspend: cannot write: No space left on device\n"


def test_plot_values_are_the_plans(run, tmp_path):
    from fedspend.report.groups import group_clients, group_tracks

    run("plan", SAVING, "--quiet", "-o", tmp_path / "plan.json")
    plan = fedspend.Plan.load(tmp_path / "plan.json")
    for track, client in zip(group_tracks(plan, group_clients(plan)), (0, 34, 77), strict=True):
        assert np.array_equal(track.spent.mean, plan.spent()[:, client])
        assert np.array_equal(track.noise.high, plan.noise_multiplier[:, client])


def test_what_a_plan_over_lifetime_budgets_leaves_is_not_told(run, tmp_path):
    """Past and plan together spend them; and only Rényi curves say that nothing is left."""
    book, budgets = tmp_path / "accounts.db", tmp_path / "clients.csv"
    budgets.write_text("client,epsilon\na,5\nb,5\n")
    to = ("--ledger", book)
    run("ledger", "init", *to)
    run("ledger", "register", budgets, "--delta", "1e-5", *to)
    plan = ("plan", *to, "--delta", "1e-5", "--rounds", "3", "--rate", "0.9")
    outcome = run(*plan, "--json")
    (group,) = json.loads(outcome.out)["groups"]
    assert group["unspent_fraction"] is None
    said = " ".join(run(*plan).out.split())
    assert "this plan spends all that Rényi curves leave of them" in said
