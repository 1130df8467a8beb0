"""The client, its folder and its account, as a node's config names them."""

from __future__ import annotations

from pathlib import Path

from fedspend.approval.node_ledger import NodeLedger
from fedspend.budgets.identity import read_ids
from fedspend.configuration.config import Config, needed
from fedspend.configuration.data_inputs import is_real
from fedspend.engines.flower.keys import public_of
from fedspend.errors import InvalidInput
from fedspend.stored.files import LEDGER


def client_of(config: Config) -> str:
    name = needed(config.node.client, "node.client")
    (client,) = read_ids([name], what="node.client")
    return client


def state_folder(config: Config) -> Path:
    """Where the node remembers its answers: beside its config, unless that says otherwise."""
    if config.node.state is not None:
        return Path(config.node.state)
    return _beside(config, "node.state is missing: say where the node keeps its answers") / "state"


def own_account(config: Config) -> NodeLedger | None:
    """The account of a node; None for a simulation whose config says nothing of one."""
    real, node = is_real(config), config.node
    if not (real or node.budget is not None or config.ledger.location is not None):
        return None
    return account_of(config)


def account_of(config: Config) -> NodeLedger:
    """Where the account is that the config names, or would begin."""
    return _ledger(config, None)


def node_ledger(config: Config, *, keyless: bool = False) -> NodeLedger:
    """The account, as the client's people use it: with the node's key, if the config names it and
    it is not lost (`keyless`).
    """
    return _ledger(config, None if keyless else own_key(config))


def _ledger(config: Config, key: str | None) -> NodeLedger:
    missing = "ledger.location is missing: say where the node keeps its account"
    beside = state_folder(config) if config.path is None else _beside(config, missing)
    location = config.ledger.location or str(LEDGER.of(beside))
    return NodeLedger(
        client=client_of(config),
        location=location,
        folder=state_folder(config),
        simulation=not is_real(config),
        budget=config.node.budget,
        delta=config.node.delta,
        key=key,
        unit=config.node.unit,
    )


def own_key(config: Config) -> str | None:
    """The node's public key, if the config names its key."""
    return None if config.node.key is None else public_of(config.node.key)


def _beside(config: Config, otherwise: str) -> Path:
    if config.path is None:
        raise InvalidInput(otherwise)
    return config.path.resolve().parent
