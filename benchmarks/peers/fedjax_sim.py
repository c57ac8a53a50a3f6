"""fedjax: algorithms.fed_avg with the jit backend, on all cores."""

from __future__ import annotations

import os
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map  # fedjax 0.0.17 is older than its removal

import fedjax
from peers.jax_models import MODELS, to_jax, to_torch
from turns import TASK, Turns
from workloads import LEARNING_RATE, Task


def main() -> None:
    turns, task = Turns(), Task.load(os.environ[TASK])
    x = task.x if task.model == "mlp" else np.ascontiguousarray(task.x.transpose(0, 2, 3, 1))
    y = task.y.astype(np.int32)
    forward = MODELS[task.model]

    def loss(params, batch, rng):
        logarithms = jax.nn.log_softmax(forward(params, batch["x"]))
        return -jnp.mean(jnp.take_along_axis(logarithms, batch["y"][:, None], 1))

    fedjax.set_for_each_client_backend("jit")
    batches = fedjax.ShuffleRepeatBatchHParams(
        batch_size=task.batch_size, num_epochs=task.epochs, drop_remainder=False, seed=0
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss), fedjax.optimizers.sgd(LEARNING_RATE), fedjax.optimizers.sgd(1.0), batches
    )
    state, key = algorithm.init(to_jax(task.initial)), jax.random.PRNGKey(0)
    turns.ready(version=f"{version('fedjax')}, jax {jax.__version__}", how="1 process, XLA on all cores")
    for cohort in task.schedule:
        turns.start()
        clients = []
        for number in cohort.tolist():
            rows = task.parts[number]
            data = fedjax.ClientDataset({"x": x[rows], "y": y[rows]})
            clients.append((number, data, jax.random.fold_in(key, number)))
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        turns.stop()
    turns.end(to_torch(state.params))


if __name__ == "__main__":
    main()
