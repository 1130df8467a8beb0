"""Makes the request for a plan from flags and config. Flags override the config.

Guarantee: `fedspend plan` and training find the roster, the list of clients, in the same way: the
ids in the file of budgets; or the ledger's accounts, if what they have left is spent; or, if
neither lists anyone, the ids that the data names, and made-up numbers only if rows are dealt to
made-up clients. What neither flags nor config give is named in an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedspend.accounting.accountants import AUTO
from fedspend.basics.arrays import FloatArray
from fedspend.budgets.csv_file import read_budgets_csv
from fedspend.budgets.identity import hint_alike
from fedspend.budgets.population import (
    Group,
    Population,
    Registered,
    by_epsilon,
    from_groups,
    number,
    parse_by_epsilon,
    parse_groups,
    positive,
)
from fedspend.configuration.config import BUDGET_SOURCES, Config, needed
from fedspend.configuration.learning_rates import relative_rates
from fedspend.configuration.noise_kind import noise_of
from fedspend.configuration.sections import PRIVATE, PrivacySettings
from fedspend.errors import InvalidInput, Refused
from fedspend.planning.clipping import WORDS as CLIP_WORDS
from fedspend.planning.clipping import round_clips
from fedspend.planning.influence import proposed_tail, read_influence
from fedspend.planning.policies import POLICIES, assign_saving_rates, policy_for, with_key
from fedspend.planning.policies.individual import INDIVIDUAL_RATES
from fedspend.planning.policies.table import policies_of_method
from fedspend.planning.policies.weighted import GEOMETRIC
from fedspend.planning.request import PlanRequest
from fedspend.server.methods import dp_fedsgd
from fedspend.server.methods.adaptive_clip import ADAPTIVE_CLIP

if TYPE_CHECKING:
    from fedspend.configuration.data_inputs import Source

T = TypeVar("T")
MOST_ROUNDS = 1_000_000  # a mistyped number should not fill the memory


@dataclass(frozen=True)
class Flags:
    """The flags of `fedspend plan`, which override the config."""

    epsilon: str | None = None
    budgets: str | None = None
    clients: int | None = None
    rounds: int | None = None
    rate: float | None = None
    delta: float | None = None
    policy: str | None = None
    method: str | None = None
    saving_rate: str | None = None
    transition: str | None = None
    permute_rates: bool = False
    weights: str | None = None
    clip: float | None = None
    clip_schedule: str | None = None
    contraction: float | None = None
    influence: str | None = None
    tail: int | str | None = None  # a number, or auto
    accountant: str | None = None
    compare: str | None = None

    def changes(self) -> set[str]:
        """The settings overridden by these flags that decide whether other keys have an effect.

        A flag for policy, method or weights overrides both the method and the policy.
        """
        chosen = any(
            flag is not None for flag in (self.policy, self.method, self.weights, self.compare)
        )
        budgets = self.epsilon is not None or self.budgets is not None
        return {
            *(("method.name", "privacy.policy") if chosen else ()),
            *(("privacy.epsilon",) if budgets else ()),
            *(("privacy.saving_rate",) if self.saving_rate is not None else ()),
        }


NO_FLAGS = Flags()


@dataclass(frozen=True, eq=False)
class Inputs:
    """Who takes part, and the request.

    `roster` is everyone listed, including those who have withdrawn; `listed_in` says where, unless
    that is the data itself.
    """

    population: Population
    roster: tuple[str, ...]
    listed_in: str | None
    request: PlanRequest

    def request_for(self, policy: str) -> PlanRequest:
        """The request for another policy, with only what that policy uses."""
        asked = self.request
        if POLICIES[policy].saves and asked.saving_rate is None:
            raise InvalidInput(
                f"policy {policy!r} needs a saving rate: give --saving-rate or saving_rate under "
                "[privacy] in the config"
            )
        if policy == "weights" and not isinstance(asked.weights, list):
            raise InvalidInput(
                "policy 'weights' needs one number per round: give --weights or weights under "
                "[privacy] in the config"
            )
        fits = policy == "weights" or (
            policy == "geometric" and not isinstance(asked.weights, list)
        )
        return replace(
            asked,
            policy=policy,
            method=None,
            bit=False,
            bit_noise=None,
            saving_rate=asked.saving_rate if POLICIES[policy].saves else None,
            transition=asked.transition if POLICIES[policy].saves else None,
            weights=asked.weights if fits else None,
            contraction=asked.contraction if POLICIES[policy].foresees else None,
            influence=asked.influence if POLICIES[policy].foresees else None,
            tail=asked.tail if POLICIES[policy].foresees else None,
            options={
                key: value for key, value in asked.options.items() if key in POLICIES[policy].keys
            },
        )


def resolve(
    config: Config,
    flags: Flags = NO_FLAGS,
    registered: Registered | None = None,
    source: Source | None = None,
) -> Inputs:
    """What `config` and `flags` ask for.

    With `registered`, the accounts of a ledger, budgets come from there. `source` is the data that
    the config names, if it is already open.
    """
    who = Clients(config, flags, source)
    population, roster, listed_in = members_of(who, registered)
    delta = needed(either(flags.delta, config.privacy.delta), "privacy.delta", "--delta")
    rounds = needed(either(flags.rounds, config.train.rounds), "train.rounds", "--rounds")
    rate = needed(either(flags.rate, config.privacy.rate), "privacy.rate", "--rate")
    if rounds > MOST_ROUNDS:
        raise InvalidInput(f"rounds must be at most {MOST_ROUNDS:,}, got {rounds:,}")
    policy, method, weights = choose_policy(config, flags)
    saving, transition = saving_of(config, flags, population)
    chosen = policy_for(method, policy, saves=saving is not None, weighted=weights is not None)
    if flags.permute_rates or config.privacy.permute_rates:
        saving = permuted(saving, population, chosen, compared=bool(flags.compare))
    # A method, or a policy from a flag, takes from the config only what it uses, so that one config
    # serves several methods; an unused flag is passed on, and reported when the plan is made.
    if flags.policy is not None or method is not None or flags.weights is not None:
        if not POLICIES[chosen].saves:
            saving = None if flags.saving_rate is None else saving
            transition = None if flags.transition is None else transition
        if not POLICIES[chosen].weighs and flags.weights is None:
            weights = None
    foresees = POLICIES[chosen].foresees or bool(flags.compare)
    contraction, influence = flags.contraction, flags.influence
    if foresees and contraction is None and influence is None:
        contraction, influence = config.privacy.contraction, config.privacy.influence
    tail = tail_of(flags.tail, influence, config.train.tail_average if foresees else None)
    noise = noise_of(config)
    request = PlanRequest(
        epsilons=population.epsilons,
        clients=population.clients,
        delta=delta,
        rounds=rounds,
        rate=rate,
        policy=policy,
        method=method,
        saving_rate=saving,
        transition=transition,
        weights=weights,
        clip=config.privacy.clip if flags.clip is None else flags.clip,
        clip_schedule=clip_schedule_of(config, flags),
        learning_rates=relative_rates(config.train, rounds) or [1.0] * rounds,
        contraction=contraction,
        influence=None if influence is None else read_influence(influence, tail or 1),
        tail=tail,
        server_momentum=config.train.server_momentum,
        accountant=accountant_of(who, registered),
        noise=noise if noise.startswith("discrete") else "continuous",
        bits=config.privacy.bits,
        bit=method == ADAPTIVE_CLIP.name,
        bit_noise=config.method.bit_noise if method == ADAPTIVE_CLIP.name else None,
        metric=config.evaluation.mode == PRIVATE,
        metric_noise=config.evaluation.noise if config.evaluation.mode == PRIVATE else None,
        options=own_options(config, chosen),
    )
    return Inputs(population, roster, listed_in, request)


def tail_of(flag: int | str | None, influence: str | None, setting: int | None) -> int | None:
    """The tail that a flag or the config names, or that was proposed with what was measured."""
    if not isinstance(flag, str):
        return either(flag, setting)
    if influence is None:
        raise InvalidInput(
            f"--tail {flag} needs --influence FILE: a contraction says how noise fades, not how "
            "far a mean of iterates lags behind; measure both with fedspend design influence"
        )
    return proposed_tail(influence)


def accountant_of(who: Clients, registered: Registered | None) -> str:
    """The accountant that is asked for. A noise level is already accounted, by Rényi curves."""
    asked = who.flags.accountant or who.config.privacy.accountant
    return "rdp" if asked == AUTO and registered is None and has_noise_level(who) else asked


def clip_schedule_of(config: Config, flags: Flags) -> str | list[float] | None:
    """The clip schedule that a flag or the config asks for; None for the default."""
    text = flags.clip_schedule
    if text is None or text in CLIP_WORDS:
        return text or config.privacy.clip_schedule
    return [number("a factor in --clip-schedule", part) for part in text.split(",")]


def members_of(
    who: Clients, registered: Registered | None
) -> tuple[Population, tuple[str, ...], str | None]:
    """Who takes part, who is listed, and where, if that is not the data itself."""
    config = who.config
    if registered is not None:
        population, roster, listed_in = from_accounts(who, registered)
    else:
        population = population_of_noise(who) or find_population(who)
        roster, listed_in = population.clients, who.budgets_file
    if who.source is not None and config.given("data.partition") and not who.natural:
        from fedspend.configuration.data_inputs import refuse_dealing

        refuse_dealing(who.source, len(roster))
    if not who.left_out:
        return population, roster, listed_in
    # those who are not on the roster must be in the data
    if who.source is not None and not set(who.left_out) <= set(roster):
        from fedspend.configuration.data_inputs import checked_left_out

        checked_left_out(who.source, roster)
    population = population.without(who.left_out)
    if not population.clients:
        raise InvalidInput(
            f"{config.where('data.leave_out')}: leave_out leaves nobody; remove a name"
        )
    return population, roster, listed_in


PerClient = float | FloatArray | None


def saving_of(config: Config, flags: Flags, population: Population) -> tuple[PerClient, PerClient]:
    """Saving rate and transition round: one for all, or one per client."""
    rate, transition = config.privacy.saving_rate, config.privacy.transition
    return (
        per_client("saving rate", flags.saving_rate, population.saving_rates, rate, population),
        per_client("transition", flags.transition, population.transitions, transition, population),
    )


def permuted(
    saving: PerClient, population: Population, policy: str, *, compared: bool
) -> FloatArray:
    """The saving rates, assigned so that the strictest budgets get the smallest (Eq. 8)."""
    if not compared and not POLICIES[policy].saves:
        raise InvalidInput(
            "--permute-rates needs a policy that saves "
            f"({' or '.join(with_key('saving_rate'))}), not {policy!r}"
        )
    if not isinstance(saving, np.ndarray):
        raise InvalidInput(
            "--permute-rates needs several saving rates to assign: give --saving-rate "
            "10:0.5,20:0.6 or a column of them"
        )
    return assign_saving_rates(saving, population.epsilons)


def own_options(config: Config, policy: str) -> dict[str, Any]:
    """The config's options for a user's own policy; built-in policies have typed settings."""
    if policy == INDIVIDUAL_RATES.name:
        return {} if config.privacy.split is None else {"split": config.privacy.split}
    return config.options("privacy", POLICIES[policy].keys) if policy in POLICIES.own else {}


def either(flag: T | None, setting: T | None) -> T | None:
    """The flag, or what the config says."""
    return setting if flag is None else flag


@dataclass(frozen=True, eq=False)
class Clients:
    """Who the clients are, by flags, config and data, which is opened only if nothing else says."""

    config: Config
    flags: Flags
    opened: Source | None = None

    @cached_property
    def source(self) -> Source | None:
        """The data, or None if there is none, or if a flag gives the number of clients."""
        if self.config.data.name is None or self.flags.clients is not None:
            return None
        from fedspend.configuration.data_inputs import Source

        return self.opened or Source(self.config)

    @property
    def natural(self) -> bool:
        return self.source is not None and self.source.natural

    @property
    def own(self) -> bool:
        from fedspend.data.loading import OWN

        return self.config.data.name in OWN

    @property
    def left_out(self) -> tuple[str, ...]:
        return (
            self.source.left_out
            if self.source is not None and self.config.given("data.leave_out")
            else ()
        )

    @property
    def budgets_file(self) -> str | None:
        """The file that lists the clients, if there is one."""
        if self.flags.epsilon is not None:
            return None
        return self.flags.budgets if self.flags.budgets is not None else self.config.privacy.budgets

    def ids(self) -> tuple[str, ...] | None:
        """Ids of clients that the data names or is dealt to; None if only their number is given."""
        if self.source is None:
            return None
        if not self.source.natural:
            needed(self.config.data.clients, "data.clients", "--clients")
        from fedspend.configuration.data_inputs import clients_of

        return clients_of(self.source)

    def groups(self, groups: Sequence[Group]) -> Population:
        """Clients in groups, natural ones in the order of their ids; that is for simulations."""
        ids = self.ids()
        if ids is None:
            return from_groups(
                groups,
                needed(
                    either(self.flags.clients, self.config.data.clients),
                    "data.clients",
                    "--clients",
                ),
            )
        return from_groups(groups, len(ids), ids)


def has_noise_level(who: Clients) -> bool:
    """Whether dp-fedsgd's noise level stands in place of budgets."""
    return (
        who.config.method.noise_level is not None
        and (who.flags.method or who.config.method.name) == dp_fedsgd.NAME
        and who.flags.epsilon is None
        and who.flags.budgets is None
    )


