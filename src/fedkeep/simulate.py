"""The in-process runtime: rounds, one after another, with forgetting measured on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from fedkeep.bundles import Bundle, groups, merge, together
from fedkeep.data.availability import Availability
from fedkeep.data.population import LISTED, Population
from fedkeep.engine.base import Engine
from fedkeep.mechanisms import ForgettingEvents
from fedkeep.memories import Memories
from fedkeep.method import Answers, Facts, Method
from fedkeep.metrics.measure import Measured, measure
from fedkeep.rng import stream
from fedkeep.rounds import Broadcast, ServerState, ask, broadcast_of, probe_model, server_round

Forgetting = Literal["off", "cohort", "all"]
PANEL = 1000  # clients on whose examples every global model is judged, where there are more


@dataclass(frozen=True)
class RoundRecord:
    """What one round is remembered by."""

    round: int
    cohort: tuple[int, ...]
    accuracy: float  # of the new global model on the test examples; nan in rounds that were not judged
    loss: float
    validation_accuracy: float  # on what the clients of the panel hold out; nan if nobody holds anything out
    seconds: float
    bytes_up: int
    bytes_down: int
    left_out: tuple[int, ...]  # clients whose update was not finite
    measured: Measured | None = None
    dropped: tuple[int, ...] = ()  # clients of the cohort that sent nothing back in time
    slow: tuple[int, ...] = ()  # clients of the cohort that did a part of their work

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
            "dropped": len(self.dropped),
            "slow": len(self.slow),
            **summary,
        }


def with_meter(method: Method, forgetting: Forgetting) -> Method:
    """The method, counting forgettable examples too if forgetting is measured; training stays the same."""
    if forgetting == "off" or any(isinstance(m, ForgettingEvents) for m in method.mechanisms):
        return method
    return replace(method, mechanisms=(*method.mechanisms, ForgettingEvents()))


@dataclass(frozen=True)
class _Cohort:
    """Who is chosen in a round, and how much of the work each does."""

    chosen: np.ndarray
    work: np.ndarray

    @property
    def present(self) -> np.ndarray:
        """Those whose update comes back."""
        return self.chosen[self.work > 0]

    @property
    def dropped(self) -> tuple[int, ...]:
        return tuple(self.chosen[self.work == 0].tolist())

    @property
    def slow(self) -> tuple[int, ...]:
        return tuple(self.chosen[(self.work > 0) & (self.work < 1)].tolist())


@dataclass(frozen=True)
class _Judging:
    """The rows on which models are judged in a round: those of the panel, then those of the cohort's other clients."""

    rows: np.ndarray
    owners: np.ndarray
    fixed: int  # so many are the panel's
    probed: np.ndarray  # positions of the rows on which local models are tried


@dataclass
class _Arrived:
    """What is kept of the clients' results when their models have been added up."""

    facts: list[Facts] = field(default_factory=list)
    correct: dict[int, np.ndarray] = field(default_factory=dict)


