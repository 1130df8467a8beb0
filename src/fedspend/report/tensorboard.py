"""The numbers of `metrics.jsonl` for TensorBoard, in the run directory, if the config says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedspend.errors import InvalidInput
from fedspend.stored.files import LOGS


def tensorboard_writer(folder: Path) -> Callable[[dict[str, Any]], None]:
    """A function that logs one round's metrics."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InvalidInput(
            "tensorboard = true needs the package tensorboard: pip install 'fedspend[tensorboard]'"
        ) from None
    writer: Any = SummaryWriter(str(folder / LOGS))

    def log(line: dict[str, Any]) -> None:
        flat = {
            name: value
            for name, value in line.items()
            if isinstance(value, int | float) and name != "round"
        }
        flat |= {f"epsilon/{group}": value for group, value in line["epsilon"].items()}
        for name, value in flat.items():
            writer.add_scalar(name, value, line["round"])
        writer.flush()

    return log
