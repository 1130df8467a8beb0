"""What docs/results/papers.md has of Cheng et al. (2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cheng
import shaping
from experiment import Arm, Finished, outcome
from judging import (
    Gain,
    Item,
    Verdict,
    accuracy_of,
    clear_of,
    is_clear,
    judged,
    over,
    rows_of,
    told,
)
from tables import against, beside_paper, markdown, with_seconds

PAPER = "Cheng et al. (2022)"

SHAPE = "[BLUR, LUS and votes](shape.md)"

OTHER = "mnist-writers"


WRITERS = "femnist"  # the paper's EMNIST by writer; it has nothing on MNIST by writer
Make = Callable[[str, float], Arm]  # from data and epsilon


def by_epsilon(results: Finished, data: str, ours: Make, base: Make) -> list[Gain | None]:
    """One method against another, at every epsilon of Table 1."""
    return [over(results, ours(data, epsilon), base(data, epsilon)) for epsilon in shaping.EPSILONS]


def as_in_the_paper(final: list[Gain | None], last_batch: list[Gain | None]) -> list[Gain | None]:
    """LUS at the final local model, as the paper has it; where that is not run, by the last batch.

    >>> as_in_the_paper([None, (1.0, 0.5)], [(0.1, 0.5), (0.2, 0.5)])
    [(0.1, 0.5), (1.0, 0.5)]
    """
    return [one or other for one, other in zip(final, last_batch, strict=True)]


def _with_form(found: Verdict | None, final: list[Gain | None]) -> Verdict | None:
    """The verdict, saying in how many lines LUS is in the paper's form."""
    if found is None:
        return None
    there = sum(one is not None for one in final)
    form = "LUS as in the paper, with the gradient at the final local model"
    if there < len(final):
        form += f", in {there} of the lines, by the last batch in the others"
    return found[0], f"{found[1]}; {form}"


def _beside_mnist(found: Verdict | None, gains: list[Gain | None], study: str) -> Verdict | None:
    """The verdict, with what is seen on data that the paper does not have."""
    if found is None:
        return None
    word, why = found
    if any(one is not None for one in gains):
        why += f"; on MNIST by writer, which the paper does not have, in {clear_of(gains)}"
    return word, f"{why}; study `{study}`"


def shaped_over(base: Make, named: str) -> Callable[[Finished], Verdict | None]:
    """Table 1: BLUR and LUS over another method, on FEMNIST."""

    def judge(results: Finished) -> Verdict | None:
        final, last_batch = (
            by_epsilon(results, WRITERS, make, base) for make in (cheng.final_gradient, cheng.both)
        )
        found = judged(as_in_the_paper(final, last_batch), f"BLUR and LUS over {named}")
        other = by_epsilon(results, OTHER, cheng.both, base)
        return _beside_mnist(_with_form(found, final), other, cheng.STUDY)

    return judge


def stronger_pulls(results: Finished) -> Verdict | None:
    """BLUR alone against none, at the paper's clip; MNIST by writer has larger ones, too."""

    def gains(data: str, clip: float) -> list[Gain | None]:
        plain = shaping.blur_alone(data, clip, 0.0)
        return [
            over(results, shaping.blur_alone(data, clip, pull), plain) for pull in shaping.PULLS
        ]

    small = shaping.SMALL_CLIP
    claim = f"BLUR alone over none at clip {small:g}, the paper's,"
    found = judged(gains(WRITERS, small), claim)
    larger = [one for clip in shaping.CLIPS if clip != small for one in gains(OTHER, clip)]
    at_small = gains(OTHER, small)
    mnist = (
        f"MNIST by writer, which the paper does not have: {clear_of(at_small)} lines at clip "
        f"{small:g}, {clear_of(larger)} at larger ones; study `{shaping.STUDY}`"
    )
    if found is None:
        seen = any(one is not None for one in at_small)
        return ("not run", f"not run on FEMNIST; {mnist}") if seen else None
    return found[0], f"{found[1]}; {mnist}"


def shaped_by_alpha(results: Finished) -> Verdict | None:
    """Table 2: CIFAR-10."""
    final, last_batch = (
        [over(results, make(alpha), shaping.by_alpha(alpha, 0.0)) for alpha in shaping.ALPHAS]
        for make in (cheng.final_by_alpha, lambda alpha: shaping.by_alpha(alpha, cheng.PULL))
    )
    found = judged(as_in_the_paper(final, last_batch), "BLUR and LUS over plain")
    return _with_form(found, final)


def by_sparsity(results: Finished) -> Verdict | None:
    """Table 3, without the line of BLUR alone, which it does not have."""
    on_writers, on_mnist = (
        [
            over(results, arm, shaping.arm(data, 6.0, 0.0, 0.0))
            for arm in shaping.ablation(data)
            if arm.settings["shape.lus"]
        ]
        for data in (WRITERS, OTHER)
    )
    found = judged(on_writers, "gain over plain, LUS by the last batch,")
    return _beside_mnist(found, on_mnist, shaping.STUDY)


