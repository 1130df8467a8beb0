"""The models that have a name.

Guarantee: the same name, shape and seed give the same parameters, bit for bit, whatever the state
of torch's own generator, which is left untouched. No model has batch statistics: what a client
learns leaves it only through its clipped update.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedspend.basics.choices import only
from fedspend.basics.registry import Entry, Registry
from fedspend.errors import FedspendError, InvalidInput, whole_number
from fedspend.models.resnet import resnet18
from fedspend.models.sequences import TokenLSTM, TokenTransformer
from fedspend.models.tuning import tuned
from fedspend.noise.randomness import Randomness

Shape = tuple[int, ...]
_FINE_TUNE = "fine-tune"


@dataclass(frozen=True)
class Model(Entry):
    """`make(input_shape, classes, **keys)` gives a module; torch's generator is seeded before it is
    called.
    """

    make: Callable[..., nn.Module] = nn.Identity
    tokens: bool = False  # takes sequences of tokens, and is told `every_place`


def build(
    name: str,
    *,
    input_shape: Shape,
    seed: int,
    classes: int | None = None,
    outputs: int | None = None,
    every_place: bool = False,
    **options: Any,
) -> nn.Module:
    """The model `name` for rows of `input_shape`, freshly initialised on the CPU, with one output a
    class, or with this many `outputs`; for sequences, in `every_place` if asked for.

    A name such as "my_package.my_module:make" is a function of your own, which is called with the
    shape, the number of outputs and your `options`.

    >>> model = build("mlp", input_shape=(104,), classes=2, seed=0, hidden=[64, 32])
    >>> sum(parameter.numel() for parameter in model.parameters())
    8866
    """
    if outputs is None:
        outputs = whole_number("classes", classes, at_least=2)
    outputs = whole_number("outputs", outputs, at_least=1)
    shape = tuple(input_shape)
    if not (shape and all(isinstance(length, int) and length >= 1 for length in shape)):
        raise InvalidInput(f"input_shape must be positive whole numbers, got {input_shape!r}")
    words = Randomness(whole_number("seed", seed, at_least=0)).generator("model").integers(2**63)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(words))
        return _made(name, shape, outputs, every_place, options)


def _made(
    name: str, shape: Shape, outputs: int, every_place: bool, options: dict[str, Any]
) -> nn.Module:
    if ":" in name:
        return own_model(name, shape, outputs, **options.get("options") or {})
    model = MODELS[name]
    only(f"model {name!r}", options, model.keys)
    if model.tokens:
        options = options | {"every_place": every_place}
    elif every_place and name != _FINE_TUNE:
        fitting = ", ".join(one.name for one in MODELS if one.tokens)
        raise InvalidInput(
            f"model {name!r} has no scores for every place of a sequence; choose {fitting}, or a "
            "model of your own"
        )
    if name == _FINE_TUNE:
        return _fine_tune(shape, outputs, every_place, **options)
    return model.make(shape, outputs, **options)


def own_model(name: str, shape: Shape, outputs: int, **options: Any) -> nn.Module:
    """What the function `package.module:function` makes."""
    place, _, called = name.partition(":")
    try:
        make = getattr(importlib.import_module(place), called)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(
            f"model {name!r} cannot be imported ({error}); name it as package.module:function, "
            "beside the config or where Python finds it"
        ) from None
    try:
        found = make(shape, outputs, **options)
    except FedspendError:
        raise
    except Exception as error:  # whatever a user's own function raises
        raise InvalidInput(
            f"model {name!r} is called with a row's shape, the number of outputs and "
            f"model.options, which failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, nn.Module):
        raise InvalidInput(
            f"model {name!r} must return a torch.nn.Module, got {type(found).__name__}"
        )
    return found


def _lstm(
    shape: Shape,
    outputs: int,
    *,
    every_place: bool,
    vocabulary: int | None = None,
    width: int = 32,
) -> nn.Module:
    _sequence("lstm", shape)
    count = _vocabulary("lstm", vocabulary, outputs, every_place)
    return TokenLSTM(count, width, outputs, every_place=every_place)


def _transformer(
    shape: Shape,
    outputs: int,
    *,
    every_place: bool,
    vocabulary: int | None = None,
    width: int = 32,
    layers: int = 2,
    heads: int = 2,
) -> nn.Module:
    length = _sequence("transformer", shape)
    if width % heads:
        raise InvalidInput(f"width must be a multiple of heads, got {width} and {heads}")
    return TokenTransformer(
        _vocabulary("transformer", vocabulary, outputs, every_place),
        length,
        width,
        outputs,
        layers=layers,
        heads=heads,
        every_place=every_place,
    )


def _sequence(name: str, shape: Shape) -> int:
    if len(shape) != 1:
        raise InvalidInput(
            f"model {name!r} needs rows of tokens, one number a place, got rows of shape {shape}"
        )
    return shape[0]


def _vocabulary(name: str, stated: int | None, outputs: int, every_place: bool) -> int:
    """How many tokens there are: as stated; where tokens are predicted, as many as classes."""
    if stated is None and not every_place:
        raise InvalidInput(
            f"model {name!r} needs model.vocabulary, the number of tokens; reading it from private "
            "rows would leak"
        )
    return outputs if stated is None else whole_number("vocabulary", stated, at_least=2)


def _fine_tune(
    shape: Shape,
    outputs: int,
    every_place: bool,
    *,
    backbone: str | None = None,
    weights: str | None = None,
    rank: int = 0,
    **options: Any,
) -> nn.Module:
    if backbone is None or backbone == _FINE_TUNE:
        raise InvalidInput(
            "model 'fine-tune' needs model.backbone, the name of the model to freeze, and "
            "model.weights, a local safetensors file"
        )
    return tuned(_made(backbone, shape, outputs, every_place, options), weights, rank)


def _logistic(shape: Shape, classes: int) -> nn.Module:
    """Starts at zero: the loss is convex, so any other start is noise that training must undo."""
    head = nn.Linear(_size(shape), classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(nn.Flatten(), head)


def _mlp(shape: Shape, classes: int, hidden: Any = (64, 32)) -> nn.Module:
    if isinstance(hidden, str) or not isinstance(hidden, Sequence):
        raise InvalidInput(
            f"hidden must be a list of layer widths, for example [64, 32], got {hidden!r}"
        )
    widths = [_size(shape), *(whole_number("hidden", width, at_least=1) for width in hidden)]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def _cnn(shape: Shape, classes: int) -> nn.Module:
    """McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized
    Data", section 3.
    """
    channels, height, width = _image("cnn", shape, least=4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


def _lenet(shape: Shape, classes: int) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling; the first layer pads 28x28 images to
    32x32.
    """
    channels, height, width = _image("lenet", shape, least=12)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def _small_cnn(shape: Shape, classes: int) -> nn.Module:
    """About 20,000 parameters for 28x28: small enough not to drown in noise on every coordinate."""
    channels, height, width = _image("small-cnn", shape, least=4)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), classes),
    )


