"""How `fedspend design` shows its results: the closed form's table, or a search's front."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from fedspend.basics.words import counted
from fedspend.cli.tables import figures, frame
from fedspend.cli.terminal import console
from fedspend.design.analysis import Findings
from fedspend.design.answers import CASES
from fedspend.design.candidates import TUNING

MOST_ROWS = 14


def facts(out: Console, *pairs: tuple[str, str]) -> None:
    for name, words in pairs:
        out.print(Text.assemble((f"{name:<12}", "bold"), words))
    out.print()


def span(low: float, high: float | None) -> str:
    """One number, or a range; None means no upper end.

    >>> span(0.1, 0.1), span(0.0, 0.055048), span(0.5, None)
    ('0.1000', '0–0.05505', '0.5000–∞')
    """
    start = "0" if low == 0 else figures(low)
    end = "∞" if high is None else figures(high)
    return start if start == end else f"{start}–{end}"


# --- theory ---------------------------------------------------------------------------------------


def show_theory(answer: dict[str, Any]) -> None:
    out = console()
    show_question(out, answer)
    table, columns = frame(), theory_columns(answer)
    for heading in columns:
        table.add_column(heading, justify="right")
    for row in answer["rows"]:
        table.add_row(*(cell(row) for cell in columns.values()))
    out.print(table)
    out.print()
    if "recommended" in answer:
        best = answer["recommended"]
        words = (
            f"T = {best['rounds']}, σ = {best['noise_level']:.4g} (noise multiplier "
            f"{best['noise_multiplier']:.4g}), real epsilon {best['epsilon']:g}, f1 = "
            f"{best['f1']:.4g}"
        )
        facts(out, ("recommended", words))
        show_paste(out, answer["config"])
    out.print(
        Text(
            "f1, f2, multiplier and ε are for the highest noise on the paper's curve in each row.",
            style="dim",
        )
    )


def show_question(out: Console, answer: dict[str, Any]) -> None:
    """What was asked, and which case of the theory it is."""
    free, interval = answer["rate"] is None, answer["k_interval"]
    known = f"k = {answer['k']:.4g}" + (
        f" (95% interval {interval[0]:.3g} to {interval[1]:.3g})" if interval else ""
    )
    limit = "" if answer["max_noise"] is None else f", σ ≤ {answer['max_noise']:g}"
    rate = "q free" if free else f"q = {answer['rate']:g}"
    facts(
        out,
        (
            "theory",
            f"k σ² T = q K with {known}, {rate}, K = {answer['clients']}, T ≤ "
            f"{answer['max_rounds']}{limit}",
        ),
        ("case", f"{answer['case']}: {CASES[answer['case']]}"),
        (
            "σ",
            "noise level: standard deviation of the noise that one client adds to its update"
            + (" (here σ / √q)" if free else ""),
        ),
    )


def theory_columns(answer: dict[str, Any]) -> dict[str, Callable[[dict[str, Any]], str]]:
    """The cell of a row, by the heading of its column."""
    noise = "σ/√q" if answer["rate"] is None else "σ"
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "T": lambda row: str(row["rounds"]),
        f"{noise}\npaper's curve": lambda row: span(*row["noise"]),
        f"{noise}\nexact band": lambda row: span(*row["exact"]),
        "f1\nutility": lambda row: figures(row["f1"]),
        "f2\nprivacy proxy": lambda row: figures(row["f2"]),
    }
    if answer["k_interval"]:
        columns["σ for k's\ninterval"] = lambda row: span(*row["noise_interval"])
    if answer["delta"] is not None:
        columns["noise\nmultiplier"] = lambda row: figures(row["noise_multiplier"])
        columns[f"real ε at\nδ {answer['delta']:g}"] = lambda row: (
            "not known" if row["epsilon"] is None else figures(row["epsilon"])
        )
    return columns


# --- search ---------------------------------------------------------------------------------------


def show_search(
    findings: Findings, folder: Path, chosen: dict[str, Any] | None, paste: str | None
) -> None:
    out = console()
    search, cost = findings.search, findings.cost()
    settings, seeds = counted(len(search.candidates), "setting"), counted(len(search.seeds), "seed")
    size = (
        f"{counted(int(cost['trainings']), 'training')} of {counted(search.rounds, 'round')} "
        f"({settings}, {seeds})"
    )
    pairs = [
        (
            "search",
            f"{size}, {search.clients} clients, {search.base.model.name} on "
            f"{search.base.data.name}",
        ),
        ("randomness", "seeded simulation: it protects nobody"),
        ("tuning data", TUNING),
    ]
    facts(out, *pairs, *theory_pairs(findings))
    show_front(out, findings)
    if chosen is not None and paste is not None:
        show_recommendation(out, chosen, paste)
    out.print(Text(f"Wrote pareto.json, front.csv, front.png, solutions.png in {folder}"))


def theory_pairs(findings: Findings) -> list[tuple[str, str]]:
    k, gap = findings.k, findings.gap
    if k is None:
        return [
            (
                "k",
                "not known: the whole front lies at a limit of the search; allow more rounds or "
                "search more noise levels",
            )
        ]
    end = "infinity" if k.high == float("inf") else f"{k.high:.3g}"
    found = (
        f"{k.k:.4g}, 95% interval {k.low:.3g} to {end}, from {k.levels} noise levels inside the "
        "search's limits"
    )
    slope = (
        f"T falls with (σ²/q)^{-k.exponent:.2f} along the front; theory says ^-1"
        if k.levels > 1
        else "too few levels to see a slope"
    )
    how_near = (
        ""
        if gap is None
        else (
            f"; {gap.settings} settings on its curve lose {gap.mean:.2g} on average, "
            f"{gap.largest:.2g} at most"
        )
    )
    return [("k", found), ("theory", slope + how_near)]


def show_front(out: Console, findings: Findings) -> None:
    points = findings.points(findings.front)
    kept = (
        sorted({round(n * (len(points) - 1) / (MOST_ROWS - 1)) for n in range(MOST_ROWS)})
        if len(points) > MOST_ROWS
        else range(len(points))
    )
    table = frame()
    for heading in (
        "T",
        "q",
        "σ",
        "multiplier",
        "proxy f2",
        f"real ε at\nδ {findings.search.delta:g}",
        "loss",
        "accuracy",
    ):
        table.add_column(heading, justify="right")
    for point in (points[n] for n in kept):
        table.add_row(
            str(point["rounds"]),
            f"{point['rate']:g}",
            f"{point['noise_level']:g}",
            figures(point["noise_multiplier"], "#.3g"),
            figures(point["proxy"]),
            figures(point["epsilon"]),
            figures(point["loss"]),
            f"{point['accuracy']:.2%}",
        )
    out.print(table)
    shown = f"{len(points)} non-dominated settings" + (
        f", {len(list(kept))} of them shown" if len(points) > MOST_ROWS else ""
    )
    out.print(
        Text(
            f"{shown}, the most private first; loss and accuracy are means over seeds.", style="dim"
        )
    )
    out.print()


def show_recommendation(out: Console, chosen: dict[str, Any], paste: str) -> None:
    facts(
        out,
        (
            "recommended",
            f"T = {chosen['rounds']}, real epsilon {chosen['epsilon']:.4g}, loss "
            f"{chosen['loss']:.4g}, accuracy {chosen['accuracy']:.2%}, about "
            f"{chosen['seconds']:.2g} s to train on one core here",
        ),
    )
    show_paste(out, paste)


def show_paste(out: Console, paste: str) -> None:
    out.print(Text("To paste into a config:", style="dim"))
    for line in paste.splitlines():
        out.print(Text(f"  {line}"))
    out.print()
