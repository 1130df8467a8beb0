"""The account that outlives a run: append-only, hash-chained, in SQLite or PostgreSQL."""

from fedspend.ledger.book import Ledger
from fedspend.ledger.chain import Damaged, Head
from fedspend.ledger.storage import Unavailable

__all__ = ["Damaged", "Head", "Ledger", "Unavailable"]
