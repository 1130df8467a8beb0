"""The server: its strategy is wrapped, and that is all."""

import csv
from pathlib import Path

import numpy as np
from flwr.app import Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import fedspend
from fedspend.flower.adapter import Private
from heart_app.model import as_arrays, chance, first_model, rows

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    server = Path(str(context.run_config["server"]))
    features, labels = rows(server / "public.csv")

    def accuracy(_round, arrays):
        guess = chance(as_arrays(arrays), features) > 0.5
        return MetricRecord({"accuracy": float(np.mean(guess == labels))})

    with (server / "budgets.csv").open(newline="") as file:  # not here: every node gets this code
        budgets = {line["client"]: float(line["epsilon"]) for line in csv.DictReader(file)}
    plan = fedspend.plan(budgets, delta=1e-3, rounds=4, rate=0.8, clip=1.0, noise="discrete")
    strategy = Private(
        FedAvg(fraction_evaluate=0.0),
        plan,
        keys=server / "keys.csv",
        ledger=server / "accounts.db",
        run=str(context.run_config["run"]),
    )
    strategy.start(grid, first_model(), evaluate_fn=accuracy)
    for client, epsilon in strategy.spent.items():
        print(f"{client} has spent epsilon {epsilon:.2f} of {budgets[client]:g}")
