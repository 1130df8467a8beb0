"""The server."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedavg import network

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    told = context.run_config
    model = network.network(told["hidden"])
    features, labels = network.read_rows(told["public"])

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        found = network.accuracy(model, features, labels)
        if number:
            with Path(told["output"]).open("a") as file:
                file.write(f"{number},{found:.4f}\n")
        return MetricRecord({"accuracy": found})

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    strategy.start(
        grid, ArrayRecord(model.state_dict()), num_rounds=told["rounds"], evaluate_fn=evaluate
    )
