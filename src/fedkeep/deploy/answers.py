"""The answers of clients that are numbers only: who they are, how good models are on their examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict

from fedkeep.deploy.messages import MOST, about
from fedkeep.deploy.wire import WireError, config_of, counts, numbers_of, only, shown, whole

PATTERNS = 8  # right or wrong before, locally, after


@dataclass(frozen=True)
class Greeting:
    """What a client says of itself; label counts only where forgetting is measured."""

    name: str
    examples: int | None = None
    train: np.ndarray | None = None
    held_out: np.ndarray | None = None


def put_greeting(greeting: Greeting) -> RecordDict:
    records = RecordDict({"about": about(name=greeting.name)})
    numbers: dict[str, Any] = {} if greeting.examples is None else {"examples": greeting.examples}
    if greeting.train is not None and greeting.held_out is not None:
        numbers |= {"train": greeting.train.tolist(), "held_out": greeting.held_out.tolist()}
    records["numbers"] = MetricRecord(numbers)
    return records


def take_greeting(records: RecordDict, classes: int, private: bool, measured: bool) -> Greeting:
    only(records, {"about", "numbers"})
    name = config_of(records).get("name")
    if not isinstance(name, str):
        raise WireError("it does not say its name")
    numbers = numbers_of(records, "numbers")
    if private:
        return Greeting(name)
    examples = whole(numbers, "examples", 1, MOST)
    if not measured:
        return Greeting(name, examples)
    train, held_out = (counts(numbers, key, classes, MOST) for key in ("train", "held_out"))
    if train.sum() != examples:
        raise WireError(f"its labels count {train.sum()} examples, it says it has {examples}")
    return Greeting(name, examples, train, held_out)


def put_scores(scores: Sequence[float]) -> RecordDict:
    return RecordDict({"about": about(), "scores": MetricRecord({str(n): float(s) for n, s in enumerate(scores)})})


def take_scores(records: RecordDict, count: int) -> list[float]:
    only(records, {"about", "scores"})
    config_of(records)
    found = numbers_of(records, "scores")
    if set(found) != {str(number) for number in range(count)}:
        raise WireError(f"it sends {len(found)} scores for {count} models")
    scores = [found[str(number)] for number in range(count)]
    if any(isinstance(s, bool) or not isinstance(s, int | float) or not 0 <= s <= 1 for s in scores):
        raise WireError(f"its scores {shown(scores)} are no accuracies")
    return [float(score) for score in scores]  # type: ignore[arg-type]


@dataclass(frozen=True)
class Counts:
    """How many of a client's judged examples are right, by class; None where the client cannot know."""

    judged: np.ndarray
    after: np.ndarray
    before: np.ndarray | None = None
    patterns: np.ndarray | None = None  # [before, local, after, class]
    models: np.ndarray | None = None  # [model, class]


def put_counts(found: Counts) -> RecordDict:
    numbers: dict[str, Any] = {}
    for name in ("judged", "after", "before", "patterns", "models"):
        value = getattr(found, name)
        if value is not None:
            numbers[name] = value.ravel().tolist()
    return RecordDict({"about": about(), "counts": MetricRecord(numbers)})


def take_counts(records: RecordDict, classes: int, models: int) -> Counts:
    """A client's counts; they must agree with each other."""
    only(records, {"about", "counts"})
    config_of(records)
    numbers = numbers_of(records, "counts")
    judged = counts(numbers, "judged", classes, MOST)
    after = _within(numbers, "after", judged)
    before = _within(numbers, "before", judged) if "before" in numbers else None
    patterns = tried = None
    if "patterns" in numbers:
        patterns = counts(numbers, "patterns", PATTERNS * classes, MOST).reshape(2, 2, 2, classes)
        same = before is not None and (patterns[1].sum((0, 1)) == before).all()
        if not same or (patterns.sum((0, 1, 2)) != judged).any() or (patterns[:, :, 1].sum((0, 1)) != after).any():
            raise WireError("its counts before, after and by pattern contradict each other")
    if models:
        tried = counts(numbers, "models", models * classes, MOST).reshape(models, classes)
        if (tried > judged).any():
            raise WireError("it counts more right examples than it judges")
    return Counts(judged, after, before, patterns, tried)


def _within(numbers: Mapping[str, Any], key: str, judged: np.ndarray) -> np.ndarray:
    found = counts(numbers, key, len(judged), MOST)
    if (found > judged).any():
        raise WireError(f"it counts more right examples ({key}) than it judges")
    return found
