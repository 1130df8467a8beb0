"""What fedspend answers to bad input, command by command: one line on stderr, and an exit code.

Guarantee: every key of a config is there, but those that take anything, with a value that it cannot
have; the rest are lists of what people have typed. What no command here reaches is in `sentences`.
"""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Callable

from golden import configs
from golden.session import Session, here

SMALL = "--epsilon 10:3,20:3 --delta 1e-3 --rounds 4 --rate 0.5"
TERMS = "--delta 1e-3 --rounds 2 --rate 0.5"


def said_to(name: str) -> str:
    with here() as folder:
        session = Session(folder)
        _files(session)
        ASKED[name](session)
        return session.text()


def _files(session: Session) -> None:
    """What the commands read, all of it good."""
    session.write("run.toml", configs.CONFIGS["idp-fedavg"])
    session.write("saving.toml", configs.CONFIGS["saving"])
    session.write("records.toml", configs.CONFIGS["rpdp"])
    session.write("votes.toml", configs.CONFIGS["votes"])
    session.write("design.toml", configs.DESIGN)
    session.write("rows.csv", configs.ROWS)
    session.write("public.csv", configs.ROWS)
    session.write("budgets.csv", configs.BUDGETS)
    session.write("patients.csv", configs.PATIENTS)
    session.write("study.toml", configs.STUDY)
    session.write("clinics.toml", configs.CLINICS.replace('"rows.csv"\nl', '"public.csv"\nl'))
    session.write("folder/file.txt", "hello\n")


def lines(session: Session, text: str) -> None:
    for line in text.strip().splitlines():
        session.run(line)


def values(session: Session, command: str, text: str) -> None:
    """One command with other flags or values each time."""
    lines(session, "\n".join(f"{command} {line}" for line in text.strip().splitlines()))


def contents(session: Session, name: str, command: str, texts: list[str | bytes]) -> None:
    """One command on a file that holds something else each time."""
    for text in texts:
        session.write(name, text)
        shown = text if isinstance(text, str) else repr(text)
        session.note(
            name, shown if len(shown) < 400 else f"{shown[:60]} ... ({len(shown)} letters)"
        )
        session.run(command)


def keys(session: Session) -> None:
    """Every key of a config with a value that it cannot have."""
    from fedspend.configuration.sections import SECTIONS

    for section, found in SECTIONS.items():
        for key in found:
            for value in ("-1", '""', "[{}]", "nan"):
                # the first that is refused as a value; in a run that goes on, a key may be idle
                code = _first_refusal(session, section, key, value)
                if code:
                    break


def _first_refusal(session: Session, section: str, key: str, value: str) -> bool:
    from fedspend.configuration.config import load_config
    from fedspend.errors import InvalidInput

    override = f"{section}.{key}={value}"
    with contextlib.suppress(InvalidInput):
        load_config(None, [override])
        return False
    session.run(f"plan run.toml --set '{override}'")
    return True


def idle_keys(session: Session) -> None:
    """Keys that have no effect under the other settings."""
    base = (
        '[data]\nname = "digits"\nclients = 10\npartition = "iid"\n[model]\nname = "logistic"\n'
        '[method]\nname = "dp-fedavg"\n[privacy]\nepsilon = 5\ndelta = 1e-3\nrate = 0.5\n'
        "[train]\nrounds = 2\nlocal_steps = 1\nbatch_size = 8\nlr = 0.1\n"
    )
    session.write("plain.toml", base)
    session.note("plain.toml", base)
    values(session, "plan plain.toml --set", IDLE)
    session.run("plan plain.toml --policy uniform --set privacy.saving_rate=0.3")