@dataclass
class Simulation:
    """A federation in one process. `step()` runs one round; state, memories and records are plain values.

    Models are added up as they arrive. Every global model is judged on the examples of the same `panel` clients
    (0: of everyone), in rounds with forgetting on those of the cohort as well.
    """

    method: Method
    population: Population
    engine: Engine
    state: ServerState
    seed: int
    cohort_size: int
    forgetting: Forgetting = "cohort"
    judge_every: int = 1
    rounds: int | None = None  # the last round is always judged
    memories: Memories = field(default_factory=Memories)
    availability: Availability = field(default_factory=Availability)
    panel: int = PANEL
    _before: np.ndarray | None = None  # who was right before the round, over the rows of the panel

    def __post_init__(self) -> None:
        panel = self.population.panel(self.panel, self.seed)
        self._panel = _Judging(*self.population.judging_rows(panel), 0, np.zeros(0, np.int64))
        # where nobody holds anything out, training examples would stand in: not worth it unless forgetting is measured
        self._judges_clients = self.forgetting != "off" or self.population.holds_out(panel)

    def step(self) -> RoundRecord:
        """Run one round; if that fails, everything is as it was before."""
        before = self.state, self._before
        self.memories.begin(self.state.round + 1)
        try:
            return self._round(time.perf_counter(), self.state.round + 1)
        except BaseException:
            self.state, self._before = before
            self.memories.undo()
            raise

    def _round(self, started: float, number: int) -> RoundRecord:
        cohort = self._cohort(number)
        judging = self._judging(cohort.present)
        in_turn = together(len(cohort.present)) if self.engine.bench.trainer.room else 1
        broadcast = replace(broadcast_of(self.state), together=in_turn)
        before = self._before_round(judging) if self.forgetting != "off" else None
        arrived = _Arrived()
        bundle = merge(self.method, self._train(broadcast, cohort.present, judging, arrived))
        self.state = self._next_state(bundle, cohort, number)
        due = number == self.rounds or bool(self.judge_every and number % self.judge_every == 0)
        after = self._judge(judging) if self._judges_clients else np.zeros(0, dtype=bool)
        self._before = after[: judging.fixed]
        accuracy, loss = self._judge_test() if due else (float("nan"), float("nan"))
        return RoundRecord(
            round=number,
            cohort=tuple(int(k) for k in cohort.chosen),
            accuracy=accuracy,
            loss=loss,
            validation_accuracy=float(self._before.mean()) if len(self._before) else float("nan"),
            seconds=time.perf_counter() - started,
            bytes_up=sum(fact.bytes_up for fact in bundle.facts),
            bytes_down=broadcast.nbytes * len(cohort.chosen),
            left_out=tuple(fact.client for fact in bundle.facts if not fact.finite),
            measured=None if before is None else self._measure(number, judging, arrived, before, after),
            dropped=cohort.dropped,
            slow=cohort.slow,
        )

    def close(self) -> None:
        """End what the engine started."""
        self.engine.close()

    def _cohort(self, number: int) -> _Cohort:
        chosen = self.availability.cohort(self.seed, number, len(self.population), self.cohort_size)
        work = [self.availability.work(self.seed, number, int(client)) for client in chosen]
        return _Cohort(chosen, np.array(work, dtype=float))

    def _train(
        self, broadcast: Broadcast, present: np.ndarray, judging: _Judging, arrived: _Arrived
    ) -> Iterator[Bundle]:
        """The clients' updates as they arrive; memories go where memories are kept, models are not held."""
        blocks = groups(len(present), self.engine.workers, broadcast.together)
        clients = [[int(present[place]) for place in block] for block in blocks]
        for result in self.engine.train(broadcast, clients, self.memories, judging.rows[judging.probed]):
            self.memories.update(result.memories)
            arrived.correct.update(result.correct)
            arrived.facts.extend(result.bundle.facts)
            yield result.bundle

    def _next_state(self, bundle: Bundle, cohort: _Cohort, number: int) -> ServerState:
        if not bundle.facts:  # nobody was there
            return replace(self.state, round=number)
        return server_round(self.method, self.state, bundle, len(self.population), self._ask(bundle, cohort))

    def _ask(self, bundle: Bundle, cohort: _Cohort) -> Answers | None:
        """The second exchange with the clients, where the aggregation wants one."""
        number = self.state.round + 1
        probe = ask(
            self.method, self.state, bundle, self._reachable(cohort, number), stream(self.seed, "probe", number)
        )
        if probe is None:
            return None
        models = [probe_model(self.state, probe, index) for index in range(len(probe.deltas))]
        return Answers(probe, self.engine.score(models, probe.evaluators))

    def _reachable(self, cohort: _Cohort, number: int) -> Sequence[int]:
        """Whom a second exchange may ask: who is online and has not vanished; of a large population a random part."""
        everyone = len(self.population)
        if self.availability.online == 1 and not cohort.dropped:
            return range(everyone)
        online = self.availability.cohort(self.seed, number, everyone, min(everyone, LISTED))
        return np.setdiff1d(online, cohort.dropped).tolist()

    def _judging(self, present: np.ndarray) -> _Judging:
        panel = self._panel
        if self.forgetting == "off":
            return replace(panel, fixed=len(panel.rows))
        others = np.setdiff1d(present, panel.owners)
        more, owners = self.population.judging_rows(others)
        rows, owners = np.concatenate([panel.rows, more]), np.concatenate([panel.owners, owners])
        probed = np.arange(len(rows)) if self.forgetting == "all" else np.flatnonzero(np.isin(owners, present))
        return _Judging(rows, owners, len(panel.rows), probed)

    def _before_round(self, judging: _Judging) -> np.ndarray:
        """Who is right before the round; of the panel that is known from the round before."""
        if self._before is None or len(self._before) != judging.fixed:
            return self._judge(judging)
        return np.concatenate([self._before, self._right(judging.rows[judging.fixed :])])

    def _judge(self, judging: _Judging) -> np.ndarray:
        # the panel on its own: how rows are cut into batches must not depend on the cohort
        return np.concatenate([self._right(judging.rows[: judging.fixed]), self._right(judging.rows[judging.fixed :])])

    def _right(self, rows: np.ndarray) -> np.ndarray:
        if not len(rows):
            return np.zeros(0, dtype=bool)
        return self.engine.judge(self.state.params, self.state.buffers, "train", rows).correct

    def _judge_test(self) -> tuple[float, float]:
        judged = self.engine.judge(self.state.params, self.state.buffers, "test")
        return judged.accuracy, judged.loss / max(1, len(judged.correct))

    def _measure(
        self, number: int, judging: _Judging, arrived: _Arrived, before: np.ndarray, after: np.ndarray
    ) -> Measured:
        return measure(
            number,
            self.population.y.numpy()[judging.rows],
            judging.owners,
            self.population.classes,
            before,
            arrived.correct,
            after,
            {f.client: f.numbers["forgettable"] for f in arrived.facts if "forgettable" in f.numbers},
            judging.probed,
        )
