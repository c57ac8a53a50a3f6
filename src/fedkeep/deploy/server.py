"""Rounds over a network: the server's side of `fedkeep.rounds`, with Flower in between."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict

from fedkeep.bundles import Bundle, collect
from fedkeep.data.sampling import cohort
from fedkeep.deploy import answers as numbers
from fedkeep.deploy import messages
from fedkeep.deploy.answers import Counts
from fedkeep.deploy.exchange import Exchange, Replies
from fedkeep.deploy.meter import measure_counts
from fedkeep.deploy.privacy import Privacy, clipped, unpredictable
from fedkeep.deploy.scene import ServerScene
from fedkeep.deploy.start import start_of
from fedkeep.deploy.wire import WireError
from fedkeep.errors import RunError
from fedkeep.local.evaluate import evaluate
from fedkeep.memories import Memories
from fedkeep.method import Answers, Probe, Update
from fedkeep.metrics.measure import Measured
from fedkeep.rng import stream
from fedkeep.rounds import ServerState, ask, broadcast_of, probe_model, server_round
from fedkeep.simulate import RoundRecord
from fedkeep.tree import Params, add

NOTES = "deployment"  # the slots in which the server remembers things of a client


class TooFewReplies(RunError):
    """A round that cannot be finished; the run can be started again and goes on from the round before."""


@dataclass(frozen=True)
class NetworkRecord(RoundRecord):
    """A round over a network, with what went wrong in it."""

    extra: Mapping[str, float] = field(default_factory=dict)

    def row(self) -> dict[str, float]:
        return super().row() | dict(self.extra)


@dataclass
class NetworkFederation:
    """A federation over a network; goes on round by round as a `Simulation` does.

    `memories` holds what the server must know of each client between rounds: the last round whose update was used, and
    what went wrong with it so far.
    """

    scene: ServerScene
    exchange: Exchange
    experiment: str = field(default_factory=lambda: secrets.token_hex(8))
    noise: np.random.Generator = field(default_factory=unpredictable)
    memories: Memories = field(default_factory=Memories)
    _down: int = 0
    _judges: set[int] = field(default_factory=set)  # clients that have judged the model before this round
    _settled: bool = False

    def __post_init__(self) -> None:
        self.start = start_of(self.scene)
        self.state: ServerState = self.start.state

    @property
    def privacy(self) -> Privacy | None:
        return self.start.privacy

    @property
    def clients(self) -> int:
        return self.scene.config.clients

    def step(self) -> NetworkRecord:
        """Run one round."""
        started, self._down = time.perf_counter(), 0
        number = self.state.round + 1
        self.exchange.group = str(number)
        self._settle()
        chosen = [int(k) for k in cohort(self.scene.config.seed, number, self.clients, self.scene.cohort_size)]
        replies, updates = self._train(number, chosen)
        bundle = self._bundle(chosen, updates)
        answers = self._ask(bundle, number)
        start = self.state
        self.state = server_round(self.scene.method, self.state, bundle, self.clients, answers)
        used = [fact.client for fact in bundle.usable]
        for client in used:
            self._keep(client, "accepted", {"round": torch.tensor(number)})
        counts = self._judge(start, [updates[k] for k in used], chosen)
        accuracy, loss = self._test(number)
        return NetworkRecord(
            round=number,
            cohort=tuple(chosen),
            accuracy=accuracy,
            loss=loss,
            validation_accuracy=_accuracy(counts),
            seconds=time.perf_counter() - started,
            bytes_up=sum(fact.bytes_up for fact in bundle.facts),
            bytes_down=self._down,
            left_out=tuple(fact.client for fact in bundle.facts if not fact.finite),
            measured=self._measure(number, bundle, counts, used),
            extra=self._extra(number, replies),
        )

    def close(self) -> None:
        """Nothing to end here: Flower's processes belong to whoever started them."""

    def accepted(self, client: int) -> int:
        """The last round whose update of this client was used; 0 for none."""
        kept = self._kept(client, "accepted")
        return int(kept["round"]) if kept else 0

    def failures(self) -> list[dict[str, object]]:
        """What went wrong with clients, round by round; also before the run was interrupted."""
        found = [failure for client in self.memories for failure in self._failures(client)]
        return sorted(found, key=lambda failure: (failure["round"], failure["client"]))

    def _failures(self, client: int) -> list[dict[str, Any]]:
        kept = self._kept(client, "failures")
        return json.loads(kept["text"].numpy().tobytes()) if kept else []

    def _kept(self, client: int, what: str) -> Params | None:
        return self.memories.get(client, {}).get(NOTES, {}).get(what)

    def _keep(self, client: int, what: str, values: Params) -> None:
        self.memories[client] = {NOTES: {**self.memories.get(client, {}).get(NOTES, {}), what: values}}

    # -- phases

    def _settle(self) -> None:
        """Once: wait for the clients."""
        if self._settled:
            return
        options = self.scene.options
        self.exchange.wait_for(set(range(self.clients)), options.min_replies, options.start_wait)
        self._settled = True

    def _train(self, number: int, chosen: Sequence[int]) -> tuple[Replies, dict[int, Update]]:
        options = self.scene.options
        self.exchange.wait_for(set(chosen), options.min_replies, 0.0)
        shared = messages.put_broadcast(broadcast_of(self.state), options.encodings)
        requests = {
            k: messages.request(shared, experiment=self.experiment, round=number, accepted=self.accepted(k))
            for k in chosen
        }
        replies = self._phase(messages.TRAIN, requests, self._read_update)
        updates: dict[int, Update] = dict(replies.found)  # type: ignore[arg-type]
        if options.missing == "stop" and replies.failures:
            client, why = next(iter(replies.failures.items()))
            raise TooFewReplies(
                f"round {number}: {self.exchange.who(client)}: {why}; the run stops, as missing=stop says. Start it "
                f"again to go on from round {number - 1}"
            )
        if len(updates) < options.min_replies:
            raise TooFewReplies(
                f"round {number}: {len(updates)} of {len(chosen)} clients answered, min_replies is "
                f"{options.min_replies}. Start the run again to go on from round {number - 1}"
            )
        return replies, updates

    def _read_update(self, client: int, records: RecordDict) -> Update:
        update, memory = messages.take_update(records, client, self.start.trainer, self.start.expected)
        greeted = self.exchange.greetings.get(client)
        if greeted and greeted.examples is not None and update.facts.examples != greeted.examples:
            raise WireError(f"it trained on {update.facts.examples} examples, at first it said {greeted.examples}")
        if memory == "lost":
            self._note(client, "its memory was lost (a new disk?); it begins anew")
        return update

    def _bundle(self, chosen: Sequence[int], updates: Mapping[int, Update]) -> Bundle:
        ordered = [updates[k] for k in chosen if k in updates]
        if self.privacy is None:
            return collect(self.scene.method, ordered)
        clip = self.privacy.clip
        bundle = collect(self.scene.method, [replace(u, delta=clipped(u.delta, clip)) for u in ordered])
        return self.privacy.noised(bundle, self.noise) if bundle.usable else bundle

    def _ask(self, bundle: Bundle, number: int) -> Answers | None:
        """The second exchange with the clients, where the aggregation wants one."""
        if self.scene.method.aggregate.streaming:
            return None
        rng = stream(self.scene.config.seed, "probe", number)
        probe = ask(self.scene.method, self.state, bundle, sorted(self.exchange.online()), rng)
        return None if probe is None else Answers(probe, self._scores(probe))

    def _scores(self, probe: Probe) -> list[list[float]]:
        models = [probe_model(self.state, probe, index) for index in range(len(probe.deltas))]
        packed = [messages.put_models([model], self.scene.options.encodings) for model in models]
        tasks: dict[int, list[int]] = {}
        for index, evaluators in enumerate(probe.evaluators):
            for client in evaluators:
                tasks.setdefault(client, []).append(index)
        requests = {
            client: messages.request(messages.joined([packed[i] for i in indices]), models=len(indices))
            for client, indices in tasks.items()
        }
        replies = self._phase(messages.SCORE, requests, lambda k, records: numbers.take_scores(records, len(tasks[k])))
        found: dict[int, list[float]] = replies.found  # type: ignore[assignment]
        scores = [
            [found[client][tasks[client].index(index)] for client in evaluators if client in found]
            for index, evaluators in enumerate(probe.evaluators)
        ]
        known = [score for row in scores for score in row]
        if not known:
            raise TooFewReplies(f"round {self.state.round + 1}: nobody scored the cluster models; start the run again")
        # a cluster that nobody scored counts as an average one
        return [row or [float(np.mean(known))] for row in scores]

    def _judge(self, start: ServerState, updates: Sequence[Update], chosen: Sequence[int]) -> dict[int, Counts]:
        """The new model, and with --probe the clients' own, on what clients hold out."""
        config, options = self.scene.config, self.scene.options
        if config.forgetting == "off":
            return {}
        shared = RecordDict()
        messages.put_model(shared, "", self.state.params, self.state.buffers, options.encodings)
        tried = [(add(start.params, update.delta), update.buffers) for update in updates] if options.probe else []
        probed, opening = messages.put_models(tried, options.encodings), RecordDict()
        messages.put_model(opening, "before/", start.params, start.buffers, options.encodings)
        trying = {k for k in range(self.clients) if tried and (k in chosen or config.forgetting == "all")}
        knowing = self._judges | {update.facts.client for update in updates}
        requests = {}
        for k in self.exchange.online():
            content = RecordDict({**shared, **(probed if k in trying else {}), **({} if k in knowing else opening)})
            words = {"models": len(tried) if k in trying else 0, "before": k not in knowing}
            requests[k] = messages.request(content, experiment=self.experiment, round=self.state.round, **words)

        def read(client: int, records: RecordDict) -> Counts:
            return numbers.take_counts(records, self.scene.classes, len(tried) if client in trying else 0)

        found: dict[int, Counts] = dict(self._phase(messages.JUDGE, requests, read).found)  # type: ignore[arg-type]
        self._judges = set(found)
        return found

    def _phase(self, kind: str, requests: Mapping[int, RecordDict], read) -> Replies:
        replies = self.exchange.ask(kind, requests, read)
        self._down += replies.bytes_down
        for client, why in replies.missing.items():
            self._note(client, f"no answer ({kind}): {why}")
        for client, why in replies.refused.items():
            self._note(client, f"refused ({kind}): {why}")
        return replies

    # -- measuring

    def _test(self, number: int) -> tuple[float, float]:
        config = self.scene.config
        due = config.judge_every and number % config.judge_every == 0
        if self.scene.test is None or (not due and number != config.rounds):
            return float("nan"), float("nan")
        judged = evaluate(self.scene.model, self.state.params, self.state.buffers, *self.scene.test)
        return judged.accuracy, judged.loss / max(1, len(judged.correct))

    def _measure(
        self, number: int, bundle: Bundle, counts: Mapping[int, Counts], used: Sequence[int]
    ) -> Measured | None:
        if not counts:
            return None
        forgettable = {f.client: f.numbers["forgettable"] for f in bundle.facts if "forgettable" in f.numbers}
        probed = [k for k, found in counts.items() if found.models is not None and found.before is not None]
        return measure_counts(number, self.scene.classes, counts, used, forgettable, probed)

    def _extra(self, number: int, replies: Replies) -> dict[str, float]:
        extra: dict[str, float] = {"missing": len(replies.missing), "refused": len(replies.refused)}
        return extra | ({"epsilon": self.privacy.epsilon(number)} if self.privacy else {})

    def _note(self, client: int, what: str) -> None:
        number = self.state.round + 1
        failure = {"round": number, "client": client, "name": self.exchange.names[client], "what": what}
        text = json.dumps([*self._failures(client), failure]).encode()
        self._keep(client, "failures", {"text": torch.frombuffer(bytearray(text), dtype=torch.uint8)})
        self.exchange.say(f"round {self.exchange.group}: {self.exchange.who(client)}: {what}")


def _accuracy(counts: Mapping[int, Counts]) -> float:
    judged = sum(int(found.judged.sum()) for found in counts.values())
    right = sum(int(found.after.sum()) for found in counts.values())
    return right / judged if judged else float("nan")
