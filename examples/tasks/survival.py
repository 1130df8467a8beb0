"""Survival of breast cancer patients at six centres (Fed-TCGA-BRCA, Ogier du Terrail et al. 2022).

    FEDSPEND_DATA=... fedspend --load examples/tasks/survival.py \\
        train examples/tasks/survival.toml -o runs/survival

The folder `tcga-brca` has FLamby's `brca.csv` and `train_test_split.csv`. A patient's target is two
numbers, whether death was observed and when. Cox's likelihood compares patients with each other, so
it is no loss of single rows, and no gradient of one record. Weibull's is: the model gives a
log-rate and a log-shape, and a patient's loss is its own. Columns, folds and the bounds on age and
time are public.
"""

import csv
import os
from pathlib import Path

import numpy as np

import fedspend
from fedspend.data import rows

OLDEST, LONGEST = 90.0, 8605.0  # years, days: public bounds by which age and time are scaled


def read(folder, _seed):
    """Patients by centre, with the folds that the benchmark has."""
    place = Path(folder or os.environ.get("FEDSPEND_DATA", ".")) / "tcga-brca"
    with (place / "train_test_split.csv").open(newline="") as file:
        fold = {line["pid"]: line["fold2"].split("_") for line in csv.DictReader(file)}
    with (place / "brca.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["pid"] in fold]
    names = [name for name in lines[0] if name not in ("pid", "E", "T")]
    features = np.array([[float(line[name]) for name in names] for line in lines], np.float32)
    features[:, names.index("age_at_index")] /= OLDEST
    targets = np.array(
        [[float(line["E"]), min(float(line["T"]), LONGEST) / LONGEST] for line in lines], np.float32
    )
    test = np.array([fold[line["pid"]][0] == "test" for line in lines])
    centre = np.array([f"centre {fold[line['pid']][1]}" for line in lines])
    return rows(
        features[~test],
        targets[~test],
        classes=2,
        test_features=features[test],
        test_labels=targets[test],
        client_of=centre[~test],
        kind="numbers",
    )


def weibull(output, target):
    """The negative log-likelihood of a patient: death at its time, or alive until then."""
    rate, shape = output[:, 0].clamp(-6, 6), output[:, 1].clamp(-1, 1)
    died, time = target[:, 0], target[:, 1].clamp(min=1e-3)
    log_hazard = shape + shape.exp() * rate + (shape.exp() - 1) * time.log()
    return (shape.exp() * (rate + time.log())).exp() - died * log_hazard


def concordance(outputs, targets):
    """Of the pairs in which we know who died first, the share in which that one had the higher
    rate; a tie counts half.
    """
    risk, died, time = outputs[:, 0].double(), targets[:, 0] > 0.5, targets[:, 1]
    known = died[:, None] & (time[:, None] < time[None, :])
    ahead = (risk[:, None] > risk[None, :]).double() + 0.5 * (risk[:, None] == risk[None, :])
    return float(ahead[known].mean()) if bool(known.any()) else float("nan")


fedspend.register(
    "data set",
    "tcga-brca",
    read,
    help="Fed-TCGA-BRCA: survival at six centres",
    public=True,
    natural=True,
)
fedspend.register("loss", "weibull", weibull, help="Weibull survival", targets="numbers")
fedspend.register(
    "metric", "concordance", concordance, help="share of pairs in the right order", share=True
)
