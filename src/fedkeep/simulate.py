"""The in-process runtime: rounds, one after another, with forgetting measured on the way."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from fedkeep.data.population import Population
from fedkeep.data.sampling import cohort
from fedkeep.engine.base import Engine, GroupResult
from fedkeep.mechanisms import ForgettingEvents
from fedkeep.method import Answers, Memory, Method
from fedkeep.metrics.measure import Measured, measure
from fedkeep.rng import stream
from fedkeep.rounds import ServerState, ask, broadcast_of, groups, merge, probe_model, server_round

Forgetting = Literal["off", "cohort", "all"]


@dataclass(frozen=True)
class RoundRecord:
    """What one round is remembered by."""

    round: int
    cohort: tuple[int, ...]
    accuracy: float  # of the new global model on the test examples; nan in rounds that were not judged
    loss: float
    validation_accuracy: float  # on the union of what clients hold out; nan if nobody holds anything out
    seconds: float
    bytes_up: int
    bytes_down: int
    left_out: tuple[int, ...]  # clients whose update was not finite
    measured: Measured | None = None

    def row(self) -> dict[str, float]:
        """The record as one row of plain numbers."""
        summary = self.measured.summary if self.measured else {}
        return {
            "round": self.round,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "validation_accuracy": self.validation_accuracy,
            "seconds": self.seconds,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "clients": len(self.cohort),
            "left_out": len(self.left_out),
            **summary,
        }


def with_meter(method: Method, forgetting: Forgetting) -> Method:
    """The method, counting forgettable examples too if forgetting is measured; training stays the same."""
    if forgetting == "off" or any(isinstance(m, ForgettingEvents) for m in method.mechanisms):
        return method
    return replace(method, mechanisms=(*method.mechanisms, ForgettingEvents()))


@dataclass
class Simulation:
    """A federation in one process. `step()` runs one round; state, memories and records are plain values."""

    method: Method
    population: Population
    engine: Engine
    state: ServerState
    seed: int
    cohort_size: int
    forgetting: Forgetting = "cohort"
    judge_every: int = 1
    rounds: int | None = None  # the last round is always judged
    memories: MutableMapping[int, Memory] = field(default_factory=dict)
    _before: np.ndarray | None = None  # who was right before the round, over all judged rows

    def __post_init__(self) -> None:
        everyone = np.arange(len(self.population))
        self._rows, self._owners = self.population.judging_rows(everyone)
        self._labels = self.population.y.numpy()[self._rows]
        # where nobody holds anything out, training examples would stand in: not worth it unless forgetting is measured
        self._judges_clients = self.forgetting != "off" or bool(self.population.held_out.sizes.any())

    def step(self) -> RoundRecord:
        """Run one round."""
        started = time.perf_counter()
        number = self.state.round + 1
        chosen = cohort(self.seed, number, len(self.population), self.cohort_size)
        broadcast = broadcast_of(self.state)
        probed = self._probed(chosen)
        if self.forgetting != "off" and self._before is None:
            self._before = self._judge_clients()
        results = self._train(broadcast, chosen, self._rows[probed])
        bundle = merge(self.method, (result.bundle for result in results))
        answers = self._ask(bundle)
        self.state = server_round(self.method, self.state, bundle, len(self.population), answers)
        for result in results:
            self.memories.update(result.memories)
        due = number == self.rounds or bool(self.judge_every and number % self.judge_every == 0)
        after = self._judge_clients() if self._judges_clients else np.zeros(0, dtype=bool)
        measured = self._measure(number, probed, results, after) if self.forgetting != "off" else None
        self._before = after
        accuracy, loss = self._judge_test() if due else (float("nan"), float("nan"))
        return RoundRecord(
            round=number,
            cohort=tuple(int(k) for k in chosen),
            accuracy=accuracy,
            loss=loss,
            validation_accuracy=float(after.mean()) if len(after) else float("nan"),
            seconds=time.perf_counter() - started,
            bytes_up=sum(fact.bytes_up for fact in bundle.facts),
            bytes_down=broadcast.nbytes * len(chosen),
            left_out=tuple(fact.client for fact in bundle.facts if not fact.finite),
            measured=measured,
        )

    def close(self) -> None:
        """End what the engine started."""
        self.engine.close()

    def _train(self, broadcast, chosen: np.ndarray, rows: np.ndarray) -> list[GroupResult]:
        clients = [[int(chosen[p]) for p in group] for group in groups(len(chosen), self.engine.workers)]
        known = {int(k): self.memories[int(k)] for k in chosen if int(k) in self.memories}
        return list(self.engine.train(broadcast, clients, known, rows))

    def _ask(self, bundle) -> Answers | None:
        """The second exchange with the clients, where the aggregation wants one."""
        rng = stream(self.seed, "probe", self.state.round + 1)
        probe = ask(self.method, self.state, bundle, range(len(self.population)), rng)
        if probe is None:
            return None
        models = [probe_model(self.state, probe, index) for index in range(len(probe.deltas))]
        return Answers(probe, self.engine.score(models, probe.evaluators))

    def _probed(self, chosen: np.ndarray) -> np.ndarray:
        """Which of the judged rows every local model is tried on."""
        if self.forgetting == "all":
            return np.arange(len(self._rows))
        return np.flatnonzero(np.isin(self._owners, chosen)) if self.forgetting == "cohort" else np.zeros(0, np.int64)

    def _judge_clients(self) -> np.ndarray:
        return self.engine.judge(self.state.params, self.state.buffers, "train", self._rows).correct

    def _judge_test(self) -> tuple[float, float]:
        judged = self.engine.judge(self.state.params, self.state.buffers, "test")
        return judged.accuracy, judged.loss / max(1, len(judged.correct))

    def _measure(self, number: int, probed: np.ndarray, results: list[GroupResult], after: np.ndarray) -> Measured:
        local = {client: correct for result in results for client, correct in result.correct.items()}
        facts = [fact for result in results for fact in result.bundle.facts]
        forgettable = {f.client: f.numbers["forgettable"] for f in facts if "forgettable" in f.numbers}
        assert self._before is not None
        return measure(
            number,
            self._labels,
            self._owners,
            self.population.classes,
            self._before,
            local,
            after,
            forgettable,
            probed,
        )
