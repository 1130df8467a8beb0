"""Accounting: Rényi curves of the sampled Gaussian, their composition, and noise for a budget."""

from fedspend.accounting.calibration import noise_multiplier
from fedspend.accounting.conversion import compose, conversion_cost, epsilon
from fedspend.accounting.rdp import ORDERS, rdp

__all__ = ["ORDERS", "compose", "conversion_cost", "epsilon", "noise_multiplier", "rdp"]
