"""The terms that a privacy officer meets, each in one to three plain sentences.

Guarantee: this is the only place that explains them. `fedspend glossary` prints them, and a test
checks that `docs/reference/glossary.md` is `page()`.
"""

from __future__ import annotations

import difflib
import textwrap

from fedspend.errors import InvalidInput

GROUPS: dict[str, dict[str, str]] = {
    "The promise": {
        "differential privacy": (
            "A promise about a procedure: what it releases is almost as likely with a person's "
            "data as without it. It holds whatever else an observer knows or will learn."
        ),
        "epsilon": (
            "The most that a release can reveal. Nobody's odds that you took part grow by more "
            "than a factor of e to the power of epsilon: 1.1 for 0.1, 2.7 for 1, 22,027 for 10. "
            "Smaller is safer."
        ),
        "delta": (
            "The small chance that epsilon's bound fails. It should be far below one divided "
            "by the number of clients, or it would permit exposing one of them completely."
        ),
        "privacy budget": (
            "The largest epsilon that a client or record allows, over everything that is released. "
            "Every participant sets its own."
        ),
        "unit": (
            "What is protected: a client with everything it holds, or one record. A promise about "
            "records says nothing about a client as a whole."
        ),
        "adjacency": (
            "What 'with' and 'without' mean when two worlds are compared. Promises with different "
            "adjacencies cannot be compared by their epsilons."
        ),
        "zero-out": (
            "The adjacency used here: one unit's contribution becomes zero, while the list of "
            "participants, the budgets and the plan stay as they are."
        ),
        "observer": (
            "Someone who might try to learn something, described by what they get to see. A plan "
            "promises its epsilon against one kind of observer; others may learn more."
        ),
        "simulation": (
            "A run whose random numbers come from a seed. Anyone who knows the seed can undo the "
            "noise, so a simulation protects nobody."
        ),
    },
    "What it means for a person": {
        "membership test": (
            "A way to decide from the releases whether somebody took part. Differential privacy "
            "bounds this attack; somebody who cannot even tell that learns nothing else about you."
        ),
        "false positive rate": (
            "The share of those who did not take part whom a test wrongly says did."
        ),
        "true positive rate": (
            "The share of those who took part whom a test recognises. It means something only "
            "together with the false positive rate."
        ),
        "trade-off curve": (
            "For every false positive rate, the largest true positive rate that any test can "
            "reach. It says more than a single epsilon and delta."
        ),
        "odds": (
            "A chance written as yes to no: 1:99 is one in a hundred. Bayes' rule multiplies the "
            "odds before by the strength of the evidence to give the odds after."
        ),
        "canary": (
            "Made-up data that is planted in order to test for it afterwards. How well it is "
            "recognised gives a lower bound on what really leaks, to compare with the promise."
        ),
    },
    "How it is done": {
        "federated learning": (
            "Training one model on data that stays where it is. Clients send updates, and the "
            "server combines them."
        ),
        "client": "A participant that holds data: a hospital, a bank, a phone.",
        "record": "One row of a client's data, for example one patient.",
        "round": (
            "One step of training: some clients are asked, they answer, and one noisy sum is "
            "released."
        ),
        "cohort": "The clients that are asked in a round. Who they are should stay hidden.",
        "sampling rate": (
            "The chance that a client or record is in a round. The smaller it is, the less a round "
            "reveals about it, as long as nobody sees who was in."
        ),
        "amplification by sampling": (
            "The privacy that comes from not knowing who was in a round. It is lost against an "
            "observer who sees participation."
        ),
        "clip": (
            "The length that a contribution is cut to before it is added up. It bounds how far one "
            "participant can move the sum."
        ),
        "noise multiplier": (
            "The standard deviation of the noise on the sum, divided by the participant's clip. "
            "Privacy depends on this ratio, not on either number alone."
        ),
        "central noise": "Noise that a trusted server adds once, to the sum.",
        "distributed noise": (
            "Noise that clients add in parts. It protects from the server only together with "
            "secure aggregation."
        ),
        "discrete noise": (
            "Noise in whole numbers, drawn without rounding errors. It closes a gap that noise in "
            "floating point leaves."
        ),
        "secure aggregation": (
            "A protocol by which a server learns the sum of contributions but none of them by "
            "itself."
        ),
        "release": (
            "What leaves a round: the noised sum, and everything computed from it. It can be "
            "published and is paid for once."
        ),
        "post-processing": ("Anything that is computed from a release alone. It costs no privacy."),
    },
    "Planning and checking": {
        "plan": (
            "Everyone's noise, rates and clips in every round, fixed before training from budgets "
            "and settings alone. Anyone can check it."
        ),
        "schedule": (
            "One column of a plan: a client's rate, noise and clip by round. Clients with equal "
            "budgets usually share one."
        ),
        "policy": "The rule that spreads a budget over the rounds, for example evenly.",
        "contraction": (
            "How much of a small change to the model survives one round, from 0 to 1: at 0.9, nine "
            "tenths. Policy optimal adds least noise in the rounds of which most survives; if no "
            "contraction is stated, it does well for all from 0.5 to 1."
        ),
        "claim": "The epsilon that a plan says a schedule costs. It must not exceed the budget.",
        "composition": (
            "Working out what several releases reveal together. The total is less than the sum of "
            "their epsilons."
        ),
        "private tune": (
            "Trying settings on private data, a random number of times, and releasing only the "
            "best. It costs little more than a few tries, as long as nobody learns how many there "
            "were."
        ),
        "accountant": "The calculation that turns noise and rates into an epsilon.",
        "Rényi divergence": (
            "A measure of how different the worlds with and without a person look. It adds up over "
            "rounds exactly, and is turned into epsilon at the end."
        ),
        "PLD": (
            "Privacy loss distribution: the exact spread of evidence that a mechanism can give. "
            "Even rounded to the safe side, it gives slightly lower epsilons than Rényi divergence."
        ),
        "certificate": (
            "The result of checking a plan with accountants that share no code with the planner: "
            "PASS or FAIL, and the margins."
        ),
        "margin": "The part of a budget that the checking accountant finds unspent.",
    },
    "Keeping the account": {
        "ledger": (
            "The account over all runs: who allowed how much, and which rounds used whose data. "
            "Entries are only ever added."
        ),
        "lifetime budget": "A budget for all runs together, at one delta.",
        "admission": (
            "The check before a run starts: past runs, open runs and the whole new plan together "
            "must fit every budget."
        ),
        "reserve": (
            "To charge a round before it begins. From then on it is spent, whatever happens next."
        ),
        "commit": "To record that the release of a reserved round was stored.",
        "lost round": (
            "A round that was reserved and left no release. It stays spent, because fresh noise on "
            "the same round would be a second release."
        ),
        "withdrawal": (
            "A participant's leaving for good. Rounds that have begun stay spent; an open run that "
            "counts on the participant can begin no further round."
        ),
        "remaining": (
            "The largest epsilon that a new plan could claim on an account. It is usually more "
            "than budget minus spent, because epsilons do not simply add up."
        ),
        "hash chain": (
            "Each entry of the ledger carries a fingerprint of all before it, so a changed or "
            "missing entry is noticed."
        ),
    },
    "Letting others check": {
        "publication": (
            "What a stranger may have of a run: the model, the guarantee in words and numbers, and "
            "what is needed to check it. Budgets are in it only behind commitments."
        ),
        "commitment": (
            "A number that fixes something without showing it. Only who holds its opening can show "
            "what is in it, and nobody can show anything else."
        ),
        "opening": (
            "What opens a commitment: 32 random bytes and the content. A client's opening holds "
            "its own budget and schedule, so it is handed to that client alone."
        ),
        "signature": (
            "Proof that the holder of a key vouches for something, unchanged. It says who vouches, "
            "not that it is true."
        ),
    },
}
TERMS: dict[str, str] = {term: words for terms in GROUPS.values() for term, words in terms.items()}
ALIASES = {
    "ε": "epsilon",
    "δ": "delta",
    "budget": "privacy budget",
    "fpr": "false positive rate",
    "tpr": "true positive rate",
    "privacy loss distribution": "PLD",
    "renyi": "Rényi divergence",
    "rdp": "Rényi divergence",
    "trade-off": "trade-off curve",
    "noise": "noise multiplier",
    "rate": "sampling rate",
    "withdraw": "withdrawal",
    "dp": "differential privacy",
    "clip norm": "clip",
    "clipping": "clip",
}


def find(name: str) -> str:
    """The term meant by `name`, in upper or lower case, or by a usual short name.

    >>> find("Epsilon"), find("TPR")
    ('epsilon', 'true positive rate')
    """
    known = {term.casefold(): term for term in TERMS} | ALIASES
    wanted = " ".join(name.casefold().split())
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, 1) or [
        term for term in known if wanted and wanted in term
    ]
    hint = f"did you mean {known[near[0]]!r}?" if near else "fedspend glossary lists them all"
    raise InvalidInput(f"unknown term {name!r}; {hint}")


def page() -> str:
    """`docs/reference/glossary.md`."""
    parts = [
        "# Glossary\n",
        "The terms that a privacy officer meets. `fedspend glossary` prints them all, `fedspend "
        "glossary\nTERM` one of them.\n",
    ]
    for title, terms in GROUPS.items():
        parts.append(f"## {title}\n")
        parts.extend(
            textwrap.fill(f"**{name}.** {words}", 100) + "\n" for name, words in terms.items()
        )
    return "\n".join(parts)
