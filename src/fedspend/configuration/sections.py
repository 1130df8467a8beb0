"""The settings of a config: a frozen dataclass for each section.

Each field says how a key is read, what it means and what its default is.

Guarantee: this is the only source. The readers of files, dicts and `--set`, their messages, the
defaults and the help are made from these dataclasses, and a type checker sees that the type of a
field is what its reader returns. A field that may be absent is None. To add a key, add a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from fedspend.accounting.accountants import ACCOUNTANTS, AUTO
from fedspend.configuration.keys import (
    GROUP,
    KEY,
    AnyKey,
    GroupTable,
    Key,
    by_column,
    choice,
    either,
    file,
    flag,
    ledger,
    letter,
    letters,
    levels,
    number,
    pair,
    positive,
    probability,
    ratio_or_list,
    registered,
    setting,
    several,
    table,
    tables,
    text,
    whole,
    wholes,
    word_or_list,
)
from fedspend.data.partition import PARTITIONS
from fedspend.engines.table import ENGINES
from fedspend.planning.clipping import WORDS as CLIP_WORDS
from fedspend.server.steps import SERVER_STEPS
from fedspend.tasks.table import LOSSES, METRICS

LOGGERS = TENSORBOARD, MLFLOW, WANDB = ("tensorboard", "mlflow", "wandb")
PUBLIC, PRIVATE, NONE = MODES = ("public", "private", "none")
_MOMENTUM = "a number of at least 0 and below 1"
Bounds = tuple[float, float] | dict[str, tuple[float, float]]
_AT_LEAST_0 = "a number of at least 0"
_UP_TO_A_MILLION = "a number from 0 to 1e6"
_LR = "a positive number of at most 1e6"


def _bounds(help: str) -> Key[Bounds]:
    """One pair for all columns, or one for each of some."""
    return either(pair(""), by_column(pair(""), "{age = [0, 120]}", ""), help)


@dataclass(frozen=True)
class DataSettings:
    name: str | None = setting(text("which data set"))
    clients: int | None = setting(whole(1, "number of clients"))
    partition: str | None = setting(
        registered(
            PARTITIONS,
            help=(
                "which client holds which rows: by the data's own ids (natural, the default where "
                "it has them), or dealt"
            ),
        )
    )
    leave_out: list[str] | None = setting(
        several(text(""), "partition natural: ids of clients whose rows are not used")
    )
    alpha: float | None = setting(
        positive("concentration of the Dirichlet partition; smaller is more uneven")
    )
    shards: int = setting(whole(1, "label shards for each client"), 2)
    classes_per_client: int | None = setting(
        whole(1, "partition classes: how many classes each client holds")
    )
    validation: float = setting(
        number(
            "a number of at least 0 and below 1",
            lambda x: 0 <= x < 1,
            "share of the training rows to hold out and evaluate on, instead of the test set",
        ),
        0.0,
    )
    share: float = setting(
        probability("share of the training rows to use: the same sample for every seed"), 1.0
    )
    test_share: float = setting(
        probability("share of the evaluation rows to use: the same sample for every seed"), 1.0
    )
    path: str | None = setting(
        file("file with your own data (.csv, .parquet, .npz), or the folder of its images")
    )
    test_path: str | None = setting(file("file with the evaluation rows of your own data"))
    label: str | list[str] | None = setting(
        either(
            text("label column of your own data"),
            several(text(""), ""),
            "label column of your own data; several columns are several answers of 0 and 1, or "
            "several numbers",
        )
    )
    labels: list[str] | None = setting(
        levels(
            "your own data: the labels, in order, where they are words; declared, never read",
            least=2,
        )
    )
    label_bounds: Bounds | None = setting(
        _bounds("your own data: public bounds of a label that is a number, which is scaled by them")
    )
    client: str | None = setting(text("client column of your own data"))
    record: str | None = setting(
        text("column of your own data that holds each record's id, for record-level methods")
    )
    split: str | None = setting(text("column of your own data that says train or test"))
    columns: list[str] | None = setting(
        several(text(""), "columns of your own data to use; default: all without another purpose")
    )
    bounds: Bounds | None = setting(
        _bounds("public bounds by which the features of your own data are scaled")
    )
    categories: dict[str, list[str]] | None = setting(
        by_column(
            levels(""),
            '{blood = ["A", "B", "AB", "0"]}',
            "your own data: the levels of columns that hold words; each becomes a 0/1 feature",
        )
    )
    other: list[str] | None = setting(
        several(text(""), "columns with categories where all other words count as one more level")
    )
    missing: dict[str, float | str] | None = setting(
        by_column(
            either(number("a number", lambda _: True, ""), text(""), ""),
            '{age = 40, blood = "A"}',
            "your own data: the number or level that stands for a missing cell of a column",
        )
    )
    indicators: list[str] | None = setting(
        several(text(""), "columns with one more 0/1 feature that says whether the cell is missing")
    )
    missing_marks: list[str] | None = setting(
        several(text(""), "words that mean a missing cell; default: NA, N/A, NaN, null, ?")
    )
    vocabulary: str | list[str] | None = setting(
        either(
            letters("characters of a text, in one string"),
            levels("words of a text"),
            "tokens of a column of text, characters or words; declared, never read from rows",
        )
    )
    max_length: int | None = setting(
        whole(1, "how many tokens of a text are used; longer ones are cut, shorter ones padded")
    )
    image_size: list[int] | None = setting(
        wholes("your own images: channels (1 or 3), height and width that they are brought to")
    )
    separator: str | None = setting(
        letter("your own CSV file: what separates columns, where the header leaves doubt", '";"')
    )
    decimal: str | None = setting(
        choice(".", ",", help="your own CSV file: the decimal mark, where numbers leave doubt")
    )
    examples: int | None = setting(whole(1, "synthetic data: number of training examples"))
    features: int | None = setting(whole(1, "synthetic data: number of features"))
    classes: int | None = setting(
        whole(2, "number of classes: required for your own data, optional for synthetic")
    )
    budget: str | None = setting(
        text("column of your own data that holds each record's epsilon, for record-level methods")
    )
    public_share: float | None = setting(
        number(
            "a number above 0 and below 1",
            lambda x: 0 < x < 1,
            "share of a benchmark's training rows to make public, without labels, before clients "
            "get theirs",
        )
    )
    public_path: str | None = setting(
        file("file with public rows to go with your own data: same features, no labels needed")
    )
    # the last one, since from here on the name is a field
    text: str | None = setting(
        text("column of text in your own data, used instead of others; as label, its next token")
    )


@dataclass(frozen=True)
class ModelSettings:
    name: str | None = setting(text("which model"))
    features: str = setting(
        choice("none", "gabor", "gabor-bands", help="fixed feature map in front of the model"),
        "none",
    )
    hidden: list[int] | None = setting(wholes("widths of the hidden layers of model mlp"))
    vocabulary: int | None = setting(
        whole(2, "models of tokens: how many there are; token 0 is padding")
    )
    width: int | None = setting(whole(1, "models of tokens: how wide they are; default: 32"))
    layers: int | None = setting(whole(1, "model transformer: how many blocks; default: 2"))
    heads: int | None = setting(whole(1, "model transformer: heads of attention; default: 2"))
    backbone: str | None = setting(text("model fine-tune: the model that is frozen"))
    weights: str | None = setting(
        file("model fine-tune: safetensors file with the backbone's weights")
    )
    rank: int | None = setting(
        whole(0, "model fine-tune: rank of adapters beside frozen layers; default: 0, none")
    )
    options: dict[str, Any] | None = setting(
        table("a model of your own (package.module:function): its named arguments")
    )


@dataclass(frozen=True)
class TaskSettings:
    loss: str | None = setting(
        registered(LOSSES, help="what clients descend, one number a row; default: classification")
    )
    metrics: list[str] | None = setting(
        several(
            registered(METRICS, help=""),
            "what says how good a model is, the most important first; default: what goes with the "
            "loss",
        )
    )


@dataclass(frozen=True)
class MethodSettings:
    name: str | None = setting(text("what clients compute and how the server combines it"))
    target_quantile: float = setting(
        number(
            "a number above 0 and below 1",
            lambda x: 0 < x < 1,
            "adaptive-clip: share of updates to leave unclipped",
        ),
        0.5,
    )
    clip_lr: float = setting(positive("adaptive-clip: how fast the clip adapts"), 0.2)
    bit_noise: float | None = setting(
        positive(
            "adaptive-clip: deviation of the noise on the sum of bits; default 0.05 times the "
            "expected cohort"
        )
    )
    noise_level: float | None = setting(
        positive("dp-fedsgd: deviation of the noise that one client adds, instead of a budget")
    )
    rates: str = setting(
        choice("exact", "search", "scf", "scf-clamped", help="rpdp: how budgets become rates"),
        "exact",
    )
    saving_share: float | None = setting(
        number(
            "a number from 0.01 to 1",
            lambda x: 0.01 <= x <= 1,
            "rpdp: share of its rate that a record uses before the transition",
        )
    )
    common_rate: float | None = setting(
        probability("filter: the sampling rate of every record that has budget left")
    )
    charge: str | None = setting(
        choice(
            "clip",
            "norm",
            help="filter: a step costs a record the clip (default), or its own gradient's norm",
        )
    )


@dataclass(frozen=True)
class PrivacySettings:
    epsilon: float | None = setting(positive("one budget for every client"))
    groups: list[GroupTable] | None = setting(tables(GROUP, "budgets by group"))
    budgets: str | None = setting(
        file(
            "CSV file with one line per client: client, epsilon, and optionally saving_rate, "
            "transition, group"
        )
    )
    preferences: str | None = setting(
        choice(
            "three-levels",
            "bounded-pareto",
            "bounded-mix-gauss",
            help=(
                "record-level methods: draw a budget for every record from one of the paper's "
                "distributions"
            ),
        )
    )
    noise_multiplier: float | None = setting(
        positive(
            "record-level methods: noise of a local step, as a multiple of the clip; default: "
            "suggested from the budgets"
        )
    )
    delta: float | None = setting(
        number("a number above 0 and below 1", lambda x: 0 < x < 1, "the delta of every budget")
    )
    rate: float | None = setting(
        probability("sampling rate: the probability that a client takes part in a round")
    )
    clip: float = setting(positive("clip norm of the average client"), 1.0)
    clip_schedule: str | list[float] | None = setting(
        word_or_list(
            *CLIP_WORDS,
            help=(
                "clip of each round: it follows the learning rate (lr: the default where that "
                "falls), stays constant, or is clip times one number per round"
            ),
        )
    )
    policy: str | None = setting(text("how a budget is spread over the rounds"))
    contraction: float | None = setting(
        probability(
            "policy optimal: part of a push against the model that one round leaves; default: do "
            "well for all from 0.5 to 1"
        )
    )
    split: str | None = setting(
        choice(
            "best",
            "rates",
            help=(
                "policy individual-rates: larger budgets get higher rates and clips, as is best "
                "(default), or higher rates alone"
            ),
        )
    )
    influence: str | None = setting(
        file(
            "policy optimal: file of what is left of a push in each round, in place of contraction"
        )
    )
    saving_rate: float | None = setting(
        probability(
            "sampling rate before the transition round, for clients without one of their own"
        )
    )
    transition: int | None = setting(
        whole(1, "first round at the full rate, for clients without one of their own")
    )
    permute_rates: bool = setting(
        flag("reassign the saving rates so that the strictest budgets get the smallest (Eq. 8)"),
        False,
    )
    weights: float | list[float] | None = setting(
        ratio_or_list(
            "for policy weights one number per round, for policy geometric the ratio of "
            "neighbouring rounds"
        )
    )
    accountant: str = setting(
        registered(
            ACCOUNTANTS,
            help=(
                "which accountant plans the noise; auto: pld for up to 20 distinct schedules, else "
                "rdp"
            ),
            also=(AUTO,),
        ),
        AUTO,
    )
    noise: str | None = setting(
        choice(
            "central",
            "distributed",
            "discrete",
            "discrete-distributed",
            help=(
                "who adds the noise: the server, or each client its part; discrete: exact noise in "
                "whole numbers; default: discrete in real runs, else central"
            ),
        ),
    )
    bits: int = setting(whole(8, "discrete noise: sums are taken modulo 2^bits; at most 32"), 32)
    clipping: str = setting(
        choice(
            "flat", "per-layer", help="clip the whole update, or each layer to clip / sqrt(layers)"
        ),
        "flat",
    )
    randomness: str | None = setting(
        choice(
            "seeded",
            "os",
            help=(
                "seeded: repeatable simulation that protects nobody; os: for real runs. Default: "
                "os for your own data, otherwise seeded"
            ),
        )
    )


@dataclass(frozen=True)
class TrainSettings:
    rounds: int | None = setting(whole(1, "number of rounds"))
    local_steps: int | None = setting(whole(1, "steps of a client in one round"))
    local_epochs: int | None = setting(whole(1, "passes of a client over its data in one round"))
    batch_size: int | None = setting(whole(1, "examples in one step"))
    lr: float | None = setting(number(_LR, lambda x: 0 < x <= 1e6, "learning rate of the clients"))
    lr_schedule: str = setting(
        choice(
            "constant", "linear", "cosine", help="how lr falls from the first round to the last"
        ),
        "constant",
    )
    lr_end: float = setting(
        number(
            "a number from 0 to 1",
            lambda x: 0 <= x <= 1,
            "share of lr that is left in the last round",
        ),
        0.1,
    )
    momentum: float = setting(
        number(_MOMENTUM, lambda x: 0 <= x < 1, "momentum of the clients"), 0.0
    )
    optimizer: str | None = setting(
        choice(
            "sgd", "adam", help="what clients descend by: sgd (default; may have momentum), adam"
        )
    )
    weight_decay: float | None = setting(
        number(_UP_TO_A_MILLION, lambda x: 0 <= x <= 1e6, "weight decay of the clients; default: 0")
    )
    proximal: float | None = setting(
        number(
            _UP_TO_A_MILLION,
            lambda x: 0 <= x <= 1e6,
            "FedProx: how strongly a local model is pulled back to its start; default: 0",
        )
    )
    gradient_clip: float | None = setting(
        positive("bound on the norm of each batch's gradient at a client; no part of the plan")
    )
    server_optimizer: str | None = setting(
        registered(SERVER_STEPS, help="what the server makes of a release; default: sgd")
    )
    server_lr: float = setting(positive("learning rate of the server"), 1.0)
    server_momentum: float = setting(
        number(_MOMENTUM, lambda x: 0 <= x < 1, "momentum of the server"), 0.0
    )
    tail_average: int = setting(
        whole(1, "the final model is the mean of this many last iterates"), 1
    )
    seed: int = setting(
        whole(0, "seed of the model and of the partition; in a simulation, of everything"), 0
    )
    loggers: list[str] | None = setting(
        several(
            choice(*LOGGERS, help=""),
            "where else metrics and epsilon by group go, round by round",
        )
    )


@dataclass(frozen=True)
class EvaluationSettings:
    mode: str | None = setting(
        choice(
            *MODES,
            help=(
                "how good the model is said to be: on public test rows; as a private metric, "
                "noised and paid from every budget; or not at all. Default: public where there are "
                "public test rows, otherwise none. A simulation shows exact numbers in any case"
            ),
        )
    )
    noise: float | None = setting(
        positive(
            "mode private: deviation of the noise on the sum of the clients' metrics; default 0.05 "
            "times the expected cohort, or twice the largest noise multiplier"
        )
    )
    bounds: tuple[float, float] | None = setting(
        pair(
            "mode private: public bounds of the first metric; needed unless it lies between 0 and 1"
        )
    )


@dataclass(frozen=True)
class StopSettings:
    """All without defaults of their own, so that runs begun with an older version go on."""

    patience: int | None = setting(
        whole(1, "stop after so many rounds in a row without a better metric; default: never")
    )
    metric: str | None = setting(
        text("which metric decides, or loss; default: the first of task.metrics")
    )
    least: float | None = setting(
        number(_AT_LEAST_0, lambda x: x >= 0, "how much better is better; default: 0")
    )
    first: int | None = setting(whole(1, "the first round that may be the last; default: 1"))
    keep: str | None = setting(
        choice("best", "last", help="which model the run leaves; default: the best one")
    )


@dataclass(frozen=True)
class LedgerSettings:
    location: str | None = setting(
        ledger(
            "where accounts are kept: a file, or postgresql://...; default: the ledger of this "
            "user, and for simulations one in the run directory"
        )
    )
    project: str | None = setting(
        text(
            "whose accounts in that ledger: unrelated projects may both have a client 1; needed "
            "for the ledger of this user"
        )
    )
    spend: str = setting(
        choice(
            "config",
            "remaining",
            help=(
                "config: the budgets of this config, if the ledger allows them; remaining: all "
                "that is left of each lifetime budget"
            ),
        ),
        "config",
    )
    exhausted: str = setting(
        choice(
            "refuse",
            "leave-out",
            help=(
                "what to do if a client has too little budget left: refuse to train, or plan "
                "without it"
            ),
        ),
        "refuse",
    )


@dataclass(frozen=True)
class DesignSettings:
    rates: list[float] | None = setting(
        several(probability(""), "sampling rates to search; default: privacy.rate alone")
    )
    noise_levels: list[float] | None = setting(
        several(positive(""), "noise levels of dp-fedsgd to search, for every T up to train.rounds")
    )
    seeds: int | None = setting(
        whole(1, "training runs to average over, with seeds from train.seed on; default: 3")
    )


@dataclass(frozen=True)
class ShapeSettings:
    blur: float = setting(
        number(
            "a number of at least 0",
            lambda x: x >= 0,
            "how strongly a local model is pulled back to its start once it is further away than "
            "the clip",
        ),
        0.0,
    )
    lus: float = setting(
        number(
            "a number of at least 0 and below 1",
            lambda x: 0 <= x < 1,
            "share of each layer's update that is dropped",
        ),
        0.0,
    )


@dataclass(frozen=True)
class VotesSettings:
    queries: int | None = setting(
        whole(1, "ae-dpfl: public rows to vote on in a round; default: every public row once")
    )
    epochs: int = setting(
        whole(1, "ae-dpfl: passes of the server over all rows voted on so far, in every round"), 5
    )
    lr: float = setting(
        number(_LR, lambda x: 0 < x <= 1e6, "ae-dpfl: learning rate of these passes"), 0.1
    )
    batch_size: int = setting(whole(1, "ae-dpfl: rows in one step of the server"), 32)


@dataclass(frozen=True)
class EngineSettings:
    name: str = setting(registered(ENGINES, help="where clients run"), "local")
    workers: int | None = setting(whole(1, "worker processes"))
    ask: str = setting(
        choice(
            "sampled",
            "everyone",
            help="who is asked in a round: those that the server has drawn, or everyone, and each "
            "client draws for itself, so that traffic does not show who takes part",
        ),
        "sampled",
    )
    deadline: float = setting(
        positive("flower: seconds for a round; who has not answered by then is left out of it"),
        600.0,
    )
    retries: int = setting(
        whole(0, "flower: how often a client that does not answer is asked again"), 2
    )
    quorum: float = setting(
        number(
            "a number from 0 to 1",
            lambda x: 0 <= x <= 1,
            "flower: share of the clients that must be connected for a round to begin",
        ),
        0.5,
    )
    without_quorum: str = setting(
        choice(
            "stop",
            "release",
            help="flower: without a quorum, stop the run, or go on with the planned noise",
        ),
        "stop",
    )
    keys: str | None = setting(
        file("flower: CSV file with the public key of each client's node: client, key")
    )
    slices: str | None = setting(
        file(
            "flower: folder of the slices that the clients have approved (fedspend flower slices), "
            "with the plan that they are of; a real run needs it"
        )
    )
    silos: list[str] | None = setting(
        several(
            text(""),
            "flower, methods for records: ids of the silos; default: those with keys",
        )
    )


@dataclass(frozen=True)
class NodeSettings:
    client: str | None = setting(text("flower, at a node: the id of its client"))
    state: str | None = setting(
        file("flower, at a node: folder where it keeps its answers; default: state, beside it")
    )
    budget: float | None = setting(
        positive("flower, at a node: the epsilon that its client allows over all runs, its own")
    )
    delta: float | None = setting(
        number(
            "a number above 0 and below 1",
            lambda x: 0 < x < 1,
            "flower, at a node: the delta of its client's own budget",
        )
    )
    key: str | None = setting(
        file("flower, at a node: its private key, the one that flower-supernode is started with")
    )
    unit: str = setting(
        choice(
            "client",
            "record",
            help="flower, at a node: protect the client as a whole, or each of its records by a "
            "budget of its own",
        ),
        "client",
    )
    batch: float | None = setting(
        positive(
            "flower, at a node with unit record: what its sums are divided by, which its noise "
            "shows; default: the sum of its records' rates"
        )
    )
    sampling: str = setting(
        choice(
            "counted",
            "ignored",
            help="flower, at a node with unit record: count on the server to draw at random who "
            "takes part in a round, or plan as if this silo always did",
        ),
        "counted",
    )


@dataclass(frozen=True)
class Settings:
    """Every section, with what was given and defaults for the rest."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    task: TaskSettings = field(default_factory=TaskSettings)
    method: MethodSettings = field(default_factory=MethodSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    stop: StopSettings = field(default_factory=StopSettings)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    design: DesignSettings = field(default_factory=DesignSettings)
    shape: ShapeSettings = field(default_factory=ShapeSettings)
    votes: VotesSettings = field(default_factory=VotesSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    node: NodeSettings = field(default_factory=NodeSettings)


_TYPES: Mapping[str, Any] = {one.name: one.default_factory for one in fields(Settings)}

SECTIONS: Mapping[str, Mapping[str, AnyKey]] = MappingProxyType(
    {
        name: MappingProxyType({one.name: one.metadata[KEY] for one in fields(section)})
        for name, section in _TYPES.items()
    }
)


def settings_of(values: Mapping[str, Mapping[str, Any]]) -> Settings:
    """The sections from values already read; users' own entries take care of their own keys."""
    return Settings(
        **{
            name: section(
                **{
                    key: value
                    for key, value in values.get(name, {}).items()
                    if key in SECTIONS[name]
                }
            )
            for name, section in _TYPES.items()
        }
    )
