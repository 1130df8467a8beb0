"""The whole algorithm in plain loops, beside the pseudocode of Kiani et al. (2025), Algorithms 1
and 2.

    python examples/by_hand.py

Nothing here is fast and nothing is hidden: one client after the other, one step after the other,
with numpy alone. The tests hold the real engines to what `train_by_hand` returns. It uses the same
plan and the same keyed random numbers as a seeded simulation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import fedspend
from fedspend.noise.randomness import Randomness


def softmax_gradient(weights: Any, bias: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Gradient of the mean cross-entropy of logistic regression on one batch."""
    scores = x @ weights.T + bias
    scores = scores - scores.max(axis=1, keepdims=True)
    probability = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    probability[np.arange(len(y)), y] -= 1
    return probability.T @ x / len(y), probability.mean(axis=0)


def client_update(
    theta: Any,
    x: Any,
    y: Any,
    classes: int,
    steps: int,
    batch: int,
    lr: float,
    order: np.random.Generator,
    bound: float,
    blur: float = 0.0,
    lus: float = 0.0,
) -> Any:
    """Algorithm 2, ClientUpdate, lines 1 to 8: local SGD from the global model; returns the
    difference.

    With `blur` and `lus` it is Algorithm 2 of Cheng et al. (2022).
    """
    features = x.shape[1]
    weights, bias = (
        theta[: classes * features].reshape(classes, features).copy(),
        theta[classes * features :].copy(),
    )
    start_weights, start_bias = weights.copy(), bias.copy()
    gradient = np.zeros_like(theta)
    done = 0
    while done < steps and len(y) > 0:  # shuffle, cut into batches, start over
        shuffled = order.permutation(len(y))
        for first in range(0, len(y), min(batch, len(y))):
            rows = shuffled[first : first + min(batch, len(y))]
            d_weights, d_bias = softmax_gradient(weights, bias, x[rows], y[rows])
            gradient = np.concatenate([d_weights.ravel(), d_bias])
            if (
                np.sqrt(((weights - start_weights) ** 2).sum() + ((bias - start_bias) ** 2).sum())
                > bound
            ):
                # BLUR: outside the ball, a pull to its centre
                d_weights = d_weights + blur * (weights - start_weights)
                d_bias = d_bias + blur * (bias - start_bias)
            weights -= lr * d_weights
            bias -= lr * d_bias
            done += 1
            if done == steps:
                break
    update = np.concatenate([weights.ravel(), bias]) - theta
    return sparse(update, gradient, lus) if lus > 0 else update


def sparse(update: Any, gradient: Any, lus: float) -> Any:
    """LUS: keep the values that the local loss depends on most;
    logistic regression is one layer.
    """
    keep = math.ceil(round((1 - lus) * len(update), 9))
    by_importance = sorted(range(len(update)), key=lambda n: (-abs(gradient[n] * update[n]), n))
    kept = np.zeros_like(update)
    for n in by_importance[:keep]:
        kept[n] = update[n]
    return kept


def clip(update: Any, bound: float) -> Any:
    """Algorithm 2, ClientUpdate, line 9."""
    norm = np.linalg.norm(update)
    return update * (bound / norm) if norm > bound else update


def train_by_hand(
    plan: fedspend.Plan,
    clients: list[tuple[Any, Any]],
    classes: int,
    *,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
    blur: float = 0.0,
    lus: float = 0.0,
) -> list[Any]:
    """Algorithm 2. Returns theta after every round."""
    randomness = Randomness(seed)
    features = clients[0][0].shape[1]
    theta = np.zeros(classes * features + classes)  # line 2
    iterates = []
    for t in range(plan.rounds):  # line 3
        chance = randomness.uniform(len(clients), "cohort", t)
        total = np.zeros_like(theta)
        for n, (x, y) in enumerate(clients):
            # line 4: Poisson sampling, each client on its own
            if chance[n] < plan.sampling_rate[t, n]:
                order = randomness.generator("batches", t, n)
                bound = plan.clip_norm[t, n]
                # line 6
                update = client_update(
                    theta, x, y, classes, steps, batch, lr, order, bound, blur, lus
                )
                total += clip(update, bound)
        # = clip_norm * noise_multiplier, for every client
        deviation = plan.clip * plan.round_noise[t]
        # line 8, all of it added by the server
        total += deviation * randomness.normal(theta.size, "noise", t)
        # line 9: the planned denominator
        theta = theta + total / (len(clients) * plan.round_rate[t])
        iterates.append(theta)
    return iterates


def main() -> None:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = x / 16.0, y.astype(int)
    test_x, test_y, x, y = x[:300], y[:300], x[300:], y[300:]
    deal = np.array_split(np.random.default_rng(0).permutation(len(y)), 30)
    clients = [(x[rows], y[rows]) for rows in deal]

    budgets = [10.0] * 10 + [20.0] * 12 + [30.0] * 8
    # Algorithm 1
    plan = fedspend.plan(budgets, delta=1e-5, rounds=15, rate=0.9, saving_rate=0.6, clip=0.5)
    iterates = train_by_hand(plan, clients, 10, steps=10, batch=16, lr=0.2, seed=1)
    for t, theta in enumerate(iterates, start=1):
        guess = (test_x @ theta[:640].reshape(10, 64).T + theta[640:]).argmax(axis=1)
        spent = ", ".join(
            f"{plan.spent()[t - 1, n]:.2f} of {plan.budget[n]:g}" for n in (0, 10, 22)
        )
        print(f"round {t:2}  accuracy {np.mean(guess == test_y):.3f}  spent {spent}")


if __name__ == "__main__":
    main()