def population_of_noise(who: Clients) -> Population | None:
    """The budgets that dp-fedsgd's noise level amounts to, or None if budgets are given."""
    config, flags = who.config, who.flags
    name = "method.noise_level"
    level = config.method.noise_level
    if level is None or not has_noise_level(who):
        return None
    given = [key for key in BUDGET_SOURCES if config.given(f"privacy.{key}")]
    if given:
        raise InvalidInput(
            f"{config.where(name)}: noise_level and {given[0]} both say how much noise there is; "
            "drop one of the two"
        )
    if (flags.accountant or config.privacy.accountant) not in ("rdp", AUTO):
        raise InvalidInput(
            f"{config.where(name)}: noise_level is accounted by 'rdp'; with another accountant "
            "give a budget, which then needs less noise"
        )
    ids = who.ids()
    budget = dp_fedsgd.budget_of(
        level,
        rate=needed(either(flags.rate, config.privacy.rate), "privacy.rate", "--rate"),
        clients=needed(either(flags.clients, config.data.clients), "data.clients", "--clients")
        if ids is None
        else len(ids),
        clip=config.privacy.clip if flags.clip is None else flags.clip,
        rounds=released_rounds(config, flags, dp_fedsgd.NAME),
        delta=needed(either(flags.delta, config.privacy.delta), "privacy.delta", "--delta"),
    )
    return who.groups([Group(budget)])


