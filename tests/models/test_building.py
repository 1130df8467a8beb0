from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch", reason="models need the train extra")

from fedspend.errors import InvalidInput  # noqa: E402
from fedspend.models import MODELS, build, check_module  # noqa: E402


def size(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# Models of tokens, and of a frozen backbone, have tests of their own (tests/tasks).
OF_IMAGES = [name for name in MODELS.names if name not in ("lstm", "transformer", "fine-tune")]


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "count"),
    [
        ("logistic", (1, 28, 28), 10, {}, 7850),
        ("logistic", (784,), 10, {}, 7850),
        ("logistic", (449,), 10, {}, 4500),
        ("mlp", (104,), 2, {}, 104 * 64 + 64 + 64 * 32 + 32 + 32 * 2 + 2),
        ("mlp", (104,), 2, {"hidden": []}, 104 * 2 + 2),
        ("mlp", (1, 8, 8), 10, {"hidden": [16]}, 64 * 16 + 16 + 16 * 10 + 10),
        ("cnn", (1, 28, 28), 10, {}, 1_663_370),
        ("lenet", (1, 28, 28), 10, {}, 61_706),
        ("small-cnn", (1, 28, 28), 10, {}, 20_490),
        ("resnet18", (3, 32, 32), 10, {}, 11_173_962),
    ],
)
def test_parameter_counts(name, shape, classes, options, count):
    assert size(build(name, input_shape=shape, classes=classes, seed=0, **options)) == count


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("name", OF_IMAGES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (1, 13, 17)])
def test_every_model_reads_every_image_that_it_accepts(name, shape):
    if name == "lenet" and min(shape[1:]) < 12:
        with pytest.raises(InvalidInput, match="at least 12x12, got 8x8"):
            build(name, input_shape=shape, classes=5, seed=0)
        return
    model = build(name, input_shape=shape, classes=5, seed=0)
    check_module(model, input_shape=shape, classes=5)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("name", OF_IMAGES)
def test_the_start_depends_on_the_seed_alone(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build(name, input_shape=(1, 16, 16), classes=3, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    two = build(name, input_shape=(1, 16, 16), classes=3, seed=5)
    other = build(name, input_shape=(1, 16, 16), classes=3, seed=6)
    same = [torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True)]
    differs = [
        not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True)
    ]
    assert all(same)
    assert any(differs) or name in ("logistic", "linear")


def test_logistic_starts_at_zero():
    assert not any(
        parameter.any()
        for parameter in build("logistic", input_shape=(4,), classes=3, seed=0).parameters()
    )


def test_dense_models_are_plain_sequences():
    kinds = [type(layer).__name__ for layer in build("mlp", input_shape=(4,), classes=2, seed=0)]
    assert kinds == ["Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear"]


@pytest.mark.parametrize("name", OF_IMAGES)
def test_models_travel_to_worker_processes(name):
    model = build(name, input_shape=(1, 16, 16), classes=3, seed=0)
    assert size(pickle.loads(pickle.dumps(model))) == size(model)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"name": "logistc"}, "unknown model 'logistc'; did you mean 'logistic'?"),
        ({"name": "perceptron"}, "choose one of logistic, linear, mlp, cnn"),
        (
            {"name": "cnn", "input_shape": (104,)},
            r"needs images \(channels, height, width\), got rows of shape \(104,\)",
        ),
        ({"name": "cnn", "input_shape": (1, 3, 3)}, "at least 4x4, got 3x3"),
        ({"name": "mlp", "hidden": 64}, "hidden must be a list of layer widths"),
        ({"name": "mlp", "hidden": "64"}, "hidden must be a list of layer widths"),
        ({"name": "mlp", "hidden": [0]}, "hidden must be a whole number of at least 1"),
        (
            {"name": "mlp", "hiden": [3]},
            "unknown option of model 'mlp': 'hiden'; did you mean 'hidden'?",
        ),
        ({"name": "cnn", "hidden": [3]}, "unknown option of model 'cnn': 'hidden'"),
        ({"classes": 1}, "classes must be a whole number of at least 2"),
        ({"input_shape": ()}, "input_shape must be positive whole numbers"),
        ({"input_shape": (0, 3)}, "input_shape must be positive whole numbers"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_bad_requests(request_, message):
    wanted = {"name": "logistic", "input_shape": (1, 28, 28), "classes": 10, "seed": 0} | request_
    with pytest.raises(InvalidInput, match=message):
        build(wanted.pop("name"), **wanted)
