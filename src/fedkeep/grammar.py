"""Method names <-> methods.

    method = term { "+" term } [ "@" server optimiser ]        term = name [ "(" key=value, ... ")" ]

    fedavg   fedavg+wsm   fedprox(mu=0.01)+tce   scaffold+wsm   fedwavg(alpha=0.3)+wsm   fedwagg(clusters=3)
    importance(lam=1e5)   fedavg+ewc(lam=10)   fednova+wsm@adam(lr=0.01)

A term may bring a loss, mechanisms, or an aggregation. Two losses, two aggregations or one mechanism twice are
refused; every other combination is a method.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedkeep import aggregation, losses, mechanisms, server_opt
from fedkeep.calls import format_call, parse_call
from fedkeep.errors import ConfigError, nearest
from fedkeep.method import Aggregator, Loss, Mechanism, Method, Part, ServerOptimizer


@dataclass(frozen=True)
class Term:
    """What one term of a method name brings along."""

    loss: Loss | None = None
    mechanisms: tuple[Mechanism, ...] = ()
    aggregate: Aggregator | None = None
    default_aggregate: Aggregator | None = None  # used when no other term brings one


def _fedavg(weights: str = "examples") -> Term:
    return Term(default_aggregate=aggregation.WeightedMean(weights))


def _fedprox(mu: float) -> Term:
    return Term(mechanisms=(mechanisms.Proximal(mu),))


def _scaffold(weights: str = "uniform") -> Term:
    return Term(mechanisms=(mechanisms.Scaffold(),), default_aggregate=aggregation.WeightedMean(weights))


def _fedwavg(alpha: float, event_period: int = 1) -> Term:
    return Term(mechanisms=(mechanisms.ForgettingEvents(event_period),), aggregate=aggregation.FedWAvg(alpha))


def _importance(lam: float, gamma: float = 0.9, explicit: bool = False, walk: bool = False) -> Term:
    kind = mechanisms.RWalk if walk else mechanisms.EWC
    return Term(mechanisms=(kind(lam, gamma, explicit),), aggregate=aggregation.Importance())


def _of_mechanism(kind: type) -> Callable[..., Term]:
    return _like(kind, lambda part: Term(mechanisms=(part,)))


def _of_loss(kind: type) -> Callable[..., Term]:
    return _like(kind, lambda part: Term(loss=part))


def _of_aggregator(kind: type) -> Callable[..., Term]:
    return _like(kind, lambda part: Term(aggregate=part))


def _like(kind: type, wrap: Callable[[Any], Term]) -> Callable[..., Term]:
    def make(**options: Any) -> Term:
        return wrap(kind(**options))

    make.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
    make.__doc__ = kind.__doc__
    return make


TERMS: dict[str, Callable[..., Term]] = {
    "fedavg": _fedavg,
    "fedprox": _fedprox,
    "scaffold": _scaffold,
    "fednova": _of_aggregator(aggregation.FedNova),
    "fedwavg": _fedwavg,
    "fedwagg": _of_aggregator(aggregation.FedWAgg),
    "importance": _importance,
    "ewc": _of_mechanism(mechanisms.EWC),
    "rwalk": _of_mechanism(mechanisms.RWalk),
    "events": _of_mechanism(mechanisms.ForgettingEvents),
    "ce": _of_loss(losses.CrossEntropy),
    "tce": _of_loss(losses.Truncated),
    "wsm": _of_loss(losses.WeightedSoftmax),
    "fedrs": _of_loss(losses.FedRS),
    "fedlc": _of_loss(losses.FedLC),
}

SERVER: dict[str, type[ServerOptimizer]] = {
    kind.name: kind
    for kind in (
        server_opt.ServerSGD,
        server_opt.ServerMomentum,
        server_opt.ServerAdam,
        server_opt.ServerYogi,
        server_opt.ServerAdagrad,
    )
}

DESCRIBES: dict[str, type[Part]] = {
    "fedavg": aggregation.WeightedMean,
    "fedprox": mechanisms.Proximal,
    "scaffold": mechanisms.Scaffold,
    "fednova": aggregation.FedNova,
    "fedwavg": aggregation.FedWAvg,
    "fedwagg": aggregation.FedWAgg,
    "importance": aggregation.Importance,
    "ewc": mechanisms.EWC,
    "rwalk": mechanisms.RWalk,
    "events": mechanisms.ForgettingEvents,
    "ce": losses.CrossEntropy,
    "tce": losses.Truncated,
    "wsm": losses.WeightedSoftmax,
    "fedrs": losses.FedRS,
    "fedlc": losses.FedLC,
}
"""The part whose docstring explains a term."""


def parse(text: str | Method) -> Method:
    """The method of a name; a method stays what it is.

    >>> name_of(parse("fedprox( mu = 0.010 ) + wsm"))
    'fedprox(mu=0.01)+wsm'
    >>> parse("fedprox+wsm")
    Traceback (most recent call last):
    ...
    fedkeep.errors.ConfigError: fedprox needs mu; write e.g. fedprox(mu=...)
    """
    if isinstance(text, Method):
        return text
    front, at, behind = text.partition("@")
    if "@" in behind:
        raise ConfigError(f'method "{text}" has two server optimisers; keep one after a single "@"')
    if not front.strip():
        raise ConfigError(f'method "{text}" is empty; name at least one term, e.g. "fedavg"')
    terms = [_term(part) for part in _split(front)]
    optimizer = server_opt.ServerSGD()
    if at:
        name, options = parse_call(behind, "server optimiser")
        if name not in SERVER:
            raise ConfigError(f'unknown server optimiser "{name}": {nearest(name, SERVER)}')
        optimizer = _call(name, SERVER[name], options)
    return _compose(text, terms, optimizer)


def _split(front: str) -> list[str]:
    """Cut at the plus signs outside brackets (1e+06 has one inside)."""
    pieces, depth = [""], 0
    for letter in front:
        depth += (letter == "(") - (letter == ")")
        if letter == "+" and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return pieces


def _term(text: str) -> Term:
    name, options = parse_call(text, "method")
    if name not in TERMS:
        raise ConfigError(f'unknown method "{name}": {nearest(name, TERMS)} ("fedkeep methods" lists all)')
    return _call(name, TERMS[name], options)


def _call(name: str, maker: Callable[..., Any], options: dict[str, Any]) -> Any:
    known = inspect.signature(maker).parameters
    for key in options:
        if key not in known:
            hint = nearest(key, known) if known else f"{name} takes no options"
            raise ConfigError(f'{name} has no option "{key}": {hint}')
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in options:
            raise ConfigError(f"{name} needs {key}; write e.g. {name}({key}=...)")
    return maker(**{key: _typed(name, key, value, known[key].annotation) for key, value in options.items()})


def _typed(name: str, key: str, value: Any, annotation: Any) -> Any:
    kind = str(annotation)
    if value is None and "None" in kind:
        return value
    if "float" in kind and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name}({key}={value}): {key} must be a finite number")
    wanted = next((word for word in ("bool", "int", "float", "str") if word in kind), "")
    fits = {"bool": bool, "int": int, "float": float, "str": str}.get(wanted, object)
    if not isinstance(value, fits) or (isinstance(value, bool) and wanted in ("int", "float")):
        raise ConfigError(f"{name}({key}={value}): {key} must be of type {wanted}")
    return value


def _compose(text: str, terms: list[Term], optimizer: ServerOptimizer) -> Method:
    found_losses = [term.loss for term in terms if term.loss]
    aggregates = [term.aggregate for term in terms if term.aggregate]
    parts = [mechanism for term in terms for mechanism in term.mechanisms]
    for what, found in (("losses", found_losses), ("aggregations", aggregates)):
        if len(found) > 1:
            raise ConfigError(f'method "{text}" has two {what}, {found[0].name} and {found[1].name}; keep one')
    names = [_family(mechanism) for mechanism in parts]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f'method "{text}" has {", ".join(sorted(twice))} twice; keep one')
    defaults = [term.default_aggregate for term in terms if term.default_aggregate]
    # the last word decides: fedavg+scaffold is scaffold
    aggregate = [aggregation.WeightedMean(), *defaults, *aggregates][-1]
    # one order, so that "wsm+scaffold+fedprox(mu=1)" and every other spelling are the same method to the last bit
    ordered = tuple(sorted(parts, key=lambda mechanism: list(TERMS).index(mechanism.name)))
    return Method(found_losses[0] if found_losses else losses.ce, aggregate, optimizer, ordered)


def _family(mechanism: Mechanism) -> str:
    return "ewc or rwalk" if isinstance(mechanism, mechanisms.EWC) else mechanism.name


def name_of(method: Method) -> str:
    """The canonical name of a method; `parse` reads it back as an equal method.

    >>> name_of(parse("wsm + scaffold @ adam(lr=0.010)"))
    'scaffold+wsm@adam(lr=0.01)'
    """
    left = list(method.mechanisms)
    words = [_base(method.aggregate, left)]
    words += [mechanism.term() for mechanism in left]
    if words[0] == "fedavg" and len(words) > 1 and left[0].name in ("fedprox",):
        words = words[1:]
    if method.loss != losses.ce:
        words.append(method.loss.term())
    optimizer = "" if method.server_opt == server_opt.ServerSGD() else "@" + method.server_opt.term()
    return "+".join(words) + optimizer


def _base(aggregate: Aggregator, left: list[Mechanism]) -> str:
    """The first word of a name; takes the mechanisms it stands for out of `left`."""

    def take(kind: type) -> Mechanism | None:
        found = next((mechanism for mechanism in left if isinstance(mechanism, kind)), None)
        if found:
            left.remove(found)
        return found

    if isinstance(aggregate, aggregation.FedWAvg):
        events = take(mechanisms.ForgettingEvents)
        return format_call("fedwavg", {**aggregate.options(), **(events.options() if events else {})})
    if isinstance(aggregate, aggregation.Importance):
        fisher = take(mechanisms.EWC)
        walk = {"walk": True} if isinstance(fisher, mechanisms.RWalk) else {}
        return format_call("importance", {**(fisher.options() if fisher else {}), **walk})
    if isinstance(aggregate, aggregation.WeightedMean):
        name, usual = ("scaffold", "uniform") if take(mechanisms.Scaffold) else ("fedavg", "examples")
        return format_call(name, {} if aggregate.weights_by == usual else {"weights": aggregate.weights_by})
    return aggregate.term()
