"""Made-up lines of four speakers, for predicting the next character.

    fedspend --load examples/tasks/speakers.py train examples/tasks/text.toml -o runs/text

The alphabet and the longest line are stated, not read from the lines: what is read from private
rows is a release that no budget covers.
"""

import numpy as np

import fedspend
from fedspend.data import next_tokens, rows

ALPHABET = " abcdefghijklmnopqrstuvwxyz.,?"
TOKEN = {character: n for n, character in enumerate(ALPHABET, start=1)}  # 0 is padding
LENGTH = 24
SPEAKERS = {
    "ada": ("the engine", "a pattern", "the loom"),
    "ben": ("the harbour", "a boat", "the tide"),
    "cleo": ("the star", "a comet", "the moon"),
    "dan": ("the bread", "a loaf", "the oven"),
}
SAYS = ("is where it was.", "is not here, is it?", "was there, too.", "will be ready.")


def tokens(text):
    """A line as numbers, which are rows of the embedding."""
    return [TOKEN[character] for character in text]


def many(generator, speakers):
    """More speakers: each talks of a few of the things, and has a way of saying it."""
    things = [thing for known in SPEAKERS.values() for thing in known]
    return {
        f"speaker {n}": tuple(generator.choice(things, size=3, replace=False))
        for n in range(speakers)
    }


def read(_folder, seed, *, lines=40, speakers=None):
    """Each speaker says so many lines; a fifth of them is for testing."""
    generator = np.random.default_rng(seed)
    said, speaker = [], []
    known = SPEAKERS if speakers is None else many(generator, speakers)
    for name, things in known.items():
        for _ in range(lines):
            thing, rest = generator.choice(things), generator.choice(SAYS)
            said.append(tokens(f"{thing} {rest}"))
            speaker.append(name)
    features, targets = next_tokens(said, LENGTH)
    test = np.arange(len(said)) % 5 == 0
    return rows(
        features[~test],
        targets[~test],
        classes=len(ALPHABET) + 1,
        test_features=features[test],
        test_labels=targets[test],
        client_of=np.array(speaker)[~test],
        kind="tokens",
    )


fedspend.register(
    "data set",
    "speakers",
    read,
    help="made-up lines of four speakers, or of many",
    keys=("lines", "speakers"),
    public=True,
    natural=True,
)
