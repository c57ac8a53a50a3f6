"""What a client does. Its examples and its memory stay on its own disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedkeep.deploy import messages
from fedkeep.deploy.answers import Counts, Greeting, put_counts, put_greeting, put_scores
from fedkeep.deploy.options import from_run_config
from fedkeep.deploy.privacy import clipped
from fedkeep.deploy.scene import ClientScene, client_scene
from fedkeep.deploy.wire import WireError, config_of, whole
from fedkeep.errors import ConfigError
from fedkeep.local.evaluate import evaluate, right_of
from fedkeep.mechanisms.forgetting_events import pack, unpack
from fedkeep.method import Memory
from fedkeep.metrics.forgetting import decompose_by
from fedkeep.rng import stream
from fedkeep.rounds import ClientData, client_round
from fedkeep.store import Store
from fedkeep.tree import Params

KEPT = 2  # versions of its memory a client keeps besides the newest: the server may go back to an earlier checkpoint


@dataclass(frozen=True, eq=False)
class Client:
    """One client of a federation: its examples, its memory on disk.

    The memory is kept by round. The server says which of the client's updates it used last; only that one's memory
    counts, so a reply that was lost, or a server that went back to a checkpoint, leaves both sides in step.
    """

    scene: ClientScene
    root: Path

    def answer(self, kind: str, records: RecordDict) -> RecordDict:
        """Answer one message."""
        known: dict[str, Callable[[RecordDict], RecordDict]] = {
            messages.HELLO: self.hello,
            messages.TRAIN: self.train,
            messages.SCORE: self.score,
            messages.JUDGE: self.judge,
        }
        if kind not in known:
            raise WireError(f'a message of kind "{kind}"; this client knows {", ".join(known)}')
        return known[kind](records)

    def hello(self, records: RecordDict) -> RecordDict:
        """Say who this is."""
        config_of(records)
        scene = self.scene
        if scene.options.private:
            return put_greeting(Greeting(scene.name))
        _, y = scene.population.examples(scene.index)
        if scene.config.forgetting == "off":
            return put_greeting(Greeting(scene.name, len(y)))
        held = scene.population.y[torch.from_numpy(scene.population.held_out.indices(scene.index))]
        train, held_out = (np.bincount(labels.numpy(), minlength=scene.classes) for labels in (y, held))
        return put_greeting(Greeting(scene.name, len(y), train, held_out))

    def train(self, records: RecordDict) -> RecordDict:
        """Train on the client's own examples; see `fedkeep.rounds.client_round`."""
        scene = self.scene
        said = config_of(records)
        store = self._store(said)
        broadcast = messages.take_broadcast(records, scene.method, self._like, scene.options.encodings)
        accepted = whole(said, "accepted", 0, broadcast.round - 1)
        memory, state = self._recall(store, accepted)
        rng = stream(scene.config.seed, "client", broadcast.round, scene.index)
        trainer = scene.trainer()
        outcome = client_round(trainer, broadcast, self._data(), memory, scene.index, rng)
        if scene.config.forgetting != "off":
            self._remember(store, _judged(broadcast.round - 1), broadcast.params, broadcast.buffers)
            self._remember(store, _local(broadcast.round), outcome.params, outcome.buffers)
        store.put(_memory(broadcast.round), outcome.memory)
        self._tidy(store, broadcast.round, accepted)
        update = outcome.update
        if scene.options.private:
            update = replace(update, delta=clipped(update.delta, scene.options.dp_clip))
        return messages.put_update(update, scene.options.encodings, scene.options.private, state)

    def score(self, records: RecordDict) -> RecordDict:
        """The accuracy of each candidate model on this client's training examples."""
        scene = self.scene
        x, y = scene.population.examples(scene.index)
        models = messages.take_models(records, self._like, scene.options.encodings)
        return put_scores([evaluate(scene.model, *model, x, y).accuracy for model in models])

    def judge(self, records: RecordDict) -> RecordDict:
        """How many of the examples this client holds out the new global model has right, and what it had before."""
        scene = self.scene
        if scene.config.forgetting == "off":
            raise WireError("it asks for counts of this client's examples, but forgetting is not measured here")
        said = config_of(records)
        store, number = self._store(said), whole(said, "round", 1, messages.MOST)
        params, buffers = messages.take_model(records, "", self._like, scene.options.encodings)
        probed = messages.take_models(records, self._like, scene.options.encodings)
        if probed and not scene.options.probe:
            raise WireError("it asks to try other clients' models, but --probe is not on")
        if said.get("before") is True:
            opening = messages.take_model(records, "before/", self._like, scene.options.encodings)
            self._remember(store, _judged(number - 1), *opening)
        after = self._remember(store, _judged(number), params, buffers)
        before, local = self._known(store, _judged(number - 1)), self._known(store, _local(number))
        self._tidy(store, number)
        _, y = scene.judged()
        return put_counts(self._count(y.numpy(), before, local, after, probed))

    def _count(self, labels: np.ndarray, before: Any, local: Any, after: np.ndarray, probed: messages.Models) -> Counts:
        scene, classes = self.scene, self.scene.classes
        x, y = scene.judged()

        def by_class(correct: np.ndarray) -> np.ndarray:
            return np.bincount(labels[correct], minlength=classes)

        patterns = models = None
        if before is not None and local is not None:
            patterns = decompose_by(before, local, after, labels, classes).counts
        if probed:
            models = np.stack([by_class(right_of(scene.model, *model, x, y)) for model in probed])
        judged = np.bincount(labels, minlength=classes)
        return Counts(judged, by_class(after), None if before is None else by_class(before), patterns, models)

    @cached_property
    def _like(self) -> tuple[Params, Params]:
        return self.scene.model.initial()

    def _data(self) -> ClientData:
        x, y = self.scene.population.examples(self.scene.index)
        return ClientData(x, y, self.scene.population.class_counts(y))

    def _store(self, said: Mapping[str, Any]) -> Store:
        experiment = said.get("experiment")
        if not isinstance(experiment, str) or not experiment.isalnum() or len(experiment) > 64:
            raise WireError("it does not say which experiment it belongs to")
        return Store.of(self.root, experiment, self.scene.name)

    def _recall(self, store: Store, accepted: int) -> tuple[Memory | None, str]:
        """The memory after the last update that the server used, and what became of it."""
        if accepted == 0:
            return None, "new"
        memory = store.get(_memory(accepted))
        return memory, "lost" if memory is None else "kept"

    def _remember(self, store: Store, key: str, params: Params, buffers: Params) -> np.ndarray:
        """Keep on which judged examples a model is right, one bit for each."""
        correct = right_of(self.scene.model, params, buffers, *self.scene.judged())
        store.put(key, {"bits": pack(correct)}, {"count": len(correct)})
        return correct

    def _known(self, store: Store, key: str) -> np.ndarray | None:
        found = store.read(key)
        judged = len(self.scene.judged()[1])
        if found is None or found[1].get("count") != judged:
            return None  # never judged, or other examples than now
        return unpack(found[0]["bits"], judged)

    def _tidy(self, store: Store, number: int, accepted: int | None = None) -> None:
        """Drop what no server will ask for again: judgements of old rounds, memories of updates that were not used."""
        keys = store.keys()
        useful = [
            key for key in keys if accepted is not None and key.startswith("memory-") and key <= _memory(accepted)
        ]
        for key in keys:
            what, _, when = key.partition("-")
            if what == "memory":
                drop = accepted is not None and key not in (*useful[-KEPT:], _memory(number))
            else:
                drop = when.isdigit() and int(when) < number - KEPT
            if drop:
                store.delete(key)


