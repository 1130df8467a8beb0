"""The model of a run, loaded again and asked about new rows.

Guarantee: what is loaded is what the run's own file has; a file that is damaged, or of another
model, is refused, and so is a module whose buffers are not those of training. A run directory alone
makes nobody's machine import code: a model of your own (`package.module:function`) is made only if
the caller names it, too. New rows are read by what the run declared of its own (columns, bounds,
levels), so nothing is learned from them, and they are sent nowhere. A prediction is a use of a
model that was released already: it costs no privacy of those it was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedspend.basics.csv_rows import read_table
from fedspend.basics.door import public
from fedspend.basics.tensors import read_sealed
from fedspend.data.columns import CsvFrame, Frame
from fedspend.data.dataset import Features, as_features, scaled
from fedspend.data.loading import TABLES
from fedspend.data.tables import TABLE_OPTIONS, TableOptions
from fedspend.data.texts import Beginnings, NextToken
from fedspend.errors import InvalidInput
from fedspend.models import MODELS, build
from fedspend.models import features as maps
from fedspend.models.evaluation import scores
from fedspend.models.flat import buffers_digest, flat_vector
from fedspend.models.inputs import as_input, check_known, check_whole
from fedspend.stored.files import MODEL, RUN
from fedspend.stored.run import Facts, StoredRun
from fedspend.tasks.kinds import BINARY, CLASSES, NUMBERS, SEVERAL, TOKENS

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class About:
    """What `run.json` says of the run's model."""

    input_shape: tuple[int, ...]
    outputs: int
    kind: str
    integers: bool
    buffers: str | None = None  # the digest of the module's buffers, if it has any
    columns: tuple[str, ...] = ()  # of the table that it was trained on, in this order

    @classmethod
    def of(cls, facts: Facts, folder: Path) -> About | None:
        said = facts.content.get("model")
        if said is None:
            return None  # of an older version
        try:
            return cls(
                tuple(int(length) for length in said["input_shape"]),
                int(said["outputs"]),
                str(said["kind"]),
                said["integers"] is True,
                said.get("buffers"),
                tuple(map(str, said.get("columns", ()))),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InvalidInput(
                f"{RUN.of(folder)} is damaged: it does not say what the model is"
            ) from None

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "input_shape": list(self.input_shape),
            "outputs": self.outputs,
            "kind": self.kind,
            "integers": self.integers,
        }
        told |= {} if self.buffers is None else {"buffers": self.buffers}
        return told | ({"columns": list(self.columns)} if self.columns else {})


@public
def load_model(run: str | Path, model: nn.Module | str | None = None) -> nn.Module:
    """The model of a run, ready to be used.

    Arguments:
        run: the directory of a run that has finished or was stopped.
        model: needed for a model of your own. The name "package.module:function" that the run's
            config has, which allows importing it and running the function with the options that the
            run directory has; or a module, which gets the run's numbers and is returned, as for a
            run that was trained from Python. Default: a model that fedspend knows.

    Returns:
        A `torch.nn.Module` in evaluation mode.

    Raises:
        InvalidInput: there is no model yet, it is damaged, or it is of another module.

    `fedspend.load_model("runs/first")`
    """
    folder = Path(run)
    facts = StoredRun(folder).facts()
    path = MODEL.of(folder)
    if not path.exists():
        raise InvalidInput(
            f"{folder} has no {MODEL} yet; it is there when the run has finished or was stopped"
        )
    arrays = read_sealed(path, demanded=False).arrays
    about = About.of(facts, folder)
    module = model if isinstance(model, nn.Module) else _rebuilt(facts, about, folder, model)
    named = dict(module.named_parameters())
    for name in [*named, *arrays]:
        if name not in named or name not in arrays or named[name].shape != arrays[name].shape:
            raise InvalidInput(
                f"{path} is of another model: {name} does not fit; give the module that the run "
                "was trained with"
            )
    if about is not None and about.buffers not in (None, buffers_digest(module)):
        raise InvalidInput(
            f"the model of {folder} was trained with other buffers than this module has, which "
            f"{MODEL} does not hold: were they drawn at random? Give the module with the buffers "
            "of training: load_model(run, model=...)"
        )
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(torch.from_numpy(np.asarray(arrays[name], dtype=np.float32)))
    return module.eval()


