"""UCI Heart Disease as the federation Fed-Heart-Disease (du Terrail et al. 2022): four centres, 13
features, labels disease or no disease.

Guarantee: no statistic of the rows is used. Per centre, the three columns that are mostly missing
are dropped, then rows with a missing value (303, 261, 46 and 130 remain); numbers are clipped to
fixed clinical bounds and scaled to [-1, 1]; chest pain and resting ECG are one-hot without their
first level. Two thirds of each centre's rows, drawn by the seed, are for training.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.data.dataset import Features, Rows
from fedspend.data.files import locate, read_content
from fedspend.data.sources import require
from fedspend.errors import InvalidInput
from fedspend.noise.randomness import Randomness

CENTRES = ("cleveland", "hungarian", "switzerland", "va")
CELLS, USED = 14, 10  # slope, ca and thal (10 to 12) are dropped; 13 is the diagnosis
# Position -> bounds that any living patient's values should lie within; not taken from the rows.
NUMBERS = {0: (20.0, 90.0), 3: (80.0, 220.0), 4: (0.0, 600.0), 7: (60.0, 220.0), 9: (-3.0, 7.0)}
FLAGS = (1, 5, 8)
LEVELS = {2: (1, 2, 3, 4), 6: (0, 1, 2)}
TRAINED = 0.66
_STREAM = 5


def load_heart(folder: Path | None, seed: int) -> Rows:
    place = require("heart", folder)
    train, test, owners = [], [], []
    for number, centre in enumerate(CENTRES):
        name = f"processed.{centre}.data"
        features, labels = read_centre(locate(place, name) or place / name)
        order = Randomness(seed).generator("data", _STREAM, number).permutation(len(labels))
        cut = round(TRAINED * len(labels))
        train.append((features[order[:cut]], labels[order[:cut]]))
        test.append((features[order[cut:]], labels[order[cut:]]))
        owners += [centre] * cut
    parts = [
        np.concatenate([pair[side] for pair in half]) for half in (train, test) for side in (0, 1)
    ]
    return Rows(parts[0], parts[1], 2, parts[2], parts[3], np.array(owners))


def read_centre(path: Path) -> tuple[Features, IntArray]:
    """The complete rows of one centre's file."""
    rows, labels = [], []
    for number, line in enumerate(read_content(path).decode("latin-1").splitlines(), 1):
        cells = [cell.strip() for cell in line.split(",")]
        if not line.strip():
            continue
        if len(cells) != CELLS:
            raise InvalidInput(f"{path}:{number}: {len(cells)} cells, but {CELLS} are needed")
        wanted = [*cells[:USED], cells[-1]]
        if "?" in wanted:
            continue
        try:
            values = [float(cell) for cell in wanted]
        except ValueError:
            raise InvalidInput(
                f"{path}:{number}: a cell is not a number; download the file again"
            ) from None
        if not np.isfinite(values).all():
            raise InvalidInput(f"{path}:{number}: a cell is not finite; download the file again")
        rows.append(_encoded(values))
        labels.append(int(values[-1] > 0))
    if not rows:
        raise InvalidInput(f"{path}: has no complete rows; download it again")
    return np.array(rows, dtype=np.float32), np.array(labels, dtype=np.int64)


def _encoded(values: list[float]) -> list[float]:
    numbers = [
        2 * (min(max(values[at], low), high) - low) / (high - low) - 1
        for at, (low, high) in NUMBERS.items()
    ]
    flags = [float(values[at] > 0) for at in FLAGS]
    return (
        numbers
        + flags
        + [float(values[at] == level) for at, levels in LEVELS.items() for level in levels[1:]]
    )
