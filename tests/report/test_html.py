"""The report as a file: what it says, what it must not say, and runs that are unusual."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedspend.cli.main import main
from fedspend.errors import InvalidInput
from fedspend.report.html import render, write_report
from fedspend.report.run_data import load_runs

VOID = {"meta", "link"}
EVIL = "<script>alert('x')</script>\" onload=alert(1) &amp;"


class Page(HTMLParser):
    """Checks that tags nest, and collects text and attributes."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source, self.open, self.tags, self.words = source, [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def figures(self) -> list[tuple[str, str]]:
        """Title and mark of every chart."""
        return [
            (label.split(",")[0], mark)
            for mark, label in re.findall(
                r'<figure.*?data-mark="(\w+)".*?aria-label="(.*?)"', self.source
            )
        ]


@pytest.fixture
def report(tmp_path):
    def report(*runs: Path) -> Page:
        write_report(list(runs), tmp_path / "report.html")
        return Page((tmp_path / "report.html").read_text("utf-8"))

    return report


# --- what it says ---------------------------------------------------------------------------------


@pytest.mark.full
def test_a_simulation_says_first_that_it_protects_nobody(make, report, tmp_path):
    page = report(make(tmp_path / "quickstart"))
    start = page.text[:400]
    assert "Simulation" in start
    assert "protects nobody" in start
    assert dict(page.figures()) == {
        "Accuracy": "public",
        "Loss": "public",
        "Privacy spent": "planned",
        "Noise multiplier": "planned",
        "Sampling rate": "planned",
        "Clip norm": "planned",
        "Noise of the averaged update": "planned",
        "Clipped updates": "simulation",
        "Update norms": "simulation",
    }
    for words in (
        "85.8%",
        "always guessing the most common class: 10.2%",
        "100%",
        "PASS",
        "worst margin",
        "participation revealed",
        "dirichlet",
        "2.13.0",
    ):
        assert words in page.text
    for mark in ("planned", "public rows", "simulation only"):
        assert page.text.count(mark) >= 2
    for once in ("known before the run, costs nothing", "not private, a real run does not show it"):
        assert page.text.count(once) == 1  # marks are explained in one place


def test_a_real_run_shows_no_statistics_of_updates(make, report, tmp_path):
    def leak(record):
        return record | {
            "clipped_share": 0.123456,
            "mean_norm": 7.654321,
            "norm_quantiles": [6.1, 7.2, 8917.5],
            "cohort": 71,
            "overflowed": 3,
        }

    page = report(make(tmp_path / "real", randomness="os", change=leak))
    assert page.text.count("Real run") == 1
    assert "Simulation" not in page.text
    assert "simulation" not in {mark for _, mark in page.figures()}
    assert not re.search(r"12\.3%|7\.65|8917|8,917|8918|modulus", page.text)


@pytest.mark.full
def test_norms_are_shaded_and_overflow_is_reported(make, report, tmp_path):
    """A record without quantiles (an older run, a damaged line) has no shade, and is shown all the
    same.
    """
    page = report(make(tmp_path / "shaded", change=lambda r: r | {"overflowed": 0}))
    assert (
        "all but the shortest and longest tenth. No coordinate overflowed the modulus." in page.text
    )
    page = report(
        make(tmp_path / "over", change=lambda r: r | {"overflowed": int(r["round"] in (3, 4))})
    )
    assert "2 coordinates overflowed the modulus" in page.text
    for bad in (None, [], "wide", [None, 1.0, 2.0], [math.inf, 1.0]):
        page = report(
            make(
                tmp_path / f"bad-{bad}",
                change=lambda r, bad=bad: r | {"norm_quantiles": bad} if r["round"] == 2 else r,
            )
        )
        assert "shortest" not in page.text
        assert dict(page.figures())["Update norms"] == "simulation"


def test_statistics_need_every_stamp_to_say_simulation(make, report, tmp_path):
    page = report(
        make(
            tmp_path / "mixed",
            change=lambda r: r | {"randomness": "os" if r["round"] == 3 else "seeded"},
        )
    )
    assert "protects nobody" in page.text
    assert "Clipped updates" not in page.text