def _rebuilt(facts: Facts, about: About | None, folder: Path, allowed: Any) -> nn.Module:
    settings = facts.settings
    name = settings.get("model.name")
    if about is None or not isinstance(name, str):
        raise InvalidInput(
            f"{folder} does not say how its model is made (it was trained from Python, or by an "
            "older version); give the module: load_model(run, model=...)"
        )
    _refuse_unasked_code(settings, folder, allowed)
    keys = ("options",) if ":" in name else (*MODELS[name].keys, "options")
    # frozen weights are in the run's own file
    given = {key: settings[f"model.{key}"] for key in keys if f"model.{key}" in settings}
    given.pop("weights", None)
    seed = settings.get("train.seed", 0)
    return build(
        name,
        input_shape=about.input_shape,
        outputs=about.outputs,
        seed=seed if isinstance(seed, int) else 0,  # that of training: buffers may be drawn, too
        every_place=about.kind == TOKENS,
        **given,
    )


def _refuse_unasked_code(settings: Mapping[str, Any], folder: Path, allowed: Any) -> None:
    """A run directory may come from anybody, so it does not decide alone which code is run."""
    if not isinstance(allowed, str | None):
        raise InvalidInput(
            "model must be a torch.nn.Module, or the name package.module:function, got "
            f"{type(allowed).__name__}"
        )
    name = settings["model.name"]
    # a backbone that is fine-tuned may be a function of your own, too
    asked = name if ":" in name else str(settings.get("model.backbone", ""))
    if ":" not in asked:
        asked = name
        if allowed is None:
            return
    if allowed is None:
        raise InvalidInput(
            f"{folder} asks to import {asked!r} and to run it, which may be anybody's code; if "
            f"you trust both, name it: --model {asked}"
        )
    if allowed != asked:
        raise InvalidInput(
            f"{folder} asks for the model {asked!r}, and --model is {allowed!r}; name the same, if "
            "you trust it"
        )


@dataclass(frozen=True, eq=False)
class Predictions:
    """`values` has a prediction for each row: a class, a number, labels of 0 and 1, or tokens;
    `outputs` is what the model gave. `names` are the classes, where they are words; `columns` those
    of the label, where there are several.
    """

    values: Array
    outputs: npt.NDArray[np.float32]
    kind: str
    names: tuple[str, ...] | None = None
    columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def header(self, *, outputs: bool = False) -> list[str]:
        """What the cells of `shown` are called and, with `outputs`, those of what the model gave:
        by the label's columns or classes, where they are declared; otherwise numbered from 1.
        """
        shown = _titles("prediction", self._width(self.values), self.columns)
        if not outputs:
            return shown
        width, known = self._width(self.outputs), self.columns or self.names or ()
        # one score for two classes is that of the second
        return shown + _titles("output", width, known[1:] if self.kind == BINARY else known)

    def _width(self, table: Array) -> int:
        return int(np.prod(table.shape[1:]))

    def shown(self) -> list[list[str]]:
        """Each prediction as the cells of a row."""
        if self.names is not None and self.values.ndim == 1:
            return [[self.names[int(value)]] for value in self.values]
        table = self.values.reshape(len(self.values), -1)
        if table.dtype.kind == "f":
            return [[f"{value:.7g}" for value in row] for row in table.tolist()]
        return [[str(value) for value in row] for row in table.tolist()]


@public
def predict(
    run: str | Path, data: str | Path | Array, model: nn.Module | str | None = None
) -> Predictions:
    """What the model of a run makes of new rows. It costs no privacy: the model was released.

    Arguments:
        run: the directory of a run that has finished or was stopped.
        data: a CSV or NPZ file like the run's own, without labels, or an array of rows. Columns,
            bounds and levels are those that the run declared.
        model: needed for a model of your own: its name or the module, as for `load_model`.

    Returns:
        `Predictions`: `.values` has one for each row, `.outputs` what the model gave.

    Raises:
        InvalidInput: the model cannot be loaded, or the rows do not fit it.

    `fedspend.predict("runs/first", "new.csv").values`
    """
    folder = Path(run)
    facts = StoredRun(folder).facts()
    about, module = About.of(facts, folder), load_model(folder, model)
    if about is None:
        raise InvalidInput(f"{folder} was written by an older version; use load_model and torch")
    rows = _rows(data, facts.settings, about)
    if about.integers:
        check_whole("features", rows)
        check_known("features", module, rows)
    given = as_input(torch.from_numpy(rows), integers=about.integers)
    outputs = scores(module, flat_vector(module), given).numpy()
    names = facts.settings.get("data.labels")
    known = tuple(map(str, names)) if isinstance(names, list) and about.kind != SEVERAL else None
    label = facts.settings.get("data.label")
    columns = tuple(map(str, label)) if isinstance(label, list) else ()
    values = _values(outputs, about.kind, facts.settings)
    return Predictions(values, outputs, about.kind, known, columns)