def config_files(session: Session) -> None:
    """Files that cannot be read as configs, or say something that a config cannot."""
    contents(session, "bad.toml", "plan bad.toml", BAD_CONFIGS)
    values(
        session,
        "plan run.toml --set",
        """
privacy.rate
rate=1
=
privacy.rat=0.5
privcy.rate=0.5
privacy.rate=
privacy.rate=high
train=1
a.b.c=2
privacy.groups=[{epsilon=1},{epsilon=2},{epsilon=3},{epsilon=4},{epsilon=5},{epsilon=6},{epsilon=7}]
privacy.groups=[{epsilom=1}]
privacy.policy=uniforn
method.name=ae-dplf
engine.name=ray
privacy.clip_schedule=[1]
privacy.clip_schedule=weekly
data.clients=0
data.partition=dirichlt
data.name=minst
ledger.location=mysql://host
model.name=lenet5
task.loss=hinge
train.server_optimizer=lion
train.lr_schedule=warmup
""",
    )
    lines(session, "plan nowhere.toml\nplan folder\nplan rows.csv\ntrain folder -o out")


def command_lines(session: Session) -> None:
    """Commands and flags that there are not, and what they are taken for."""
    session.run("")
    lines(
        session,
        """
plna
--versio
--load
--load nowhere.py plan
plan --load x.py
plan --epsilom 1
plan --epsilon
plan a.toml b.toml
plan --epsilon 1 --budgets a.csv
plan --rounds ten
plan --rounds 2.5
plan --rate x
plan
plan --epsilon 10
plan --epsilon 10:2
plan --epsilon 10:2 --delta 1e-5
plan --epsilon 10:2 --delta 1e-5 --rounds 3
plan --set privacy.epsilon=3
plan --set privacy.rat=3
plan --eps 3
plan --roudns 3
train run.toml --epsilon 3
compare run.toml --seeds 1.5
plan --epsilon 2:3 --delta small
plan --epsilon abc
ledger
ledger shw
records
records rate
keys
keys nwe
flower
flower chek
node
node lave
design
data
data lst
glossary
glossary epsilom
glossary quux
new
new folder
new fresh --template own-dta
watch
watch nowhere
planner nowhere.toml
planner run.toml --port 99999
report
report nowhere
report folder
report rows.csv
""",
    )
    session.write("own.py", "raise RuntimeError('not today')\n")
    session.run("--load own.py plan run.toml")
    session.write("own.py", "def broken(:\n")
    session.run("--load own.py plan run.toml")


def plan(session: Session) -> None:
    values(session, f"plan {SMALL}", PLAN_VALUES)
    lines(
        session,
        f"""
plan {SMALL} -o folder
plan {SMALL} -o nowhere/plan.json
plan {SMALL} -o folder/file.txt
plan {SMALL} --plot plan.gif
plan {SMALL} --plot nowhere/plan.png
plan {SMALL} --ledger nowhere.db
plan {SMALL} --ledger folder
plan {SMALL} --ledger ""
plan {SMALL} --project clinics
plan --budgets nowhere.csv {TERMS}
plan --budgets folder {TERMS}
plan records.toml --compare uniform,strictest
plan records.toml --policy uniform
plan records.toml --saving-rate 0.5
plan votes.toml --method dp-fedavg
plan run.toml --method rpdp
plan run.toml --method fedavg
plan run.toml --influence nowhere.json
plan run.toml --policy optimal --influence rows.csv
plan clinics.toml --set privacy.budgets=nowhere.csv
plan study.toml --set data.budget=age
plan study.toml --set data.record=who
plan study.toml --set privacy.noise_multiplier=0.01
""",
    )
    session.run(f"plan {SMALL} -o plan.json", only="nothing")
    lines(session, f"plan {SMALL} --clip 2 -o plan.json\nplan plan.json")


