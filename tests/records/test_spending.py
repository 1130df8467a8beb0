"""What a record spends: known answers, observers, limits, and the counter-example to the paper's
server bound.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import binom, norm

import fedspend
from fedspend import records
from fedspend.errors import InvalidInput
from fedspend.verification.second_accountant import epsilon_at, renyi_divergence

PAPER = {"delta": 1e-3, "rounds": 20, "local_steps": 5, "client_rate": 0.5, "noise_multiplier": 1.0}
WHOLE = range(2, 65)
settings = st.fixed_dictionaries(
    {
        "delta": st.sampled_from([1e-3, 1e-5]),
        "rounds": st.integers(1, 50),
        "local_steps": st.integers(1, 50),
        "client_rate": st.floats(0.05, 1.0),
        "noise_multiplier": st.floats(0.5, 20.0),
    }
)


def independent(rates, terms, orders=records.ORDERS, observer="public"):
    """Epsilon by the second accountant, in the plain form of the bound."""
    a = np.asarray(orders, dtype=np.float64)
    inner = terms["local_steps"] * renyi_divergence(
        np.asarray(rates)[:, None], terms["noise_multiplier"], a
    )
    p = terms["client_rate"]
    if observer != "picks-participants" and p < 1:
        inner = np.logaddexp(math.log1p(-p), math.log(p) + (a - 1) * inner) / (a - 1)
    return epsilon_at(terms["rounds"] * inner, a, terms["delta"]).min(axis=1)


def test_known_answers():
    assert records.epsilon(0.1, **PAPER, orders=WHOLE) == pytest.approx(4.20990690, abs=5e-9)
    assert records.epsilon(0.1, **PAPER, orders=WHOLE, conversion="classic") == pytest.approx(
        5.16467815, abs=5e-9
    )
    assert fedspend.records is records


@effort(max_examples=10)
@given(settings, st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=3))
def test_the_second_accountant_agrees(terms, rates):
    for observer in records.OBSERVERS:
        own = records.epsilon(rates, **terms, observer=observer)
        assert own == pytest.approx(
            independent(rates, terms, observer=observer), rel=1e-6, abs=1e-9
        )


@effort(max_examples=10)
@given(settings, st.floats(1e-5, 1.0))
def test_observers_in_order(terms, rate):
    public, sees, picks = (
        records.epsilon(rate, **terms, observer=name) for name in records.OBSERVERS
    )
    assert public == sees <= picks * (1 + 1e-12)
    everyone = records.epsilon(rate, **(terms | {"client_rate": 1.0}))
    assert everyone == pytest.approx(picks), "a client that is always there has no amplification"


@effort(max_examples=10)
@given(settings, st.floats(1e-5, 0.9))
def test_more_of_anything_costs_more(terms, rate):
    spent = records.epsilon(rate, **terms)
    assert records.epsilon(rate * 1.1, **terms) >= spent
    assert records.epsilon(rate, **(terms | {"rounds": terms["rounds"] + 1})) >= spent
    assert records.epsilon(rate, **(terms | {"local_steps": terms["local_steps"] + 1})) >= spent
    assert (
        records.epsilon(rate, **(terms | {"noise_multiplier": terms["noise_multiplier"] * 1.1}))
        <= spent
    )


def test_limits_and_shapes():
    assert records.epsilon(0.0, **PAPER) == 0.0, "a record that is never sampled spends nothing"
    table = records.epsilon([[0.0, 0.1], [0.1, 1.0]], **PAPER)
    assert table.shape == (2, 2)
    assert table[0, 1] == table[1, 0]
    one_step = PAPER | {"local_steps": 1, "client_rate": 1.0}
    plain = fedspend.accounting.epsilon(
        20 * fedspend.accounting.rdp(0.1, 1.0, records.ORDERS), records.ORDERS, 1e-3
    )
    assert records.epsilon(0.1, **one_step) == pytest.approx(plain, rel=1e-12), (
        "one step, every client: the sampled Gaussian"
    )


def test_the_papers_server_bound_is_no_bound():
    """One round, one step, every record in it, a client that joins one time in ten, and a server
    that sees whether it did.

    Then the server sees a Gaussian with probability 0.1 and nothing otherwise, so
    `delta(eps) = 0.1 * delta_Gauss(eps)` exactly: true epsilon at delta is the Gaussian's at 10
    delta. The paper's `lambda T rho` claims 2.7 times less.
    """
    delta, p, sigma = 1e-5, 0.1, 0.5

    def gaussian_delta(eps):
        return norm.cdf(0.5 / sigma - eps * sigma) - math.exp(eps) * norm.cdf(
            -0.5 / sigma - eps * sigma
        )

    true = brentq(lambda eps: p * gaussian_delta(eps) - delta, 0.01, 50)
    orders = np.asarray(records.ORDERS)
    claimed = float((p * orders / (2 * sigma**2) + math.log(1 / delta) / (orders - 1)).min())
    terms = {
        "delta": delta,
        "rounds": 1,
        "local_steps": 1,
        "client_rate": p,
        "noise_multiplier": sigma,
    }
    ours = records.epsilon(1.0, **terms, observer="sees-participation")
    assert claimed == pytest.approx(3.235, abs=0.01)
    assert true == pytest.approx(8.877, abs=0.001)
    assert claimed < true < ours < records.epsilon(1.0, **terms, observer="picks-participants")


@pytest.mark.parametrize(
    ("client_rate", "claim", "truth"), [(0.5, 51.283, 54.882), (0.1, 16.755, 23.718)]
)
def test_the_papers_server_bound_is_no_bound_over_many_rounds(client_rate, claim, truth):
    """The paper's T = 20, tau = 5, sigma = 1, delta = 1e-3 with every record in every step, so that
    the truth has a closed form.

    A client that joined k rounds showed the server k * tau Gaussians, which are one of multiplier
    sigma / sqrt(k * tau), and k is binomial and seen: `delta(eps)` is the binomial mean of the
    Gaussians' deltas.
    """
    rounds, steps, sigma, delta = 20, 5, 1.0, 1e-3
    joined = np.arange(1, rounds + 1)
    weight, shift = binom.pmf(joined, rounds, client_rate), np.sqrt(joined * steps) / sigma

    def seen_delta(eps):
        return (
            weight
            * (
                norm.cdf(shift / 2 - eps / shift)
                - np.exp(eps + norm.logcdf(-shift / 2 - eps / shift))
            )
        ).sum() - delta

    true = brentq(seen_delta, 0.01, 500)
    orders = np.asarray(records.ORDERS)
    claimed = float(
        (
            client_rate * rounds * steps * orders / (2 * sigma**2)
            + math.log(1 / delta) / (orders - 1)
        ).min()
    )
    terms = {
        "delta": delta,
        "rounds": rounds,
        "local_steps": steps,
        "client_rate": client_rate,
        "noise_multiplier": sigma,
    }
    assert (claimed, true) == pytest.approx((claim, truth), abs=0.001)
    assert claimed < true < records.epsilon(1.0, **terms, observer="sees-participation")


@pytest.mark.parametrize(
    "rates",
    [[0.5, 1.5], [-0.1], [math.nan, 0.5], [math.inf], [], "often", None, [[0.1], [0.2, 0.3]]],
)
def test_bad_rates(rates):
    with pytest.raises(InvalidInput):
        records.epsilon(rates, **PAPER)


def test_a_bad_rate_is_named():
    with pytest.raises(InvalidInput, match=r"from 0 to 1, got 1\.5 \(record number 2\)"):
        records.epsilon([0.5, 1.5], **PAPER)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta", 0.0),
        ("delta", 1.0),
        ("delta", math.nan),
        ("rounds", 0),
        ("rounds", 1.5),
        ("local_steps", 0),
        ("local_steps", math.inf),
        ("client_rate", 0.0),
        ("client_rate", 1.1),
        ("client_rate", math.nan),
        ("noise_multiplier", 0.0),
        ("noise_multiplier", -1.0),
        ("noise_multiplier", math.nan),
        ("noise_multiplier", True),
        ("noise_multiplier", "much"),
    ],
)
def test_bad_terms(name, value):
    for function, argument in ((records.epsilon, 0.1), (records.rates, 1.0)):
        with pytest.raises(InvalidInput, match=name):
            function(argument, **(PAPER | {name: value}))


@pytest.mark.parametrize(
    "options", [{"observer": "server"}, {"conversion": "tight"}, {"orders": []}, {"orders": [1.0]}]
)
def test_bad_options(options):
    with pytest.raises(InvalidInput):
        records.epsilon(0.1, **PAPER, **options)
