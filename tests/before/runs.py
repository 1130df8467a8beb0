"""Small seeded runs whose results are kept in `vectors.npz`.

Guarantee: no client is without rows, but where a name says so. Never change a config: its vectors
could not be made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
PEOPLE = HERE / "files" / "people.csv"
BUDGETS = HERE / "files" / "budgets.csv"
PATIENTS = HERE / "files" / "patients.csv"
METRICS = ("accuracy", "loss", "mean_norm", "clipped_share", "cohort")

Config = dict[str, dict[str, Any]]

GROUPS = {"groups": [{"epsilon": 4.0, "share": 1}, {"epsilon": 12.0, "share": 2}]}
TABLE: Config = {
    "data": {
        "name": "synthetic",
        "examples": 240,
        "features": 6,
        "classes": 3,
        "clients": 8,
        "partition": "iid",
    },
    "model": {"name": "logistic"},
    "method": {"name": "dp-fedavg"},
    "privacy": {"epsilon": 8.0, "delta": 1e-3, "rate": 0.8, "clip": 0.25},
    "train": {"rounds": 4, "local_steps": 3, "batch_size": 8, "lr": 0.3, "seed": 5},
}
DIGITS: Config = TABLE | {
    "data": {"name": "digits", "clients": 10, "partition": "iid"},
    "privacy": TABLE["privacy"] | {"clip": 1.0},
    "train": {"rounds": 3, "local_steps": 3, "batch_size": 8, "lr": 0.2, "seed": 3},
}
RECORDS: Config = TABLE | {
    "data": TABLE["data"] | {"clients": 4},
    "method": {"name": "rpdp"},
    "privacy": {
        "preferences": "three-levels",
        "delta": 1e-3,
        "rate": 0.8,
        "noise_multiplier": 8.0,
        "clip": 0.7,
    },
    "train": {"rounds": 4, "local_steps": 5, "lr": 0.5, "seed": 2},
}
OWN: Config = TABLE | {
    "data": {
        "name": "csv",
        "path": str(PEOPLE),
        "classes": 2,
        "partition": "natural",
        "clients": 4,
    },
    "privacy": TABLE["privacy"] | {"randomness": "seeded"},
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


def method(name: str, groups: Mapping[str, Any] = GROUPS, **options: Any) -> Config:
    """The section of a client-level method, and the budgets that suit it."""
    budgets: dict[str, Any] = {}
    if name in ("idp-fedavg", "time-adaptive", "adaptive-clip"):
        budgets = {"epsilon": None, **groups}
    if name == "time-adaptive" and "weights" not in groups:
        budgets |= {"saving_rate": 0.4}
    if name in ("fedavg", "dp-fedsgd"):
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
        votes={"queries": 6, "epochs": 3},
    )


def noisy(base: Config, noise: str, **privacy: Any) -> Config:
    return with_(base, privacy={"noise": noise, **privacy})


UNEVEN = {"partition": "dirichlet", "alpha": 1.0}
EMPTY = {"partition": "dirichlet", "alpha": 0.05, "clients": 12, "examples": 60}
MLP = {"name": "mlp", "hidden": [5]}
SHAPE = {"blur": 1.0, "lus": 0.5}
CLIENT_METHODS = (
    "fedavg",
    "dp-fedavg",
    "idp-fedavg",
    "time-adaptive",
    "adaptive-clip",
    "dp-fedsgd",
)
NOISES = ("distributed", "discrete", "discrete-distributed")

# What every engine of clients must do, by name.
COMMON: dict[str, Config] = {
    **{name: with_(TABLE, **method(name)) for name in CLIENT_METHODS},
    "ae-dpfl": voting(TABLE),
    **{noise: noisy(TABLE, noise) for noise in NOISES},
    "per-layer": with_(TABLE, model=MLP, privacy={"clipping": "per-layer"}),
    "shape": with_(TABLE, model=MLP, shape=SHAPE),
    "momentum": with_(TABLE, train={"momentum": 0.9}),
    "local-epochs": with_(TABLE, data=UNEVEN, train={"local_steps": None, "local_epochs": 2}),
    "with-empty-clients": with_(TABLE, data=EMPTY),
    "adaptive-clip-with-empty-clients": with_(TABLE, **method("adaptive-clip"), data=EMPTY),
    "digits-mlp": with_(DIGITS, model={"name": "mlp", "hidden": [8]}),
}

REFERENCE: dict[str, Config] = {
    **COMMON,
    "weights": with_(TABLE, **method("time-adaptive", GROUPS | {"weights": 1.2})),
    "pld": with_(TABLE, privacy={"accountant": "pld"}),
    "adaptive-clip-options": with_(
        TABLE,
        **method("adaptive-clip", target_quantile=0.7, clip_lr=0.5, bit_noise=3.0),
        train={"momentum": 0.5},
    ),
    "adaptive-clip-discrete": noisy(with_(TABLE, **method("adaptive-clip")), "discrete"),
    "ae-dpfl-distributed": noisy(voting(TABLE), "distributed"),
    "ae-dpfl-discrete": noisy(voting(TABLE), "discrete"),
    "per-layer-discrete": noisy(
        with_(TABLE, model=MLP), "discrete-distributed", clipping="per-layer"
    ),
    "sixteen-bits": noisy(TABLE, "discrete", bits=16),
    "server-momentum": with_(TABLE, train={"server_momentum": 0.6, "server_lr": 0.8}),
    "tail-average": with_(TABLE, train={"tail_average": 3, "server_momentum": 0.5}),
    "lr-linear": with_(TABLE, train={"lr_schedule": "linear", "lr_end": 0.2}),
    "lr-cosine": with_(TABLE, train={"lr_schedule": "cosine"}),
    "dirichlet": with_(TABLE, data=UNEVEN),
    "shards": with_(TABLE, data={"partition": "shards", "shards": 2}),
    "classes": with_(TABLE, data={"partition": "classes", "classes_per_client": 2}),
    "validation-and-share": with_(DIGITS, data={"validation": 0.2, "share": 0.3}),
    "natural": with_(OWN, **method("idp-fedavg")),
    "natural-some": with_(OWN, data={"clients": 3}),
    "natural-named-budgets": with_(
        OWN,
        data={"clients": None},
        method={"name": "idp-fedavg"},
        privacy={"epsilon": None, "budgets": str(BUDGETS)},
    ),
    "small-cnn": with_(DIGITS, model={"name": "small-cnn"}, data={"share": 0.3}),
}

IMAGES = with_(
    DIGITS,
    model={"name": "small-cnn"},
    data={"share": 0.3, "validation": 0.1},
    engine={"workers": 1},
)
TWO = {"workers": 2}
CLIENTWISE: dict[str, Config] = {
    **{name: with_(IMAGES, **method(name)) for name in CLIENT_METHODS},
    "ae-dpfl": voting(IMAGES),
    "discrete": noisy(IMAGES, "discrete"),
    "per-layer": with_(IMAGES, privacy={"clipping": "per-layer"}),
    "shape": with_(IMAGES, shape=SHAPE, train={"momentum": 0.5}),
    "local-epochs-and-tail": with_(
        IMAGES,
        data={"partition": "dirichlet", "alpha": 1.0},
        train={
            "local_steps": None,
            "local_epochs": 1,
            "tail_average": 2,
            "server_momentum": 0.5,
            "lr_schedule": "cosine",
        },
    ),
    "two-workers": with_(IMAGES, **method("time-adaptive"), engine=TWO),
    "two-workers-adaptive-clip": with_(IMAGES, **method("adaptive-clip"), engine=TWO),
    "two-workers-ae-dpfl": with_(voting(IMAGES), engine=TWO),
    "two-workers-distributed": noisy(with_(IMAGES, engine=TWO), "distributed"),
    "two-workers-discrete-distributed": noisy(with_(IMAGES, engine=TWO), "discrete-distributed"),
}

BY_NORM = with_(
    RECORDS,
    method={"name": "filter", "charge": "norm"},
    privacy={"rate": None, "noise_multiplier": 4.0, "clip": 1.5},
)
PICTURES = with_(
    RECORDS,
    data={"name": "digits", "examples": None, "features": None, "classes": None, "share": 0.2},
    model={"name": "small-cnn"},
)
RECORD_RUNS: dict[str, Config] = {
    "rpdp": RECORDS,
    "rpdp-search": with_(
        RECORDS,
        data={"examples": 60},
        method={"rates": "search"},
        train={"rounds": 2, "local_steps": 2},
    ),
    "rpdp-scf-clamped": with_(RECORDS, method={"rates": "scf-clamped"}),
    "rpdp-saving": with_(RECORDS, method={"saving_share": 0.5}, privacy={"transition": 3}),
    "rpdp-mlp-momentum": with_(RECORDS, model=MLP, train={"momentum": 0.5, "server_momentum": 0.3}),
    "rpdp-small-cnn": with_(PICTURES, train={"rounds": 2, "local_steps": 3}),
    "rpdp-suggested-noise": with_(
        RECORDS, privacy={"noise_multiplier": None, "preferences": "bounded-pareto"}
    ),
    "rpdp-natural-budget-column": with_(
        RECORDS,
        data=OWN["data"]
        | {
            "path": str(PATIENTS),
            "budget": "epsilon",
            "examples": None,
            "features": None,
            "clients": None,
        },
        privacy={"preferences": None, "randomness": "seeded"},
    ),
    "minimum": with_(
        RECORDS, method={"name": "minimum"}, privacy={"preferences": "bounded-mix-gauss"}
    ),
    "dropout": with_(RECORDS, method={"name": "dropout"}),
    "filter-clip": with_(RECORDS, method={"name": "filter", "common_rate": 0.9, "charge": "clip"}),
    "filter-norm": BY_NORM,
    "filter-norm-mlp-tail": with_(
        BY_NORM, model=MLP, train={"tail_average": 2, "lr_schedule": "linear"}
    ),
}
FREE = {
    "privacy-free": with_(TABLE, method={"name": "privacy-free"}, privacy={"epsilon": None}),
    "privacy-free-full": with_(
        TABLE, method={"name": "privacy-free"}, privacy={"epsilon": None, "rate": None}
    ),
}


def _on(
    engine: str, configs: dict[str, Config], prefix: str, **sections: Mapping[str, Any]
) -> dict[str, Config]:
    return {
        f"{prefix}-{name}": with_(config, **sections, engine={"name": engine})
        for name, config in configs.items()
    }


# Compared bit for bit. Methods of records have an engine of their own; a config that names one is
# refused by now.
EXACT: dict[str, Config] = {
    **_on("reference", REFERENCE, "reference"),
    **_on("local", CLIENTWISE, "clientwise"),
    **{f"records-{name}": config for name, config in RECORD_RUNS.items()},
    **_on("reference", FREE, "reference"),
}

# The engine for dense models is compared after one round, up to rounding.
DENSE: dict[str, Config] = _on(
    "local", COMMON | {"privacy-free": FREE["privacy-free"]}, "dense", train={"rounds": 1}
)


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
    "arrays-two-workers-dropout": {
        "module": "dropout",
        "engine": "local",
        "workers": 2,
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
    """Run one of `EXACT`, `DENSE` or `ARRAYS`, in memory."""
    import fedspend

    if name in ARRAYS:
        options = {
            "lr": 0.3,
            "batch_size": 8,
            "local_steps": 4,
            "randomness": "seeded",
            "seed": 4,
        } | ARRAYS[name]
        plan = fedspend.plan([4.0] * 5 + [9.0] * 5, delta=1e-3, rounds=3, rate=0.7, clip=0.5)
        clients = [rows(20 + client, client) for client in range(10)]
        return fedspend.train(
            clients=clients,
            model=MODULES[options.pop("module")](),
            plan=plan,
            test=rows(90, 99),
            **options,
        )
    return fedspend.train((EXACT | DENSE)[name])


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


# --- accuracy, where only that must stay ---

SEEDS = range(5)
LEARNING = with_(
    DIGITS,
    data={"clients": 40},
    privacy={"epsilon": 30.0, "rate": 0.9, "clip": 1.0},
    train={"rounds": 8, "local_steps": 5, "batch_size": 16, "lr": 0.5},
    engine={"name": "local"},
)
GENEROUS = {"groups": [{"epsilon": 20.0, "share": 1}, {"epsilon": 40.0, "share": 1}]}
PRIVATE = {
    "dp-fedavg": LEARNING,
    "idp-fedavg": with_(LEARNING, **method("idp-fedavg", GENEROUS)),
    "time-adaptive": with_(LEARNING, **method("time-adaptive", GENEROUS)),
    "adaptive-clip": with_(LEARNING, **method("adaptive-clip", GENEROUS)),
    "dp-fedsgd": with_(LEARNING, **method("dp-fedsgd", noise_level=0.1)),
    "ae-dpfl": with_(
        LEARNING, data={"public_share": 0.3}, method={"name": "ae-dpfl"}, votes={"queries": 30}
    ),
}
ACCURACY: dict[str, Config] = {
    "fedavg": with_(LEARNING, **method("fedavg")),
    **{
        f"{name}-{noise}": noisy(config, noise)
        for name, config in PRIVATE.items()
        for noise in ("central", *NOISES)
    },
    "per-layer-mlp": with_(
        LEARNING, model={"name": "mlp", "hidden": [16]}, privacy={"clipping": "per-layer"}
    ),
}


def accuracies(name: str) -> np.ndarray:
    """Final accuracy with each of `SEEDS`."""
    import fedspend

    return np.array(
        [fedspend.train(with_(ACCURACY[name], train={"seed": seed})).accuracy for seed in SEEDS]
    )
