"""What the runs, plans and folders of files of version 0.2.0 were made from.

Guarantee: no config is changed once its files are made: they could not be made again.
"""

from __future__ import annotations

# --- runs of clients ---

DATA = """[data]
name = "synthetic"
examples = 120
features = 5
classes = 3
clients = 6
partition = "iid"
"""
LOGISTIC = '\n[model]\nname = "logistic"\n'
MLP = '\n[model]\nname = "mlp"\nhidden = [5]\n'
REFERENCE = '\n[engine]\nname = "reference"\n'
LOCAL = '\n[engine]\nname = "local"\n'
FIVE = "\n[train]\nrounds = 5\nlocal_steps = 3\nbatch_size = 8\nlr = 0.3\nseed = 4\n"
FOUR = FIVE.replace("rounds = 5", "rounds = 4")
GROUPS = "groups = [{epsilon = 4, share = 1}, {epsilon = 12, share = 2}]\ndelta = 1e-3\n"
LOOSE = GROUPS.replace("4", "20").replace("12", "40")
PRIVACY = f"\n[privacy]\n{GROUPS}rate = 0.8\nclip = 0.5\n"
ONE = "\n[privacy]\nepsilon = 6\ndelta = 1e-3\nrate = 0.8\nclip = 0.5\n"


def method(name: str) -> str:
    return f'\n[method]\nname = "{name}"\n'


CLIENTS: dict[str, str] = {
    "central": DATA
    + LOGISTIC
    + REFERENCE
    + FIVE
    + "tail_average = 2\nserver_momentum = 0.5\n"
    + method("dp-fedavg")
    + ONE,
    "distributed": DATA
    + MLP
    + LOCAL
    + FIVE
    + 'momentum = 0.5\nlr_schedule = "linear"\n'
    + method("idp-fedavg")
    + PRIVACY
    + 'noise = "distributed"\n',
    "discrete": DATA
    + LOGISTIC
    + LOCAL
    + FOUR
    + method("time-adaptive")
    + PRIVACY
    + 'noise = "discrete-distributed"\n',
    "adaptive": DATA
    + LOGISTIC
    + REFERENCE
    + FIVE
    + method("adaptive-clip")
    + PRIVACY
    + 'saving_rate = 0.5\npolicy = "spend-as-you-go"\n',
    "adaptive-distributed": DATA
    + LOGISTIC
    + LOCAL
    + FOUR
    + method("adaptive-clip")
    + PRIVACY
    + 'noise = "discrete-distributed"\n',
    "votes": DATA
    + "public_share = 0.3\n"
    + LOGISTIC
    + REFERENCE
    + FIVE
    + method("ae-dpfl")
    + f"\n[privacy]\n{LOOSE}rate = 0.8\nclip = 0.5\n"
    + "\n[votes]\nqueries = 4\n",
    "metric": DATA
    + "validation = 0.2\n"
    + LOGISTIC
    + LOCAL
    + FIVE
    + method("idp-fedavg")
    + PRIVACY
    + '\n[evaluation]\nmode = "private"\nnoise = 5.0\n',
    "stopping": DATA
    + LOGISTIC
    + LOCAL
    + FIVE.replace("rounds = 5", "rounds = 8")
    + method("dp-fedavg")
    + ONE
    + "\n[stop]\npatience = 2\n",
    "fedsgd": DATA
    + LOGISTIC
    + LOCAL
    + FOUR
    + '\n[method]\nname = "dp-fedsgd"\nnoise_level = 0.2\n'
    + "\n[privacy]\ndelta = 1e-3\nrate = 0.8\nclip = 0.5\n",
    "plain": DATA + LOGISTIC + LOCAL + FOUR + method("fedavg") + "\n[privacy]\nrate = 0.8\n",
}

# --- runs of records ---

STEPS = "\n[train]\nrounds = 4\nlocal_steps = 5\nlr = 0.4\nseed = 6\n"
THREE_SILOS = DATA.replace("clients = 6", "clients = 3")
LEVELS = '\n[privacy]\npreferences = "three-levels"\ndelta = 1e-3\nrate = 0.8\nclip = 0.7\n'
RECORDS: dict[str, str] = {
    "records": THREE_SILOS + LOGISTIC + STEPS + method("rpdp") + LEVELS + "noise_multiplier = 8\n",
    "records-by-norm": THREE_SILOS
    + LOGISTIC
    + STEPS
    + '\n[method]\nname = "filter"\ncharge = "norm"\n'
    + LEVELS.replace("rate = 0.8\nclip = 0.7", "clip = 1")
    + "noise_multiplier = 4\n",
}

# --- real runs, whose data need no file ---


def real(config: str) -> str:
    """The same with the randomness of the system."""
    return config.replace("[privacy]\n", '[privacy]\nrandomness = "os"\n')


REAL: dict[str, str] = {
    "real": real(DATA + LOGISTIC + LOCAL + FIVE + method("idp-fedavg") + PRIVACY),
    "real-records": real(RECORDS["records"]),
}

# --- rows of one's own, from files: `kept` says where runs on these go on ---

OWN = """[data]
name = "csv"
path = "{path}"
test_path = "public.csv"
classes = 2
partition = "natural"
"""
SPENDING = '\n[privacy]\nbudgets = "{budgets}"\ndelta = 1e-3\nrate = 0.7\n'


def own(path: str, budgets: str, more: str = "") -> str:
    return (
        OWN.format(path=path)
        + LOGISTIC
        + LOCAL
        + FOUR
        + method("idp-fedavg")
        + SPENDING.format(budgets=budgets)
        + more
    )


