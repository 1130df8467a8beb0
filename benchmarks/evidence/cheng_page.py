"""What docs/results/papers.md has of Cheng et al. (2022): its tables. Verdicts are in
`cheng_verdicts`.
"""

from __future__ import annotations

from collections.abc import Sequence

import cheng
import cheng_verdicts
import norms
import numpy as np
import shaping
import writers_cnn
from cheng_verdicts import OTHER, WRITERS, means, spreads
from experiment import Arm, Finished, Outcome, outcome
from judging import accuracy_of, over, told
from tables import against, beside_paper, markdown, with_seconds

PAPER = "Cheng et al. (2022)"
rows = cheng_verdicts.rows


def lines(*makes: tuple[cheng_verdicts.Make, cheng_verdicts.ByAlpha]) -> dict[str, list[Arm]]:
    """The arms of every line of Tables 1 and 2, and of MNIST by writer."""
    by_writer = {
        f"{data}, epsilon {epsilon:g}": [make(data, epsilon) for make, _ in makes]
        for data in shaping.DATA
        for epsilon in shaping.EPSILONS
    }
    return by_writer | {
        f"cifar10, alpha {alpha:g}": [make(alpha) for _, make in makes] for alpha in shaping.ALPHAS
    }


def papers(title: str) -> Sequence[float] | None:
    """What the paper prints in this line; None where it has none.

    >>> papers("femnist, epsilon 2")[-1], papers("cifar10, alpha 0.1")[0]
    (74.48, 53.84)
    >>> papers("mnist-writers, epsilon 2")
    """
    data, _, place = title.partition(", ")
    table = {WRITERS: cheng.TABLE_1, "cifar10": cheng.TABLE_2}.get(data)
    return None if table is None else table[float(place.split()[-1])]


def judged_tables(results: Finished) -> str:
    """Tables 1 and 2, with everything chosen and at the paper's defaults."""
    body = []
    arms = lines(
        (cheng.plain, cheng.plain_by_alpha),
        (cheng.chosen, cheng.chosen_by_alpha),
        (cheng.final_gradient, cheng.final_by_alpha),
    )
    for title, three in arms.items():
        paper = papers(title)
        plain, chosen, default = (outcome(results, one) for one in three)
        body.append(
            [
                title,
                beside_paper(_printed(paper, 0), accuracy_of(plain)),
                beside_paper(_printed_gain(paper), against(chosen, plain)),
                against(default, plain),
                _settings(chosen),
                ", ".join("-" if one is None else str(one.tried) for one in (plain, chosen)),
            ]
        )
    return markdown(
        [
            "",
            "plain",
            "BLUR and LUS, chosen",
            "at the paper's defaults",
            "chosen: sparsity, lambda lr; lr, clip",
            "settings tried: plain, ours",
        ],
        body,
    )


def _settings(found: Outcome | None) -> str:
    """What was chosen for BLUR and LUS."""
    if found is None:
        return "-"
    arm, (lr, clip) = found.arm, found.choice
    sparsity, pull = arm.settings["shape.lus"], arm.over_lr["shape.blur"]
    return f"{sparsity:g}, {pull:g}; {lr:g}, {clip:g}"


def shaped(results: Finished) -> str:
    """BLUR and LUS by the last batch, at sparsity 0.7, each arm with its own learning rate and
    clip.
    """
    body = []
    for data in shaping.DATA:
        for epsilon in shaping.EPSILONS:
            plain = outcome(results, cheng.plain(data, epsilon))
            by_pull = [
                against(outcome(results, shaping.arm(data, epsilon, pull, 0.7)), plain)
                for pull in shaping.PULLS
            ]
            body.append([f"{data}, epsilon {epsilon:g}", accuracy_of(plain), *by_pull])
    for alpha in shaping.ALPHAS:
        plain = outcome(results, cheng.plain_by_alpha(alpha))
        both = against(outcome(results, cheng.both_by_alpha(alpha)), plain)
        body.append([f"cifar10, alpha {alpha:g}", accuracy_of(plain), "", "", both])
    return markdown(
        ["", "plain", *(f"lambda lr = {pull:g}, sparsity 0.7" for pull in shaping.PULLS)], body
    )


def _printed(paper: Sequence[float] | None, place: int) -> str:
    """A number of Cheng et al. as they print it; nothing where they have none."""
    return "" if paper is None else f"{paper[place]:.2f}"


