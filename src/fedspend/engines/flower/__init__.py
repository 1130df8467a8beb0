"""Clients on other machines, reached through Flower: `wire` is what is sent, `nodes` says which
machine is which client, `engine` runs a round. Only these modules and the room `flower` import
flwr, and nothing imports them before it is needed.

Flower's telemetry and its check for updates are off, unless the environment turns them on.
"""

import os
import sys

for _name, _value in (("FLWR_TELEMETRY_ENABLED", "0"), ("FLWR_DISABLE_UPDATE_CHECK", "1")):
    os.environ.setdefault(_name, _value)
if "flwr.supercore.telemetry" in sys.modules:  # in an app, Flower came first
    sys.modules["flwr.supercore.telemetry"].__dict__["FLWR_TELEMETRY_ENABLED"] = os.environ[
        "FLWR_TELEMETRY_ENABLED"
    ]
