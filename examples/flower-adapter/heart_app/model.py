"""Logistic regression with numpy alone."""

import csv
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord

FEATURES = ("age", "pressure", "heart_rate", "chest_pain")


def rows(path):
    with Path(path).open(newline="") as file:
        lines = list(csv.DictReader(file))
    features = np.array([[float(line[name]) for name in FEATURES] for line in lines])
    return features, np.array([float(line["sick"]) for line in lines])


def first_model():
    zeros = np.zeros(len(FEATURES), dtype=np.float32)
    return ArrayRecord({"weights": Array(zeros), "bias": Array(zeros[:1])})


def chance(model, features):
    return 1 / (1 + np.exp(-(features @ model["weights"] + model["bias"])))


def trained(model, features, labels, steps, lr):
    """Gradient descent on all rows."""
    model = {name: values.astype(np.float64) for name, values in model.items()}
    for _ in range(steps):
        error = chance(model, features) - labels
        model["weights"] = model["weights"] - lr * features.T @ error / len(labels)
        model["bias"] = model["bias"] - lr * error.mean(keepdims=True)
    return model


def as_arrays(record):
    return {name: array.numpy() for name, array in record.items()}


def as_record(model):
    return ArrayRecord({name: Array(values.astype(np.float32)) for name, values in model.items()})