def around_votes(results: Finished) -> Verdict | None:
    """Both orders of Table 1: BLUR and LUS over AE-DPFL, and that over DP-FedAvg."""
    over_votes = as_in_the_paper(
        *(
            by_epsilon(results, WRITERS, make, cheng.one_shot)
            for make in (cheng.final_gradient, cheng.both)
        )
    )
    votes_over = by_epsilon(results, WRITERS, cheng.one_shot, cheng.plain)
    found = judged([*over_votes, *votes_over], "")
    if found is None:
        return None
    plain_over = by_epsilon(results, WRITERS, cheng.plain, cheng.one_shot)
    why = f"BLUR and LUS are ahead of one-shot votes in {clear_of(over_votes)} lines; "
    if any(map(is_clear, plain_over)):
        why += f"but so is plain DP-FedAvg in {clear_of(plain_over)}, which the paper has behind"
    else:
        why += f"these are ahead of plain DP-FedAvg in {clear_of(votes_over)}"
    missing = over_votes.count(None)
    why += f"; {missing} not run" if missing else ""
    return found[0], f"{why}; study `{cheng.STUDY}`"


def with_its_cnn(results: Finished) -> Verdict | None:
    """One of the four lines of Table 1; not counted if the model drowns in the noise."""
    plain, ours = cheng.with_cnn(0.0), cheng.with_cnn(cheng.CNN_PULL)
    base, gained = outcome(results, plain), over(results, ours, plain)
    if base is None or gained is None:
        return None
    if base.percent().mean() < cheng.CNN_DROWNS:
        return "not run", (
            f"a first try drowned in the noise: DP-FedAvg has {accuracy_of(base)} (settled "
            f"beforehand: below {cheng.CNN_DROWNS:g} it is not counted)"
        )
    found = judged([gained, None, None, None], "BLUR and LUS over plain", cheng.STUDY)
    assert found is not None
    return found


def shaped_pairs(
    make: Callable[[float], Arm], plain: Callable[[float], Arm], values: Sequence[float], claim: str
) -> Callable[[Finished], Verdict | None]:
    """Whether ours is ahead of plain, and how plain itself goes, which the figure is about."""

    def judge(results: Finished) -> Verdict | None:
        gains = [over(results, make(value), plain(value)) for value in values]
        found = judged(gains, "BLUR and LUS over plain")
        if found is None:
            return None
        plainly, with_both = (
            ", ".join(accuracy_of(outcome(results, arm(value)), short=True) for value in values)
            for arm in (plain, make)
        )
        courses = f"plain goes {plainly}, with both {with_both}"
        return found[0], f"{found[1]}; {claim}; here {courses}; study `{cheng.STUDY}`"

    return judge


def shaped(results: Finished) -> str:
    """BLUR and LUS against plain DP-FedAvg, each arm with its own learning rate and clip."""
    body = []
    for data in shaping.DATA:
        for epsilon in shaping.EPSILONS:
            plain = outcome(results, shaping.arm(data, epsilon, 0.0, 0.0))
            paper = cheng.TABLE_1[epsilon] if data == "femnist" else None
            row = [
                f"{data}, epsilon {epsilon:g}",
                beside_paper(_printed(paper, 0), accuracy_of(plain)),
            ]
            for pull in shaping.PULLS:
                ours = against(outcome(results, shaping.arm(data, epsilon, pull, 0.7)), plain)
                theirs = _printed_gain(paper) if pull == cheng.PULL_BY_WRITER else ""
                row.append(beside_paper(theirs, ours))
            body.append(row)
    for alpha in shaping.ALPHAS:
        paper = cheng.TABLE_2[alpha]
        plain = outcome(results, shaping.by_alpha(alpha, 0.0))
        both = against(outcome(results, shaping.by_alpha(alpha, cheng.PULL)), plain)
        body.append(
            [
                f"cifar10, alpha {alpha:g}, epsilon 8",
                beside_paper(_printed(paper, 0), accuracy_of(plain)),
                "",
                "",
                beside_paper(_printed_gain(paper), both),
            ]
        )
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
    columns = {
        "plain": cheng.plain,
        "one-shot votes (AE-DPFL)": cheng.one_shot,
        "DDGauss": cheng.ddgauss,
        f"lambda lr = {cheng.PULL_BY_WRITER:g}, sparsity {cheng.SPARSITY:g}": cheng.both,
    }  # in the order of the paper's table
    body = []
    for data in shaping.DATA:
        for epsilon in shaping.EPSILONS:
            paper = cheng.TABLE_1[epsilon] if data == "femnist" else None
            cells = [
                beside_paper(_printed(paper, n), accuracy_of(outcome(results, make(data, epsilon))))
                for n, make in enumerate(columns.values())
            ]
            body.append([f"{data}, epsilon {epsilon:g}", *cells])
    return markdown(["", *columns], body)


