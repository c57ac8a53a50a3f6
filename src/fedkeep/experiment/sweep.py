"""Grids of settings: what is tried, what may be chosen, and what the choice is.

Two kinds of options are swept. *Tuned* ones (learning rate, strength of a penalty) belong to a method: each method gets
its best, chosen on validation data. All others (heterogeneity, cohort size, local epochs) are *conditions*: they make
another problem or another budget, so methods are compared within each of them, and none is chosen.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedkeep.calls import format_value, parse_value
from fedkeep.errors import ConfigError, nearest
from fedkeep.experiment.config import HINTS, Config, method_options
from fedkeep.experiment.statistics import mean_interval

TUNED = ("lr", "momentum", "weight_decay", "optimizer", "norm", "freeze")
FIXED = {"method": "name several methods", "seed": "use seeds"}  # not swept, and what to do in place of it
Setting = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Arm:
    """One method with one setting, to be run with every seed."""

    label: str  # the method, swept options as *; with a number behind it where it was given twice
    setting: Setting
    config: Config

    @property
    def folder(self) -> str:
        """The name of its directory: readable, and the same every time."""
        outside = [(key, value) for key, value in self.setting if not key.startswith("method.")]
        return slug(",".join([self.config.method, *(f"{key}={format_value(value)}" for key, value in outside)]))

    @property
    def condition(self) -> Setting:
        return tuple((key, value) for key, value in self.setting if not is_tuned(key))


def is_tuned(key: str) -> bool:
    """Whether an option belongs to the method, so that each method may have its best."""
    return key in TUNED or key.startswith("method.")


def in_words(setting: Iterable[tuple[str, Any]]) -> str:
    """A setting as text.

    >>> in_words((("lr", 0.1), ("partition.alpha", 1)))
    'lr=0.1, partition.alpha=1'
    """
    return ", ".join(f"{key}={format_value(value)}" for key, value in setting)


def slug(text: str) -> str:
    """A text as the name of a directory.

    >>> slug("fedprox(mu=0.01)+tce,lr=0.1")
    'fedprox-mu-0.01+tce,lr-0.1'
    """
    name = text.replace(", ", "-").replace("(", "-").replace("=", "-").replace(")", "")
    safe = re.sub(r"[^A-Za-z0-9._+@,-]", "_", name)[:120]
    return safe if safe == name else f"{safe}-{hashlib.blake2b(text.encode(), digest_size=3).hexdigest()}"


def parse_sets(texts: Iterable[str]) -> dict[str, list[Any]]:
    """The values of `--set key=value,value` options; commas inside brackets do not count.

    >>> parse_sets(["lr=0.01,0.1", "partition=iid,shards(shards_per_client=2)"])
    {'lr': [0.01, 0.1], 'partition': ['iid', 'shards(shards_per_client=2)']}
    """
    sets: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise ConfigError(f'set "{text}" names no values; write it as --set lr=0.01,0.1')
        if key.strip() in sets:
            raise ConfigError(f"set {key.strip()} is given twice; give all its values at once")
        sets[key.strip()] = [parse_value(v.strip()) for v in re.split(r",(?![^(]*\))", values)]
    return sets


def checked_sets(sets: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The swept values, strictly: known options, lists without repetition; tables within are taken apart."""
    flat: dict[str, list[Any]] = {}
    for key, values in sets.items():
        if isinstance(values, Mapping):
            flat |= checked_sets({f"{key}.{inner}": value for inner, value in values.items()})
            continue
        head, dot, _ = key.partition(".")
        if head not in HINTS:
            raise ConfigError(f'set: unknown option "{key}": {nearest(key, HINTS)}')
        if head in FIXED and not dot:
            raise ConfigError(f"set: {key} cannot be swept; {FIXED[key]} instead")
        if head not in Config().identity():
            raise ConfigError(f"set: {key} changes nothing that is computed; leave it away")
        given = values if isinstance(values, list | tuple) else [values]
        if not given or any(value in given[:place] for place, value in enumerate(given)):
            raise ConfigError(f"set: {key} has {'a value twice' if given else 'no value'}; list each value once")
        flat[key] = list(given)
    return flat


def grid(methods: Sequence[str], sets: Mapping[str, Sequence[Any]], base: Config) -> list[Arm]:
    """Every method with every combination of the swept values; `method.` options only where a method has them."""
    if not methods:
        raise ConfigError("no method to compare; name at least one, e.g. fedavg fedavg+wsm")
    arms: list[Arm] = []
    taken: dict[str, int] = {}
    used: set[str] = set()
    for text in methods:
        plain = base.with_options({"method": text})
        options = method_options(plain.method)
        keys = [k for k in sets if not k.startswith("method.") or k.removeprefix("method.") in options]
        used.update(keys)
        label = plain.method
        for key in keys:
            if key.startswith("method."):
                label = re.sub(rf"\b{key.removeprefix('method.')}=[^,)]*", f"{key.removeprefix('method.')}=*", label)
        taken[label] = taken.get(label, 0) + 1
        label += f" ({taken[label]})" if taken[label] > 1 else ""
        for values in itertools.product(*(sets[key] for key in keys)):
            setting = tuple(zip(keys, values, strict=True))
            arms.append(Arm(label, setting, plain.with_options(dict(setting))))
    if unused := sorted(set(sets) - used):
        raise ConfigError(f"set: no method here has {unused[0].removeprefix('method.')}; leave {unused[0]} away")
    return arms


def choose(arms: Sequence[Arm], validation: Mapping[int, Sequence[float]], keep: str = "") -> list[int]:
    """For each method and condition, the arm with the best mean validation accuracy, as positions in `arms`.

    `validation[arm]` holds one number per finished seed. An arm that lacks seeds is chosen only where no other has
    more. `keep` is an option whose values are told apart too, tuned or not.
    """
    best: dict[Any, int] = {}
    for place, arm in enumerate(arms):
        found = validation.get(place, ())
        if not len(found):
            continue
        group = (arm.label, arm.condition, dict(arm.setting).get(keep))
        here = best.get(group)
        if here is None or _score(found) > _score(validation[here]):
            best[group] = place
    return sorted(best.values())


def _score(validation: Sequence[float]) -> tuple[int, float]:
    return len(validation), sum(validation) / len(validation)


def sensitivity(arms: Sequence[Arm], frame: pd.DataFrame) -> pd.DataFrame:
    """Test accuracy against each swept value, for each method.

    Other tuned options stand at their best (chosen on validation accuracy), other conditions are told apart in `at`.
    """
    by_arm = {int(place): rows for place, rows in frame.groupby("arm")}  # type: ignore[call-overload]
    validation = {place: rows["validation"].tolist() for place, rows in by_arm.items()}
    table = []
    for key in dict.fromkeys(key for arm in arms for key, _ in arm.setting):
        for place in choose(arms, validation, keep=key):
            arm = arms[place]
            setting = dict(arm.setting)
            if key not in setting:
                continue
            final = mean_interval(by_arm[place]["final"])
            table.append(
                {
                    "option": key,
                    "value": setting[key],
                    "method": arm.label,
                    "at": in_words((k, v) for k, v in arm.condition if k != key),
                    "chosen": in_words((k, v) for k, v in arm.setting if is_tuned(k) and k != key),
                    "final": final.mean,
                    "final_low": final.low,
                    "final_high": final.high,
                    "seeds": final.count,
                }
            )
    columns = ("option", "value", "method", "at", "chosen", "final", "final_low", "final_high", "seeds")
    return pd.DataFrame(table, columns=list(columns))