def _memory(number: int) -> str:
    return f"memory-{number:08d}"


def _judged(number: int) -> str:
    return f"judged-{number:08d}"


def _local(number: int) -> str:
    return f"local-{number:08d}"


def default_store() -> Path:
    """Where a client keeps its memory if its node does not say."""
    return Path(os.environ.get("FEDKEEP_HOME", "~/.fedkeep")).expanduser() / "store"


def client_of(context: Context) -> Client:
    """The client that a SuperNode's --node-config and the run's config describe."""
    config, options = from_run_config(context.run_config)
    node = context.node_config
    name = node.get("name")
    if not isinstance(name, str):
        raise ConfigError("this node has no name; start it with --node-config 'name=\"client-0\"'")
    if threads := node.get("threads"):
        torch.set_num_threads(int(threads))
    scene = client_scene(config, options, name, str(node.get("load", "")))
    store = node.get("store")
    return Client(scene, Path(str(store)).expanduser() if store else default_store())


def make_app() -> ClientApp:
    """The ClientApp of every FedKeep deployment."""
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        with torch.random.fork_rng(devices=[]):
            answer = client_of(context).answer(message.metadata.message_type, message.content)
        return Message(answer, reply_to=message)

    app.train()(handle)
    for kind in (messages.HELLO, messages.SCORE, messages.JUDGE):
        app.query(kind.partition(".")[2])(handle)
    return app


app = make_app()