def budget_files(session: Session) -> None:
    contents(session, "bad.csv", f"plan --budgets bad.csv {TERMS}", BAD_BUDGETS)
    with zipfile.ZipFile(session.folder / "bad.xlsx", "w") as file:
        file.writestr("xl/workbook.xml", "<workbook/>")
    session.run(f"plan --budgets bad.xlsx {TERMS}")
    terms = "--delta 1e-3 --rounds 20 --local-steps 5 --client-rate 0.5 --noise 1"
    contents(session, "bad.csv", f"records rates bad.csv {terms}", BAD_RECORDS)
    good = "record,epsilon\na,1\nb,2\n"
    session.write("good.csv", good)
    values(
        session,
        "records rates good.csv --delta 1e-3 --rounds 20 --local-steps 5 --client-rate 0.5",
        """
--noise nan
--noise 0

--noise 1 --method exakt
--noise 1 -o rates.txt
--noise 1 --plot rates.gif
--noise 1 --delta 2
--noise 1 --rounds 0
--noise 1 --client-rate 1.5
--noise 0.3 --method scf
--noise 1 -o good.csv
""",
    )
    lines(
        session,
        """
records draw three-level 5 -o x.csv
records draw three-levels 0 -o x.csv
records draw three-levels 5
records noise good.csv --delta 1e-3
""",
    )


def plan_files(session: Session) -> None:
    """Files that are no plans, where a plan is read."""
    session.run(f"plan {SMALL} -o plan.json", only="nothing")
    good = (session.folder / "plan.json").read_text(encoding="utf-8")
    document = json.loads(good)
    texts = [
        "",
        "hello",
        "[]",
        "{}",
        "null",
        b"\x00\xff",
        good[:120],  # in its hash: what follows is rounded as the machine does
        "[" * 100_000,
        '{"rounds": 1e999, "clients": "x"}',
        json.dumps(document | {"delta": 1e-6}),
        json.dumps(document | {"version": 99}),
        json.dumps({key: value for key, value in document.items() if key != "schedules"}),
    ]
    for number, text in enumerate(texts):
        session.write(f"bad-{number}.json", text)
        shown = text if isinstance(text, str) else repr(text)
        session.note(f"bad-{number}.json", f"{shown[:56]} ...")
        session.run(f"verify bad-{number}.json")
        session.run(f"explain bad-{number}.json")
    session.write("bad.json.gz", "not gzip")
    lines(
        session,
        """
verify bad.json.gz
verify nowhere.json
verify folder
verify rows.csv
verify plan.json --colluders 6
verify plan.json --key nowhere.pub
verify plan.json --open nowhere.json
verify plan.json --ledger nowhere.db
explain
explain nowhere.json
explain -1 --delta 1e-5
explain nan --delta 1e-5
explain 1
explain 1 --delta 0
explain 1 --delta one
explain 1 --delta 1e-5 --client 3
explain plan.json --delta 1e-5
explain plan.json --client 99
explain plan.json --record 1
explain plan.json --group 7
explain plan.json --group ten
explain plan.json --client 1 --group 10
explain plan.json --observer nobody
explain plan.json --observer plan --plot x.gif
explain plan.json --leaves 2
explain plan.json --client 1 --record 1 --leaves 2
explain plan.json --client 99 --leaves 2
explain plan.json --client 1 --leaves 5
explain plan.json --client 1 --leaves -1
explain plan.json --client 1 --leaves two
explain plan.json --client 1 --leaves 2 --ledger nowhere.db
explain plan.json --client 1 --leaves 2 --delta 1e-5
explain plan.json --client 1 --ledger nowhere.db
""",
    )


