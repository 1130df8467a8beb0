"""The ledger page: balances, runs, history and verification of a ledger."""
