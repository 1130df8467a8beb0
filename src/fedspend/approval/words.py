"""What a client approves, in words."""

from __future__ import annotations

import math

from fedspend.approval.slices import Slice
from fedspend.basics.words import counted, span

# what a node cannot see, by who adds the noise
_CENTRAL = "adds all of the noise, and sees your update without any: you trust it with both"
_DISTRIBUTED = (
    "adds up your update with those of others before anybody else sees it, and tops up the noise "
    "of those who do not answer. Your own part of the noise does not protect you from the server"
)
_SAMPLES = "draws in secret who takes part in a round: the epsilon above counts on that"


def approved(slice: Slice) -> dict[str, str]:
    """The slice, line by line, for people."""
    terms, plan = slice.terms, slice.plan
    rates = span(plan.sampling_rate[:, 0])
    clip = "follows earlier releases" if slice.clip_norm is None else span(slice.clip_norm)
    told = {
        "client": slice.client,
        "run": terms.run,
        "root": slice.root,
        "privacy": (
            f"epsilon {float(plan.epsilon[0]):.4g} at delta {plan.delta:g}, of the "
            f"{plan.budget[0]:g} that the server planned with; {counted(terms.rounds, 'round')}"
        ),
        "protects": "all of this client's rows together, from other clients and the public",
        "asked": (
            f"in every round, and takes part with probability {rates}, by its own coin"
            if terms.own_coins
            else f"with probability {rates} in a round"
        )
        + f"; {terms.clients:,} clients in all",
        "clip": clip,
        "noise": f"{terms.noise}: {noise_of(slice)}",
    }
    extra = [
        f"{what} (noise of deviation {noise:g} on the sum)"
        for what, noise in (
            ("whether your update was within its clip", terms.bit_noise),
            ("how good the model is on rows that you hold out", terms.metric_noise),
        )
        if noise is not None
    ]
    if extra:
        told["also sent"] = "; ".join(extra)
    return told


def noise_of(slice: Slice) -> str:
    """Who adds how much noise."""
    total = slice.plan.update_noise[:, 0]
    if not slice.terms.distributed:
        return f"the server adds {span(total)} times your clip to the sum"
    own = total / math.sqrt(slice.terms.clients)
    return (
        f"you add {span(own)} times your clip yourself; with everybody's part the sum has "
        f"{span(total)} times"
    )


def trusted_with(slice: Slice) -> tuple[str, ...]:
    """What this client still trusts the server for, as ends of a sentence that begins with "the
    server".
    """
    noise = _DISTRIBUTED if slice.terms.distributed else _CENTRAL
    return (noise,) if slice.terms.own_coins else (noise, _SAMPLES)
