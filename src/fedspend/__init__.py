"""Differentially private federated learning in which every participant sets a privacy budget.

>>> import fedspend
>>> plan = fedspend.plan([10.0, 20.0, 30.0], delta=1e-5, rounds=25, rate=0.9, saving_rate=0.5)
>>> fedspend.verify(plan).ok
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedspend import accounting as accounting
    from fedspend import design as design
    from fedspend import records as records
    from fedspend import report as report
    from fedspend.auditing.entry import Audit as Audit
    from fedspend.auditing.entry import audit as audit
    from fedspend.configuration.data_entry import check_data as check_data
    from fedspend.configuration.data_entry import data_sets as data_sets
    from fedspend.configuration.data_entry import get_data as get_data
    from fedspend.configuration.register import register as register
    from fedspend.errors import FedspendError as FedspendError
    from fedspend.errors import FedspendWarning as FedspendWarning
    from fedspend.errors import InvalidInput as InvalidInput
    from fedspend.errors import OutsideFailed as OutsideFailed
    from fedspend.errors import Refused as Refused
    from fedspend.explanation.entry import explain as explain
    from fedspend.explanation.entry import glossary as glossary
    from fedspend.explanation.entry import what_if as what_if
    from fedspend.ledger.book import Ledger as Ledger
    from fedspend.planning.making import plan as plan
    from fedspend.planning.plan import Plan as Plan
    from fedspend.publishing.checking import verify_publication as verify_publication
    from fedspend.publishing.verifying import verify as verify
    from fedspend.publishing.writing import publish as publish
    from fedspend.records.planning import RecordPlan as RecordPlan
    from fedspend.report.making import make_report as make_report
    from fedspend.runs.comparison import Comparison as Comparison
    from fedspend.runs.comparison import compare as compare
    from fedspend.runs.predicting import Predictions as Predictions
    from fedspend.runs.predicting import load_model as load_model
    from fedspend.runs.predicting import predict as predict
    from fedspend.runs.result import Result as Result
    from fedspend.runs.training import train as train
    from fedspend.runs.verifying import verify_run as verify_run
    from fedspend.signing.keys import new_keys as new_keys
    from fedspend.tuning.entry import tune as tune
    from fedspend.verification.verify import Verification as Verification

__version__ = "0.2.0"

# Imported on first use, so that `fedspend --help` answers before numpy is loaded.
_HOME = {
    "Audit": "auditing.entry",
    "audit": "auditing.entry",
    "Comparison": "runs.comparison",
    "check_data": "configuration.data_entry",
    "compare": "runs.comparison",
    "data_sets": "configuration.data_entry",
    "explain": "explanation.entry",
    "FedspendError": "errors",
    "FedspendWarning": "errors",
    "get_data": "configuration.data_entry",
    "glossary": "explanation.entry",
    "InvalidInput": "errors",
    "Ledger": "ledger.book",
    "load_model": "runs.predicting",
    "make_report": "report.making",
    "new_keys": "signing.keys",
    "Plan": "planning.plan",
    "OutsideFailed": "errors",
    "plan": "planning.making",
    "predict": "runs.predicting",
    "Predictions": "runs.predicting",
    "publish": "publishing.writing",
    "RecordPlan": "records.planning",
    "Refused": "errors",
    "register": "configuration.register",
    "Result": "runs.result",
    "train": "runs.training",
    "tune": "tuning.entry",
    "Verification": "verification.verify",
    "verify": "publishing.verifying",
    "verify_publication": "publishing.checking",
    "verify_run": "runs.verifying",
    "what_if": "explanation.entry",
}
_PACKAGES = ("accounting", "design", "records", "report")

__all__ = ["__version__", *sorted([*_HOME, *_PACKAGES])]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(_imported(_HOME[name]), name)
    if name in _PACKAGES:
        return _imported(name)
    import difflib

    from fedspend.basics.removed import refuse_name

    refuse_name(f"fedspend.{name}")
    near = difflib.get_close_matches(name, __all__, 1)
    hint = f"; did you mean {near[0]!r}?" if near and not name.startswith("_") else ""
    raise AttributeError(f"module 'fedspend' has no attribute {name!r}{hint}")


def _imported(home: str) -> Any:
    try:
        return import_module(f"fedspend.{home}")
    except ModuleNotFoundError as error:
        from fedspend.basics.extras import explained

        raise explained(error) or error from None


def __dir__() -> list[str]:
    return sorted(__all__)