def train(session: Session) -> None:
    values(session, "train run.toml -o out", TRAIN_VALUES)
    lines(
        session,
        """
train
train none.toml
train run.toml -o folder
train run.toml -o rows.csv
train clinics.toml -o out
train clinics.toml -o out --project ""
train study.toml -o out --set privacy.randomness=os
train study.toml -o out --set method.name=dp-fedavg
train study.toml -o out --set data.split=where
train study.toml -o out --set data.label=ill
train study.toml -o out --set data.client=clinic
train study.toml -o out --set data.path=nowhere.csv
train study.toml -o out --set data.classes=1
train votes.toml -o out --set data.public_share=0.3 --set votes.queries=0
""",
    )
    session.run("train run.toml -o one --quiet", only="nothing")
    session.run("plan saving.toml -o other.json", only="nothing")
    lines(
        session,
        """
train run.toml -o one
train run.toml -o one --resume --set train.seed=9
train run.toml -o one --resume --replan
train run.toml -o two --replan
train run.toml -o two --plan other.json
train run.toml -o two --plan rows.csv
train run.toml -o two --plan other.json --remaining
train run.toml -o two --remaining
train run.toml -o two --sign nowhere.key
train run.toml -o two --sign rows.csv
verify one --key rows.csv
verify one --open rows.csv
verify one --colluders 2
explain one --client 99
predict one rows.csv
predict one nowhere.npz
predict one rows.csv --model nope:make
predict folder rows.csv
publish folder
publish nowhere
publish one -o folder
publish one --sign rows.csv
report one -o report.pdf
compare run.toml
compare run.toml --methods fedavg,fedavg --seeds 2
compare run.toml --methods fedavg,dp-fed --seeds 2
compare run.toml --methods fedavg,dp-fedavg --seeds 0
compare run.toml --methods fedavg,dp-fedavg --seeds 2 --workers 0
compare run.toml --methods fedavg,dp-fedavg --seeds 2 --table html
compare run.toml --methods dp-fedavg --seeds 2 --vary train.lr=0.1,0.10
compare run.toml --methods dp-fedavg --seeds 2 --vary train.lr
compare run.toml --methods fedavg --seeds 2 --vary privacy.clip=1,2
compare run.toml --methods dp-fedavg --seeds 2 --vary design.seeds=1,2
compare run.toml --methods rpdp --seeds 2 --vary privacy.policy=uniform,geometric
compare clinics.toml --methods fedavg,dp-fedavg --seeds 2
tune run.toml
tune run.toml --grid train.lr
tune run.toml --grid train.lr=0.1 --seeds 0
tune run.toml --grid train.lr=0.1,0.2 --validation 2
tune run.toml --grid train.lr=0.1,0.2 --price
tune run.toml --grid train.lr=0.1,0.2 --private
tune run.toml --grid train.lr=0.1,0.2 --private --price --trials-mean 0
tune run.toml --grid train.lr=0.1,0.2 --private --price --distribution normal
tune run.toml --grid train.lr=0.1,0.2 --private --price --distribution negative-binomial --eta -2
tune run.toml --grid privacy.epsilon=1,2 --private --price
tune records.toml --grid train.lr=0.1,0.2 --private --price
audit
audit nowhere.toml
audit run.toml --trials 0
audit run.toml --canaries 0
audit run.toml --canaries 100
audit run.toml --confidence 2
audit run.toml --rounds 0
audit run.toml --plot x.gif
audit clinics.toml --trials 5
audit votes.toml --trials 5
audit run.toml --set method.name=fedavg --trials 5
""",
    )


def ledgers(session: Session) -> None:
    session.run("ledger init --simulation --ledger book.db", only="nothing")
    session.run("ledger register budgets.csv --delta 1e-3 --ledger book.db", only="nothing")
    lines(session, LEDGER_LINES)
    session.run(f"ledger verify --ledger book.db --head 99:{'0' * 64}")
    session.run("train clinics.toml -o out --ledger book.db")
    session.run("train study.toml -o out --ledger book.db --set data.record=hospital")
    session.write("damaged.db", "this is no database\n")
    session.run("ledger show --ledger damaged.db")


def keys_and_nodes(session: Session) -> None:
    session.write("node.toml", '[node]\nclient = "north"\n')
    lines(
        session,
        """
keys new --out folder/file.txt
keys new --out nowhere/keys
flower new
flower new fl
flower new fl --config nowhere.toml
flower new folder --config clinics.toml
flower new fl --config run.toml
flower new fl --config clinics.toml --clients north,north
flower new fl --config clinics.toml --port 0
flower new fl --config clinics.toml --host "a b"
flower slices run.toml
flower slices run.toml -o slices
flower slices clinics.toml -o slices
flower slices clinics.toml -o folder
flower check nowhere.toml
flower check clinics.toml --superlink nowhere
node balance
node balance --config nowhere.toml
node approve nowhere.json
node approve rows.csv
node history --last 0
node leave 0123 --reason x
node leave 0123
node rotate-key nowhere.key -o x.json --reason x
""",
    )
    session.run("keys new --out keys", only="nothing")
    session.run("keys new --out keys")


