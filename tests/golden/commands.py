"""What every command says that has an answer, as JSON and in words, on runs of a blink.

Guarantee: `test_golden` holds the commands that are asked here to those that have `--json`, so that
none is forgotten. Runs are seeded; where randomness must be real, what it draws is not shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from golden import configs
from golden.session import ROOT, Session, here

Story = Callable[[Session], None]
BOTH = ("", " --json")


def said_in(name: str) -> str:
    with here() as folder:
        session = Session(folder)
        STORIES[name](session)
        return session.text()


def both(session: Session, *lines: str) -> None:
    """Each of these commands in words, and as JSON."""
    for line in lines:
        for more in BOTH:
            session.run(f"{line}{more}")


def with_config(session: Session, kind: str) -> None:
    session.write("run.toml", configs.CONFIGS[kind])


def plan(session: Session) -> None:
    for kind in ("saving", "rpdp"):
        with_config(session, kind)
        session.run("plan run.toml --json")
    flags = "--epsilon 2:3,8:3 --delta 1e-3 --rounds 4 --rate 0.5"
    both(session, f"plan {flags}")
    session.run(f"plan {flags} --compare uniform,strictest,optimal")
    session.run(f"plan {flags} --compare uniform,strictest,optimal --json")
    session.run(f"plan {flags} --weights 1,1,2,4")
    session.run(f"plan {flags} --saving-rate 2:0.5,8:0.2 --transition 2 --permute-rates")
    session.run(f"plan {flags} --policy individual-rates --accountant pld")
    session.run(f"plan {flags} -o plan.json --plot plan.svg")
    session.run(f"plan {flags} -o plan.json")
    session.write(
        "budgets.csv", "client,epsilon,group\nanna,1,phone\nbert,2,clinic\ncora,2,clinic\n"
    )
    both(session, "plan --budgets budgets.csv --delta 1e-3 --rounds 4 --rate 0.5")
    many = "".join(f"c{n},{1 + n / 25}\n" for n in range(100))
    session.write("many.csv", "client,epsilon\n" + many)
    session.run("plan --budgets many.csv --delta 1e-3 --rounds 4 --rate 0.5")


def verify(session: Session) -> None:
    import fedspend

    with_config(session, "time-adaptive")
    session.run("plan run.toml -o plan.json", only="nothing")
    session.run("verify plan.json --json")
    session.run("verify plan.json --colluders 2")
    session.run("verify plan.json --quiet")
    with_config(session, "dp-fedavg")
    session.run("plan run.toml -o plan.json --force", only="nothing")
    made = fedspend.Plan.load(session.folder / "plan.json")
    noise = made.noise_multiplier.copy()
    noise[1] *= 0.95
    made.replace(noise_multiplier=noise).save(session.folder / "weak.json")
    session.run("verify weak.json")
    document = json.loads((session.folder / "plan.json").read_text(encoding="utf-8"))
    session.write("altered.json", json.dumps(document | {"delta": 1e-6}))
    both(session, "verify altered.json")


def explain(session: Session) -> None:
    both(session, "explain 10 --delta 1e-5")
    with_config(session, "time-adaptive")
    session.run("plan run.toml -o plan.json", only="nothing")
    both(session, "explain plan.json --client 1", "explain plan.json --group 12 --colluders 2")
    session.run('explain plan.json --group 12 --observer "participation revealed" --plot c.svg')
    with_config(session, "rpdp")
    session.run("plan run.toml -o records.json", only="nothing")
    both(session, "explain records.json --record 5")
    session.run("explain records.json --json")


def explain_leaving(session: Session) -> None:
    for kind, who in (("time-adaptive", "client"), ("rpdp", "record")):
        with_config(session, kind)
        session.run(f"plan run.toml -o {kind}.json", only="nothing")
        both(session, f"explain {kind}.json --{who} 1 --leaves 2")


def train(session: Session) -> None:
    """A run in words and as JSON, then everything that is asked of its folder."""
    with_config(session, "saving")
    session.run("train run.toml -o one")
    session.run("train run.toml -o two --json")
    session.run("train run.toml -o one --resume")
    both(session, "verify one", "report one", "explain one --group 4")
    session.run("report one two -o both.html")
    session.run("report one two -o both.html --json")
    for name in ("run.json", "certificate.json"):
        session.show_json(f"one/{name}")
    session.note("files of a run", _listing(session.folder / "one"))
    session.run("publish one")
    session.run("publish two --json")
    both(session, "verify one.publication")
    openings = sorted((session.folder / "one.publication.openings" / "clients").iterdir())
    both(session, f"verify one.publication --open {openings[0].relative_to(session.folder)}")
    session.note("files of a publication", _listing(session.folder / "one.publication"))
    session.run("verify one/plan.json --quiet")
    (session.folder / "one" / "metrics.jsonl").write_text("{}\n")
    both(session, "verify one")


def train_every_method(session: Session) -> None:
    """The rounds of one run of each kind, and what is checked in those that differ in it."""
    for name, text in configs.CONFIGS.items():
        session.write(f"{name}.toml", text)
        session.run(f"train {name}.toml -o runs/{name} --json")
    for name in ("fedavg", "adaptive-clip", "private-metric", "votes", "rpdp", "filter-by-norm"):
        session.run(f"verify runs/{name}")


def signed(session: Session) -> None:
    both(session, "keys new --out keys")
    session.run("keys new --out more --json")
    with_config(session, "dp-fedavg")
    session.run("train run.toml -o one --sign keys/fedspend.key")
    both(session, "verify one --key keys/fedspend.pub", "verify one --key more/fedspend.pub")
    session.run("publish one -o public --sign keys/fedspend.key")
    session.run("publish one -o again --sign keys/fedspend.key --json")
    both(session, "verify public --key keys/fedspend.pub", "verify public --key more/fedspend.pub")


def predict(session: Session) -> None:
    session.write("patients.csv", configs.PATIENTS)
    session.write("study.toml", configs.STUDY)
    session.run("train study.toml -o study")
    both(session, "predict study patients.csv", "predict study patients.csv --outputs")
    session.run("predict study patients.csv -o predictions.csv")
    both(session, "verify study")
    session.run("report study --json")


def compare(session: Session) -> None:
    with_config(session, "idp-fedavg")
    both(session, "compare run.toml --methods fedavg,dp-fedavg,idp-fedavg --seeds 2 --workers 1")
    session.run("compare run.toml --vary train.lr=0.1,0.3 --seeds 2 --workers 1")
    vary = "compare run.toml --methods idp-fedavg --vary privacy.clip=0.5,1 --seeds 2 --workers 1"
    both(session, vary)
    for table in ("csv", "markdown", "latex"):
        session.run(f"{vary} --table {table}")


def tune(session: Session) -> None:
    with_config(session, "idp-fedavg")
    both(session, "tune run.toml --grid train.lr=0.1,0.3 --seeds 2 --workers 1")
    session.run("tune run.toml --grid train.lr=0.1,0.3 --seeds 2 --workers 1 -o tuned")
    private = "tune run.toml --private --grid train.lr=0.1,0.3 --trials-mean 3"
    both(session, f"{private} --price")
    session.run(f"{private} -o winner")
    session.run(f"{private} -o again --json")
    both(session, "verify winner", "explain winner")


def audit(session: Session) -> None:
    session.write("audit.toml", configs.AUDIT)
    both(session, "audit audit.toml --trials 20")
    with_config(session, "rpdp")
    both(session, "audit run.toml --trials 5")


def records(session: Session) -> None:
    session.write(
        "budgets.csv",
        "record,client,epsilon\n"
        "p1,north,0.01\np2,north,0.02\np3,south,0.1\np4,south,1\np5,south,500\n",
    )
    terms = "--delta 1e-3 --rounds 20 --local-steps 5 --client-rate 0.5"
    both(session, f"records rates budgets.csv {terms} --noise 1")
    for method in ("scf", "scf-clamped", "search"):
        session.run(f"records rates budgets.csv {terms} --noise 1 --method {method}")
    session.run(f"records rates budgets.csv {terms} --noise 1 -o rates.csv --plot rates.svg")
    session.note("rates.csv", (session.folder / "rates.csv").read_text(encoding="utf-8"))
    session.run("records draw three-levels 40 --seed 3 -o drawn.csv")
    session.note("drawn.csv", (session.folder / "drawn.csv").read_text(encoding="utf-8"))
    both(session, f"records noise drawn.csv {terms}")


def ledger(session: Session) -> None:
    """The accounts of simulated clinics over two runs, from the first entry to the last."""
    session.write("rows.csv", configs.ROWS)
    session.write("public.csv", configs.ROWS)
    session.write("run.toml", configs.SEEDED.replace('"rows.csv"\nlabel', '"public.csv"\nlabel'))
    session.write("budgets.csv", configs.BUDGETS)
    session.write("lifetime.csv", "client,epsilon\nnorth,5\nsouth,10\neast,10\nwest,4\n")
    at = "--ledger book.db"
    session.run(f"ledger init --simulation {at}")
    session.run(f"ledger register lifetime.csv --delta 1e-3 {at}")
    session.run(f"plan run.toml {at} -o plan.json")
    session.hide_plan("plan.json")
    both(session, f"explain plan.json --client north --leaves 2 {at}")
    session.run(f"train run.toml -o one {at}")
    session.run(f"train run.toml -o two {at}")
    for name in ("north", "south", "east"):
        session.run(f"ledger change {name} --epsilon 12 --reason 'a new form' {at}")
    session.run(f"ledger withdraw west --reason 'asked by letter' {at}")
    session.run(f"ledger withdraw west --reason again {at}")
    session.run(f"train run.toml -o three {at} --remaining --quiet")
    session.hide_plan("three/plan.json")
    both(
        session,
        f"ledger show {at}",
        f"ledger show --client north {at}",
        f"ledger balance {at}",
        f"ledger balance --client south --accountant rdp {at}",
        f"ledger history {at}",
        f"ledger history --client west --last 2 {at}",
        f"ledger verify {at}",
        f"ledger verify {at} --runs one three",
    )
    session.run(f"ledger export -o book.csv {at}")
    session.run(f"ledger export -o book.json {at}")
    both(session, "ledger verify book.json")
    session.note("book.csv", (session.folder / "book.csv").read_text(encoding="utf-8"))


def projects(session: Session) -> None:
    """Real runs, charged to the ledger of this user; what real noise has drawn is not shown."""
    session.write("rows.csv", configs.ROWS)
    session.write("public.csv", configs.ROWS)
    session.write("run.toml", configs.CLINICS.replace('"rows.csv"\nlabel', '"public.csv"\nlabel'))
    session.write("budgets.csv", configs.BUDGETS)
    session.run("train run.toml -o one")
    session.run("train run.toml -o one --project clinics --quiet")
    session.run("train run.toml -o two --project clinics")
    session.run("plan run.toml --project clinics")
    both(session, "verify one")
    both(session, "ledger show", "ledger balance --project clinics", "ledger history")
    both(session, "ledger verify")
    session.run("ledger balance --project schools")
    session.run("ledger close-run 0 --reason over --project clinics")


def flower(session: Session) -> None:
    """A consortium's files: written, checked, sliced and approved, with nobody connected."""
    import shutil

    from fedspend.flower.loopback import make_node_key

    shutil.copytree(ROOT / "examples" / "flower", session.folder / "made")
    names = ("north", "south", "harbour")
    keys = [f"{name},{make_node_key(session.folder / 'made' / 'nodes' / name)}" for name in names]
    session.write("made/server/keys.csv", "\n".join(["client,key", *keys]) + "\n")
    server, node = "made/server/training.toml", "--config made/nodes/north/node.toml"
    session.run("flower new deployed --config made/server/training.toml --host example.org")
    session.run("flower new again --config made/server/training.toml --json")
    both(session, f"flower check {server}", "flower check made/nodes/north/node.toml")
    session.run(f"flower slices {server} -o made/server/slices")
    session.run(f"flower slices {server} -o made/server/more --json")
    both(session, f"flower check {server}")
    slices = sorted((session.folder / "made" / "server" / "slices").glob("north*"))
    slice = slices[0].relative_to(session.folder)
    session.run(f"node balance {node}")
    session.run(f"node approve {slice} --show {node}")
    session.run(f"node approve {slice} {node}")
    session.run(f"node approve {slice} {node} --json")
    both(session, f"node balance {node}", f"node history {node}", f"node history {node} --last 1")
    south = node.replace("north", "south")
    session.run(f"node approve {str(slice).replace('north', 'south')} {south}", only="nothing")
    for folder, of, more in (("new", node, ""), ("newer", south, " --json")):
        make_node_key(session.write(f"{folder}/made", "").parent)
        asked = f"node rotate-key {folder}/node.key -o {folder}.json --reason 'a yearly change'"
        session.run(f"{asked} {of}{more}")
    keys_file, book = "--keys made/server/keys.csv", "--ledger made/server/ledger.db"
    session.run(f"ledger init {book}", only="nothing")
    budgets = "made/server/budgets.csv --delta 1e-3"
    session.run(f"ledger register {budgets} {book}", only="nothing")
    session.run(f"ledger rotate-key new.json {keys_file} {book} --reason 'a yearly change'")
    run = json.loads((session.folder / slice).read_text(encoding="utf-8"))["terms"]["run"]
    session.run(f"node leave {run} --reason 'the study ended' {node} --json")