def _printed_gain(paper: Sequence[float] | None) -> str:
    """Of their method over DP-FedAvg."""
    return "" if paper is None else f"{paper[-1] - paper[0]:+.2f}"


def blur_alone(results: Finished) -> str:
    """Figure 1; each arm has its own learning rate."""
    body = []
    for data, clip in ((WRITERS, shaping.SMALL_CLIP), *((OTHER, clip) for clip in shaping.CLIPS)):
        plain, *pulled = (
            outcome(results, shaping.blur_alone(data, clip, pull)) for pull in (0.0, *shaping.PULLS)
        )
        by_pull = [against(one, plain, digits=2) for one in pulled]
        body.append([f"{data}, clip {clip:g}", accuracy_of(plain), *by_pull])
    return markdown(
        ["epsilon 6, no LUS", "lambda = 0", *(f"lambda lr = {pull:g}" for pull in shaping.PULLS)],
        body,
    )


def sparsities(results: Finished) -> str:
    """Table 3: what LUS gains over plain DP-FedAvg, alone and with BLUR."""
    plains = {data: outcome(results, cheng.plain(data, 6.0)) for data in shaping.DATA}
    found = {
        arm.label[:-1]: against(outcome(results, arm), plains[data], digits=2)
        for data in shaping.DATA
        for arm in shaping.ablation(data)
    }

    def ours(pull: float, sparsity: float) -> list[str]:
        return [found[shaping.arm(data, 6.0, pull, sparsity).label] for data in plains]

    body = [
        ["neither: accuracy", f"*{cheng.TABLE_3_PLAIN}*", *map(accuracy_of, plains.values())]
        + 3 * [""],
        ["BLUR alone: gain", *3 * [""], "", *ours(cheng.PULL_BY_WRITER, 0.0)],
    ]
    for sparsity, paper in cheng.TABLE_3.items():
        alone, both = (f"*{one - cheng.TABLE_3_PLAIN:+.2f}*" for one in paper)
        cells = [alone, *ours(0.0, sparsity), both, *ours(cheng.PULL_BY_WRITER, sparsity)]
        body.append([f"sparsity {sparsity:g}: gain", *cells])
    columns = ["*paper*", *shaping.DATA]
    return markdown(
        [
            "epsilon 6",
            *(f"LUS, {name}" for name in columns),
            *(f"BLUR and LUS, {name}" for name in columns),
        ],
        body,
    )


def shaped_by_clip(results: Finished) -> str:
    """BLUR with LUS at given clips; each arm has its own learning rate."""
    body = []
    for data in shaping.DATA:
        for clip in shaping.CLIPS:
            plain, *shaped = (
                outcome(results, shaping.by_clip(data, clip, pull))
                for pull in (0.0, *shaping.PULLS)
            )
            body.append(
                [f"{data}, clip {clip:g}", accuracy_of(plain)]
                + [against(one, plain) for one in shaped]
            )
    return markdown(
        ["epsilon 4", "plain", *(f"lambda lr = {pull:g}, sparsity 0.7" for pull in shaping.PULLS)],
        body,
    )


def against_others(results: Finished) -> str:
    """What Cheng et al. compare with, beside plain DP-FedAvg and BLUR with LUS."""
    arms = lines(  # in the order of the paper's tables
        (cheng.plain, cheng.plain_by_alpha),
        (cheng.one_shot, cheng.one_shot_by_alpha),
        (cheng.ddgauss, cheng.ddgauss_by_alpha),
        (cheng.chosen, cheng.chosen_by_alpha),
    )
    body = []
    for title, four in arms.items():
        found = [outcome(results, one) for one in four]
        cells = [
            beside_paper(_printed(papers(title), n), accuracy_of(one))
            for n, one in enumerate(found)
        ]
        body.append([title, *cells, _asked(found[1])])
    return markdown(
        [
            "",
            "plain",
            "one-shot votes (AE-DPFL)",
            "DDGauss",
            "BLUR and LUS, chosen",
            "votes: rows asked, student's lr",
        ],
        body,
    )


def _asked(votes: Outcome | None) -> str:
    if votes is None:
        return "-"
    return f"{votes.arm.settings['votes.queries']}, {votes.arm.settings['votes.lr']:g}"


