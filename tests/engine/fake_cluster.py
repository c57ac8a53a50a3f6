"""A cluster in this process, for tests of who gets which work: it answers in any order, grows, and loses workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedkeep.engine.ray_cluster import Lost
from fedkeep.engine.ray_worker import Greeting, greeting, perform, unpacked
from fedkeep.engine.sealed import Sealed, opened, sealed


class Reference:
    def __init__(self, actor: Actor, work: Callable[[], Any]) -> None:
        self.actor, self.work = actor, work


class Method:
    def __init__(self, actor: Actor, function: Callable[..., Any]) -> None:
        self.actor, self.function = actor, function

    def remote(self, *arguments: Any) -> Reference:
        return Reference(self.actor, lambda: self.function(*arguments))


class Actor:
    """Stands in for a BenchWorker on a node."""

    def __init__(self, cluster: FakeCluster, bench: Sealed, place: str) -> None:
        self.alive, self.place = True, place
        self.greeting = greeting(place, place)
        self.hello = Method(self, lambda: (None, cluster.changed(self.greeting)))
        self.do = Method(self, lambda *work: cluster.do(bench, *work))


class FakeCluster:
    """`trouble` is asked at each answer: None, "worker" or "node"."""

    def __init__(self, cores: int = 2, seed: int = 0, trouble: Callable[[], str | None] = lambda: None) -> None:
        self.count, self.trouble = cores, trouble
        self.rng = np.random.default_rng(seed)
        self.actors: list[Actor] = []
        self.hired = 0
        self.gpus = 0
        self.devices: set[str] = set()
        self.puts: list[Any] = []
        self.given: list[str] = []  # the kinds of work that were done
        self.closed = 0
        self.changed: Callable[[Greeting], Greeting] = lambda met: met
        self.bench: Any = None

    def cores(self, device: str = "cpu") -> int:
        return self.count if device == "cpu" else self.gpus

    def hire(self, kind: type, bench: Sealed, *more: str, device: str = "cpu") -> Actor:
        assert more == (device,)
        self.devices.add(device)
        self.hired += 1
        self.actors.append(Actor(self, bench, f"10.0.0.{self.hired}"))
        return self.actors[-1]

    def dismiss(self, actor: Actor) -> None:
        actor.alive = False
        self.actors.remove(actor)

    def put(self, value: Any) -> Any:
        self.puts.append(value)
        return value

    def ready(self, references: Sequence[Reference], seconds: float) -> list[Reference]:
        chosen = self.rng.permutation(len(references))[: self.rng.integers(1, len(references) + 1)]
        return [references[i] for i in chosen]

    def get(self, reference: Reference) -> Any:
        assert reference.actor.alive, "asked somebody who was dismissed"
        if (how := self.trouble()) is not None:
            raise Lost("killed for the test", how == "node")
        return reference.work()

    def close(self) -> None:
        self.closed += 1

    def do(self, bench: Sealed, kind: str, arguments: tuple, number: int, shared: Sealed, own: Sealed) -> Any:
        if self.bench is None:
            self.bench = unpacked(bench)
        self.given.append(kind)
        answer = perform(self.bench, kind, arguments, opened(shared, own=True), opened(own, own=True))
        return None, sealed(answer)
