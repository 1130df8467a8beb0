"""Figure 2 of Cheng et al. (2022): the norms of updates before clipping, round by round.

FEMNIST by writer with the clip of the figure, 0.1, and the paper's learning rate, lambda and
sparsity: DP-FedAvg plain, with BLUR, and with BLUR and LUS (at the final local model). Fixed
features and one seed; nothing is tuned. The paper does not say which model, data and epsilon its
figure has: epsilon is 6 here.

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only norms

These are exact norms of clients' updates: a simulation may look at them, a real run may not.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any

import lus_final
import shaping
from experiment import Arm, Finished, Results, Settings, by_section, key_of
from in_memory import in_memory

STUDY = "norms"
CLIP, LR = 0.1, 0.03
FORMS = {"plain": (0.0, 0.0), "BLUR": (0.012, 0.0), "BLUR and LUS": (0.012, 0.7)}
SEED = 1


def arm(form: str) -> Arm:
    pull, sparsity = FORMS[form]
    base = shaping.arm("femnist", 6.0, pull, sparsity)
    settings = {**base.settings, "engine.name": lus_final.NAME} if sparsity else base.settings
    return replace(base, study=STUDY, label=(form,), settings=settings, start=(LR, CLIP), tries=1)


def arms() -> list[Arm]:
    return [arm(form) for form in FORMS]


def key(settings: Settings) -> str:
    return key_of({**settings, "measured": "norms of updates in every round"})


def line_of(results: Finished | Results, form: str) -> dict[str, Any] | None:
    one = arm(form)
    found: dict[str, Any] | None = results.found.get(key(one.at(one.start, SEED)))
    return found


def run(results: Results) -> None:
    for form in FORMS:
        if line_of(results, form) is None:
            one = arm(form)
            settings = one.at(one.start, SEED)
            results.enter(key(settings), STUDY, one.label, one.start, SEED, measured(settings))
            print(time.strftime("%H:%M:%S"), one.name, flush=True)


def measured(settings: Settings) -> dict[str, Any]:
    """Of every round the mean norm, its 10% and 90% quantiles, and the share above the clip."""
    from fedspend.configuration.config import any_config
    from fedspend.errors import FedspendWarning
    from fedspend.runs.running import run as trained
    from fedspend.runs.setup import from_config

    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedspendWarning)
        config = any_config(by_section(in_memory({**settings, "engine.workers": 1})))
        lines = trained(from_config(config), None).metrics
    return {
        "norm": [round(line["mean_norm"], 5) for line in lines],
        "quantiles": [[round(one, 5) for one in line["norm_quantiles"]] for line in lines],
        "clipped": [round(line["clipped_share"], 4) for line in lines],
        "seconds": round(time.process_time() - began, 2),
    }
