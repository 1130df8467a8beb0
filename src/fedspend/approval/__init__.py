"""What a client approves of a plan, and how it is held to it: `tree` and `slices` are what it is
shown, `tasks` compares a task with it, `node_ledger` keeps the client's own account, `words` says
what is approved.
"""
