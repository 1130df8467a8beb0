"""What docs/how-to/flower-adapter.md says of Flower's own differential privacy is so in the
installed version. If one of these fails, Flower has changed: change the page.
"""

import numpy as np
import pytest

pytest.importorskip("flwr")

from flower.apps import AppGrid
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, FedMedian
from flwr.supercore.differential_privacy import clip_inputs_inplace
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

import fedspend

CONFIG = PrivacyConfig(
    1e-5, 2, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION, 8.0
)


def node(moves, examples=1):
    def answer(message):
        arrays = [one + np.float32(moves) for one in message.content["arrays"].to_numpy_ndarrays()]
        told = MetricRecord({"num-examples": examples})
        return Message(
            RecordDict({"arrays": ArrayRecord(arrays), "metrics": told}), reply_to=message
        )

    return answer


def silent(_message):
    return None


def mean_of(*nodes, noise=1e-9, accountant=None):
    """The one number of a model after a round of Flower's DP with clip 1."""
    plain = FedAvg(fraction_evaluate=0.0)
    strategy = DifferentialPrivacyServerSideFixedClipping(
        plain, noise, 1.0, len(nodes), accountant=accountant
    )
    grid, start = AppGrid(dict(enumerate(nodes))), ArrayRecord([np.zeros(1, dtype=np.float32)])
    sent = strategy.configure_train(1, start, ConfigRecord(), grid)
    found, _ = strategy.aggregate_train(1, grid.send_and_receive(sent))
    return None if found is None else float(found.to_numpy_ndarrays()[0][0])


def test_without_an_accountant_weights_are_not_those_of_the_noise():
    """The noise is for weights of one half each; the first client's is a thousand times larger."""
    assert mean_of(node(1.0, 1000), node(-1.0)) == pytest.approx(0.998, abs=1e-3)


def test_without_an_accountant_a_missing_client_makes_the_others_weigh_more():
    assert mean_of(node(1.0), silent) == pytest.approx(1.0, abs=1e-3)


def test_with_an_accountant_the_round_is_dropped_if_a_client_is_missing():
    accountant = RdpAccountant(CONFIG)
    assert mean_of(node(1.0), silent, noise=5.0, accountant=accountant) is None
    assert accountant.num_releases == 0


def test_with_an_accountant_weights_must_be_equal():
    with pytest.raises(ValueError, match="equal client weights"):
        mean_of(node(1.0), node(1.0, 2), noise=5.0, accountant=RdpAccountant(CONFIG))


def test_with_an_accountant_only_fedavg_and_no_amplification_go():
    poisson = PrivacyConfig(1e-5, 2, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.POISSON)
    for strategy, config in ((FedAvg(), poisson), (FedMedian(), CONFIG)):
        with pytest.raises(ValueError, match="requires"):
            DifferentialPrivacyServerSideFixedClipping(
                strategy, 1.0, 1.0, 2, accountant=RdpAccountant(config)
            )


def test_an_update_of_zero_stops_the_round_and_nan_passes():
    with pytest.raises(ZeroDivisionError):
        mean_of(node(1.0), node(0.0))
    update = [np.full(2, np.nan)]
    clip_inputs_inplace(update, 1.0)
    assert np.isnan(update[0]).all()
    assert np.isnan(mean_of(node(1.0), node(np.nan)))


def test_noise_is_from_numpys_global_seed():
    found = []
    for _ in range(2):
        np.random.seed(1)  # noqa: NPY002
        found.append(mean_of(node(1.0), node(1.0), noise=1.0))
    assert found[0] == found[1]


def test_what_sampling_is_worth():
    """A tenth of the clients in each of 100 rounds, epsilon 8 at delta 1e-5: the noise multiplier
    that each needs.
    """
    plan = fedspend.plan([8.0] * 100, delta=1e-5, rounds=100, rate=0.1, accountant="rdp")
    assert float(plan.noise_multiplier[0, 0]) == pytest.approx(1.0, abs=0.02)
    config = PrivacyConfig(1e-5, 100, CONFIG.neighboring_relation, CONFIG.sampling_method)
    for noise, enough in ((6.4, True), (6.3, False)):
        theirs = RdpAccountant(config)
        theirs.compose(GaussianPrivacyEvent(noise, 10, 100), 100)
        assert (theirs.get_epsilon(1e-5) <= 8.0) == enough
