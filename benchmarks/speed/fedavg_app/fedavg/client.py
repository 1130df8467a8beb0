"""A node."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedavg import network

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    told = context.run_config
    model = network.network(told["hidden"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    features, labels = network.read_rows(Path(str(context.node_config["folder"])) / "rows.npz")
    network.train(
        model,
        features,
        labels,
        steps=told["local-steps"],
        batch_size=told["batch-size"],
        lr=told["lr"],
        descent=told["descent"],
    )
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(labels)}),
        }
    )
    return Message(content=content, reply_to=message)
