"""A small run that has it all: budgets of two groups, saving, momentum and a tail."""

TINY = {
    "data": {
        "name": "synthetic",
        "examples": 240,
        "features": 6,
        "classes": 3,
        "clients": 6,
        "partition": "dirichlet",
        "alpha": 0.5,
    },
    "model": {"name": "logistic"},
    "method": {"name": "time-adaptive"},
    "privacy": {
        "groups": [{"epsilon": 4.0, "share": 1}, {"epsilon": 12.0, "share": 2}],
        "saving_rate": 0.4,
        "delta": 1e-3,
        "rate": 0.8,
        "clip": 0.5,
        "accountant": "rdp",
    },
    "train": {
        "rounds": 4,
        "local_steps": 3,
        "batch_size": 8,
        "lr": 0.3,
        "seed": 5,
        "tail_average": 2,
        "server_momentum": 0.5,
    },
}
