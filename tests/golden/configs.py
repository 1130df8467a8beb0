"""Small configs, one of each kind of plan; each plans, and most train, in a blink."""

from __future__ import annotations

DATA = """[data]
name = "synthetic"
examples = 120
features = 5
classes = 3
clients = 6
partition = "iid"

[model]
name = "logistic"

[engine]
workers = 1

[train]
rounds = 4
local_steps = 3
batch_size = 8
lr = 0.3
seed = 4
"""
LOCAL = DATA.replace("[engine]\nworkers = 1\n\n", "")  # a model of which all clients are one batch
GROUPS = """groups = [{epsilon = 4, share = 1}, {epsilon = 12, share = 2}]
delta = 1e-3
rate = 0.8
clip = 0.5
"""
ONE = "epsilon = 6\ndelta = 1e-3\nrate = 0.8\nclip = 0.5\n"
OF_RECORDS = LOCAL.replace("batch_size = 8\n", "")
DRAWN = """preferences = "three-levels"
delta = 1e-3
rate = 0.8
noise_multiplier = 8
clip = 0.5
"""


def config(base: str, method: str, privacy: str, more: str = "") -> str:
    return f"{base}\n[method]\n{method}\n\n[privacy]\n{privacy}\n{more}".rstrip() + "\n"


def named(name: str) -> str:
    return f'name = "{name}"'


NORMS = DRAWN.replace("noise_multiplier = 8", "noise_multiplier = 4").replace("rate = 0.8\n", "")
CONFIGS = {
    "dp-fedavg": config(LOCAL, named("dp-fedavg"), ONE),
    "dp-fedavg-pld": config(LOCAL, named("dp-fedavg"), ONE + 'accountant = "pld"\n'),
    "idp-fedavg": config(LOCAL, named("idp-fedavg"), GROUPS),
    "time-adaptive": config(LOCAL, named("time-adaptive"), GROUPS),
    "saving": config(
        LOCAL + "tail_average = 2\nserver_momentum = 0.5\n",
        named("time-adaptive"),
        GROUPS + "saving_rate = 0.5\n",
    ),
    "geometric": config(
        LOCAL, named("time-adaptive"), GROUPS + 'policy = "geometric"\nweights = 1.1\n'
    ),
    "individual-rates": config(
        LOCAL, named("idp-fedavg"), GROUPS + 'policy = "individual-rates"\n'
    ),
    "clip-schedule": config(
        LOCAL + 'lr_schedule = "linear"\n', named("dp-fedavg"), ONE + 'clip_schedule = "lr"\n'
    ),
    "per-layer": config(LOCAL, named("dp-fedavg"), ONE + 'clipping = "per-layer"\n'),
    "discrete": config(LOCAL, named("dp-fedavg"), ONE + 'noise = "discrete"\n'),
    "distributed": config(LOCAL, named("idp-fedavg"), GROUPS + 'noise = "distributed"\n'),
    "discrete-distributed": config(
        LOCAL, named("idp-fedavg"), GROUPS + 'noise = "discrete-distributed"\nbits = 16\n'
    ),
    "adaptive-clip": config(LOCAL, named("adaptive-clip"), GROUPS),
    "private-metric": config(
        LOCAL.replace('partition = "iid"', 'partition = "iid"\nvalidation = 0.3'),
        named("dp-fedavg"),
        ONE,
        '[evaluation]\nmode = "private"\nnoise = 3.0\n',
    ),
    "dp-fedsgd": config(
        LOCAL, named("dp-fedsgd") + "\nnoise_level = 0.3", ONE.replace("epsilon = 6\n", "")
    ),
    "votes": config(
        LOCAL.replace('partition = "iid"', 'partition = "iid"\npublic_share = 0.3'),
        named("ae-dpfl"),
        GROUPS.replace("clip = 0.5\n", "").replace("= 4,", "= 20,").replace("12", "40"),
        "[votes]\nqueries = 4\n",
    ),
    "fedavg": config(LOCAL, named("fedavg"), "rate = 0.8\n"),
    "rpdp": config(OF_RECORDS, named("rpdp"), DRAWN),
    "rpdp-clamped": config(OF_RECORDS, named("rpdp") + '\nrates = "scf-clamped"', DRAWN),
    "rpdp-saving": config(OF_RECORDS, named("rpdp") + "\nsaving_share = 0.5", DRAWN),
    "minimum": config(OF_RECORDS, named("minimum"), DRAWN),
    "dropout": config(OF_RECORDS, named("dropout"), DRAWN),
    "filter": config(OF_RECORDS, named("filter") + "\ncommon_rate = 0.5", DRAWN),
    "filter-by-norm": config(OF_RECORDS, named("filter") + '\ncharge = "norm"', NORMS),
}
# of which no plan is made
WITHOUT_PLAN = ("fedavg",)

# Rows of one's own, named clients, real randomness: what is charged to a ledger.
ROWS = "hospital,age,sick\n" + "".join(
    f"{hospital},{n}.5,{n % 2}\n" for hospital in ("north", "south", "east") for n in range(6)
)
BUDGETS = "client,epsilon\nnorth,3\nsouth,6\neast,6\n"
CLINICS = """[data]
name = "csv"
path = "rows.csv"
test_path = "rows.csv"
label = "sick"
client = "hospital"
classes = 2
[model]
name = "logistic"
[method]
name = "idp-fedavg"
[privacy]
budgets = "budgets.csv"
delta = 1e-3
rate = 0.9
clip = 0.5
[train]
rounds = 3
local_steps = 2
batch_size = 4
lr = 0.1
seed = 2
"""
SEEDED = CLINICS.replace("rate = 0.9", 'rate = 0.9\nrandomness = "seeded"')

# Records of one's own at two hospitals.
PATIENTS = "patient,age,sick,hospital,split,epsilon\n" + "".join(
    f"p{n},{n / 12:.4f},{n % 2},{'north' if n < 6 else 'south'},"
    f"{'train' if n < 10 else 'test'},{(0.5, 2)[n % 2]}\n"
    for n in range(12)
)
STUDY = """[data]
name = "csv"
path = "patients.csv"
classes = 2
label = "sick"
client = "hospital"
record = "patient"
split = "split"
budget = "epsilon"
partition = "natural"
[model]
name = "logistic"
[method]
name = "rpdp"
[privacy]
delta = 1e-5
rate = 0.8
noise_multiplier = 8.0
randomness = "seeded"
[train]
rounds = 3
local_steps = 4
lr = 0.3
"""
DESIGN = """[data]
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
rounds = 5
local_steps = 2
batch_size = 8
lr = 0.5
[design]
noise_levels = [0.05, 0.2, 0.6, 1.0]
seeds = 2
"""
AUDIT = """[data]
name = "synthetic"
examples = 240
features = 20
classes = 4
clients = 48
partition = "iid"
[model]
name = "logistic"
[method]
name = "dp-fedavg"
[privacy]
epsilon = 1
delta = 1e-3
rate = 1.0
clip = 1.0
[train]
rounds = 1
local_steps = 1
batch_size = 8
lr = 0.1
seed = 1
"""
