"""The models that have a name.

Guarantee: the same name, shape and seed give the same parameters, bit for bit, whatever the state
of torch's own generator, which is left untouched. No model has batch statistics: what a client
learns leaves it only through its clipped update.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedspend.basics.choices import only
from fedspend.basics.registry import Entry, Registry
from fedspend.errors import InvalidInput, whole_number
from fedspend.models.resnet import resnet18
from fedspend.noise.randomness import Randomness

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Model(Entry):
    """`make(input_shape, classes, **keys)` gives a module; torch's generator is seeded before it is
    called.
    """

    make: Callable[..., nn.Module] = nn.Identity


def build(name: str, *, input_shape: Shape, classes: int, seed: int, **options: Any) -> nn.Module:
    """The model `name` for rows of `input_shape`, freshly initialised on the CPU.

    >>> model = build("mlp", input_shape=(104,), classes=2, seed=0, hidden=[64, 32])
    >>> sum(parameter.numel() for parameter in model.parameters())
    8866
    """
    model = MODELS[name]
    classes = whole_number("classes", classes, at_least=2)
    only(f"model {name!r}", options, model.keys)
    shape = tuple(input_shape)
    if not (shape and all(isinstance(length, int) and length >= 1 for length in shape)):
        raise InvalidInput(f"input_shape must be positive whole numbers, got {input_shape!r}")
    words = Randomness(whole_number("seed", seed, at_least=0)).generator("model").integers(2**63)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(words))
        return model.make(shape, classes, **options)


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
    Model("mlp", "fully connected layers with ReLU", ("hidden",), make=_mlp),
    Model(
        "cnn",
        "two convolutions and two linear layers (McMahan et al. 2017); 1.7 million parameters",
        make=_cnn,
    ),
    Model("lenet", "LeNet-5 with ReLU and max pooling", make=_lenet),
    Model("small-cnn", "two small convolutions; about 20,000 parameters", make=_small_cnn),
    Model("resnet18", "ResNet-18 with group norm; 11 million parameters", make=_resnet18),
    section="model",
)
