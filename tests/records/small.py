"""A small run whose records are charged by their norms."""

CONFIG = {
    "data": {
        "name": "synthetic",
        "examples": 60,
        "features": 5,
        "classes": 3,
        "clients": 2,
        "partition": "iid",
    },
    "model": {"name": "logistic"},
    "method": {"name": "filter", "charge": "norm"},
    "privacy": {"preferences": "three-levels", "delta": 1e-3, "noise_multiplier": 4.0, "clip": 1.5},
    "train": {"rounds": 4, "local_steps": 5, "lr": 0.5, "seed": 2},
}