def _titles(what: str, width: int, names: Sequence[str]) -> list[str]:
    """A title for each of `width` columns, by its name if there is one for each.

    >>> _titles("output", 2, ["no", "yes"]), _titles("output", 2, []), _titles("prediction", 1, [])
    (['output_no', 'output_yes'], ['output_1', 'output_2'], ['prediction'])
    """
    if width == 1 and what == "prediction":
        return [what]
    known = names if len(names) == width else range(1, width + 1)
    return [f"{what}_{name}" for name in known]


def _values(outputs: npt.NDArray[np.float32], kind: str, settings: Mapping[str, Any]) -> Array:
    if kind in (CLASSES, TOKENS):
        return np.asarray(outputs.argmax(axis=-1))
    if kind == BINARY:
        return (outputs.reshape(len(outputs)) > 0).astype(np.int64)
    if kind == SEVERAL:
        return (outputs > 0).astype(np.int64)
    if kind != NUMBERS:
        return outputs
    wide = outputs.reshape(len(outputs), -1)
    low, high = _label_bounds(settings, wide.shape[1])
    found: Array = low + wide * (high - low)
    return found[:, 0] if found.shape[1] == 1 else found


def _label_bounds(settings: Mapping[str, Any], width: int) -> tuple[Array, Array]:
    """The bounds by which targets were scaled, which predictions are scaled back by."""
    given, label = settings.get("data.label_bounds"), settings.get("data.label", "label")
    columns = [label] if isinstance(label, str) else list(label)
    if isinstance(given, Mapping):
        pairs = [given[column] for column in columns]
    else:
        pairs = [(0.0, 1.0) if given is None else given] * width
    low, high = np.array(pairs, dtype=np.float64).T
    return low, high


def _rows(data: str | Path | Array, settings: Mapping[str, Any], about: About) -> Features:
    """The new rows, read like the run's own, and of the shape that the model takes."""
    if not isinstance(data, str | Path):
        found = as_features("rows", data)
    elif str(data).endswith(".npz"):
        found = _arrays(Path(data), settings)
    else:
        found = _cells(CsvFrame(read_table(data)), settings, about.columns)
    mapped = str(settings.get("model.features", "none"))
    if mapped != "none":
        return maps.features(mapped, found)
    size = int(np.prod(about.input_shape))
    if found.ndim < 2 or found.size != len(found) * size:
        raise InvalidInput(
            f"the model takes rows of shape {about.input_shape}, and these have "
            f"{found.shape[1:]}; give the same columns as in training"
        )
    if not np.isfinite(found).all():
        raise InvalidInput("the rows hold NaN or infinite numbers; correct them")
    return found.reshape(len(found), *about.input_shape)


def _arrays(path: Path, settings: Mapping[str, Any]) -> Features:
    try:
        with np.load(path, allow_pickle=False) as file:
            found = file["features"]
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInput(
            f"{path}: not an npz file with an array features ({error}); save with numpy.savez"
        ) from None
    return scaled(as_features(f"{path}: features", found), settings.get("data.bounds"))


def _cells(frame: Frame, settings: Mapping[str, Any], trained: Sequence[str]) -> Features:
    """The columns that the model was `trained` with, by name, read as the run declared them; of an
    older run, which does not say which they were, those that are declared, or all.
    """
    told: dict[str, Any] = {}
    if settings.get("data.name") in TABLES:
        told = {key: settings[f"data.{key}"] for key in TABLE_OPTIONS if f"data.{key}" in settings}
    how = TableOptions(**told)
    if how.texts is not None:
        next_token = isinstance(how.target, NextToken)
        return (Beginnings(how.texts) if next_token else how.texts).read(frame)
    used = list(trained) or how.used(frame.header)
    missing = next((column for column in used if column not in frame.header), None)
    if missing is not None or not used:
        raise InvalidInput(
            f"{frame.name}: column {missing!r} is missing, which the model was trained with; add "
            f"it (the file has {', '.join(frame.header)})"
        )
    return how.declared(used).read(frame)
