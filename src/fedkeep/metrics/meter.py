"""Forgetting measured in anyone's training loop, with the same records as a run of ours."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedkeep.errors import ConfigError, DataError, RunError, nearest
from fedkeep.metrics.forgetting import forgettable
from fedkeep.metrics.measure import Measured, measure

AnyModel = nn.Module | Callable[[Any], Any]
"""A module, or any function from a batch to its logits [n, classes]."""

Examples = tuple[Any, Any]
"""Inputs and labels of one client, as tensors or numpy arrays."""

FRAMES = ("rounds", "clients", "classes", "forgetting")


@dataclass(frozen=True, eq=False)
class _Pool:
    """The examples of all clients, one client after another."""

    x: Tensor
    y: Tensor
    owners: np.ndarray
    was_numpy: bool  # plain functions are called with the kind of array that the data came as

    def rows(self, clients: Collection[int]) -> np.ndarray:
        return np.flatnonzero(np.isin(self.owners, list(clients)))


@dataclass
class _Round:
    """A round under way."""

    number: int
    cohort: frozenset[int] | None
    probed: np.ndarray  # positions of the judged examples on which the local models are tried
    before: np.ndarray
    received: dict[int, np.ndarray]  # is the global model right on the examples each client counts
    local: dict[int, np.ndarray] = field(default_factory=dict)
    known: dict[int, np.ndarray] = field(default_factory=dict)  # is the client's own model right on these


class ForgettingMeter:
    """Measures a federation that somebody else runs: each round `open`, `local` for each client, `close`.

    data: held-out examples (x, y) of each client, on which all models are judged; labels are 0 ... classes - 1.
    train: each client's training examples. FedWAvg paper, Sec. 3.1: a client's forgettable examples are counted on
    these, between its own last model and the global model of the next round in which it trains; without `train` they
    are counted on the judged examples. A client that holds nothing out is judged on its training examples.

    A model is an nn.Module (put in evaluation mode for the while, otherwise left as it is; inputs go to its device and
    precision) or any function of a batch that returns logits, as tensors or numpy arrays.
    Each model is judged the moment it is given, so its weights may change afterwards. The meter keeps a copy of
    the examples, and of each client one boolean per example.

    >>> data = {0: (np.zeros((2, 1)), [0, 0]), 1: (np.zeros((2, 1)), [1, 1])}
    >>> zero, one = (lambda x: np.tile([1.0, 0.0], (len(x), 1))), (lambda x: np.tile([0.0, 1.0], (len(x), 1)))
    >>> meter = ForgettingMeter(data, classes=2)
    >>> meter.open(zero)
    >>> meter.local(0, zero)
    >>> meter.local(1, one)  # forgets all that client 0 holds, gains nothing there
    >>> meter.close(zero).summary["forgetting"]
    0.5
    >>> meter.frame("forgetting")["forgetting"].tolist()  # data 0 by models 0 and 1, data 1 by models 0 and 1
    [0.0, 1.0, 0.0, -1.0]
    """

    def __init__(
        self,
        data: Mapping[int, Examples],
        classes: int,
        train: Mapping[int, Examples] | None = None,
        batch_size: int = 500,
    ) -> None:
        if classes < 1 or batch_size < 1:
            raise ConfigError(f"classes={classes}, batch_size={batch_size}: both must be at least 1")
        if train is not None and set(train) != set(data):
            odd = sorted(set(train) ^ set(data), key=str)[0]
            raise DataError(f"client {odd!r} is in only one of data and train; give both for the same clients")
        self.classes, self.batch_size = classes, batch_size
        self._train = None if train is None else _pool(train, classes, "train")
        stand_in = train or {}
        self._judged = _pool({k: pair if len(pair[1]) else stand_in.get(k, pair) for k, pair in data.items()}, classes)
        self._clients = frozenset(int(k) for k in data)
        if without := sorted(self._clients - set(self._judged.owners.tolist())):
            raise DataError(f"client {without[0]} has no examples to judge models on; hold some out, or leave it away")
        self._known: dict[int, np.ndarray] = {}  # per client: was its own last model right
        self._round: _Round | None = None
        self._measured: list[Measured] = []
        self._rows: list[dict[str, float]] = []

    def open(self, model: AnyModel, cohort: Collection[int] | None = None, round: int | None = None) -> None:
        """Begin a round with the global model that the clients receive.

        With `cohort` the local models are tried on these clients' examples only (as in a run with forgetting="cohort"),
        otherwise on everybody's (forgetting="all"). Rounds are counted from 1 unless `round` says which it is.
        """
        if self._round is not None:
            raise RunError(f"round {self._round.number} is still open; close(new global model) it, or abandon() it")
        last = int(self._rows[-1]["round"]) if self._rows else 0
        number = last + 1 if round is None else round
        if number <= last:
            raise RunError(f"round {number} comes after round {last}; rounds must grow")
        chosen = None if cohort is None else frozenset(self._checked(client) for client in cohort)
        probed = np.arange(len(self._judged.owners)) if chosen is None else self._judged.rows(chosen)
        who = f"the global model that opens round {number}"
        before = self._correct(model, self._judged, who)
        counted = self._known.keys() if chosen is None else self._known.keys() & chosen
        received = {k: self._own(model, k, before, self._judged.owners, who) for k in sorted(counted)}
        self._round = _Round(number, chosen, probed, before, received)

    def local(self, client: int, model: AnyModel) -> None:
        """A client's own model after its local training."""
        now = self._opened("local")
        client = self._checked(client)
        if client in now.local:
            raise RunError(f"client {client} has already given its model in round {now.number}; give one per round")
        if now.cohort is not None and client not in now.cohort:
            raise RunError(
                f"client {client} is not in the cohort with which round {now.number} was opened; name it there"
            )
        who = f"the model of client {client} in round {now.number}"
        correct = self._correct(model, self._judged, who, now.probed)
        now.known[client] = self._own(model, client, correct, self._judged.owners[now.probed], who)
        now.local[client] = correct

    def close(self, model: AnyModel) -> Measured:
        """End the round with the new global model, and measure it."""
        now, judged = self._opened("close"), self._judged
        if not now.local:
            raise RunError(f"round {now.number} has no local model; give some with local(client, model), or abandon()")
        after = self._correct(model, judged, f"the global model that closes round {now.number}")
        counts = {k: float(forgettable(self._known[k], now.received[k])) for k in now.local if k in now.received}
        measured = measure(
            now.number,
            judged.y.numpy(),
            judged.owners,
            self.classes,
            now.before,
            now.local,
            after,
            counts,
            now.probed,
        )
        self._known.update(now.known)
        self._measured.append(measured)
        row = {"round": now.number, "validation_accuracy": float(after.mean()), "clients": len(now.local)}
        self._rows.append(row | measured.summary)
        self._round = None
        return measured

    def abandon(self) -> None:
        """Leave the open round unmeasured, as if it had never been opened."""
        self._opened("abandon")
        self._round = None

    def frame(self, name: str) -> pd.DataFrame:
        """All rounds so far as a pandas frame: "rounds", "clients", "classes" or "forgetting"."""
        if name not in FRAMES:
            raise ConfigError(f'the meter has no table "{name}": {nearest(name, FRAMES)}')
        if not self._rows:
            raise RunError(f'table "{name}" is empty: no round has been closed yet')
        if name == "rounds":
            return pd.DataFrame(self._rows)
        tables = [getattr(measured, name) for measured in self._measured]
        return pd.DataFrame({column: np.concatenate([table[column] for table in tables]) for column in tables[0]})

    def _opened(self, what: str) -> _Round:
        if self._round is None:
            raise RunError(f"{what}: no round is open; call open(global model) first")
        return self._round

    def _checked(self, client: int) -> int:
        if client not in self._clients:
            known = ", ".join(str(k) for k in sorted(self._clients)[:10])
            raise DataError(f"client {client!r} is unknown to the meter, which has data of {known}; add its data")
        return int(client)

    def _own(self, model: AnyModel, client: int, correct: np.ndarray, owners: np.ndarray, who: str) -> np.ndarray:
        """Right or wrong on the examples that the client counts; `correct` runs over judged ones of `owners`."""
        if self._train is None:
            return correct[owners == client]
        return self._correct(model, self._train, who, self._train.rows((client,)))

    def _correct(self, model: AnyModel, pool: _Pool, who: str, rows: np.ndarray | None = None) -> np.ndarray:
        """Is the model right, for each of these rows of a pool?"""
        if not callable(model):
            raise ConfigError(
                f"{who} is a {type(model).__name__}; give an nn.Module or a function from inputs to logits"
            )
        if rows is None:
            rows = np.arange(len(pool.owners))
        correct = np.zeros(len(rows), np.bool_)
        with _judging(model):
            for first in range(0, len(rows), self.batch_size):
                part = slice(first, first + self.batch_size)
                take = torch.from_numpy(rows[part])
                logits, labels = _logits(model, pool.x[take], pool.was_numpy), pool.y[take]
                if logits.shape != (len(labels), self.classes):
                    wanted = f"[{len(labels)}, {self.classes}]"
                    raise DataError(f"{who} gives logits of shape {list(logits.shape)}, not {wanted}")
                if logits.isnan().any():
                    raise RunError(f"{who} gives logits that are no numbers (NaN); leave such a model out of the round")
                correct[part] = (logits.argmax(1) == labels).numpy()
        return correct


