"""Small seeded runs whose results are kept in `vectors.npz`.

Guarantee: each can be made from its config alone, in memory and in a fraction of a second. Never
change a config: its vectors could not be made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

METRICS = ("accuracy", "loss", "mse", "private_accuracy", "mean_norm", "clipped_share", "cohort")
# METRICS that say how many of a few rows, or of a few updates, are on one side of a line
COUNTED = ("accuracy", "private_accuracy", "clipped_share")

Config = dict[str, dict[str, Any]]

GROUPS = {"groups": [{"epsilon": 4.0, "share": 1}, {"epsilon": 12.0, "share": 2}]}
TABLE: Config = {
    "data": {
        "name": "synthetic",
        "examples": 160,
        "features": 6,
        "classes": 3,
        "clients": 8,
        "partition": "iid",
    },
    "model": {"name": "logistic"},
    "method": {"name": "dp-fedavg"},
    "privacy": {"epsilon": 8.0, "delta": 1e-3, "rate": 0.8, "clip": 0.25, "accountant": "rdp"},
    "train": {"rounds": 3, "local_steps": 3, "batch_size": 8, "lr": 0.3, "seed": 5},
}


def with_(base: Config, **sections: Mapping[str, Any] | None) -> Config:
    """`base` with other values; None takes a value away."""
    merged = {name: dict(section) for name, section in base.items()}
    for name, section in sections.items():
        merged.setdefault(name, {}).update(section or {})
    return {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in merged.items()
    }


def method(name: str, **options: Any) -> Config:
    """The section of a client-level method, and the budgets that suit it."""
    budgets: dict[str, Any] = {}
    if name in ("idp-fedavg", "time-adaptive", "adaptive-clip"):
        budgets = {"epsilon": None, **GROUPS}
    if name in ("fedavg", "dp-fedsgd", "privacy-free"):
        budgets = {"epsilon": None}
    if name == "dp-fedsgd":
        options = {"noise_level": 0.15} | options
    return {"method": {"name": name, **options}, "privacy": budgets}


def voting(base: Config) -> Config:
    """Votes on public rows, few enough that noise does not decide every label."""
    return with_(
        base,
        data={"public_share": 0.3},
        method={"name": "ae-dpfl"},
        votes={"queries": 6, "epochs": 2},
    )


def noisy(base: Config, noise: str, **privacy: Any) -> Config:
    return with_(base, privacy={"noise": noise, **privacy})


MLP = {"name": "mlp", "hidden": [5]}
UNEVEN = {"partition": "dirichlet", "alpha": 1.0}
EMPTY = {"partition": "dirichlet", "alpha": 0.05, "clients": 12, "examples": 60}
CLIENT_METHODS = (
    "fedavg",
    "dp-fedavg",
    "idp-fedavg",
    "time-adaptive",
    "adaptive-clip",
    "dp-fedsgd",
)
NOISES = ("distributed", "discrete", "discrete-distributed")
MEASURED = {"data": {"validation": 0.2}, "evaluation": {"mode": "private", "noise": 2.0}}

# What every engine of clients does, by name.
COMMON: dict[str, Config] = {
    **{name: with_(TABLE, **method(name)) for name in CLIENT_METHODS},
    "ae-dpfl": voting(TABLE),
    **{noise: noisy(TABLE, noise) for noise in NOISES},
    **{
        f"adaptive-clip-{noise}": noisy(with_(TABLE, **method("adaptive-clip")), noise)
        for noise in NOISES
    },
    "private-metric": with_(TABLE, **MEASURED),
    "private-metric-discrete-distributed": noisy(with_(TABLE, **MEASURED), "discrete-distributed"),
    "per-layer": with_(TABLE, model=MLP, privacy={"clipping": "per-layer"}),
    "shape": with_(TABLE, model=MLP, shape={"blur": 1.0, "lus": 0.5}),
    "momentum": with_(TABLE, train={"momentum": 0.9}),
    "adam": with_(TABLE, model=MLP, train={"optimizer": "adam", "weight_decay": 0.1, "lr": 0.05}),
    "proximal-and-gradient-clip": with_(TABLE, train={"proximal": 2.0, "gradient_clip": 0.05}),
    "local-epochs": with_(TABLE, data=UNEVEN, train={"local_steps": None, "local_epochs": 2}),
    "with-empty-clients": with_(TABLE, data=EMPTY),
    "adaptive-clip-with-empty-clients": with_(TABLE, **method("adaptive-clip"), data=EMPTY),
}

REFERENCE: dict[str, Config] = {
    **COMMON,
    "privacy-free": with_(TABLE, **method("privacy-free")),
    "pld": with_(TABLE, privacy={"accountant": "pld"}),
    "individual-rates": with_(
        TABLE,
        method={"name": "idp-fedavg"},
        privacy={"epsilon": None, **GROUPS, "policy": "individual-rates", "split": "rates"},
    ),
    "saving": with_(TABLE, **method("time-adaptive"), train={"tail_average": 2}),
    "saving-by-rate": with_(
        TABLE,
        method={"name": "time-adaptive"},
        privacy={"epsilon": None, **GROUPS, "saving_rate": 0.4},
    ),
    "adaptive-clip-options": with_(
        TABLE, **method("adaptive-clip", target_quantile=0.7, clip_lr=0.5, bit_noise=3.0)
    ),
    "ae-dpfl-distributed": noisy(voting(TABLE), "distributed"),
    "ae-dpfl-discrete": noisy(voting(TABLE), "discrete"),
    "sixteen-bits": noisy(TABLE, "discrete", bits=16),
    "server-momentum": with_(TABLE, train={"server_momentum": 0.6, "server_lr": 0.8}),
    "server-adam": with_(TABLE, train={"server_optimizer": "adam", "server_lr": 0.1}),
    "tail-average": with_(TABLE, train={"tail_average": 3, "server_momentum": 0.5}),
    "lr-linear": with_(TABLE, train={"lr_schedule": "linear", "lr_end": 0.2}),
    "lr-cosine-constant-clip": with_(
        TABLE, train={"lr_schedule": "cosine"}, privacy={"clip_schedule": "constant"}
    ),
    "stopping": with_(TABLE, train={"rounds": 6}, stop={"patience": 1, "least": 0.5}),
    "shards": with_(TABLE, data={"partition": "shards", "shards": 2}),
    "classes": with_(TABLE, data={"partition": "classes", "classes_per_client": 2}),
    "regression": with_(
        TABLE,
        data={
            "name": "diabetes",
            "examples": None,
            "features": None,
            "classes": None,
            "share": 0.4,
        },
        model={"name": "linear"},
        task={"loss": "squared", "metrics": ["mse"]},
        train={"lr": 0.05},
    ),
}

IMAGES = with_(
    TABLE,
    data={"name": "digits", "examples": None, "features": None, "classes": None, "share": 0.2},
    model={"name": "small-cnn"},
    engine={"workers": 1},
    train={"rounds": 2, "lr": 0.2},
)
CLIENTWISE: dict[str, Config] = {
    **{name: with_(IMAGES, **method(name)) for name in ("fedavg", "idp-fedavg", "adaptive-clip")},
    "ae-dpfl": voting(IMAGES),
    "discrete-distributed": noisy(IMAGES, "discrete-distributed"),
    "per-layer": with_(IMAGES, privacy={"clipping": "per-layer"}),
    "two-workers": with_(IMAGES, **method("time-adaptive"), engine={"workers": 2}),
}

RECORDS: Config = with_(
    TABLE,
    data={"examples": 120, "clients": 4},
    method={"name": "rpdp"},
    privacy={
        "epsilon": None,
        "accountant": None,
        "preferences": "three-levels",
        "noise_multiplier": 8.0,
        "clip": 0.7,
    },
    train={"rounds": 3, "local_steps": 4, "batch_size": None, "lr": 0.5, "seed": 2},
)
BY_NORM = with_(
    RECORDS,
    method={"name": "filter", "charge": "norm"},
    privacy={"rate": None, "noise_multiplier": 4.0, "clip": 1.5},
)
RECORD_RUNS: dict[str, Config] = {
    "rpdp": RECORDS,
    "rpdp-scf-clamped": with_(RECORDS, method={"rates": "scf-clamped"}),
    "rpdp-saving": with_(RECORDS, method={"saving_share": 0.5}, privacy={"transition": 3}),
    "rpdp-mlp-momentum": with_(RECORDS, model=MLP, train={"momentum": 0.5, "server_momentum": 0.3}),
    "rpdp-suggested-noise": with_(
        RECORDS, privacy={"noise_multiplier": None, "preferences": "bounded-pareto"}
    ),
    "rpdp-small-cnn": with_(
        RECORDS,
        data={"name": "digits", "examples": None, "features": None, "classes": None, "share": 0.1},
        model={"name": "small-cnn"},
        train={"rounds": 2, "local_steps": 2},
    ),
    "minimum": with_(
        RECORDS, method={"name": "minimum"}, privacy={"preferences": "bounded-mix-gauss"}
    ),
    "dropout": with_(RECORDS, method={"name": "dropout"}),
    "filter-clip": with_(RECORDS, method={"name": "filter", "common_rate": 0.9, "charge": "clip"}),
    "filter-norm": BY_NORM,
    "filter-norm-tail": with_(BY_NORM, train={"tail_average": 2, "lr_schedule": "linear"}),
}


def _on(engine: str, configs: dict[str, Config], prefix: str) -> dict[str, Config]:
    return {
        f"{prefix}-{name}": with_(config, engine={"name": engine})
        for name, config in configs.items()
    }


# Methods of records have an engine of their own.
CONFIGS: dict[str, Config] = {
    **_on("reference", REFERENCE, "reference"),
    **_on("local", COMMON, "dense"),
    **_on("local", CLIENTWISE, "clientwise"),
    **{f"records-{name}": config for name, config in RECORD_RUNS.items()},
}


# --- runs on arrays, with modules that no config can name ---


def tanh() -> torch.nn.Module:
    """Not a chain of Linear and ReLU, so it is trained client by client."""
    torch.manual_seed(11)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def dropout() -> torch.nn.Module:
    """Draws random numbers while it is trained."""
    torch.manual_seed(12)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(8, 3)
    )


MODULES = {"tanh": tanh, "dropout": dropout}
ARRAYS: dict[str, dict[str, Any]] = {
    "arrays-reference-tanh": {"module": "tanh", "engine": "reference"},
    "arrays-reference-dropout": {
        "module": "dropout",
        "engine": "reference",
        "noise": "distributed",
    },
    "arrays-clientwise-tanh": {
        "module": "tanh",
        "engine": "local",
        "workers": 1,
        "clipping": "per-layer",
    },
    "arrays-clientwise-dropout": {
        "module": "dropout",
        "engine": "local",
        "workers": 1,
        "server_momentum": 0.5,
    },
}


def rows(count: int, stream: int) -> tuple[np.ndarray, np.ndarray]:
    """Three clusters, in numbers that every machine rounds alike."""
    generator = np.random.Generator(np.random.Philox(stream))
    labels = np.arange(count) % 3
    centres = np.array([[1, 0, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 1]])
    return (centres[labels] + generator.integers(-100, 101, (count, 6)) / 100).astype(
        np.float32
    ), labels


def train(name: str) -> Any:
    """Run one of `CONFIGS` or `ARRAYS`, in memory."""
    import fedspend

    if name in ARRAYS:
        options = {
            "lr": 0.3,
            "batch_size": 8,
            "local_steps": 4,
            "randomness": "seeded",
            "seed": 4,
        } | ARRAYS[name]
        plan = fedspend.plan(
            [4.0] * 5 + [9.0] * 5, delta=1e-3, rounds=3, rate=0.7, clip=0.5, accountant="rdp"
        )
        clients = [rows(20 + client, client) for client in range(10)]
        return fedspend.train(
            clients=clients,
            model=MODULES[options.pop("module")](),
            plan=plan,
            test=rows(90, 99),
            **options,
        )
    return fedspend.train(CONFIGS[name])


def result_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The final parameters as one float32 vector, and a line of `METRICS` for every round; NaN for
    what a run does not tell.
    """
    done = train(name)
    flat = np.concatenate(
        [parameter.detach().numpy().reshape(-1) for parameter in done.model.parameters()]
    )
    lines = [
        [np.nan if line.get(key) is None else float(line[key]) for key in METRICS]
        for line in done.metrics
    ]
    return flat, np.array(lines, dtype=np.float64)