def released_rounds(config: Config, flags: Flags, method: str) -> int:
    """The rounds that are planned: without those whose clip would be 0."""
    rounds = needed(either(flags.rounds, config.train.rounds), "train.rounds", "--rounds")
    rates = np.array(relative_rates(config.train, rounds) or [1.0] * rounds)
    return rounds - round_clips(clip_schedule_of(config, flags), rounds, rates, method).dropped


def find_population(who: Clients) -> Population:
    config, flags = who.config, who.flags
    if flags.epsilon is not None:
        counted = ":" in flags.epsilon or "," in flags.epsilon
        if not counted and who.natural:
            return who.groups([Group(positive("epsilon", flags.epsilon))])
        clients = flags.clients if flags.clients is not None or counted else config.data.clients
        return parse_groups(flags.epsilon, clients)
    if flags.budgets is not None:
        return same_count(read_budgets_csv(flags.budgets), flags.clients, "--clients")
    if config.privacy.budgets is not None:
        population = read_budgets_csv(config.privacy.budgets)
        where = (
            "--clients"
            if flags.clients is not None
            else f"clients under [data] ({config.origins.get('data.clients')})"
        )
        return same_count(
            population, config.data.clients if flags.clients is None else flags.clients, where
        )
    groups = groups_of(config.privacy)
    if groups:
        name = "privacy.groups" if config.given("privacy.groups") else "privacy.epsilon"
        if config.given("privacy.groups"):
            refuse_groups(who)
        who.ids()  # an error about the data names its own place
        try:
            return who.groups(groups)
        except InvalidInput as error:
            raise InvalidInput(f"{config.where(name)}: {error}") from None
    raise InvalidInput(
        "no budgets: give --epsilon 10:34,20:43 or --budgets clients.csv, or epsilon, groups or "
        "budgets under [privacy] in a config"
    )