def test_a_real_run_without_a_sound_certificate_is_called_unverified(make, report, tmp_path):
    for name, certificate in (
        ("other", {"plan_hash": "sha256:0"}),
        ("failed", {"ok": False, "failures": ["client '<b>': over"]}),
        ("odd", {"ok": 1}),
    ):
        page = report(make(tmp_path / name, randomness="os", certificate=certificate))
        assert "Not verified" in page.text[:300]
        assert "FAIL" in page.text
        assert "PASS" not in page.text
        assert "<b>'" not in page.source
    run = make(tmp_path / "none", randomness="os")
    (run / "certificate.json").unlink()
    assert "no certificate.json" in report(run).text


@pytest.mark.full
def test_a_certificate_with_the_verdict_only_is_enough(make, report, tmp_path):
    run = make(tmp_path / "short")
    verdict = json.loads((run / "certificate.json").read_text())
    (run / "certificate.json").write_text(
        json.dumps({"ok": True, "plan_hash": verdict["plan_hash"]})
    )
    assert "PASS" in report(run).text


def test_spending_that_differs_from_the_plan_is_noticed(make, report, tmp_path):
    def less(record):
        return (
            record | {"epsilon": record["epsilon"] | {"20": 0.5}}
            if record["round"] == 4
            else record
        )

    assert (
        "Round 4, group 20: the metrics say epsilon 0.5"
        in report(make(tmp_path / "altered", change=less)).text
    )
    assert "altered." not in report(make(tmp_path / "sound")).text


@pytest.mark.full
def test_observers_of_distributed_noise_are_set_apart(make, report, tmp_path):
    central = report(make(tmp_path / "central"))
    spread = report(make(tmp_path / "spread", settings={"privacy.noise": "distributed"}))
    assert "not this run: its noise is central" in central.text
    assert "not this run" not in spread.text


# --- safe and whole -------------------------------------------------------------------------------


@pytest.mark.full
def test_no_string_becomes_markup(make, report, tmp_path):
    labels = [EVIL] * 34 + ["<img src=x>"] * 43 + ["\x00\ud800'"] * 23
    run = make(
        tmp_path / "<script>alert(9)<",
        labels=labels,
        settings={"model.name": EVIL, "data.name": EVIL, EVIL: EVIL},
        certificate={
            "failures": [EVIL],
            "checks": [{"name": EVIL, "meaning": EVIL, "accountant": EVIL, "passed": EVIL}],
        },
    )
    other = make(tmp_path / "other")
    for page in (report(run), report(run, other)):
        assert [tag for tag, _ in page.tags].count("script") == 1
        assert "img" not in [tag for tag, _ in page.tags]
        assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
        assert EVIL in page.text
        assert "\x00" not in page.source


@pytest.mark.full
def test_nothing_is_loaded_and_nothing_changes(make, report, tmp_path):
    run = make(tmp_path / "run")
    first, second = report(run).source, report(run).source
    assert first == second
    assert not re.search(
        r"https?:|//cdn|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")", first
    )
    assert not any(
        "src" in attributes or "style" in attributes for _, attributes in Page(first).tags
    )
    assert any(
        "default-src 'none'" in attributes.get("content", "") for _, attributes in Page(first).tags
    )
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o600


@pytest.mark.full
def test_every_chart_has_words_and_numbers_behind_it(make, report, tmp_path):
    page = report(make(tmp_path / "run"))
    charts = [attributes for tag, attributes in page.tags if tag == "svg"]
    figures = [tag for tag, _ in page.tags].count("figure")
    assert len(charts) == 2 * figures  # wide and narrow
    assert all(one["role"] == "img" and "from" in one["aria-label"] for one in charts)
    assert page.source.count('<details class="numbers">') == figures
    assert "nan" not in page.source.lower().replace("nanoseconds", "")


# --- unusual runs ---------------------------------------------------------------------------------


@pytest.mark.full
def test_a_run_in_progress(make, report, tmp_path):
    page = report(make(tmp_path / "begun", done=11))
    assert "11 of 25" in page.text
    assert "in progress" in page.text
    assert "planned for rounds 12 to 25" in page.text
    assert "line ahead" in page.source


def test_fedavg_has_no_plan_and_says_so(make, report, tmp_path):
    page = report(make(tmp_path / "fedavg", method="fedavg"))
    assert page.figures() == [
        ("Accuracy", "simulation"),
        ("Loss", "simulation"),
        ("Update norms", "simulation"),
    ]
    assert "this method promises nothing" in page.text
    real = report(make(tmp_path / "real", method="fedavg", randomness="os"))
    assert "Not private" in real.text[:300]


