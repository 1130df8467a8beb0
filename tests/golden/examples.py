"""What the shipped examples plan and compute.

Guarantee: every config under `examples` is here with the hash of its plan, or with the line that
says why there is none without more data; those that train on bundled data in a moment also with
their last metrics and a digest of their model. Names that an example registers are gone afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import runpy
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from golden.layout import laid_out
from golden.session import ROOT, Session, command, here

EXAMPLES = ROOT / "examples"
# what a config needs to be loaded first
OWN = {"survival": "survival.py", "many_speakers": "speakers.py", "text": "speakers.py"}
# what trains in a moment, and with which changes
TRAINED = {
    "quickstart.toml": "",
    "saving.toml": "",
    "audit.toml": "",
    "hospitals/hospitals.toml": "",
    "records/digits.toml": "",
    "tasks/regression.toml": "",
    "tasks/own_model.toml": "--set train.rounds=2",
    "tasks/backbone.toml": "--set train.rounds=2",
    "tasks/fine_tune.toml": "--set train.rounds=2",
    "tasks/many_speakers.toml": (
        "--set train.rounds=2 --set data.speakers=20 --set data.lines=5 --set privacy.rate=0.5 "
        "--set train.local_epochs=1"
    ),
}
EXTENDING = (*("policy", "method", "data_set", "partition", "server_step"),)


def configs() -> list[Path]:
    """All configs of trainings: not those of a node, or of a Python project."""
    others = ("pyproject.toml", "node.toml")
    return sorted(path for path in EXAMPLES.rglob("*.toml") if path.name not in others)


def done_with(name: str) -> str:
    with here() as folder, registries_as_before():
        session = Session(folder)
        ALL[name](session)
        return session.text()


@contextlib.contextmanager
def registries_as_before() -> Iterator[None]:
    from fedspend.data import DATA_SETS, PARTITIONS
    from fedspend.planning.policies import POLICIES
    from fedspend.server.methods.table import METHODS
    from fedspend.server.steps import SERVER_STEPS
    from fedspend.tasks.table import LOSSES
    from fedspend.tasks.table import METRICS as TASK_METRICS

    registries = (
        *(DATA_SETS, PARTITIONS, POLICIES, METHODS),
        *(SERVER_STEPS, LOSSES, TASK_METRICS),
    )
    before = [registry.names for registry in registries]
    try:
        yield
    finally:
        for registry, names in zip(registries, before, strict=True):
            for name in set(registry.names) - set(names):
                registry.remove(name)


def plans(session: Session) -> None:
    """The hash of the plan of every config."""
    for path in configs():
        with registries_as_before():
            _plan(session, path, str(path.relative_to(ROOT)))


def _plan(session: Session, path: Path, shown: str) -> None:
    own = OWN.get(path.stem)
    load = ["--load", str(EXAMPLES / "tasks" / own)] if own else []
    made = session.folder / "plan.json"
    code, _, err = command([*load, "plan", str(path), "-o", str(made), "--force", "--quiet"])
    said = _summary(made) if code == 0 else f"exit code {code}"
    session.note(shown, "\n".join([said, *(f"stderr: {line}" for line in err.splitlines())]))


def _summary(path: Path) -> str:
    """The hash of a plan, its policy, and sums of its numbers, by which it is known elsewhere."""
    from fedspend.planning.protocol import load_any_plan

    made = load_any_plan(path)
    sums = {
        name: math.fsum(getattr(made.schedules, name).ravel().tolist())
        for name in ("noise_multiplier", "sampling_rate", "clip_norm", "epsilon")
        if getattr(made.schedules, name, None) is not None
    }
    return "\n".join(
        [
            f"plan {made.hash}, policy {made.parameters.get('policy', 'none')}",
            *(f"sum of {name} {value!r}" for name, value in sums.items()),
        ]
    )


def templates(session: Session) -> None:
    """The plans of what `fedspend new` writes: those of the examples."""
    from fedspend.starting.templates import TEMPLATES

    for template in TEMPLATES:
        session.run(f"new {template} --template {template}", only="nothing")
        folder = session.folder / template
        session.note(template, _listing(folder))
        if (folder / "make_rows.py").exists():
            with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
                runpy.run_path("make_rows.py", run_name="__main__")
        for path in sorted(folder.rglob("*.toml")):
            if path.name not in ("pyproject.toml", "node.toml"):
                _plan(session, path, str(path.relative_to(session.folder)))


def by_hand(session: Session) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(EXAMPLES / "by_hand.py"), run_name="__main__")
    session.note("python examples/by_hand.py", out.getvalue())


def _trained(name: str, changes: str) -> Callable[[Session], None]:
    def trained(session: Session) -> None:
        path = EXAMPLES / name
        own = OWN.get(path.stem)
        load = f"--load {EXAMPLES / 'tasks' / own} " if own else ""
        # beside the config, where a module of its own is found
        for beside in path.parent.iterdir():
            if beside.is_file():
                shutil.copy(beside, session.folder)
        session.run(f"{load}train {path.name} -o run {changes} --quiet".replace("  ", " "))
        lines = (session.folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        session.note("metrics.jsonl, last of " + str(len(lines)), laid_out(lines[-1]))
        session.note("what was computed", _computed(session.folder / "run"))

    return trained


def _computed(folder: Path) -> str:
    """The hash of the plan, and a digest of the numbers of the model, in the order of names."""
    from safetensors.numpy import load_file

    model = hashlib.sha256()
    for name, numbers in sorted(load_file(folder / "model.safetensors").items()):
        model.update(f"{name} {numbers.dtype} {numbers.shape} ".encode() + numbers.tobytes())
    plan = folder / "plan.json"
    planned = _summary(plan) if plan.exists() else "plan none"
    return f"{planned}\nmodel {model.hexdigest()[:32]}"


def extending(session: Session) -> None:
    """The command that each example of an entry of one's own gives in its text."""
    for example in EXTENDING:
        text = (EXAMPLES / "extending" / f"{example}.py").read_text(encoding="utf-8")
        lines = text.partition("    fedspend ")[2].split("\n\n")[0].replace("\\\\\n", " ")
        argv = shlex.split(lines.partition('"""')[0])
        if "-o" in argv:
            argv[argv.index("-o") + 1] = str(session.folder / example)
        if argv[2] == "compare":
            argv += ["--workers", "1"]
        with contextlib.chdir(ROOT), registries_as_before():
            session.run(shlex.join(argv))


def _listing(folder: Path) -> str:
    return "\n".join(
        sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    )


ALL: dict[str, Callable[[Session], None]] = {
    "plans": plans,
    "templates": templates,
    "by-hand": by_hand,
    "extending": extending,
    **{
        f"trained-{Path(name).stem.replace('_', '-')}": _trained(name, changes)
        for name, changes in TRAINED.items()
    },
}