PEOPLE: dict[str, str] = {
    "people": own("people.csv", "spending.csv"),
    "people-left": own(
        "people-left.csv", "spending-left.csv", '\n[ledger]\nexhausted = "leave-out"\n'
    ),
    "people-rest": own("people-left.csv", "spending-left.csv", '\n[ledger]\nspend = "remaining"\n'),
    "people-stopping": own("people.csv", "small.csv", "\n[stop]\npatience = 1\n").replace(
        "rounds = 4", "rounds = 6"
    ),
    "people-held-out": own(
        "people.csv", "small.csv", '\n[evaluation]\nmode = "private"\nnoise = 5.0\n'
    ).replace('test_path = "public.csv"\n', "validation = 0.2\n"),
    "patients": """[data]
name = "csv"
path = "patients.csv"
classes = 2
record = "id"
budget = "epsilon"
partition = "natural"
"""
    + LOGISTIC
    + STEPS
    + method("rpdp")
    + "\n[privacy]\ndelta = 1e-3\nnoise_multiplier = 8\nclip = 0.7\n",
}

CONFIGS: dict[str, str] = {**CLIENTS, **RECORDS, **REAL, **PEOPLE}

# --- plans: arguments of `fedspend plan`, given in the folder of the files ---

TERMS = ("--delta", "1e-3", "--rounds", "3", "--rate", "0.8")
MANY = ("--epsilon", "10:3,30:2", *TERMS)
PLANS: dict[str, tuple[str, ...]] = {
    "uniform-rdp.json": (*MANY, "--policy", "uniform", "--accountant", "rdp"),
    "uniform-pld.json": ("--epsilon", "2:3,6:3", *TERMS, "--policy", "uniform"),
    "strictest.json": (*MANY, "--method", "dp-fedavg"),
    "optimal.json": (*MANY, "--contraction", "0.9", "--tail", "2"),
    "optimal-by-default.json.gz": (*MANY, "--accountant", "rdp"),
    "spend-as-you-go.json": (
        *(*MANY, "--saving-rate", "10:0.3,30:0.5", "--transition", "10:3,30:2"),
        *("--clip", "0.5"),
    ),
    "literal.json": (*MANY, "--policy", "spend-as-you-go-literal", "--saving-rate", "0.4"),
    "weights.json": (*MANY, "--weights", "1,2,3"),
    "geometric.json": (*MANY, "--weights", "geometric:1.1"),
    "individual-rates.json": (
        *(*MANY, "--method", "idp-fedavg", "--policy", "individual-rates"),
        *("--set", "privacy.split=rates"),
    ),
    "grouped.json": (
        *(*MANY, "--method", "idp-fedavg", "--policy", "grouped"),
        *("--set", "privacy.split=equal"),
    ),
    "clip-schedule.json": (*MANY, "--clip-schedule", "1,0.5,0.25"),
    "named.json": ("--budgets", "wishes.csv", *TERMS, "--method", "time-adaptive"),
    "discrete.json": (*MANY, "--set", "privacy.noise=discrete"),
    "discrete-distributed.json": (
        *(*MANY, "--set", "privacy.noise=discrete-distributed"),
        *("--set", "privacy.bits=20"),
    ),
    "distributed.json": ("distributed.toml",),
    "bits.json": ("adaptive.toml",),
    "bits-distributed.json": ("adaptive-distributed.toml",),
    "votes.json": ("votes.toml",),
    "metric.json": ("metric.toml",),
    "noise-level.json": ("fedsgd.toml",),
    "rows-of-files.json": ("people.toml",),
    "records-rpdp.json": ("patients.toml",),
    "records-saving.json.gz": (
        *("patients.toml", "--set", "method.saving_share=0.5"),
        *("--set", "privacy.transition=3"),
    ),
    "records-minimum.json": ("patients.toml", "--method", "minimum"),
    "records-dropout.json": ("patients.toml", "--method", "dropout"),
    "records-filter-clip.json": (
        *("patients.toml", "--method", "filter"),
        *("--set", "method.common_rate=0.8"),
    ),
    "records-filter-norm.json": ("records-by-norm.toml",),
    "records-drawn-budgets.json.gz": ("records.toml", "--set", "method.rates=scf-clamped"),
    "remaining.json": (
        *("--ledger", "ledgers/left.db", "--project", "clinics"),
        *("--rounds", "3", "--rate", "0.6"),
    ),
    "records-remaining.json": (
        *("patients.toml", "--ledger", "ledgers/left.db", "--project", "patients"),
    ),
}

# --- folders of many runs: command -> arguments, given in the folder of the files ---

ALONE = ("--workers", "1", "--quiet")
FOLDERS: dict[str, tuple[str, ...]] = {
    "compare": (
        *("compare", "central.toml", "--methods", "dp-fedavg,fedavg", "--seeds", "2"),
        *("-o", "folders/compare", *ALONE),
    ),
    "tune": (
        *("tune", "central.toml", "--grid", "train.lr=0.1,0.3", "--seeds", "1"),
        *("-o", "folders/tune", *ALONE),
    ),
    "search": ("design", "search.toml", "-o", "folders/search", *ALONE),
}
SEARCH = """[data]
name = "synthetic"
examples = 120
features = 5
classes = 2
clients = 6

[model]
name = "logistic"

[privacy]
rate = 0.5
clip = 0.5
delta = 1e-3

[train]
rounds = 6
local_steps = 2
batch_size = 8
lr = 0.5
seed = 4

[design]
noise_levels = [0.6, 0.2, 0.05]
rates = [0.5, 1.0]
seeds = 2
"""
TUNED = ("--private", "--grid", "train.lr=0.1,0.4", "--trials-mean", "2", "--quiet")
