"""The numbers of `metrics.jsonl` for TensorBoard, in the run directory, if the config says so.

Guarantee: only the owner may read them. In a real run all events bear one time, because how long a
round took tells how many clients were sampled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedspend.errors import InvalidInput
from fedspend.stored.files import LOGS


def tensorboard_writer(folder: Path, *, timed: bool) -> Callable[[dict[str, Any]], None]:
    """A function that logs one round's metrics; with the time of each round if it is `timed`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InvalidInput(
            "tensorboard = true needs the package tensorboard: pip install 'fedspend[tensorboard]'"
        ) from None
    logs = folder / LOGS
    logs.mkdir(mode=0o700, exist_ok=True)
    logs.chmod(0o700)
    writer: Any = SummaryWriter(str(logs))
    began = time.time()

    def log(line: dict[str, Any]) -> None:
        flat = {
            name: value
            for name, value in line.items()
            if isinstance(value, int | float) and name != "round"
        }
        flat |= {f"epsilon/{group}": value for group, value in line["epsilon"].items()}
        for name, value in flat.items():
            writer.add_scalar(name, value, line["round"], walltime=None if timed else began)
        writer.flush()

    return log