def _resnet18(shape: Shape, classes: int) -> nn.Module:
    channels, _, _ = _image("resnet18", shape, least=8)
    return resnet18(channels, classes)


def _size(shape: Shape) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _image(name: str, shape: Shape, least: int) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise InvalidInput(
            f"model {name!r} needs images (channels, height, width), got rows of shape {shape}; "
            "use logistic or mlp"
        )
    if min(shape[1:]) < least:
        raise InvalidInput(
            f"model {name!r} needs images of at least {least}x{least}, got {shape[1]}x{shape[2]}; "
            "use a smaller model"
        )
    return shape[0], shape[1], shape[2]


MODELS: Registry[Model] = Registry(
    "model",
    Model("logistic", "logistic regression, starting at zero", make=_logistic),
    Model("linear", "one linear layer, starting at zero: the same, for regression", make=_logistic),
    Model("mlp", "fully connected layers with ReLU", ("hidden",), make=_mlp),
    Model(
        "cnn",
        "two convolutions and two linear layers (McMahan et al. 2017); 1.7 million parameters",
        make=_cnn,
    ),
    Model("lenet", "LeNet-5 with ReLU and max pooling", make=_lenet),
    Model("small-cnn", "two small convolutions; about 20,000 parameters", make=_small_cnn),
    Model("resnet18", "ResNet-18 with group norm; 11 million parameters", make=_resnet18),
    Model(
        "lstm",
        "for sequences of tokens: an embedding and one LSTM layer",
        ("vocabulary", "width"),
        make=_lstm,
        tokens=True,
    ),
    Model(
        "transformer",
        "for sequences of tokens: a small transformer",
        ("vocabulary", "width", "layers", "heads"),
        make=_transformer,
        tokens=True,
    ),
    Model(
        _FINE_TUNE,
        "a frozen backbone from a local file; its last layer, and low-rank adapters, are trained",
        ("backbone", "weights", "rank", "hidden", "vocabulary", "width", "layers", "heads"),
    ),
    section="model",
)
