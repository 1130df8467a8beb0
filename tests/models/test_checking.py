from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="models need the train extra")

from torch import nn  # noqa: E402

from fedspend.errors import InvalidInput  # noqa: E402
from fedspend.models import check_module  # noqa: E402
from fedspend.models.checking import refuse_mixing  # noqa: E402


class Running(nn.Module):
    """A home-made running mean: the leak that looks like nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(x.mean(dim=0), 0.1)
        return self.head(x - self.mean)


class Constant(nn.Module):
    """A table of floating point numbers that nothing changes, such as positions."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.register_buffer("places", torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + self.places)


class Centred(nn.Module):
    """Subtracts the mean of the batch: rows are mixed without a layer of torch's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=0)


class TimeFirst(nn.Module):
    """An LSTM that takes rows for moments in time."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x[:, :, None])[0][:, -1])


class Counting(nn.Module):
    """Whole-number buffers are constants such as index tables."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.register_buffer("index", torch.arange(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x[:, self.index])


def frozen() -> nn.Module:
    return nn.Linear(3, 2).requires_grad_(False)


def broken() -> nn.Module:
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.bias[0] = float("nan")
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
            "model part '1' is BatchNorm1d.*use GroupNorm",
        ),
        (lambda: nn.BatchNorm2d(4, track_running_stats=False), "is BatchNorm2d"),
        (lambda: nn.SyncBatchNorm(4), "is SyncBatchNorm"),
        (
            lambda: nn.Sequential(nn.Linear(3, 4), nn.InstanceNorm1d(4, track_running_stats=True)),
            "buffer '1.running_mean'.*GroupNorm",
        ),
        (nn.ReLU, "no trainable parameters"),
        (frozen, "no trainable parameters"),
        (
            lambda: nn.Linear(3, 2).double(),
            r"parameter 'weight' is torch.float64; convert the model with .float\(\)",
        ),
        (lambda: nn.Linear(3, 2).half(), "torch.float16"),
        (broken, "parameter 'bias' holds NaN or infinite"),
        (lambda: nn.LazyLinear(2), "has no shape yet"),
        (lambda: "cnn", "model must be a torch.nn.Module, got str"),
        (lambda: nn.Linear, "model must be a torch.nn.Module, got type"),
        (lambda: nn.Linear(4, 2), r"cannot read rows of shape \(3,\)"),
        (lambda: nn.Linear(3, 5), r"must return shape \(2, 2\), one score per class, got \(2, 5\)"),
    ],
)
def test_a_module_that_would_leak_or_fail_is_refused(make, message):
    with pytest.raises(InvalidInput, match=message) as refusal:
        check_module(make(), input_shape=(3,), classes=2)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(3, 2),
        Counting,
        Constant,
        lambda: nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.Dropout(), nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
    ],
)
def test_a_sound_module_passes_and_nothing_is_drawn(make):
    model = make()
    before = torch.get_rng_state()
    assert check_module(model, input_shape=(3,), classes=2) is model
    refuse_mixing(model, (3,))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Running, "model buffer 'mean' learns from rows"),
        (
            lambda: nn.Sequential(nn.Linear(3, 4), Centred(), nn.Linear(4, 2)),
            r"model part '1 \(Centred\)' mixes rows.*GroupNorm, batch_first=True",
        ),
        (TimeFirst, r"model part 'lstm \(LSTM\)' mixes rows"),
    ],
)
def test_a_module_that_mixes_rows_is_refused_and_the_layer_named(make, message):
    with pytest.raises(InvalidInput, match=message) as refusal:
        refuse_mixing(make(), (3,))
    assert "\n" not in str(refusal.value)