def figures_3_and_4(results: Finished) -> str:
    cells = {f"{n} local steps": (cheng.by_steps, n) for n in cheng.STEPS} | {
        f"rate {q:g}": (cheng.by_rate, q) for q in cheng.RATES
    }
    body = []
    for title, (make, value) in cells.items():
        plain, ours = (make(value, ours=one) for one in (False, True))
        base, found = outcome(results, plain), outcome(results, ours)
        body.append(
            [
                title,
                accuracy_of(base),
                accuracy_of(found),
                told(over(results, ours, plain)),
                _settings(found),
            ]
        )
    return markdown(
        [
            f"CIFAR-10, alpha {cheng.ALPHA:g}",
            "plain",
            "BLUR and LUS",
            "minus plain",
            "sparsity, lambda lr; lr, clip",
        ],
        body,
    )


def final_gradients(results: Finished) -> str:
    """At the paper's defaults."""
    arms = lines(
        (cheng.plain, cheng.plain_by_alpha),
        (cheng.both, cheng.both_by_alpha),
        (cheng.final_gradient, cheng.final_by_alpha),
    )
    body = [
        [
            title,
            *(accuracy_of(outcome(results, one)) for one in (last_batch, final)),
            *(told(over(results, final, other)) for other in (last_batch, plain)),
        ]
        for title, (plain, last_batch, final) in arms.items()
    ]
    return markdown(
        [
            "LUS at the gradient of",
            "the last batch",
            "the final model",
            "final model minus last batch",
            "final model minus plain",
        ],
        body,
    )


def cheng_cnn(results: Finished) -> str:
    plain, shaped = (outcome(results, cheng.with_cnn(pull)) for pull in (0.0, cheng.CNN_PULL))
    paper = cheng.TABLE_1[4.0]
    clips = ("-" if one is None else f"{one.choice[1]:g} ({one.tried})" for one in (plain, shaped))
    return markdown(
        [
            "CNN of 1.0M parameters",
            "plain",
            "BLUR and LUS minus plain",
            "clip (tried): plain, both",
        ],
        [
            [
                "femnist",
                beside_paper(_printed(paper, 0), accuracy_of(plain)),
                beside_paper(_printed_gain(paper), against(shaped, plain)),
                ", ".join(clips),
            ]
        ],
    )


def small_cnn(results: Finished) -> str:
    body = []
    for epsilon in shaping.EPSILONS:
        plain, both = (outcome(results, writers_cnn.arm(epsilon, shaped=one)) for one in (0, 1))
        at_defaults = against(both, plain)
        tuned = epsilon == writers_cnn.TUNED_AT
        chosen = outcome(results, writers_cnn.chosen()) if tuned else None
        cells = [against(chosen, plain), _settings(chosen)] if tuned else ["", ""]
        body.append([f"epsilon {epsilon:g}", accuracy_of(plain), at_defaults, *cells])
    return markdown(
        [
            "MNIST by writer, small CNN",
            "plain",
            "BLUR and LUS at the defaults, minus plain",
            "sparsity and lambda chosen, minus plain",
            "chosen: sparsity, lambda lr; lr, clip",
        ],
        body,
    )


def norms_by_round(results: Finished) -> str:
    """Figure 2: over all rounds, in its first and in its last."""
    body = []
    for form in norms.FORMS:
        line = norms.line_of(results, form)
        if line is None:
            body.append([form, *4 * ["-"]])
            continue
        average = [float(np.mean(one)) for one in (means(line), spreads(line), line["clipped"])]
        body.append(
            [
                form,
                f"{average[0]:.3f}",
                f"{line['norm'][0]:.3f}, {line['norm'][-1]:.3f}",
                f"{average[1]:.3f}",
                f"{100 * average[2]:.0f}%",
            ]
        )
    return markdown(
        [
            f"FEMNIST, clip {norms.CLIP:g}",
            "mean norm",
            "in the first and last round",
            "from the 10% to the 90% quantile",
            "above the clip",
        ],
        body,
    )


BLOCKS = {
    "cheng-tables": with_seconds(judged_tables),
    "shaping-tables": with_seconds(shaped),
    "cheng-others": with_seconds(against_others),
    "cheng-sparsity": with_seconds(sparsities),
    "cheng-blur": with_seconds(blur_alone),
    "shaping-clips": with_seconds(shaped_by_clip),
    "cheng-figures": with_seconds(figures_3_and_4),
    "cheng-final": with_seconds(final_gradients),
    "cheng-cnn": with_seconds(cheng_cnn),
    "cheng-small-cnn": with_seconds(small_cnn),
    "cheng-norms": with_seconds(norms_by_round),
}