@pytest.mark.full
def test_skipped_rounds_and_losses_that_are_not_finite(make, report, tmp_path):
    def change(record):
        loss = {2: None, 3: math.nan, 5: math.inf}.get(record["round"], record["loss"])
        return record | {"loss": loss} | ({"skipped": True} if record["round"] == 7 else {})

    page = report(make(tmp_path / "gaps", change=change))
    assert "3 rounds without a finite loss" in page.text
    assert "1 round skipped" in page.text
    assert 'class="mark"' in page.source


def test_no_loss_and_no_accuracy_at_all(make, report, tmp_path):
    page = report(
        make(tmp_path / "empty", change=lambda record: {"round": record["round"], "loss": None})
    )
    assert "Nothing to draw: no round has a finite loss" in page.text
    assert "Privacy spent" in dict(page.figures())


@pytest.mark.full(but=["dp-fedavg"])
@pytest.mark.parametrize(
    "method", ["idp-fedavg", "time-adaptive", "adaptive-clip", "dp-fedavg", "fedavg"]
)
def test_one_round(make, report, tmp_path, method):
    page = report(
        make(
            tmp_path / "one", rounds=1, method="idp-fedavg" if method == "time-adaptive" else method
        )
    )
    assert "1 of 1" in page.text
    assert "<circle" in page.source


@pytest.mark.full
def test_an_adaptive_clip_is_a_release(make, report, tmp_path):
    marks = dict(report(make(tmp_path / "adaptive", method="adaptive-clip")).figures())
    assert marks["Clip norm"] == marks["Noise of the averaged update"] == "release"
    assert marks["Noise multiplier"] == "planned"


@pytest.mark.full
def test_many_budgets_become_bands(make, report, tmp_path):
    page = report(
        make(
            tmp_path / "bands",
            method="idp-fedavg",
            rounds=4,
            epsilons=[1 + 0.4 * n for n in range(13)],
        )
    )
    assert "shading is the range" in page.text
    assert 'class="band s1"' in page.source


def test_wide_budgets_use_a_logarithmic_scale(make, report, tmp_path):
    page = report(
        make(tmp_path / "wide", method="idp-fedavg", rounds=4, epsilons=[0.2] * 3 + [20.0] * 3)
    )
    assert "(log scale)" in page.text


@pytest.mark.full
def test_a_plan_by_pld(make, report, tmp_path):
    page = report(
        make(tmp_path / "pld", method="idp-fedavg", rounds=2, epsilons=[6.0] * 4, accountant="pld")
    )
    assert "PASS" in page.text
    assert "accountant pld" in page.text


def test_many_rounds_stay_small(make, report, tmp_path):
    page = report(make(tmp_path / "long", method="fedavg", rounds=3000))
    assert "3,000 of 3,000" in page.text
    assert len(page.source) < 400_000


@pytest.mark.full
def test_several_runs_side_by_side(make, report, tmp_path):
    runs = [
        make(tmp_path / "a" / "run"),
        make(tmp_path / "b" / "run", best=0.8),
        make(tmp_path / "plain", method="fedavg"),
    ]
    page = report(*runs)
    assert "3 of these 3 runs are simulations" in page.text
    assert page.source.count('<details class="run">') == 3
    assert '<ul class="legend">' in page.source
    for words in ("a/run", "b/run", "x/plain"[2:], "10 / 20 / 30", "85.8%", "79.8%"):
        assert words in page.text
    real = make(tmp_path / "real", randomness="os")
    assert "share their budgets" in report(runs[0], real).text
    assert (
        "None of these runs is a simulation"
        in report(real, make(tmp_path / "real2", randomness="os")).text
    )


# --- bad input ------------------------------------------------------------------------------------