def groups_of(privacy: PrivacySettings) -> list[Group]:
    """The groups of the config, or one with everybody; none if budgets come from elsewhere."""
    if privacy.groups is not None:
        return [
            Group(
                group["epsilon"],
                group.get("share"),
                group.get("saving_rate", privacy.saving_rate),
                group.get("transition", privacy.transition),
            )
            for group in privacy.groups
        ]
    if privacy.epsilon is not None:
        return [
            Group(privacy.epsilon, saving_rate=privacy.saving_rate, transition=privacy.transition)
        ]
    return []


def refuse_groups(who: Clients) -> None:
    """Refuse groups for real clients: their budgets go by id, and shares do not say who is who."""
    from fedspend.configuration.data_inputs import is_real

    if who.natural and is_real(who.config):
        raise InvalidInput(
            f"{who.config.where('privacy.groups')}: groups give budgets to clients by position, "
            "which is for simulations; write a file of budgets (client,epsilon) and name it with "
            "privacy.budgets"
        )


def from_accounts(
    who: Clients, registered: Registered
) -> tuple[Population, tuple[str, ...], str | None]:
    """Who takes part, with lifetime budgets; the roster; and where the roster is listed.

    Those named in the config take part, or everyone registered, but nobody who has withdrawn.
    """
    config, flags = who.config, who.flags
    for flag, value in (("--epsilon", flags.epsilon), ("--budgets", flags.budgets)):
        if value is not None:
            raise InvalidInput(
                f"{flag} sets budgets, but the ledger already has them; drop one of the two"
            )
    if config.given("method.noise_level"):
        raise InvalidInput(
            f"{config.where('method.noise_level')}: noise_level fixes the noise, but so do the "
            "ledger's budgets; drop one of the two"
        )
    given = [name for name in BUDGET_SOURCES if config.given(f"privacy.{name}")]
    # one epsilon for all lists nobody
    one_for_all = given == ["epsilon"] and flags.clients is None and (who.own or who.natural)
    if not given or one_for_all:
        return (
            same_count(registered.population, flags.clients, "--clients"),
            registered.names,
            f"the ledger {registered.ledger}",
        )
    asked = find_population(who)
    budget_of = dict(
        zip(registered.population.clients, registered.population.epsilons.tolist(), strict=True)
    )
    accounts = set(registered.names)
    missing = next((client for client in asked.clients if client not in accounts), None)
    if missing is not None:
        raise InvalidInput(
            f"client {missing!r} is not registered in the ledger{hint_alike(missing, accounts)}; "
            "leave it out or register it"
        )
    here = asked.take(np.array([client in budget_of for client in asked.clients]))
    if not here.clients:
        raise Refused(f"nobody can take part: all {len(asked.clients)} clients have withdrawn")
    left = replace(here, epsilons=np.array([budget_of[client] for client in here.clients]))
    return left, asked.clients, who.budgets_file


