"""The ledger as a site: the page, and what it may ask. No question changes the ledger."""

from __future__ import annotations

from fedspend.pages.ledger.page import ledger_page
from fedspend.pages.ledger.reading import Reader
from fedspend.pages.serving import Site


def ledger_site(location: str, project: str = "") -> Site:
    """The page of a ledger, which is read once, so that a damaged one is refused at once."""
    reader = Reader(location)
    begun = reader.overview({})
    return Site(
        pages={"": lambda: ledger_page(begun, project)},
        asks={
            "overview": reader.overview,
            "accounts": reader.accounts,
            "exact": reader.exact,
            "account": reader.account,
            "runs": reader.runs,
            "run": reader.run,
            "history": reader.history,
            "verify": reader.verify,
        },
    )
