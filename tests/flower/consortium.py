"""Organisations with rows, keys, budgets and accounts of their own, and a server that has none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flower.in_process import Place

from fedspend.approval.node_config import node_ledger
from fedspend.approval.slices import SLICE_SUFFIX, load_slice
from fedspend.configuration.config import any_config
from fedspend.engines.flower.keys import read_keys
from fedspend.flower.loopback import make_node_key
from fedspend.flower.node import open_node
from fedspend.ledger import Ledger
from fedspend.runs.slicing import make_slices

CLIENTS = ("north", "south", "west", "harbour")
BUDGETS = dict(zip(CLIENTS, (8, 12, 16, 20), strict=True))
DELTA = 1e-3


def real(tiny, tmp_path):
    """Own rows, real randomness: the config on one machine, the server's, and its nodes' files."""
    generator = np.random.default_rng(0)
    lines, tests = {}, []
    for n, client in enumerate(CLIENTS):
        rows = generator.normal(size=(12 + 5 * n, 3))
        lines[client] = [
            f"{','.join(f'{x:.3f}' for x in row)},{int(row.sum() > 0)}" for row in rows
        ]
        tests += lines[client][:3]
        folder = tmp_path / client
        folder.mkdir()
        (folder / "rows.csv").write_text("\n".join(["a,b,c,label", *lines[client]]) + "\n")
    (tmp_path / "all.csv").write_text(
        "a,b,c,label,client\n"
        + "".join(f"{line},{client}\n" for client in CLIENTS for line in lines[client])
    )
    (tmp_path / "public.csv").write_text("\n".join(["a,b,c,label", *tests]) + "\n")
    (tmp_path / "budgets.csv").write_text(
        "client,epsilon\n" + "".join(f"{client},{BUDGETS[client]}\n" for client in CLIENTS)
    )
    both = {
        "model": {"name": "logistic"},
        "method": {"name": "idp-fedavg"},
        "privacy": {
            "budgets": str(tmp_path / "budgets.csv"),
            "delta": DELTA,
            "rate": 0.8,
            "clip": 0.5,
        },
        "train": tiny["train"],
    }
    data = {"name": "csv", "classes": 2, "test_path": str(tmp_path / "public.csv")}
    return CLIENTS, both, data


def node_config(client, both, tmp_path, **privacy):
    """What a node's own file says."""
    own: Path = tmp_path / client
    return {
        "node": {"client": client, "state": str(own / "state")},
        "data": {"name": "csv", "classes": 2, "path": str(own / "rows.csv")},
        "model": both["model"],
        "privacy": privacy,
        "train": {"seed": both["train"]["seed"]},
    }


def account_of(client, tmp_path, budget=None):
    """What a node's own file says of its account."""
    own: Path = tmp_path / client
    node = {
        "budget": budget or float(BUDGETS[client]),
        "delta": DELTA,
        "key": str(own / "node.key"),
    }
    return {"node": node, "ledger": {"location": str(own / "ledger.db")}}


def nodes_with_files(clients, both, tmp_path, **privacy):
    """A node for each client, opened from its own config and its own file; without accounts, for
    simulations.
    """
    return {
        n + 50: Place(open_node(node_config(client, both, tmp_path, **privacy)))
        for n, client in enumerate(clients)
    }


def merged(one, other):
    return {name: one.get(name, {}) | other.get(name, {}) for name in one.keys() | other.keys()}


def consortium(tiny, tmp_path, *, approve=True, **changes):
    """The server's config, and nodes with keys and accounts that have approved its slices."""
    _, both, data = real(tiny, tmp_path)
    lines = [f"{client},{make_node_key(tmp_path / client)}" for client in CLIENTS]
    (tmp_path / "keys.csv").write_text("\n".join(["client,key", *lines]) + "\n")
    server = merged(
        both
        | {
            "data": data,
            "engine": {
                "name": "flower",
                "keys": str(tmp_path / "keys.csv"),
                "slices": str(tmp_path / "slices"),
                "deadline": 9.0,
            },
            "ledger": {"location": str(tmp_path / "accounts.db")},
        },
        changes,
    )
    make_slices(server, tmp_path / "slices")
    configs = {
        client: merged(node_config(client, server, tmp_path), account_of(client, tmp_path))
        for client in CLIENTS
    }
    keys = read_keys(tmp_path / "keys.csv")
    if approve:
        for client, config in configs.items():
            approve_own(config, slice_file(tmp_path, client))
    places = {
        n + 50: Place(open_node(config), keys[client].encode() + b"\n")
        for n, (client, config) in enumerate(configs.items())
    }
    return server, places


def slice_file(tmp_path, client, slices="slices"):
    return tmp_path / slices / f"{client}{SLICE_SUFFIX}"


def approve_own(config, file):
    return node_ledger(any_config(config)).approve(load_slice(file))


def entries_of(path):
    with Ledger.open(path) as book:
        return [json.loads(body) for _, body, _ in book.entries()]


def spent_at(tmp_path, client):
    """The rounds that a client has charged itself."""
    found = entries_of(tmp_path / client / "ledger.db")
    return {entry["round"] for entry in found if entry["kind"] == "reserve"}
