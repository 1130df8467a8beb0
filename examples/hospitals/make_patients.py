"""Makes patients.csv: 360 made-up patients of three hospitals, each with a privacy budget of their
own. No real person is in it.

python examples/hospitals/make_patients.py
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from fedspend.records import ThreeLevels

# name, patients, shift of age
HOSPITALS = (("north", 160, 0.0), ("south", 120, 3.0), ("harbour", 80, -2.0))


def main() -> None:
    generator = np.random.default_rng(7)
    lines = []
    for hospital, patients, shift in HOSPITALS:
        age = np.clip(generator.normal(58 + shift, 9, patients), 30, 90)
        pressure = np.clip(generator.normal(130, 16, patients), 90, 200)
        rate = np.clip(generator.normal(195 - 0.9 * age, 16), 70, 200)
        pain = generator.random(patients) < 0.45
        risk = (
            0.05 * (age - 58) + 0.02 * (pressure - 130) - 0.04 * (rate - 143) + 2.4 * (pain - 0.45)
        )
        sick = risk + generator.logistic(0, 0.7, patients) > 0
        split = np.where(generator.permutation(patients) < patients // 4, "test", "train")
        allows = ThreeLevels(levels=(0.5, 2.0, 8.0), shares=(0.5, 0.3, 0.2)).draw(
            patients, generator
        )
        # Scaled to [-1, 1] by bounds that everybody knows, so that no statistic of a patient is
        # used.
        columns = [(age - 60) / 30, (pressure - 145) / 55, (rate - 135) / 65, 2.0 * pain - 1]
        for *values, ill, part, budget in zip(*columns, sick, split, allows, strict=True):
            lines.append(
                [hospital, *(f"{value:.3f}" for value in values), int(ill), part, f"{budget:g}"]
            )
    with Path(__file__).with_name("patients.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["hospital", "age", "pressure", "heart_rate", "chest_pain", "sick", "split", "epsilon"]
        )
        writer.writerows(lines)


if __name__ == "__main__":
    main()
