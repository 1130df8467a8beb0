"""The examples are what the software takes, on this very day."""

import runpy
from pathlib import Path

import pytest

from fedspend.configuration.config import load_config
from fedspend.server.methods.table import METHODS

pytestmark = pytest.mark.usefixtures("registries_as_before")
EXAMPLES = Path(__file__).parents[1] / "examples"
# without that of Flower's app, which is a Python project
CONFIGS = sorted(path for path in EXAMPLES.rglob("*.toml") if path.name != "pyproject.toml")


# what some of them load first
OWN = {"survival": ("survival.py",), "many_speakers": ("speakers.py",), "text": ("speakers.py",)}


def test_there_are_examples():
    assert len(CONFIGS) > 8


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_has_known_keys_and_good_values(path):
    for own in OWN.get(path.stem, ()):
        runpy.run_path(str(EXAMPLES / "tasks" / own))
    config = load_config(path)
    assert config.method.name in (*METHODS.names, None)  # those of design bring their own
    assert config.model.name


@pytest.mark.full
def test_cifar_by_dirichlet_runs_on_files_of_its_kind(tmp_path, monkeypatch):
    """Eight colour images a batch stand in for CIFAR-10's ten thousand."""
    import numpy as np

    from fedspend import train

    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for batch in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        images = generator.integers(0, 256, (8, 1 + 3 * 32 * 32), dtype=np.uint8)
        images[:, 0] = generator.integers(0, 10, 8)
        (folder / f"{batch}.bin").write_bytes(images.tobytes())
    monkeypatch.setenv("FEDSPEND_DATA", str(tmp_path))
    smaller = (
        "data.clients=4",
        "train.rounds=1",
        "train.local_steps=1",
        "privacy.rate=0.9",
        "privacy.delta=0.1",
        "engine.workers=1",
    )
    result = train(EXAMPLES / "shape" / "cifar10.toml", overrides=smaller)
    assert len(result.metrics) == 1
    assert result.metrics[0]["mean_norm"] > 0
