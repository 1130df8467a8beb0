"""A hospital. Nothing here knows of privacy, and nothing of it was changed."""

from pathlib import Path

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from heart_app.model import as_arrays, as_record, rows, trained

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    features, labels = rows(Path(str(context.node_config["folder"])) / "patients.csv")
    steps, lr = context.run_config["local-steps"], context.run_config["lr"]
    model = trained(as_arrays(message.content["arrays"]), features, labels, steps, lr)
    metrics = MetricRecord({"num-examples": len(labels)})
    content = RecordDict({"arrays": as_record(model), "metrics": metrics})
    return Message(content=content, reply_to=message)
