"""One peer, one workload: a process that `rounds.py` starts and drives. Needs only numpy and the
peer, not fedspend.

    python peers.py pfl|fedjax FOLDER

FOLDER holds what `rounds.py` wrote: `work.json`, `features.npy` (clients, examples, ...) in the
order of the batches, `labels.npy` and `start.npy`, the flat parameters. The first round is a
warm-up that leaves the mean update in `update.npy`. Then every line on standard input is one more
round, answered by its CPU seconds. Each client's data lies together in memory.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np


class Work:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        terms = json.loads((folder / "work.json").read_text())
        self.kind: str = terms["kind"]
        self.widths: list[int] = terms["widths"]
        self.batch: int = terms["batch"]
        self.lr: float = terms["lr"]
        self.clip: float = terms["clip"]
        self.options: dict[str, Any] = terms["options"]  # of models of tokens
        self.shape: tuple[int, ...] = tuple(terms["shape"])
        self.features = np.load(folder / "features.npy")
        self.labels = np.load(folder / "labels.npy")
        self.start = np.load(folder / "start.npy")
        self.steps_done = 0  # of the round that runs
        self.examples_done = 0


def serve(work: Work, rounds: Iterator[np.ndarray]) -> None:
    """`rounds` yields the parameters after each round, and does the work of a round when asked for
    the next one.
    """
    after = next(rounds)
    np.save(work.folder / "update.npy", after - work.start)
    print(json.dumps({"steps": work.steps_done, "examples": work.examples_done}), flush=True)
    for _ in sys.stdin:
        began = time.process_time()
        next(rounds)
        print(json.dumps({"seconds": time.process_time() - began}), flush=True)


def pfl(work: Work) -> Iterator[np.ndarray]:
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism, NormClippingOnly

    torch.set_num_threads(1)

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch_body(work)

        def loss(self, x: Any, y: Any) -> Any:
            work.steps_done += 1
            work.examples_done += len(y)
            given = x.long() if work.options else x
            return torch.nn.functional.cross_entropy(self.body(given), y)

        def metrics(self, x: Any, y: Any) -> Any:
            return {"loss": Weighted(float(self.loss(x, y)), 1)}

    module = Module()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(work.start.copy()), module.parameters())
    users = [
        Dataset([torch.from_numpy(x), torch.from_numpy(y)], user_id=str(n))
        for n, (x, y) in enumerate(zip(work.features, work.labels, strict=True))
    ]
    order = cycle(range(len(users)))
    data = FederatedDataset(lambda user: users[user], lambda: next(order))
    clip = CentrallyAppliedPrivacyMechanism(NormClippingOnly(2, work.clip))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[clip])
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    training = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch
    )
    terms = NNAlgorithmParams(
        central_num_iterations=2,
        evaluation_frequency=10**9,
        train_cohort_size=len(users),
        val_cohort_size=None,
    )
    while True:
        work.steps_done = work.examples_done = 0
        algorithm = FederatedAveraging()
        # iteration 0 would also evaluate every user, before and after training
        algorithm._current_central_iteration = 1
        model = algorithm.run(
            terms, backend, model, training, None, callbacks=[], send_metrics_to_platform=False
        )
        yield torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
        if work.kind == "cnn":
            kinked(module.body)


def torch_body(work: Work) -> Any:
    from torch import nn

    if work.options:  # the very same module; the peer's Python finds it on its path
        from fedspend.models import build

        return build(
            work.kind, input_shape=work.shape, classes=work.widths[-1], seed=0, **work.options
        )
    if work.kind == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.Tanh(),
            nn.Linear(512, 10),
        )
    layers: list[Any] = []
    for before, after in pairwise(work.widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def kinked(body: Any) -> None:
    """From the smooth twin, whose update was compared, to the CNN that is timed."""
    from torch import nn

    for number, layer in enumerate(body):
        if isinstance(layer, nn.Tanh):
            body[number] = nn.ReLU()
        if isinstance(layer, nn.AvgPool2d):
            body[number] = nn.MaxPool2d(2)


def fedjax(work: Work) -> Iterator[np.ndarray]:
    import fedjax as fj
    import jax
    import jax.numpy as jnp

    if not hasattr(jax, "tree_map"):
        jax.tree_map = jax.tree_util.tree_map  # fedjax 0.0.17 calls the old name

    def loss(params: Any, batch: Any, rng: Any) -> Any:
        del rng
        value = batch["x"]
        for number, (weight, bias) in enumerate(params):
            value = value @ weight.T + bias
            if number < len(params) - 1:
                value = jax.nn.relu(value)
        return -jnp.take_along_axis(jax.nn.log_softmax(value), batch["y"][:, None], axis=1).mean()

    class Ordered(fj.ClientDataset):
        def shuffle_repeat_batch(self, *_: Any, **__: Any) -> Iterator[Any]:
            for batch in self.batch(batch_size=work.batch):
                work.steps_done += 1
                work.examples_done += len(batch["y"])
                yield batch

    params, start = [], 0
    for before, after in pairwise(work.widths):
        weight = work.start[start : start + before * after].reshape(after, before)
        bias = work.start[start + before * after : start + before * after + after]
        params.append((jnp.asarray(weight), jnp.asarray(bias)))
        start += before * after + after
    algorithm = fj.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fj.optimizers.sgd(work.lr),
        fj.optimizers.sgd(1.0),
        fj.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=1),
    )
    keys = jax.random.split(jax.random.PRNGKey(0), len(work.labels))
    state = algorithm.init(params)
    # for the first round, whose update is compared; after that fedjax shuffles by itself
    kind = Ordered
    while True:
        data = enumerate(zip(work.features, work.labels, strict=True))
        clients = [(b"%d" % n, kind({"x": x, "y": y}), keys[n]) for n, (x, y) in data]
        state, _ = algorithm.apply(state, clients)
        kind = fj.ClientDataset
        yield np.concatenate(
            [np.asarray(piece).reshape(-1) for pair in state.params for piece in pair]
        )


PEERS: dict[str, Callable[[Work], Iterator[np.ndarray]]] = {"pfl": pfl, "fedjax": fedjax}

if __name__ == "__main__":
    current = Work(Path(sys.argv[2]))
    serve(current, PEERS[sys.argv[1]](current))
