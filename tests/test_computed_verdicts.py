"""Verdicts that need no training: spending by round (Kiani et al. 2025), theory and cost (Gu et al.
2023), and what its settings cost for real. Known answers, and claims that must be noticed as wrong.
"""

from __future__ import annotations

from dataclasses import replace

import gu
import gu_cost
import gu_epsilon
import gu_page
import gu_theory
import judging
import kiani_spending
import numpy as np
import pytest
from experiment import Finished
from gu_cost import Cost
from gu_theory import Case
from gu_window import Window
from kiani_spending import BUDGETS, UNIFORM, Curve

from fedspend.server.methods.dp_fedsgd import budget_of

pytestmark = pytest.mark.full


def test_what_nobody_judges_is_not_run(tmp_path):
    nothing = Finished.read(tmp_path / "none.jsonl")
    assert judging.Item("Figure 1", "days").found(nothing) == ("not run", "days")


# --- Kiani et al. (2025), Figure 2 ---


@pytest.fixture(scope="module")
def plans():
    return kiani_spending.plans()


def test_saving_spends_as_figure_2_says(plans):
    word, why = kiani_spending.judged(plans)
    assert word == "reproduced"
    assert "6 of 6" in why
    exact, literal = (
        kiani_spending.curves(plans[way], plans[UNIFORM]) for way in ("exact", "literal")
    )
    assert [one.total for one in exact] == pytest.approx(BUDGETS, rel=1e-6)
    assert all(one.total < 0.85 * one.budget for one in literal)
    for one in (*exact, *literal):
        assert one.epsilon[-1] == pytest.approx(one.total, rel=1e-6), "two accountants agree"


def test_another_way_to_spend_is_not_called_saving(plans):
    uniform = plans[UNIFORM]
    word, why = kiani_spending.judged(dict.fromkeys(plans, uniform))
    assert word == "not reproduced"
    assert "0 of 6" in why
    assert kiani_spending.judged({**plans, "literal": uniform})[0] == "reproduced in part"


def test_a_curve_must_keep_its_budget_and_turn_after_the_first_half():
    cost = np.array([0.5] * 12 + [1.4] * 13)
    uniform = Curve(10.0, np.ones(25), 10.0, np.ones(25))
    saving = Curve(10.0, cost, 10.0, np.ones(25))
    assert kiani_spending.as_claimed(saving, uniform)
    for wrong in (
        replace(saving, total=10.1),
        replace(saving, cost=cost[::-1]),  # spends first
        replace(saving, cost=np.roll(cost, -1)),  # a round too early
    ):
        assert not kiani_spending.as_claimed(wrong, uniform)
    for wrong in (replace(uniform, total=11.0), replace(uniform, cost=np.linspace(1, 1.01, 25))):
        assert not kiani_spending.as_claimed(saving, wrong)


# --- Gu et al. (2023), Figure 1 ---


def dominated(one, others):
    return any(
        other[0] <= one[0] and other[1] <= one[1] and other != one
        for other in others  # both objectives, and better in one of them
    )


@pytest.mark.parametrize("max_noise", [None, 0.35, 0.1])
def test_the_best_t_is_what_comparing_all_pairs_finds(max_noise):
    case = Case("", 12, max_noise)
    proxies = case.proxies()[::8]
    points = {}
    for proxy in proxies.tolist():
        for rounds in range(1, 13):
            noise = np.sqrt(rounds) / proxy
            if max_noise is None or noise <= max_noise * (1 + 1e-9):
                points[rounds, proxy] = (1 / rounds + 22 * noise**2 / 10, proxy)
    best = {key[::-1] for key, one in points.items() if not dominated(one, list(points.values()))}
    assert best == {(proxy, case.best(proxy)) for proxy in proxies.tolist()}


def test_the_theorem_holds_but_for_the_ends_of_case_1():
    found = {one.case.name: one for one in map(gu_theory.compared, gu_theory.CASES)}
    assert {name: one.verdict for name, one in found.items()} == {
        "I": "reproduced in part",
        "II": "reproduced",
        "III": "reproduced",
    }
    assert {best for _, best in found["I"].missing} == {1, 200}
    assert gu_theory.judged(gu_theory.CASES)[0] == "reproduced in part"
    assert gu_theory.judged(gu_theory.CASES[1:])[0] == "reproduced"
    at_50 = gu_theory.CASES[0]
    assert (at_50.best(74.162), at_50.printed(74.162)) == (50, pytest.approx(50, abs=1e-3))


