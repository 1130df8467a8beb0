"""Makes the files that you replace by your own: made-up visits to 60 clinics in rows.csv, what each
clinic allows in budgets.csv, and rows that anybody may see, to measure on, in public.csv.

python make_rows.py
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
COLUMNS = ("age", "pressure", "smoker", "sick")


def visits(number: int, generator: np.random.Generator) -> list[list[str]]:
    """Age, blood pressure and smoking, and whether it went wrong."""
    age = np.clip(generator.normal(58, 12, number), 20, 95).round()
    pressure = np.clip(generator.normal(130, 18, number), 90, 200).round()
    smoker = generator.random(number) < 0.3
    risk = 0.08 * (age - 58) + 0.05 * (pressure - 130) + 2.0 * (smoker - 0.3)
    sick = risk + generator.logistic(0, 0.5, number) > 0
    words = ("no", "yes")
    return [
        [f"{years:g}", f"{mmhg:g}", words[int(smokes)], words[int(ill)]]
        for years, mmhg, smokes, ill in zip(age, pressure, smoker, sick, strict=True)
    ]


def write(name: str, header: tuple[str, ...], lines: list[list[str]]) -> None:
    with (HERE / name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *lines])


def main() -> None:
    generator = np.random.default_rng(11)
    clinics = [f"clinic-{number:02}" for number in range(1, 61)]
    rows = [[clinic, *row] for clinic in clinics for row in visits(30, generator)]
    write("rows.csv", ("clinic", *COLUMNS), rows)
    write("public.csv", COLUMNS, visits(500, generator))
    allowed = generator.choice(["2", "5", "10"], len(clinics), p=[0.3, 0.4, 0.3])
    budgets = [list(pair) for pair in zip(clinics, allowed, strict=True)]
    write("budgets.csv", ("client", "epsilon"), budgets)


if __name__ == "__main__":
    main()
