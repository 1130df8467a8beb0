"""Losses and metrics, against formulas written out and against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="tasks need the train extra")

from sklearn import metrics as known  # noqa: E402
from torch import nn  # noqa: E402

from fedspend.client.gradients import clipped_sum  # noqa: E402
from fedspend.errors import InvalidInput  # noqa: E402
from fedspend.models.flat import flat_vector  # noqa: E402
from fedspend.tasks.kinds import IGNORED  # noqa: E402
from fedspend.tasks.table import LOSSES, METRICS  # noqa: E402
from fedspend.tasks.task import task_of, tried  # noqa: E402

GENERATOR = torch.Generator().manual_seed(3)
LOGITS = torch.randn(40, 3, generator=GENERATOR)
ONE = torch.randn(40, 1, generator=GENERATOR)
BITS = torch.randint(0, 2, (40,), generator=GENERATOR)
LABELS = torch.randint(0, 3, (40,), generator=GENERATOR)
SEVERAL = torch.randint(0, 2, (40, 3), generator=GENERATOR).float()
NUMBERS = torch.randn(40, generator=GENERATOR)
WIDE = torch.randn(40, 3, generator=GENERATOR)
PLACES = torch.randn(40, 5, 3, generator=GENERATOR)
TOKENS = torch.where(
    torch.rand(40, 5, generator=GENERATOR) < 0.3,
    IGNORED,
    torch.randint(0, 3, (40, 5), generator=GENERATOR),
)


def logistic(logit: float, bit: float) -> float:
    return math.log1p(math.exp(-logit if bit else logit))


def row_by_hand(name: str, n: int) -> float:
    """The loss of row n, in plain Python."""
    if name == "classification":
        return math.log(sum(map(math.exp, LOGITS[n]))) - float(LOGITS[n, LABELS[n]])
    if name == "squared":
        return float(ONE[n, 0] - NUMBERS[n]) ** 2
    if name == "absolute":
        return sum(abs(float(a - b)) for a, b in zip(LOGITS[n], WIDE[n], strict=True)) / 3
    if name == "binary":
        return logistic(float(ONE[n, 0]), float(BITS[n]))
    if name == "multi-label":
        pairs = zip(LOGITS[n].tolist(), SEVERAL[n].tolist(), strict=True)
        return sum(logistic(a, b) for a, b in pairs) / 3
    counted = [k for k in range(5) if TOKENS[n, k] != IGNORED]
    each = [
        math.log(sum(map(math.exp, PLACES[n, k]))) - float(PLACES[n, k, TOKENS[n, k]])
        for k in counted
    ]
    return sum(each) / len(each) if each else 0.0


GIVEN = {
    "classification": (LOGITS, LABELS),
    "squared": (ONE, NUMBERS),
    "absolute": (LOGITS, WIDE),
    "binary": (ONE, BITS),
    "multi-label": (LOGITS, SEVERAL),
    "next-token": (PLACES, TOKENS),
}


def test_every_loss_is_here():
    assert set(GIVEN) == set(LOSSES.names)


@pytest.mark.parametrize("name", GIVEN)
def test_a_loss_gives_each_row_its_own_number(name):
    task, (output, target) = task_of(name), GIVEN[name]
    wanted = [row_by_hand(name, n) for n in range(40)]
    assert task.rows(output, target).tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert float(task.mean(output, target)) == pytest.approx(np.mean(wanted), rel=1e-5)
    assert float(task.total(output, target)) == pytest.approx(np.sum(wanted), rel=1e-5)


@pytest.mark.parametrize("name", GIVEN)
def test_a_row_is_never_compared_with_another(name):
    """An output of (rows, 1) beside a target of (rows,) must not become (rows, rows)."""
    task, (output, target) = task_of(name), GIVEN[name]
    leaf = output.clone().requires_grad_()
    (slope,) = torch.autograd.grad(task.rows(leaf, target)[7], leaf)
    assert not slope[:7].any()
    assert not slope[8:].any()


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInput, match="as many numbers a row"):
        task_of("squared").rows(LOGITS, NUMBERS)
    with pytest.raises(InvalidInput, match=r"\(rows, length, classes\)"):
        task_of("next-token").rows(LOGITS, TOKENS)


def test_metrics_agree_with_scikit_learn():
    def of(loss, name, output, target):
        return task_of(loss, [name]).measured(output, target)[name]

    guess = LOGITS.argmax(1)
    assert of("classification", "accuracy", LOGITS, LABELS) == pytest.approx(
        known.accuracy_score(LABELS, guess)
    )
    assert of("classification", "f1", LOGITS, LABELS) == pytest.approx(
        known.f1_score(LABELS, guess, average="macro")
    )
    assert of("binary", "f1", ONE, BITS) == pytest.approx(known.f1_score(BITS, ONE[:, 0] > 0))
    assert of("binary", "auc", ONE, BITS) == pytest.approx(known.roc_auc_score(BITS, ONE[:, 0]))
    assert of("multi-label", "auc", LOGITS, SEVERAL) == pytest.approx(
        known.roc_auc_score(SEVERAL, LOGITS)
    )
    assert of("squared", "mse", LOGITS, WIDE) == pytest.approx(
        known.mean_squared_error(WIDE, LOGITS)
    )
    assert of("squared", "mae", ONE, NUMBERS) == pytest.approx(
        known.mean_absolute_error(NUMBERS, ONE[:, 0])
    )
    assert of("squared", "r2", LOGITS, WIDE) == pytest.approx(known.r2_score(WIDE, LOGITS))
    assert of("classification", "perplexity", LOGITS, LABELS) == pytest.approx(
        math.exp(known.log_loss(LABELS, LOGITS.double().softmax(1)))
    )


def test_places_without_a_target_do_not_count():
    task = task_of("next-token")
    all_ignored = torch.full((2, 5), IGNORED)
    assert task.rows(PLACES[:2], all_ignored).tolist() == [0.0, 0.0]
    found = task.measured(PLACES[:2], all_ignored)
    assert math.isnan(found["accuracy"])
    assert math.isnan(found["perplexity"])


def test_an_undefined_metric_is_not_a_number():
    auc = METRICS["auc"].measure
    assert math.isnan(auc(ONE, torch.ones(40), "binary"))
    assert math.isnan(METRICS["r2"].measure(ONE, torch.ones(40), "numbers"))


class Remembering:
    """Weighs rows by the largest target that it has ever met."""

    def __init__(self):
        self.largest = 0.0

    def __call__(self, output, target):
        self.largest = max(self.largest, float(target.max()))
        return (output[:, 0] - target).square() * (1 + self.largest)


def test_an_own_loss_that_draws_is_no_loss_that_remembers():
    noisy = task_of(lambda o, y: (o[:, 0] - y + 0.1 * torch.randn(len(y))).square())
    tried(noisy, ONE[:2], torch.zeros(2))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda o, y: (o - y).square().mean(1), "mixes rows"),
        (lambda o, y: (o[:, 0] - y).square().mean(), r"one number a row, shape \(2,\)"),
        (lambda o, y: (o[:, 0] - y).square().tolist(), "one number a row.*got list"),
        (lambda o, y: (o[:, 0] - y).detach().square(), "cannot be differentiated"),
        (lambda o, y: (o[:, 0] - y.mean()).square(), "mixes rows"),
        (lambda o, y: (o[:, 0] - y).square() / len(y), "mixes rows"),
        (Remembering(), "remembers rows"),
    ],
)
def test_an_own_loss_that_would_break_the_bound_on_a_row_is_refused(loss, message):
    with pytest.raises(InvalidInput, match=message):
        tried(task_of(loss), ONE[:2], torch.zeros(2))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"loss": "sqared"}, "squared"),
        ({"loss": 3}, "a name or a function"),
        ({"metrics": "mse"}, "list of names"),
        ({"loss": "squared", "metrics": ["accuracy"]}, "does not fit loss 'squared'"),
        ({"metrics": ["accuracy", "accuracy"]}, "listed twice"),
        ({"metrics": [7]}, "a name or a function"),
    ],
)
def test_bad_tasks_are_refused_in_one_line(terms, message):
    with pytest.raises(InvalidInput, match=message) as refusal:
        task_of(**terms)
    assert "\n" not in str(refusal.value)


def chain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1))


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 1))


@pytest.mark.parametrize("make", [linear, chain])
def test_a_record_adds_the_same_whoever_is_sampled_with_it(make):
    """Even under an own loss that no trial on a few rows gives away: from six rows on it turns
    every gradient around.
    """

    def turning(output, target):
        return (output[:, 0] - target).square() * (1.0 if len(target) < 6 else -1.0)

    module, task = make(), task_of(turning)
    tried(task, ONE[:2], torch.zeros(2))
    rows, wanted = torch.randn(6, 1, 3, 3), torch.full((6,), 9.0)
    sum_of, start = clipped_sum(module, 1.0, task=task), flat_vector(module)
    moved = sum_of(start, rows, wanted) - sum_of(start, rows[:5], wanted[:5])
    assert np.linalg.norm(moved) <= 1.0


def test_an_own_loss_that_looks_at_values_is_given_rows_one_by_one():
    def looking(output, target):
        return (output[:, 0] - target).square() * (2.0 if target[0].item() > 0 else 1.0)

    def plain(output, target):
        return (output[:, 0] - target).square() * torch.where(target > 0, 2.0, 1.0)

    outputs, wanted = torch.randn(5, 1), torch.tensor([1.0, -1, 2, -2, 3])
    one, other = (task_of(loss).apart(outputs, wanted) for loss in (looking, plain))
    assert torch.allclose(one, other)
    assert torch.allclose(other, plain(outputs, wanted).sum())
