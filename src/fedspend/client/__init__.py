"""What happens at a client: one id, its own rows, its own private state, its own randomness.

`work.contribute` does everything for one client: a `ClientTask` goes in, a `Contribution` comes
out. What a client contributes is a function of its own rows, the task, its own state and its own
randomness; no other client's rows can change a bit of it.
"""
