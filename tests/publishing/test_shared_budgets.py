"""What is published of one client or record depends on no other's budget, or is refused."""

import pytest
from published import BUDGETS, train_real

import fedspend
from fedspend.errors import Refused
from fedspend.planning.plan_json import canonical
from fedspend.planning.policies.table import BY_OWN_BUDGET, POLICIES
from fedspend.records import Terms
from fedspend.records.planning import plan_records
from fedspend.records.policies import METHODS, Wanted

TERMS = Terms.checked(delta=1e-4, rounds=3, local_steps=2, client_rate=1.0, noise_multiplier=3.0)
KEYS = {
    "spend-as-you-go": {"saving_rate": 0.5},
    "spend-as-you-go-literal": {"saving_rate": 0.5},
    "weights": {"weights": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]},
    "geometric": {"weights": 1.1},
}


def planned(budgets, **given):
    return fedspend.plan(budgets, **({"delta": 1e-5, "rounds": 6, "rate": 0.5} | given))


def published(plan):
    """The bound, and what the first unit is told; None if that would be refused."""
    if plan.shows_others() is not None:
        return None
    return canonical(plan.bound().content()), canonical(plan.part_of(0).content())


def same_or_refused(one, other):
    """Whether both are published, after the check that they do not differ."""
    found = [published(plan) for plan in (one, other)]
    if None in found:
        return False
    assert found[0] == found[1]
    return True


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("accountant", ["rdp", "auto"])
@pytest.mark.parametrize("policy", POLICIES.names)
def test_another_budget_changes_nothing_that_a_policy_shows(policy, accountant):
    given = {"policy": policy, "accountant": accountant} | KEYS.get(policy, {})
    plans = [planned([8.0, 3.0, 2.0, middle], **given) for middle in (4.0, 5.0)]
    assert same_or_refused(*plans) == (policy in BY_OWN_BUDGET)


def test_what_auto_chooses_because_of_others_is_refused():
    few, many = [8.0] * 30, [8.0] * 9 + [1 + k / 8 for k in range(21)]
    assert "more than 20 distinct schedules" in planned(many).shows_others()
    assert published(planned(many, accountant="rdp")) == published(planned(few, accountant="rdp"))


def test_the_largest_budget_does_not_choose_the_accountant_of_others():
    large = planned([8.0, 600.0])
    assert "a budget above 500" in large.shows_others()


def test_even_noise_for_all_under_optimal_is_refused():
    """A private metric may make `optimal` fall back to uniform, for everyone, by all budgets."""
    given = {"policy": "optimal", "contraction": 0.8, "rate": 0.9, "metric_noise": 5.2}
    plans = [planned([10.0] * few + [2.0] * (100 - few), rounds=10, **given) for few in (50, 2)]
    assert not same_or_refused(*plans)


def test_schedules_that_cross_are_refused():
    crossing = planned([8.0, 7.9], policy="spend-as-you-go", saving_rate=[0.2, 0.5])
    assert "cross" in crossing.shows_others()


@pytest.mark.full(only=["rpdp"])
@pytest.mark.parametrize("method", METHODS)
def test_another_records_budget_changes_nothing_that_a_method_shows(method):
    plans = [
        plan_records(
            [8.0, 2.0, middle, 8.0],
            [0, 0, 1, 1],
            TERMS,
            clients=["a", "b"],
            wanted=Wanted(method=method),
        )
        for middle in (3.0, 4.0)
    ]
    assert same_or_refused(*plans) == (method in ("rpdp", "minimum"))


@pytest.mark.full
def test_such_a_run_is_not_published(tmp_path):
    plan = planned([3.0, 5.0, 8.0, 8.0], clients=list(BUDGETS), rounds=2, policy="individual-rates")
    train_real(tmp_path / "run", plan=plan, ledger=tmp_path / "accounts.db")
    with pytest.raises(Refused, match="cannot be published: policy 'individual-rates'"):
        fedspend.publish(tmp_path / "run")
    assert not (tmp_path / "run.publication").exists()
