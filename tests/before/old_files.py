"""What the old files are called, how they were made, and how a test gets copies of its own.

Guarantee: a copy lies anywhere on disk. Run directories name their data and ledgers by absolute
paths; in the files that are kept here a placeholder stands for the folder, and `copied` puts the
real one in its place.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

FILES = Path(__file__).parent / "files"
PLACEHOLDER = "@HERE@"

GROUPS = ("--epsilon", "10:3,20:4,30:2", "--delta", "1e-3", "--rounds", "8", "--rate", "0.8")

# Arguments of `fedspend plan`, given in the folder of the files.
PLANS: dict[str, tuple[str, ...]] = {
    "rdp.json": (
        "--epsilon",
        "3",
        "--clients",
        "6",
        "--delta",
        "1e-3",
        "--rounds",
        "5",
        "--rate",
        "0.5",
        "--method",
        "dp-fedavg",
    ),
    "pld.json": (
        "--epsilon",
        "2:3,6:3",
        "--delta",
        "1e-3",
        "--rounds",
        "3",
        "--rate",
        "0.5",
        "--accountant",
        "pld",
    ),
    "discrete.json": (*GROUPS, "--set", "privacy.noise=discrete"),
    "individual.json.gz": (*GROUPS, "--method", "idp-fedavg"),
    "time-adaptive-groups.json": (
        *(
            *GROUPS,
            "--method",
            "time-adaptive",
            "--saving-rate",
            "10:0.3,20:0.4,30:0.5",
            "--transition",
            "10:6,20:5,30:4",
        ),
        *("--clip", "0.5"),
    ),
    "weights.json": (*GROUPS, "--weights", "geometric:1.1"),
    "named.json": (
        "--budgets",
        "wishes.csv",
        "--delta",
        "1e-3",
        "--rounds",
        "6",
        "--rate",
        "0.7",
        "--method",
        "time-adaptive",
    ),
    "votes.json": ("votes.toml",),
    "noise-level.json": (
        "plain.toml",
        "--method",
        "dp-fedsgd",
        "--set",
        "method.noise_level=0.2",
        "--delta",
        "1e-3",
    ),
    "remaining.json": ("--ledger", "ledgers/simulated.db", "--rounds", "4", "--rate", "0.6"),
    "records-rpdp.json": ("patients.toml",),
    "records-saving.json.gz": (
        "patients.toml",
        "--set",
        "method.saving_share=0.5",
        "--set",
        "privacy.transition=3",
    ),
    "records-minimum.json": ("patients.toml", "--method", "minimum"),
    "records-dropout.json": ("patients.toml", "--method", "dropout"),
    "records-filter-clip.json": (
        "patients.toml",
        "--method",
        "filter",
        "--set",
        "method.common_rate=0.8",
    ),
    "records-filter-norm.json": ("by-norm.toml",),
    "records-drawn-budgets.json.gz": ("drawn.toml",),
}

LEDGERS = {"simulated.db": "client", "named.db": "client", "records.db": "record"}

# Run directory -> (its config, whether it is finished).
RUNS: dict[str, tuple[str, bool]] = {
    "simulated-finished": ("simulated.toml", True),
    "simulated-stopped": ("simulated.toml", False),
    "simulated-killed-with-release": ("simulated.toml", False),
    "simulated-killed-without-release": ("simulated.toml", False),
    "adaptive-finished": ("adaptive.toml", True),
    "adaptive-stopped": ("adaptive.toml", False),
    "votes-finished": ("votes.toml", True),
    "votes-stopped": ("votes.toml", False),
    "plain-finished": ("plain.toml", True),
    "plain-stopped": ("plain.toml", False),
    "real-stopped": ("real.toml", False),
    "real-killed-with-release": ("real.toml", False),
    "real-killed-without-release": ("real.toml", False),
    "named-stopped": ("rest.toml", False),
    "patients-finished": ("patients.toml", True),
    "patients-stopped": ("patients.toml", False),
    "by-norm-finished": ("by-norm.toml", True),
    "by-norm-stopped": ("by-norm.toml", False),
}

# Seeded runs that were cut off -> the same run in one go.
WHOLE = {
    name: f"{name.partition('-')[0] if not name.startswith('by-norm') else 'by-norm'}-finished"
    for name, (config, finished) in RUNS.items()
    if not finished and config not in ("real.toml", "rest.toml")
}


def copied(to: Path) -> Path:
    """All files, in the folder `to`, as if they had been made there."""
    folder = Path(shutil.copytree(FILES, to / "files", copy_function=shutil.copyfile))
    for path in folder.rglob("run.json"):
        path.write_text(path.read_text().replace(PLACEHOLDER, os.path.realpath(folder)))
    return folder
