"""What happens at a client: one id, its own rows, its own private state, its own randomness.

`work.contribute` is all of it for one client: a `ClientTask` comes in, a `Contribution` goes out.
What a client contributes is a function of its own rows, the task, its own state and its own
randomness; no other client's rows can change a bit of it.
"""
