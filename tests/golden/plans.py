"""What `plan`, `verify` and `explain` say of each kind of plan, as text at 200 columns.

Guarantee: there is a kind for every config in `configs`, and one for each plan that is not made
from a config alone: on top of a past, of records at silos, of a private tune.
"""

from __future__ import annotations

from collections.abc import Callable

from golden import configs
from golden.session import Session, here

Kind = Callable[[Session], None]


def kinds() -> dict[str, Kind]:
    of_configs: dict[str, Kind] = {
        name: _of_config(text)
        for name, text in configs.CONFIGS.items()
        if name not in configs.WITHOUT_PLAN
    }
    return of_configs | {"remaining": _remaining, "silos": _silos, "tune": _tune}


def said_of(name: str) -> str:
    with here() as folder:
        session = Session(folder)
        kinds()[name](session)
        return session.text()


def _shown(session: Session) -> None:
    session.run("verify plan.json")
    session.run("explain plan.json")


def _of_config(text: str) -> Kind:
    def kind(session: Session) -> None:
        session.write("run.toml", text)
        session.note("run.toml", text)
        session.run("plan run.toml -o plan.json")
        _shown(session)

    return kind


def _remaining(session: Session) -> None:
    """A second run, on what the first has left of lifetime budgets."""
    session.write("rows.csv", configs.ROWS)
    session.write("budgets.csv", configs.BUDGETS)
    session.write("lifetime.csv", "client,epsilon\nnorth,5\nsouth,10\neast,10\n")
    session.write("run.toml", configs.SEEDED)
    session.note("run.toml", configs.SEEDED)
    session.run("ledger init --simulation --ledger book.db", only="nothing")
    session.run("ledger register lifetime.csv --delta 1e-3 --ledger book.db", only="nothing")
    session.run("train run.toml -o first --ledger book.db --quiet", only="nothing")
    session.run("plan run.toml --ledger book.db --set ledger.spend=remaining -o plan.json")
    session.hide_plan("plan.json")
    _shown(session)


def _silos(session: Session) -> None:
    """The public plan of records whose budgets stay at their silos."""
    from fedspend.records.policies import Wanted
    from fedspend.records.silos import Offer, silo_plan
    from fedspend.records.terms import Terms

    terms = Terms.checked(
        delta=1e-3, rounds=3, local_steps=4, client_rate=1.0, noise_multiplier=2.0
    )
    offer = Offer("0123456789abcdef" * 2, terms, 0.8, Wanted(), ("north", "south"))
    plan = silo_plan(offer, {"north": "1" * 64, "south": "2" * 64})
    plan.save(session.folder / "plan.json")
    _shown(session)


def _tune(session: Session) -> None:
    """What every trial of a private tune may cost, from its price to its winner."""
    session.write("run.toml", configs.CONFIGS["idp-fedavg"])
    session.note("run.toml", configs.CONFIGS["idp-fedavg"])
    session.run("tune run.toml --private --price --grid train.lr=0.1,0.3 --trials-mean 3")
    session.run("tune run.toml --private --price --grid train.lr=0.1,0.3 --trials-mean 3 --json")
