"""The glossary: one source for the command and the page, short and complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedspend.errors import InvalidInput
from fedspend.explanation.glossary import ALIASES, TERMS, find, page

DOCS = Path(__file__).parent.parent.parent / "docs"
ASKED = (
    "epsilon, delta, adjacency, zero-out, unit, observer, sampling rate, noise multiplier, clip, "
    "schedule, policy, ledger, reserve, commit, certificate, PLD, Rényi divergence, "
    "trade-off curve, membership test, canary"
)


def test_the_page_is_made_of_the_same_terms():
    assert (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8") == page()


def test_every_term_is_there_in_one_to_three_sentences():
    assert set(ASKED.split(", ")) <= set(TERMS)
    for term, words in TERMS.items():
        assert 1 <= len(re.findall(r"[.!?](?= [A-Z]|$)", words)) <= 3, term
        assert words[0].isupper(), term
        assert len(words) < 260, term


def test_names_are_found_and_others_are_not():
    assert find("RENYI") == "Rényi divergence"
    assert set(ALIASES.values()) <= set(TERMS)
    with pytest.raises(InvalidInput, match="unknown term 'epsilom'; did you mean 'epsilon'"):
        find("epsilom")
    with pytest.raises(InvalidInput, match="fedspend glossary lists them all"):
        find("quux")
