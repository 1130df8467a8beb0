"""`fedspend design` as a user meets it: theory at once, a search with its files, and refusals in
one line.
"""

import csv
import json
import math
import subprocess
import sys

import pytest
from lib.configs import small, write_toml

CONFIG = small(
    "plain",
    data__examples=120,
    data__features=5,
    method=None,
    privacy={"rate": 0.5, "clip": 0.5, "delta": 1e-3},
    train={"rounds": 5, "local_steps": 2, "batch_size": 8, "lr": 0.5},
    design={"noise_levels": [0.05, 0.2, 0.6, 1.0], "seeds": 2},
)
THEORY = ("design", "theory", "--k", 22, "--rate", 1, "--clients", 10)


@pytest.fixture
def config(tmp_path):
    return write_toml(tmp_path / "grid.toml", CONFIG)


# --- theory ---


def test_theory_answers_with_the_known_numbers(run):
    outcome = run(*THEORY, "--max-rounds", 150, "--max-noise", 0.1, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    answer = json.loads(outcome.out)
    rows = {row["rounds"]: row for row in answer["rows"]}
    assert answer["case"] == "II"
    assert rows[20]["noise"] == [0.1, 0.1]
    assert rows[150]["noise"] == pytest.approx([0, 0.0550481883], abs=5e-11)
    assert rows[45]["noise"][1] == 0.1 > rows[46]["noise"][1], "the crossing is shown"
    fifty = json.loads(run(*THEORY, "--max-rounds", 200, "--rounds", 50, "--json").out)["rows"]
    assert fifty[0]["noise"] == pytest.approx([0.0953462589] * 2, abs=5e-11)
    assert fifty[0]["exact"] == pytest.approx(
        [math.sqrt(10 / (22 * 51)), math.sqrt(10 / (22 * 49))]
    )


def test_theory_as_a_table(run):
    out = run(
        *THEORY, "--max-rounds", 200, "--max-noise", 0.1, "--delta", "1e-5", "--clip", 0.3
    ).out
    for words in (
        "paper's curve",
        "exact band",
        "privacy proxy",
        "real ε",
        "0.09535",
        "case        II",
    ):
        assert words in out
    free = run("design", "theory", "--k", 22, "--clients", 40, "--max-rounds", 100).out
    assert "q free" in free
    assert "σ/√q" in free
    assert run(*THEORY, "--max-rounds", 200, "--quiet").out == ""


def test_theory_recommends_under_a_real_epsilon(run):
    flags = (
        "--rate",
        0.5,
        "--clients",
        400,
        "--max-rounds",
        80,
        "--delta",
        "1e-5",
        "--clip",
        0.3,
        "--max-epsilon",
        5,
    )
    outcome = run("design", "theory", "--k", 25, *flags, "--json")
    best = json.loads(outcome.out)["recommended"]
    assert best["epsilon"] == 5
    assert best["noise_multiplier"] * 0.3 / math.sqrt(200) == pytest.approx(best["noise_level"])
    out = run("design", "theory", "--k", 25, *flags).out
    assert "recommended" in out
    assert 'name = "dp-fedsgd"' in out


@pytest.mark.full
def test_theory_loads_no_torch():
    code = (
        "import sys\n"
        "from fedspend.cli.main import main\n"
        "assert main(['design', 'theory', '--k', '22', '--rate', '1', '--clients', '10', "
        "'--max-rounds', '200']) == 0\n"
        "import fedspend\n"
        "fedspend.design.non_dominated([[1, 2]])\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        ("theory", "--clients"),
        ("theory --clients 10", "--max-rounds"),
        ("theory --clients 10 --max-rounds 9", "--k"),
        ("theory --clients 10 --max-rounds 9 --k 2 --k-from x", "--k"),
        ("theory --clients 10 --max-rounds 9 --k nan", "k must be a finite number"),
        ("theory --clients 10 --max-rounds 9 --k -1", "k must be positive"),
        ("theory --clients 10 --max-rounds 9 --k 2 --rate 2", "rate"),
        ("theory --clients 10 --max-rounds 9 --k 2 --rounds 10", "at most max_rounds"),
        ("theory --clients 10 --max-rounds 9 --k 2 --max-noise 1", "--rate"),
        ("theory --clients 10 --max-rounds 9 --k 2 --rate 1 --max-epsilon 1", "--delta"),
        ("theory --clients 10 --max-rounds 9 --k 2 --rate 1 --delta 1", "delta must lie strictly"),
        ("theory --clients 10 --max-rounds 9 --k 2 --rate 1 --delta 1e-5 --clip 0", "clip must"),
        ("theory --clients 10 --max-rounds 9 --k 2 --rate 1 --clip nan", "clip must"),
        ("theory --clients 10 --max-rounds 9 --k-from nowhere", "nowhere"),
        ("theory --clients 10 --max-rounds 9 --k 2 --output x", "--output is only for a search"),
        (
            "theory --clients 10 --max-rounds 9 --k 2 --max-seconds 5",
            "--max-seconds is only for a search",
        ),
        ("CONFIG --k 22", "--k is only for theory"),
        ("CONFIG --max-noise 22", "--max-noise is only for theory"),
        ("CONFIG --workers 0", "at least 1"),
        ("CONFIG --set design.seed=1", "did you mean 'seeds'?"),
        ("CONFIG --set train.lr_schedule=cosine", "lr_schedule"),
        ("teory", "neither a config file nor the word theory"),
        ("nothere.toml", "nothere.toml"),
        ("", "see fedspend design --help"),
    ],
)
def test_bad_arguments(refused, config, tmp_path, argv, word):
    place = ["--output", tmp_path / "out"] if argv and not argv.startswith("theory") else []
    given = (config if one == "CONFIG" else one for one in argv.split())
    assert word in refused("design", *given, *place)