def same_count(population: Population, clients: int | None, where: str) -> Population:
    if clients is not None and clients != len(population.clients):
        raise InvalidInput(
            f"{where} says {clients} clients, but the budgets are for {len(population.clients)}; "
            "drop it or make them agree"
        )
    return population


def choose_policy(
    config: Config, flags: Flags
) -> tuple[str | None, str | None, float | list[float] | None]:
    """Policy, method and weights.

    A flag for any of them overrides the config's policy and method, which would contradict it.
    """
    policy, method = flags.policy, flags.method
    if policy is None and method is None and flags.weights is None:
        policy, method = config.privacy.policy, config.method.name
    if flags.weights is None:
        weights = config.privacy.weights
        # a single number means geometric, if the method allows it
        ratio = policy is None and isinstance(weights, float)
        fits = method is None or GEOMETRIC.name in policies_of_method(method)
        return (GEOMETRIC.name if ratio and fits else policy), method, weights
    implied, weights = parse_weights(flags.weights)
    if policy is not None and policy != implied:
        raise InvalidInput(
            f"--weights {flags.weights} means policy {implied!r}, but --policy says {policy!r}; "
            "drop one of the two"
        )
    return implied, method, weights


def parse_weights(text: str) -> tuple[str, float | list[float]]:
    """Policy and weights: `"1,1,2"` is for policy weights, `"geometric:1.05"` for geometric."""
    name, colon, ratio = text.partition(":")
    if colon:
        if name.strip() != "geometric":
            raise InvalidInput(
                f"--weights {text!r} is neither a list such as 1,1,2 nor geometric:RATIO"
            )
        return "geometric", number("the ratio in --weights", ratio)
    return "weights", [number("a weight in --weights", part) for part in text.split(",")]


def per_client(
    name: str,
    flag: str | None,
    column: FloatArray | None,
    scalar: float | None,
    population: Population,
) -> float | FloatArray | None:
    """The flag's value (one, or by epsilon), else the clients' own column, else one for all."""
    if flag is not None:
        value = parse_by_epsilon(name, flag)
        return by_epsilon(name, value, population.epsilons) if isinstance(value, dict) else value
    return column if column is not None else scalar


def parse_policies(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for n, name in enumerate(names):
        if name not in POLICIES:
            raise InvalidInput(
                f"--compare: unknown policy {name!r}; the policies are {', '.join(POLICIES.names)}"
            )
        if name in names[:n]:
            raise InvalidInput(f"--compare: policy {name!r} is listed twice; remove one")
    return names
