"""The model, its rows, and its training."""

from itertools import chain, islice, repeat

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES, CLASSES = 784, 10


def network(hidden):
    if not hidden:
        return nn.Linear(FEATURES, CLASSES)
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def read_rows(path):
    with np.load(path) as arrays:
        return torch.from_numpy(arrays["features"]), torch.from_numpy(arrays["label"])


def batches(features, labels, steps, size):
    """So many batches: one shuffled pass after the other."""
    loader = DataLoader(TensorDataset(features, labels), batch_size=size, shuffle=True)
    return islice(chain.from_iterable(repeat(loader)), steps)


def train(model, features, labels, *, steps, batch_size, lr, descent):
    if descent == "torch":
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for some, wanted in batches(features, labels, steps, batch_size):
        model.zero_grad()
        nn.functional.cross_entropy(model(some), wanted).backward()
        if descent == "torch":
            optimizer.step()
        else:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= lr * parameter.grad


def accuracy(model, features, labels):
    with torch.no_grad():
        return float((model(features).argmax(1) == labels).float().mean())