def designs(session: Session) -> None:
    values(session, "design", DESIGN_LINES)
    contents(
        session,
        "pareto.json",
        "design theory --clients 10 --max-rounds 9 --k-from pareto.json",
        ['{"k": null}', "", "[]", '{"k": 3}', '{"k": {"k": "x", "low": 1, "high": 2}}'],
    )


def data(session: Session) -> None:
    """Rows that cannot be read as they are declared."""
    lines(
        session,
        """
data get
data get mnost
data get digits
data get synthetic
data check
data check nowhere.csv
data check folder
data list extra
""",
    )
    declared = configs.STUDY.replace('"patients.csv"', '"bad.csv"')
    session.write("rows.toml", declared)
    session.note("rows.toml", declared)
    contents(session, "bad.csv", "train rows.toml -o out", BAD_ROWS)
    contents(session, "bad.csv", "data check bad.csv", BAD_ROWS[:6])
    values(
        session,
        "train study.toml -o out --set",
        """
data.columns=[\\"age\\",\\"weight\\"]
data.columns=[\\"age\\",\\"age\\"]
data.bounds=[1,0]
data.bounds={weight=[0,1]}
data.categories={age=[\\"a\\"]}
data.labels=[\\"yes\\"]
data.labels=[\\"yes\\",\\"yes\\"]
data.missing={weight=1}
data.separator=;;
data.decimal=x
data.vocabulary=abc
data.client=sick
data.test_path=nowhere.csv
data.budget=nowhere
task.loss=squared
task.metrics=[\\"mse\\"]
model.hidden=[8]
model.name=small-cnn
model.name=nowhere:make
model.features=gabor
evaluation.mode=private
stop.patience=2
privacy.preferences=three-levels
privacy.noise=discrete
""",
    )