def spoil(run: Path, name: str, text: str | None) -> Path:
    if text is None:
        (run / name).unlink()
    else:
        (run / name).write_text(text)
    return run


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("run.json", None, "holds no run"),
        ("run.json", "{", "damaged"),
        ("run.json", "[]", "not a JSON object"),
        ("run.json", '{"settings": 3}', "no settings"),
        ("metrics.jsonl", None, "no finished round"),
        ("metrics.jsonl", "", "no finished round"),
        ("metrics.jsonl", '{"round": 1', "no finished round"),
        ("metrics.jsonl", '{"accuracy": 1}\n', "not the record of a round"),
        ("metrics.jsonl", "[1]\n", "not the record of a round"),
        ("metrics.jsonl", '{"round": 26}\n', "goes to round 26"),
        ("plan.json", None, "plan.json is missing"),
        ("plan.json", "{}", "not a plan"),
        ("certificate.json", "{", "damaged"),
    ],
)
def test_damaged_runs_are_refused_in_one_line(make, tmp_path, capsys, name, text, words):
    run = spoil(make(tmp_path / "run"), name, text)
    assert main(["report", str(run)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not (run / "report.html").exists()


def test_the_plan_of_another_run_is_refused(make, tmp_path):
    run, other = make(tmp_path / "run"), make(tmp_path / "other", method="idp-fedavg")
    (run / "plan.json").write_bytes((other / "plan.json").read_bytes())
    with pytest.raises(InvalidInput, match="not the plan of this run"):
        load_runs([run])


def test_runs_are_named_once_and_exist(make, tmp_path):
    run = make(tmp_path / "run")
    for folders, words in (
        ([run, tmp_path / "." / "run"], "listed twice"),
        ([], "no run"),
        ([tmp_path / "none"], "holds no run"),
    ):
        with pytest.raises(InvalidInput, match=words):
            load_runs(folders)
    with pytest.raises(InvalidInput, match="holds no run"):
        load_runs([run / "run.json"])


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.full
def test_the_command_writes_into_the_run(make, tmp_path, capsys):
    run = make(tmp_path / "run")
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"Report: {run / 'report.html'}\n"
    assert (run / "report.html").read_text("utf-8").startswith("<!doctype html>")


def test_the_command_compares_and_prints_json(make, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "a"), make(tmp_path / "b", method="fedavg")
    assert main(["report", "a", "b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["report"] == "report.html"
    assert (tmp_path / "report.html").exists()
    assert [
        (run["run"], run["certificate"], run["simulation"], run["done"]) for run in found["runs"]
    ] == [
        ("a", "PASS", True, 25),
        ("b", "NONE", True, 25),
    ]
    assert found["runs"][0]["budgets"] == [10.0, 20.0, 30.0]


@pytest.mark.parametrize(
    ("output", "words"),
    [("x.txt", "must end in .html"), ("no/x.html", "no directory"), ("d.html", "a directory")],
)
def test_an_output_that_cannot_be_written_is_refused(make, tmp_path, capsys, output, words):
    run = make(tmp_path / "run")
    (tmp_path / "d.html").mkdir()
    assert main(["report", str(run), "-o", str(tmp_path / output)]) == 2
    assert words in capsys.readouterr().err


# --- the certificate for readers and for experts --------------------------------------------------


def parts_of(text: str, start: str, end: str) -> str:
    return text[text.index(start) : text.index(end, text.index(start))]


@pytest.mark.full
def test_the_certificate_is_in_plain_words_and_its_checks_are_folded(make, tmp_path):
    page = render(load_runs([make(tmp_path / "plain", rounds=4)]))
    plain = parts_of(page, '<ul class="plain">', "</ul>")
    assert "Nobody is charged more than their budget." in plain
    assert plain.count("✓") >= 4
    assert "witness" not in plain
    technical = parts_of(page, '<details class="technical">', "</details>")
    assert "witness order published" in technical
    assert "worst margin" in technical.lower()


@pytest.mark.full
def test_a_check_that_failed_is_never_folded(make, tmp_path):
    failed = [
        {"name": "witness order published", "passed": False, "worst": 1.0, "meaning": "x"},
        {"name": "claim within budget", "passed": True, "worst": 1.0, "meaning": "x"},
        {"name": "claim reproduced", "passed": True, "worst": 0.0, "meaning": "x"},
        {"name": "claim reproduced", "passed": False, "worst": 1.0, "meaning": "x"},
    ]
    changed = {"ok": False, "checks": failed}
    page = render(load_runs([make(tmp_path / "failed", rounds=4, certificate=changed)]))
    plain = parts_of(page, '<ul class="plain">', "</ul>")
    assert plain.count("FAIL") == 2
    assert "find the same epsilons" not in plain  # one of the two readings found others
    assert plain.count("✓") == 1