@pytest.mark.parametrize("change", ["data.name=csv", "privacy.randomness=os"])
def test_what_is_not_public_simulation_is_refused(refused, config, tmp_path, change):
    words = refused("design", config, "-o", tmp_path / "out", "--set", change, code=1)
    assert "search" in words


def test_k_from_a_file_that_is_no_search(refused, tmp_path):
    (tmp_path / "pareto.json").write_text('{"k": null}')
    flags = ("--clients", 10, "--max-rounds", 9, "--k-from", tmp_path)
    assert "no estimate of k" in refused("design", "theory", *flags)
    for bad in ("", "[]", '{"k": 3}', '{"k": {"k": "x", "low": 1, "high": 2}}'):
        (tmp_path / "pareto.json").write_text(bad)
        assert "is not the pareto.json of a search" in refused("design", "theory", *flags)


# --- a search ---


@pytest.mark.full
def test_a_search_leaves_its_files_and_says_so(run, config, tmp_path):
    folder = tmp_path / "out"
    flags = ("-o", folder, "--workers", 1, "--max-epsilon", 40, "--max-seconds", 3600)
    first = run("design", config, *flags)
    assert first.code == 0
    for words in (
        "Tuning data must be public",
        "protects nobody",
        "real ε",
        "recommended",
        "[privacy]",
        "noise_level = ",
        "pareto.json",
    ):
        assert words in first.out
    assert "8 of 8 trainings" in first.err
    for name in (
        "pareto.json",
        "front.csv",
        "front.png",
        "solutions.png",
        "trainings.jsonl",
        "search.json",
    ):
        assert (folder / name).stat().st_size > 0
    assert (folder / "front.png").read_bytes().startswith(b"\x89PNG")
    with (folder / "front.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"rounds", "noise_level", "epsilon", "proxy", "loss"} <= set(rows[0])
    again = run("design", config, *flags, "--json")
    assert again.err == "", "nothing is left to train"
    document = json.loads(again.out)
    assert document["recommended"]["epsilon"] <= 40
    assert f"rounds = {document['recommended']['rounds']}" in document["config"]
    assert document["front"] == json.loads((folder / "pareto.json").read_text())["front"]
    assert run("design", config, *flags, "--quiet").out == ""


@pytest.mark.full
def test_limits_that_nothing_meets_are_a_refusal(run, config, tmp_path):
    folder = tmp_path / "out"
    assert run("design", config, "-o", folder, "--workers", 1, "--quiet").code == 0
    outcome = run("design", config, "-o", folder, "--quiet", "--max-epsilon", "1e-3")
    assert outcome.code == 1
    assert "no setting of this search meets the limits (epsilon at most 0.001" in outcome.err


def test_ctrl_c_says_how_to_go_on(run, config, tmp_path, monkeypatch):
    import fedspend.design.searching

    def interrupted(*_args, **_named):
        raise KeyboardInterrupt

    monkeypatch.setattr(fedspend.design.searching, "train_one", interrupted)
    outcome = run("design", config, "-o", tmp_path / "out", "--workers", 1)
    assert outcome.code == 130
    assert "run the same command to continue" in outcome.err