IDLE = """
data.examples=100
data.features=4
data.classes=4
data.path=/x.csv
data.label=y
data.client=who
data.bounds=[0,1]
data.test_path=/x.csv
data.alpha=0.1
data.shards=2
data.classes_per_client=2
data.budget=epsilon
data.separator=;
data.categories={a=[\\"b\\"]}
model.hidden=[8]
model.width=3
model.backbone=cnn
model.rank=2
method.target_quantile=0.5
method.clip_lr=0.2
method.bit_noise=1
method.noise_level=0.1
method.rates=exact
method.saving_share=0.5
method.common_rate=0.5
method.charge=norm
votes.queries=3
votes.epochs=3
votes.lr=0.3
votes.batch_size=3
privacy.noise_multiplier=2
privacy.preferences=three-levels
privacy.weights=1.1
privacy.saving_rate=0.3
privacy.transition=2
privacy.bits=16
privacy.contraction=0.9
privacy.split=rates
privacy.influence=/h.json
privacy.permute_rates=true
train.lr_end=0.5
train.proximal=0.1
train.gradient_clip=1
train.weight_decay=0.1
engine.workers=2
engine.deadline=3
engine.keys=/keys.csv
engine.quorum=1
node.client=north
shape.blur=0.4
stop.metric=loss
evaluation.noise=3
ledger.exhausted=leave-out
ledger.project=clinics
"""
BAD_CONFIGS: list[str | bytes] = [
    "[privacy]\nepsilom = 1\n",
    "\n\n[privacyy]\nrate = 1\n",
    "[zzz]\n",
    "rate = 0.5\n",
    "rounds = 3\n",
    "privacy = 3\n",
    "[privacy]\nrate = 'high'\n",
    "[privacy]\nrate = nan\n",
    "[privacy]\nrate = true\n",
    f"[privacy]\nepsilon = 1{'0' * 400}\n",
    f"[privacy]\nepsilon = 1{'0' * 5000}\n",
    "[privacy]\nweights = []\n",
    "[privacy]\ngroups = []\n",
    "[privacy]\ngroups = [1, 2]\n",
    "[privacy]\ngroups = [\n  {epsilon = 1},\n  {epsilom = 2},\n]\n",
    "[privacy]\ngroups = [\n  {epsilon = 1},\n  # {\n  {epsilon = 1, share = -1},\n]\n",
    "[privacy]\ngroups = [\n  {share = 1},\n]\n",
    "[[privacy.groups]]\nepsilon = 1\n[[privacy.groups]]\nepsilon = nan\n",
    "privacy.groups = [{epsilon=1}]\nprivacy.rate = 2\n",
    "[privacy]\nepsilon = 1\nbudgets = 'a.csv'\n",
    "[train]\nrounds = 25.0\n",
    "[data]\nclients = 2026-01-01\n",
    "[data]\nclients = 10\n[data]\n",
    "[data]\nclients = 10\nclients = 11\n",
    "[privacy]\nrate == 1\n",
    "[privacy]\nrate = \n",
    "[privacy]\ngroups = [\n",
    "[privacy\nrate = 1\n",
    b"[privacy]\n# \xff\n",
    "\r\n[privacy]\r\nrate = 7\r\n",
    '[data]\nname = """\n[privacy]\nx = 1\n"""\n',
    '[data]\n"clients" = 0\n',
    "[privacy]\nweights = " + "[" * 5000 + "]" * 5000,
    "[engine]\nname = 'ray'\n",
    "[data]\nname = 'csv'\nlabels = ['no']\n",
    "[data]\nname = 'cvs'\npath = 'x'\n",
    "[privacy]\nmomentum = 3\n",
    "[data]\nclients = 3\n[privacy]\nbudgets = 'budgets.csv'\n",
    "[data]\nclients = 2\n[privacy]\ngroups = [{epsilon = 1}, {epsilon = 2}, {epsilon = 3}]\n",
    "[data]\nclients = 2\n[privacy]\nepsilon = 1\n[train]\nrounds = 10000000\n",
    "[ledger]\nlocation = 'mysql://host'\n",
]
PLAN_VALUES = """
--epsilon nan:3
--epsilon 0:3
--epsilon -1
--epsilon inf:3
--epsilon 1:2:3
--epsilon 5:
--epsilon :5
--clients 7
--clients 0
--delta nan
--delta 0
--delta 1
--delta -1
--rate 0
--rate 1.5
--rate nan
--rounds 0
--rounds -3
--rounds 1000000000
--clip 0
--clip nan
--clip 1e-170
--clip-schedule 1,2
--clip-schedule weekly
--accountant gdp
--policy unifrom
--method fedavgg
--method dp-fedavg --policy uniform
--saving-rate 0.95
--saving-rate 0
--saving-rate nan
--saving-rate 10:0.5
--saving-rate 10:0.5,20:0.5,30:0.5
--saving-rate 0.5 --transition 0
--saving-rate 0.5 --transition 5
--saving-rate 0.5 --transition 1.5
--policy spend-as-you-go
--permute-rates
--saving-rate 0.5 --permute-rates
--weights 1,2
--weights 1,2,3,-4
--weights 1,2,3,x
--weights linear:2
--weights geometric:0
--weights 1,1,1,1 --policy uniform
--policy weights
--policy optimal --contraction 2
--compare uniform,linear
--compare uniform,uniform
--compare uniform,spend-as-you-go
--compare weights
--compare uniform --policy uniform
--compare uniform -o x.json
"""
TRAIN_VALUES = """
--set train.rounds=0
--set train.rounds=1000001
--set data.name=mnist
--set data.name=csv
--set method.name=dp
--sett a=b
--set model.name=nope
--set model.name=small-cnn
--set train.batch_size=0
--set train.lr=-1
--set train.local_steps=0
--set data.clients=1000
--set data.partition=natural
--set privacy.rate=2
--set privacy.noise=distributed --set privacy.clipping=nope
--set privacy.noise=discrete --set privacy.bits=2
--set engine.name=flower
--set engine.workers=0
--set evaluation.mode=private
--set evaluation.mode=exact
--set stop.patience=0
--set train.aggregation=krum
--set train.loggers=[\\"sacred\\"]
--set privacy.randomness=os
--set shape.blur=2
--logger sacred
--ledger folder
--ledger nowhere/l.db
--ledger mysql://x
--project clinics
--moved
"""
BAD_BUDGETS: list[str | bytes] = [
    "",
    "hello\n",
    "client,epsilon\n",
    "client,epsilon\na,1\nb,\n",
    "client,epsilon\na,1,2\nb\n",
    "client,epsilon\na,1\na,2\n",
    "client,epsilon\na,-1\n",
    "client,epsilon\na,many\n",
    'client,epsilon\na,"1,000"\n',
    "client,epsilon\na,1'000\n",
    "client,epsilon\na,1_000.5\n",
    "client,epsilon\na,nan\n",
    "client,epsilon\na,inf\n",
    "client,epsilon\na,0\n",
    'client,epsilon\n"a,1\n',
    "client,budget\na,1\n",
    "client\na\n",
    "epsilon\n1\n",
    "client,epsilon,epsilon\na,1,2\n",
    "client,epsilon,saving_rate\na,1,2\n",
    "client,epsilon\n,1\n",
    "client,epsilon\nA,1\na,1\n",
    "client;epsilon\nanna;1,5\nbert;x\n",
    b"client,epsilon\nM\xfcller,1\n",
    b"client,epsilon\na,1\n".decode().encode("utf-16"),
    bytes(300),
    b"PK\x03\x04" + bytes(60),
    b"\x1f\x8b" + bytes(60),
]
BAD_RECORDS: list[str | bytes] = [
    "",
    "record,epsilon\n",
    "record,epsilon\na,\n",
    "record,epsilon\na,-1\n",
    "record,epsilon\na,1\nb,nan\n",
    "record,epsilon\na,inf\n",
    "record,epsilon\na,1\na,2\n",
    "record,epsilon\n,1\n",
    "record,client,epsilon\na,,1\n",
    "record,budget\na,1\n",
    "record\na\n",
    "record epsilon\na 1\n",
]
LEDGER_LINES = """
ledger balance --ledger ""
ledger balance --ledger folder
ledger balance --ledger rows.csv
ledger balance --ledger sqlite:
ledger balance --ledger postgresql://
ledger balance --ledger mysql://host/accounts
ledger balance
ledger init --ledger book.db
ledger init --ledger none/x.db
ledger init --ledger folder
ledger verify --ledger nowhere.db
ledger verify --ledger book.db --head 12:xyz
ledger verify --ledger book.db --runs folder
ledger verify nowhere.json
ledger verify rows.csv
ledger verify rows.csv --ledger book.db
ledger register nowhere.csv --delta 1e-3 --ledger book.db
ledger register budgets.csv --delta nan --ledger book.db
ledger register budgets.csv --delta 0 --ledger book.db
ledger register budgets.csv --ledger book.db
ledger register budgets.csv --delta 1e-3 --ledger book.db
ledger register rows.csv --delta 1e-3 --ledger book.db
ledger register budgets.csv --delta 1e-3 --ledger book.db --unit patient
ledger change zoe --epsilon 5 --reason x --ledger book.db
ledger change north --epsilon nan --reason x --ledger book.db
ledger change north --epsilon -3 --reason x --ledger book.db
ledger change north --epsilon 5 --ledger book.db
ledger change north --epsilon 5 --reason " " --ledger book.db
ledger change --epsilon 5 --reason x --ledger book.db
ledger withdraw north north --reason x --ledger book.db
ledger withdraw zoe --reason x --ledger book.db
ledger withdraw north --reason x --ledger book.db --unit record
ledger accept-rows north --reason x --ledger book.db
ledger rotate-key rows.csv --keys rows.csv --ledger book.db
ledger close-run nope --reason x --ledger book.db
ledger close-run "" --reason x --ledger book.db
ledger show --run nope --ledger book.db
ledger show --client zoe --ledger book.db
ledger show --client north --run x --ledger book.db
ledger show --ledger book.db --project schools
ledger history --last 0 --ledger book.db
ledger history --last many --ledger book.db
ledger history --client zoe --ledger book.db
ledger balance --client zoe --ledger book.db
ledger balance --plot x.bmp --ledger book.db
ledger balance --accountant gdp --ledger book.db
ledger export -o x.xml --ledger book.db
ledger export -o rows.csv --ledger book.db
ledger export --ledger book.db
ledger page --ledger nowhere.db
"""
DESIGN_LINES = """
theory
theory --clients 10
theory --clients 10 --max-rounds 9
theory --clients 10 --max-rounds 9 --k 2 --k-from x
theory --clients 10 --max-rounds 9 --k nan
theory --clients 10 --max-rounds 9 --k -1
theory --clients 10 --max-rounds 9 --k 2 --rate 2
theory --clients 10 --max-rounds 9 --k 2 --rounds 10
theory --clients 10 --max-rounds 9 --k 2 --max-noise 1
theory --clients 10 --max-rounds 9 --k 2 --rate 1 --max-epsilon 1
theory --clients 10 --max-rounds 9 --k 2 --rate 1 --delta 1
theory --clients 10 --max-rounds 9 --k 2 --rate 1 --delta 1e-5 --clip 0
theory --clients 10 --max-rounds 9 --k 2 --rate 1 --clip nan
theory --clients 10 --max-rounds 9 --k-from nowhere
theory --clients 10 --max-rounds 9 --k 2 --output x
theory --clients 10 --max-rounds 9 --k 2 --max-seconds 5
design.toml --k 22
design.toml --max-noise 22
design.toml --workers 0
design.toml --set design.seed=1
design.toml --set train.lr_schedule=cosine
design.toml --set data.name=csv
design.toml --set privacy.randomness=os
design.toml --vary train.lr=0.1,0.2
run.toml
teory
nothere.toml
influence
influence nowhere.toml
influence run.toml --directions 0
influence run.toml --by norm
influence run.toml -o influence.txt
influence clinics.toml
"""
BAD_ROWS: list[str | bytes] = [
    "",
    "age,sick\n",
    "patient,age,sick,hospital,split,epsilon\n",
    "patient,age,sick,hospital,split,epsilon\np1,young,0,north,train,1\n",
    "patient,age,sick,hospital,split,epsilon\np1,0.1,0,north,train\n",
    "patient,age,sick,hospital,split,epsilon\np1,,0,north,train,1\n",
    "patient,age,sick,hospital,split,epsilon\np1,0.1,7,north,train,1\np2,0.1,0,north,train,1\n",
    "patient,age,sick,hospital,split,epsilon\np1,0.1,0,north,late,1\n",
    "patient,age,sick,hospital,split,epsilon\np1,0.1,0,,train,1\n",
    "patient,age,sick,hospital,split,epsilon\np1,0.1,0,north,train,-1\n",
    "patient,age,sick,hospital,split,epsilon\np1,0.1,0,north,train,1\np1,0.2,1,north,train,1\n",
    "patient,age,sick,hospital,split,epsilon\n,0.1,0,north,train,1\n",
    "patient,age,sick,hospital,split,epsilon\np1,inf,0,north,train,1\n",
    "patient,age,sick,hospital,split,epsilon\np1,0.1,0,north,test,1\n",
    "patient,age,age,hospital,split,epsilon\np1,0.1,0,north,train,1\n",
    b"patient,age\n\xff,1\n",
]
ASKED: dict[str, Callable[[Session], None]] = {
    "command-lines": command_lines,
    "config-files": config_files,
    "config-keys": keys,
    "config-idle-keys": idle_keys,
    "plan": plan,
    "budget-files": budget_files,
    "plan-files": plan_files,
    "train": train,
    "ledger": ledgers,
    "keys-and-nodes": keys_and_nodes,
    "design": designs,
    "data": data,
}
