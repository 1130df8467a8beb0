"""A loss and a metric of your own. One file, and their names work in a config.

    fedspend --load examples/extending/loss.py train examples/tasks/regression.toml \\
        -o runs/huber --set task.loss=huber --set 'task.metrics=["within", "mae"]'

A loss is a function of (output, target) that gives one number a row; one that mixes rows is refused
before anything is trained. From Python a function will do: `fedspend.train(..., loss=huber)`.
"""

import torch

import fedspend


def huber(output, target, *, width=1.0):
    """Squared error for small errors, absolute error for large ones."""
    return torch.nn.functional.huber_loss(
        output.reshape(target.shape), target, reduction="none", delta=width
    )


def within(outputs, targets):
    """The share of rows that are at most 0.5 off."""
    return float(((outputs.reshape(targets.shape) - targets).abs() <= 0.5).float().mean())


fedspend.register(
    "loss",
    "huber",
    huber,
    help="Huber's: squared near zero, absolute beyond width",
    keys=("width",),
    targets="numbers",
)
fedspend.register("metric", "within", within, help="share of rows at most 0.5 off", share=True)
