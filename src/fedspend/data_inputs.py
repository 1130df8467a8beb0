"""The data that a config names, dealt to its clients. Works without torch, so that a plan for records can be made without it."""

from __future__ import annotations

from typing import Any

from fedspend import data
from fedspend.config import Config
from fedspend.data import Federation
from fedspend.errors import InvalidInput

_OPTIONS = {
    "synthetic": ("examples", "features", "classes"),
    "csv": ("path", "test_path", "label", "client", "split", "bounds", "classes", "budget", "public_path"),
    "npz": ("path", "label", "client", "bounds", "classes", "public_path"),
}


def federation_of(config: Config, clients: int | None = None) -> Federation:
    """Which client holds which rows; `clients` says how many there are where the config does not."""
    name, seed = needed(config, "data.name"), int(config.get("train.seed"))
    options = {key: config.get(f"data.{key}") for key in _OPTIONS.get(name, ()) if config.get(f"data.{key}") is not None}
    if config.given("data.public_path") and "public_path" not in _OPTIONS.get(name, ()):
        raise InvalidInput(
            f"public_path is for your own data (csv, npz), and the data set is {name!r}; drop it, and set part of the data set "
            "aside with public_share"
        )
    dataset = data.load(name, validation=config.get("data.validation"), seed=seed, **options)
    dataset = data.sample(dataset, share=config.get("data.share"), test_share=config.get("data.test_share"))
    if config.given("data.public_share"):
        dataset = data.set_aside(dataset, share=config.get("data.public_share"), seed=seed)
    return data.partition(
        dataset,
        clients=config.get("data.clients") if clients is None else clients,
        kind=config.get("data.partition"),
        alpha=config.get("data.alpha"),
        shards=config.get("data.shards"),
        classes_per_client=config.get("data.classes_per_client"),
        seed=seed,
    )


def needed(config: Config, name: str) -> Any:
    """A value that the config must have."""
    value = config.get(name)
    if value is None:
        section, key = name.split(".")
        raise InvalidInput(f"{key} is missing: set {key} under [{section}] in the config, or give --set {name}=VALUE")
    return value
