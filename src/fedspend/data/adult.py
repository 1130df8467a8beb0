"""UCI Adult as 104 features: five numbers, and eight columns one-hot coded by the category lists in
`adult.names`.

Guarantee: no statistic of the rows is used. Numbers are clipped to fixed bounds and scaled by them;
capital gain and loss, which span five orders of magnitude, on a logarithmic scale. A missing
category ('?') becomes all zeros. The survey weight is left out.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.data.dataset import Features, Rows
from fedspend.data.files import locate, read_content
from fedspend.data.sources import require
from fedspend.errors import InvalidInput

# Position in the file -> (name, low, high, logarithmic). Bounds are those of the questionnaire and
# its codes, not of the rows.
NUMBERS: dict[int, tuple[str, float, float, bool]] = {
    0: ("age", 0, 100, False),
    4: ("education-num", 1, 16, False),
    10: ("capital-gain", 0, 99_999, True),
    11: ("capital-loss", 0, 99_999, True),
    12: ("hours-per-week", 0, 100, False),
}
# The lists as published, with the position of each column in the file.
_PUBLISHED = """
1 workclass: Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, \
Without-pay, Never-worked
3 education: Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, \
7th-8th, 12th, Masters, 1st-4th, 10th, Doctorate, 5th-6th, Preschool
5 marital-status: Married-civ-spouse, Divorced, Never-married, Separated, Widowed, \
Married-spouse-absent, Married-AF-spouse
6 occupation: Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty, \
Handlers-cleaners, Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving, \
Priv-house-serv, Protective-serv, Armed-Forces
7 relationship: Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried
8 race: White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black
9 sex: Female, Male
13 native-country: United-States, Cambodia, England, Puerto-Rico, Canada, Germany, \
Outlying-US(Guam-USVI-etc), India, Japan, Greece, South, China, Cuba, Iran, Honduras, \
Philippines, Italy, Poland, Jamaica, Vietnam, Mexico, Portugal, Ireland, France, \
Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia, Hungary, Guatemala, Nicaragua, \
Scotland, Thailand, Yugoslavia, El-Salvador, Trinadad&Tobago, Peru, Hong, Holand-Netherlands
"""


def _categories() -> dict[int, tuple[str, tuple[str, ...]]]:
    lists = {}
    for line in _PUBLISHED.strip().splitlines():
        head, values = line.split(": ")
        position, name = head.split()
        lists[int(position)] = (name, tuple(values.split(", ")))
    return lists


CATEGORIES = _categories()
LABELS = ("<=50K", ">50K")
MISSING = "?"
CELLS = 15
COLUMNS = len(NUMBERS) + sum(len(values) for _, values in CATEGORIES.values())


def load_adult(folder: Path | None) -> Rows:
    place = require("adult", folder)
    train = read_adult(locate(place, "adult.data") or place / "adult.data")
    test = read_adult(locate(place, "adult.test") or place / "adult.test")
    return Rows(train[0], train[1], len(LABELS), test[0], test[1])


def read_adult(path: Path) -> tuple[Features, IntArray]:
    """Reads one file. Skips empty lines and lines that begin with '|'; labels in the test file end
    in a full stop.
    """
    numbered = enumerate(read_content(path).decode("latin-1").splitlines(), 1)
    lines = [
        (number, line) for number, line in numbered if line.strip() and not line.startswith("|")
    ]
    if not lines:
        raise InvalidInput(f"{path}: has no rows; download it again")
    features = np.zeros((len(lines), COLUMNS), dtype=np.float32)
    labels = np.zeros(len(lines), dtype=np.int64)
    place_of = _places()
    for row, (number, line) in enumerate(lines):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != CELLS:
            raise InvalidInput(f"{path}:{number}: {len(cells)} cells, but {CELLS} are needed")
        label = cells[-1].removesuffix(".")
        if label not in LABELS:
            raise InvalidInput(
                f"{path}:{number}: the label must be {' or '.join(LABELS)}, got {cells[-1]!r}"
            )
        labels[row] = LABELS.index(label)
        for column, (position, (name, low, high, logarithmic)) in enumerate(NUMBERS.items()):
            features[row, column] = _scaled(
                f"{path}:{number}: {name}", cells[position], low, high, logarithmic
            )
        for position, (name, _) in CATEGORIES.items():
            if cells[position] == MISSING:
                continue
            place = place_of[position].get(cells[position])
            if place is None:
                raise InvalidInput(
                    f"{path}:{number}: {name} {cells[position]!r} is not in the published list"
                )
            features[row, place] = 1
    return features, labels


def _places() -> dict[int, dict[str, int]]:
    """For each categorical position, the column of each category."""
    places, start = {}, len(NUMBERS)
    for position, (_, values) in CATEGORIES.items():
        places[position] = {value: start + n for n, value in enumerate(values)}
        start += len(values)
    return places


def _scaled(where: str, cell: str, low: float, high: float, logarithmic: bool) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidInput(f"{where} must be a number, got {cell!r}")
    value = min(max(value, low), high)
    return (
        math.log1p(value - low) / math.log1p(high - low)
        if logarithmic
        else (value - low) / (high - low)
    )
