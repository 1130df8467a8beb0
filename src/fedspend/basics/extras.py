"""Packages that come with an extra: a plain install plans and verifies, and names what it lacks.

Guarantee: a package that is missing is one line that names the extra to install.
"""

from __future__ import annotations

import importlib.util

from fedspend.errors import InvalidInput

# by package, the extra that it comes with
EXTRAS = {
    "torch": "train",
    "sklearn": "train",
    "safetensors": "train",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "flwr": "flower",
    "psycopg": "postgres",
    "pyarrow": "parquet",
    "PIL": "images",
}


class MissingExtra(InvalidInput, ModuleNotFoundError):
    """A package that a plain install does not have."""


def missing(package: str) -> MissingExtra:
    extra = EXTRAS[package]
    return MissingExtra(
        f"this needs the package {package}, which a plain install does not have: pip install "
        f"'fedspend[{extra}]'"
    )


def explained(error: ModuleNotFoundError) -> MissingExtra | None:
    """What to do about a package that is missing; None if it comes with no extra."""
    package = (error.name or "").partition(".")[0]
    return missing(package) if package in EXTRAS else None


def need(package: str) -> None:
    """Refuse to go on without a package, before work is handed to processes that import it."""
    if importlib.util.find_spec(package) is None:
        raise missing(package)