def figures_3_and_4(results: Finished) -> str:
    body = [
        [title, accuracy_of(outcome(results, plain)), told(over(results, ours, plain))]
        for title, ours, plain in (
            *(
                (f"{n} local steps", cheng.by_steps(n, cheng.PULL), cheng.by_steps(n, 0.0))
                for n in cheng.STEPS
            ),
            *(
                (f"rate {q:g}", cheng.by_rate(q, cheng.PULL), cheng.by_rate(q, 0.0))
                for q in cheng.RATES
            ),
        )
    ]
    return markdown([f"CIFAR-10, alpha {cheng.ALPHA:g}", "plain", "BLUR and LUS minus plain"], body)


def final_gradients(results: Finished) -> str:
    by_writer = [(OTHER, 4.0), *((WRITERS, epsilon) for epsilon in shaping.EPSILONS)]
    trios = {
        f"{data}, epsilon {epsilon:g}": tuple(
            make(data, epsilon) for make in (cheng.plain, cheng.both, cheng.final_gradient)
        )
        for data, epsilon in by_writer
    } | {
        f"cifar10, alpha {alpha:g}": (
            shaping.by_alpha(alpha, 0.0),
            shaping.by_alpha(alpha, cheng.PULL),
            cheng.final_by_alpha(alpha),
        )
        for alpha in shaping.ALPHAS
    }
    body = [
        [
            title,
            *(accuracy_of(outcome(results, one)) for one in (last_batch, final)),
            *(told(over(results, final, other)) for other in (last_batch, plain)),
        ]
        for title, (plain, last_batch, final) in trios.items()
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


def rows(results: Finished) -> list[tuple[str, str, str]]:
    return rows_of(ITEMS, results)


ITEMS = (
    Item(
        "Table 1, fixed features in place of the CNN",
        "not run",
        "not run yet: `--only shaping`",
        shaped_over(cheng.plain, "plain"),
    ),
    Item(
        "Table 1, a CNN of 1.0M parameters",
        "not run",
        "not run yet: the last arms of `--only cheng`",
        with_its_cnn,
    ),
    Item(
        "Table 1, against DDGauss",
        "not run",
        "not run yet: `--only cheng`",
        shaped_over(cheng.ddgauss, "discrete noise of the clients"),
    ),
    Item(
        "Table 1, against AE-DPFL",
        "not run",
        f"one-shot votes are not run yet: `--only cheng`; votes in rounds: {SHAPE}",
        around_votes,
    ),
    Item("Table 1, ResNet-18", "not run", "days on one core"),
    Item(
        "Table 2, fixed features in place of the CNN",
        "not run",
        "CIFAR-10; `examples/shape/cifar10.toml`",
        shaped_by_alpha,
    ),
    Item("Table 2, ResNet-18", "not run", "days on one core"),
    Item("Table 3, sparsity", "not run", "not run yet: `--only shaping`", by_sparsity),
    Item("Figure 1, strength of BLUR", "not run", "not run yet: `--only shaping`", stronger_pulls),
    Item(
        "Figure 2, norms by round",
        "reproduced in part",
        "norms come down to about the clip and vary less; in three of four rounds most are still "
        f"above it; 20 clients of bundled digits; {SHAPE}",
    ),
    Item(
        "Figure 3, local steps",
        "not run",
        "CIFAR-10, not run yet: `--only cheng`",
        shaped_pairs(
            lambda steps: cheng.by_steps(int(steps), cheng.PULL),
            lambda steps: cheng.by_steps(int(steps), 0.0),
            cheng.STEPS,
            "the paper has plain falling at 40 steps",
        ),
    ),
    Item(
        "Figure 4, participation",
        "not run",
        "CIFAR-10, not run yet: `--only cheng`",
        shaped_pairs(
            lambda rate: cheng.by_rate(rate, cheng.PULL),
            lambda rate: cheng.by_rate(rate, 0.0),
            cheng.RATES,
            "the paper has its method more robust against the rate",
        ),
    ),
)
BLOCKS = {
    "shaping-tables": with_seconds(shaped),
    "cheng-others": with_seconds(against_others),
    "cheng-sparsity": with_seconds(sparsities),
    "cheng-blur": with_seconds(blur_alone),
    "shaping-clips": with_seconds(shaped_by_clip),
    "cheng-figures": with_seconds(figures_3_and_4),
    "cheng-final": with_seconds(final_gradients),
    "cheng-cnn": with_seconds(cheng_cnn),
}
