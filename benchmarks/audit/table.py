"""What audits find: of a known epsilon, under every sound method and noise, and in every broken
mechanism of `tests/audited.py`.

    .venv/bin/python benchmarks/audit/table.py run      # half an hour on one core; goes on
    .venv/bin/python benchmarks/audit/table.py show     # the tables of docs/how-to/audit.md

Results are kept in `benchmarks/audit/results.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedspend.auditing import Audit, audit
from fedspend.configuration.config import any_config
from fedspend.runs.setup import from_config

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.json"
sys.path.append(str(ROOT / "tests"))
from audited import BROKEN, SOUND
from lib.gaussian import gaussian_epsilon

KNOWN = {"1e-05": (1.0, 2.0, 4.0, 8.0), "0.001": (1.0, 2.0, 4.0, 8.0)}
KNOWN_RUNS = {"1e-05": 3000, "0.001": 1000}  # of 100 canaries each
SOUND_FACTOR = 8  # times the runs of the tests
SEEDS = 3


def first_noise(config: Any, overrides: list[str] | None = None) -> float:
    plan = from_config(any_config(config, overrides or [])).plan
    assert plan is not None
    return float(plan.schedules.noise_multiplier[0, 0])


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """(key, what to run)."""
    for name in BROKEN:
        for seed in range(SEEDS):
            yield f"broken/{name}/{seed}", {}
    for delta, epsilons in KNOWN.items():
        for epsilon in epsilons:
            for seed in range(SEEDS):
                yield (
                    f"known/{epsilon:g}/{delta}/{seed}",
                    {"overrides": [f"privacy.epsilon={epsilon}", f"privacy.delta={delta}"]},
                )
    for name in SOUND:
        for seed in range(SEEDS):
            yield f"sound/{name}/{seed}", {}


def played(key: str, more: dict[str, Any]) -> dict[str, Any]:
    kind, name, *rest = key.split("/")
    seed = int(rest[-1])
    if kind == "known":
        config = str(ROOT / "examples" / "audit.toml")
        noise = first_noise(config, more["overrides"])
        found = audit(config, trials=KNOWN_RUNS[rest[0]], seed=seed, **more)
        return numbers(found) | {"true": gaussian_epsilon(1 / noise, float(rest[0]))}
    if kind == "sound":
        config, trials = SOUND[name]
        return numbers(audit(config, trials=SOUND_FACTOR * trials, seed=seed))
    broken = BROKEN[name]
    with pytest.MonkeyPatch.context() as patch:
        broken.patch(patch)
        true = broken.true_epsilon(first_noise(broken.config))
        found = audit(broken.config, trials=broken.trials, seed=seed, **broken.options)
    return numbers(found) | {"true": true if true < float("inf") else None}


def numbers(found: Audit) -> dict[str, Any]:
    kept = ("group", "claimed", "measured", "coins", "guesses", "right", "score")
    told = found.to_dict()
    return {
        "groups": [{name: group[name] for name in kept} for group in told["groups"]],
        "ok": found.ok,
        "seconds": round(found.seconds, 1),
        "megabytes": round(found.memory / 2**20),
        "runs": found.runs,
    }


def stored() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def run() -> None:
    results = stored()
    for key, more in cases():
        if key not in results:
            results[key] = played(key, more)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(key, [round(g["measured"], 3) for g in results[key]["groups"]], flush=True)


def show() -> None:
    results = stored()
    print("| known epsilon | delta | claimed | measured (3 seeds) | share of the known |")
    print("|---|---|---|---|---|")
    for delta, epsilons in KNOWN.items():
        for epsilon in epsilons:
            some = of(results, f"known/{epsilon:g}/{delta}/")
            if some:
                found = [one["groups"][0]["measured"] for one in some]
                true = some[0]["true"]
                shares = [one / true for one in found]
                print(
                    f"| {true:.2f} | {float(delta):g} | {epsilon:g} | {span(found)} | "
                    f"{100 * min(shares):.0f} to {100 * max(shares):.0f}% |"
                )
    print("\n| sound | claimed | measured (3 seeds) | coins |\n|---|---|---|---|")
    for name in SOUND:
        rows(results, "sound", name)
    print("\n| broken | claimed | true, at least | measured (3 seeds) | coins |")
    print("|---|---|---|---|---|")
    for name in BROKEN:
        rows(results, "broken", name)
    spent = [one["seconds"] for one in results.values()]
    print(
        f"\n{len(spent)} audits, {sum(spent) / 60:.0f} minutes, "
        f"at most {max(one['megabytes'] for one in results.values())} MB"
    )


def of(results: dict[str, Any], start: str) -> list[dict[str, Any]]:
    return [one for key, one in results.items() if key.startswith(start)]


def rows(results: dict[str, Any], kind: str, name: str) -> None:
    """A line for each group; of a broken mechanism for the strictest, which is the broken one."""
    some = of(results, f"{kind}/{name}/")
    if not some:
        return
    for n, group in enumerate(some[0]["groups"][: 1 if kind == "broken" else None]):
        measured = span([one["groups"][n]["measured"] for one in some])
        true = "" if kind == "sound" else f" {known(some[0]['true'])} |"
        label = name if n == 0 else ""
        print(f"| {label} | {group['claimed']:.2f} |{true} {measured} | {group['coins']:,} |")


def known(true: float | None) -> str:
    return "infinite" if true is None else f"{true:.2f}"


def span(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "show"))
    {"run": run, "show": show}[parser.parse_args().what]()
