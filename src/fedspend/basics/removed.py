"""What users could write in an earlier version, and what to write now: one table.

Guarantee: whoever writes something that is in the table is told its sentence: on the command line,
with `--set`, in a config and from Python.
"""

from __future__ import annotations

from fedspend.errors import InvalidInput

# As it was written: "fedspend COMMAND", "fedspend COMMAND --flag", "--flag" of every command,
# "--flag VALUE", "section.key", "section.key=value", "fedspend.function",
# "fedspend.function(argument=)".
REMOVED = {
    "fedspend what-if": "write fedspend explain PLAN --client ID --leaves ROUND",
    "fedspend plan --gain-map": "write --compare uniform,optimal, at each --contraction and --tail",
    "fedspend sweep": "write fedspend compare CONFIG.toml --vary section.key=value,value",
    "fedspend.sweep": "call fedspend.compare with vary=['section.key=value,value']",
    "fedspend design choose": "write fedspend tune CONFIG.toml --grid section.key=value,value",
    "fedspend.design.choose": "call fedspend.tune with grid=['section.key=value,value']",
    "design.policies": "write fedspend compare CONFIG.toml --vary privacy.policy=uniform,optimal",
    "design.epsilons": "write fedspend compare CONFIG.toml --vary privacy.epsilon=2,8",
    "privacy.policy=grouped": "write uniform or individual-rates",
    "privacy.split=equal": "write policy uniform",
    "fedspend.register('accountant')": "write accountant = 'rdp' or 'pld' under [privacy]",
    "fedspend.register('engine')": "write engine.name = 'local'",
    "fedspend.register('aggregation')": "updates are combined by their mean, which plans pay for",
    "train.aggregation": "updates are combined by their mean, which plans pay for; drop the key",
    "fedspend.train(aggregation=)": "updates are combined by their mean, which plans pay for",
    "--distribution poisson": "the geometric distribution costs less",
    "fedspend train --show-accuracy": "write --set evaluation.mode=private, or measure public rows",
    "fedspend.train(on_operator=)": "set evaluation.mode to 'private', or measure public rows",
    "evaluation.mode=operator": 'write "private", "public" or "none"',
    "train.tensorboard": 'write loggers = ["tensorboard"] under [train]',
    "data.name=huggingface": 'save it with Dataset.to_parquet(FILE), and write "parquet"',
    "data.index": "put the images into folders, PATH/CLIENT/LABEL/",
    "fedspend planner --export": "write fedspend plan CONFIG.toml --plot FILE for a picture",
    "--log": "write 2>> FILE after the command, and read rounds in the run directory",
    "fedspend completion": "the commands are listed by fedspend --help",
}


def refuse_removed(*written: str, where: str = "") -> None:
    """Refuse what is in the table, and say what to write now.

    >>> refuse_removed("fedspend plan", "train.lr")
    """
    for one in written:
        if one in REMOVED:
            raise InvalidInput(f"{where}{one} was removed; {REMOVED[one]}")


def refuse_name(written: str) -> None:
    """The same for a name of Python."""
    if written in REMOVED:
        raise AttributeError(f"{written} was removed; {REMOVED[written]}")