class FourTimesK(Case):
    def printed(self, proxy):
        return Case(self.name, self.max_rounds, self.max_noise, 4 * self.k).printed(proxy)


class AsIfWithoutLimit(Case):
    """The curve, whatever the limit on noise."""

    def printed(self, proxy):
        return Case(self.name, self.max_rounds, 1e9).printed(proxy)


@pytest.mark.parametrize("wrong", [FourTimesK("I", 200), AsIfWithoutLimit("III", 75, 0.05)])
def test_a_wrong_theorem_is_noticed(wrong):
    assert gu_theory.judged([wrong])[0] == "not reproduced"


# --- Gu et al. (2023), Tables II and III ---


def test_the_cost_of_guidance_counted_by_hand():
    first, further, everything = gu_cost.lines()
    assert first.guided == Cost(15 * 200 + 200, 15 * 200 * 10 + 200 * 20, pytest.approx(300 + 100))
    assert first.searched == Cost(15 * 200, 15 * 200 * 20, 15 * 200 * 0.5)
    assert further.guided == Cost(200, 4000, 100)
    assert everything.searched.rounds == 7 * 15 * 200
    assert everything.searched.updates == pytest.approx(15 * 200 * 40 * 2.725)
    word, why = gu_cost.judged(gu_cost.lines())
    assert word == "reproduced in part"
    assert "8 of 9 counts" in why


def test_the_verdict_on_cost_follows_the_counts():
    lines = gu_cost.lines()
    cheap = [replace(one, guided=Cost(1, 1, 1)) for one in lines]
    dear = [replace(one, guided=one.searched) for one in lines]
    assert gu_cost.judged(cheap)[0] == "reproduced"
    assert gu_cost.judged(dear)[0] == "not reproduced", "as dear is not cheaper"


# --- epsilon in place of the proxy ---


def theory(clients, rates=(0.125, 0.25, 0.5)):
    """Losses that are theory's: then the proxy's front has every rate."""
    pairs = [(rate, level) for rate in rates for level in (0.05, 0.1, 0.15)]
    rates, levels = (np.array(one) for one in zip(*pairs, strict=True))
    t = np.arange(1, 201)
    loss = 1 / t + 22 * levels[:, None] ** 2 / (rates[:, None] * clients)
    return Window(clients, rates, levels, loss)


def test_epsilon_is_that_of_the_plan():
    seen = theory(40)
    found = gu_epsilon.epsilons(seen)
    for row, rounds in ((0, 1), (4, 77), (8, 200)):
        expected = budget_of(
            float(seen.levels[row]),
            rate=float(seen.rates[row]),
            clients=40,
            clip=gu.CLIP,
            rounds=rounds,
            delta=1e-5,
        )
        assert found[row, rounds - 1] == pytest.approx(expected, rel=1e-12)


def test_the_lowest_loss_within_an_epsilon():
    loss = np.array([[3.0, 1.0, 0.5], [4.0, 2.0, 1.5]])
    cost = np.array([[2.0, 6.0, 9.0], [1.0, 3.0, 5.0]])
    seen = Window(10, np.array([1.0, 1.0]), np.array([0.05, 0.1]), loss)
    assert gu_epsilon.within(seen, cost, 0.5) == "-"
    assert gu_epsilon.within(seen, cost, 5) == "1.50 (3, 0.1)"
    assert gu_epsilon.within(seen, cost, 6) == "1.00 (2, 0.05)"


def test_advice_on_the_rate_is_given_only_where_epsilon_and_proxy_disagree():
    little, much = theory(40), theory(400_000)  # noise multipliers
    assert gu_epsilon.multipliers(little).max() < 3
    assert gu_epsilon.multipliers(much).min() > 10
    disagree, agree = (gu_epsilon.by_rate(one, gu_epsilon.epsilons(one)) for one in (little, much))
    assert "chosen by epsilon" in disagree
    assert "chosen by epsilon" not in agree


def test_epsilon_waits_for_the_trainings(tmp_path):
    nothing = Finished.read(tmp_path / "none.jsonl")
    assert gu_epsilon.tables(nothing) == gu_epsilon.NOTHING
    assert gu_page.BLOCKS["gu-epsilon"](nothing) == gu_epsilon.NOTHING
