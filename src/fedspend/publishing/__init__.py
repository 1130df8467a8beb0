"""What a stranger may have of a run, and how a stranger checks it.

`publication` says what is published, `writing` writes it and the openings that are handed to
clients, `checking` checks it, `words` says what it promises.
"""