@contextmanager
def _judging(model: AnyModel) -> Iterator[None]:
    """Evaluation mode and no gradients; afterwards every layer is in the mode it was in."""
    modes = [(part, part.training) for part in model.modules()] if isinstance(model, nn.Module) else []
    try:
        if isinstance(model, nn.Module):
            model.eval()
        with torch.inference_mode():
            yield
    finally:
        for part, training in modes:
            part.training = training


def _logits(model: AnyModel, batch: Tensor, as_numpy: bool) -> Tensor:
    if isinstance(model, nn.Module):
        like = next((t for t in chain(model.parameters(), model.buffers()) if t.is_floating_point()), batch)
        answer = model(batch.to(like.device, like.dtype if batch.is_floating_point() else batch.dtype))
    else:
        answer = model(batch.numpy() if as_numpy else batch)
    return (answer if isinstance(answer, Tensor) else torch.from_numpy(np.array(answer, np.float64))).detach().cpu()


def _pool(data: Mapping[int, Examples], classes: int, what: str = "data") -> _Pool:
    """Check the clients' examples and lay them one after another, in the order of the clients' numbers."""
    if not data:
        raise DataError(f"{what} has no client; give a mapping from each client's number to its (x, y)")
    for client in data:
        if not isinstance(client, int | np.integer) or isinstance(client, bool) or not -(2**63) <= client < 2**63:
            raise DataError(f"{what}: client {client!r} is no number of 64 bits; number the clients, e.g. from 0")
    order = sorted(data)
    pairs = [_examples(*data[client], classes, f"{what} of client {client}") for client in order]
    for client, (x, _) in zip(order, pairs, strict=True):
        if x.shape[1:] != pairs[0][0].shape[1:]:
            shapes = f"{list(x.shape[1:])}, those of client {order[0]} {list(pairs[0][0].shape[1:])}"
            raise DataError(f"{what}: examples of client {client} have shape {shapes}; bring them to one shape")
    owners = np.repeat(np.array(order, np.int64), [len(y) for _, y in pairs])
    was_numpy = not isinstance(data[order[0]][0], Tensor)
    return _Pool(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]), owners, was_numpy)


def _examples(x: Any, y: Any, classes: int, where: str) -> tuple[Tensor, Tensor]:
    if not isinstance(x, Tensor) and (x := np.array(x)).dtype.kind not in "biuf":
        raise DataError(f"{where}: x holds {x.dtype}; give numbers")
    x = x.detach() if isinstance(x, Tensor) else torch.from_numpy(x)
    labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if x.ndim == 0 or labels.ndim != 1 or len(x) != len(labels):
        raise DataError(f"{where}: x has shape {list(x.shape)}, y {list(labels.shape)}; give one label per example")
    if x.is_floating_point() and not x.isfinite().all():
        raise DataError(f"{where}: x holds NaN or infinity; clean the examples first")
    if len(labels) and labels.dtype.kind not in "iu":
        raise DataError(f"{where}: y holds {labels.dtype}; give whole numbers, 0 ... {classes - 1}")
    if len(labels) and (labels.min() < 0 or labels.max() >= classes):
        raise DataError(f"{where}: y runs from {labels.min()} to {labels.max()}; give labels 0 ... {classes - 1}")
    return x, torch.from_numpy(labels.astype(np.int64))