def design(session: Session) -> None:
    theory = "design theory --k 22 --rate 1 --clients 10 --max-rounds 200"
    both(session, f"{theory} --max-noise 0.1")
    both(session, f"{theory} --max-epsilon 50 --delta 1e-3 --clip 0.3")
    session.write("design.toml", configs.DESIGN)
    both(session, "design design.toml -o found --workers 1 --max-epsilon 40")
    both(session, "design theory --k-from found --rate 0.5 --clients 6 --max-rounds 20")


def design_influence(session: Session) -> None:
    with_config(session, "idp-fedavg")
    session.run("design influence run.toml -o influence.json")
    session.run("design influence run.toml -o again.json --by model --json")
    session.run("plan run.toml --policy optimal --influence influence.json")


def data(session: Session) -> None:
    both(session, "data list")
    session.run("data get mnost")
    session.write("rows.csv", configs.ROWS)
    session.write("public.csv", configs.ROWS)
    session.write("budgets.csv", configs.BUDGETS)
    session.write("run.toml", configs.CLINICS.replace('"rows.csv"\nlabel', '"public.csv"\nlabel'))
    both(session, "data check rows.csv", "data check run.toml")


def new(session: Session) -> None:
    from fedspend.starting.templates import TEMPLATES

    for template in TEMPLATES:
        session.run(f"new {template} --template {template}")
        session.run(f"new json/{template} --template {template} --json")


def glossary(session: Session) -> None:
    both(session, "glossary", "glossary epsilon")


def _listing(folder: Path) -> str:
    return "\n".join(sorted(str(path.relative_to(folder)) for path in folder.rglob("*")))


STORIES: dict[str, Story] = {
    "new": new,
    "plan": plan,
    "verify": verify,
    "explain": explain,
    "explain-leaving": explain_leaving,
    "audit": audit,
    "train": train,
    "train-every-method": train_every_method,
    "predict": predict,
    "signed": signed,
    "compare": compare,
    "tune": tune,
    "records": records,
    "ledger": ledger,
    "projects": projects,
    "flower": flower,
    "design": design,
    "design-influence": design_influence,
    "data": data,
    "glossary": glossary,
}
