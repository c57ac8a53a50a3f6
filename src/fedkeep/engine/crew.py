"""The workers of a cluster: as many as it has cores, more when it grows, fewer when a node is lost."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedkeep.engine.ray_cluster import Lost
from fedkeep.engine.ray_worker import Greeting, greeting
from fedkeep.errors import ConfigError, RunError

LOOK = 2.0  # seconds between two looks at the size of the cluster
PATIENCE = 1800.0  # seconds without any worker before a run is given up
HINT = 15.0  # seconds before we say what we are waiting for
FAILED_STARTS = 3  # so many in a row, and no worker will ever start


class Workplace(Protocol):
    """What a crew needs of a cluster."""

    def cores(self) -> int: ...

    def dismiss(self, actor: Any) -> None: ...

    def ready(self, references: Sequence[Any], seconds: float) -> list[Any]: ...

    def get(self, reference: Any) -> Any: ...


@dataclass(eq=False)
class Member:
    """One worker: an actor, where it is, and the pieces of work that it has, oldest first."""

    actor: Any
    hello: Any  # the reference of its greeting
    greeting: Greeting | None = None
    work: dict[Any, int] = field(default_factory=dict)  # reference of the answer -> number of the piece


class Crew:
    """All workers of a run, those that are still starting among them."""

    def __init__(
        self,
        cluster: Workplace,
        hire: Callable[[], Any],
        most: int = 0,
        cores: Callable[[], int] | None = None,  # how many workers there could be; else one per core
    ) -> None:
        self.members: list[Member] = []
        self._cores = cores or cluster.cores
        self._cluster, self._hire, self._most = cluster, hire, most
        self._looked = -LOOK
        self._alone: float | None = None  # since when there is nobody
        self._hinted = False
        self._failed = 0
        self._lost_nodes: set[str] = set()
        self._other_processors: set[str] = set()

    @property
    def ready(self) -> list[Member]:
        return [member for member in self.members if member.greeting]

    def look(self, at_once: bool = False) -> None:
        """Hire for cores that have appeared, and no longer wait for those that are gone."""
        now = time.monotonic()
        if not at_once and now - self._looked < LOOK:
            return
        self._looked = now
        wanted = self._most or self._cores()
        for member in [m for m in self.members if m.greeting is None][: max(0, len(self.members) - wanted)]:
            self._remove(member)
        while len(self.members) < wanted:
            actor = self._hire()
            self.members.append(Member(actor, actor.hello.remote()))

    def wait(self, seconds: float = 1.0) -> list[tuple[Member, Any]]:
        """Let something happen: the members that have an answer, and its reference. New members are greeted."""
        self.look()
        self._patience()
        owner = {ref: m for m in self.members for ref in ([*m.work] if m.greeting else [m.hello])}
        if not owner:
            time.sleep(min(seconds, 0.2))
            return []
        answers = []
        for reference in self._cluster.ready(list(owner), seconds):
            member = owner[reference]
            if member.greeting:
                answers.append((member, reference))
            else:
                self._greet(member)
        return answers

    def lose(self, member: Member, lost: Lost) -> list[int]:
        """Go on without a member: the pieces of work that it leaves. The user is told once per node."""
        self._remove(member)
        place = member.greeting.place if member.greeting else "?"
        node = member.greeting.node if member.greeting else "?"
        if lost.node and node not in self._lost_nodes:
            self._lost_nodes.add(node)
            say(f"node {place} no longer answers; its clients are trained elsewhere")
        elif not lost.node:
            say(f"a worker on node {place} died ({lost}); its clients are trained again")
        self.look(at_once=True)
        return list(member.work.values())

    def close(self) -> None:
        """Dismiss everybody."""
        while self.members:
            self._cluster.dismiss(self.members.pop().actor)

    def _remove(self, member: Member) -> None:
        self.members.remove(member)
        self._cluster.dismiss(member.actor)

    def _greet(self, member: Member) -> None:
        try:
            problem, met = self._cluster.get(member.hello)
        except Exception as error:  # a node without FedKeep, without memory, or gone again
            self._remove(member)
            self._failed += 1
            if self._failed >= FAILED_STARTS:
                raise RunError(
                    f"workers do not start on the cluster ({error}); does every node have the same Python, fedkeep, "
                    "torch and ray as this one?"
                ) from None
            return
        if problem is not None:
            raise problem
        self._failed = 0
        self._check(met)
        member.greeting = met

    def _check(self, met: Greeting) -> None:
        here = greeting()
        for name, version in here.versions.items():
            if met.versions.get(name) != version:
                raise ConfigError(
                    f"node {met.place} has {name} {met.versions.get(name)}, this one {version}; "
                    "install the same version on all nodes, or results would depend on the node"
                )
        if met.processor != here.processor and met.processor not in self._other_processors:
            self._other_processors.add(met.processor)
            warnings.warn(
                f"node {met.place} computes with {met.processor}, this one with {here.processor}: "
                "results may differ in rounding from a run on one machine",
                stacklevel=2,
            )

    def _patience(self) -> None:
        """Say what is waited for, and give up in the end."""
        now = time.monotonic()
        if self.ready:
            self._alone = None
            return
        self._alone = self._alone or now
        if now - self._alone > HINT and not self._hinted:
            self._hinted = True
            say(f"waiting for a free core of the cluster ({self._cores()} in all)")
        if now - self._alone > PATIENCE:
            raise RunError(
                f"no core of the cluster was free for {PATIENCE:.0f} s ({self._cores()} in all); "
                "add nodes or end what else runs there. What is saved can be resumed"
            )


def say(text: str) -> None:
    """One line for the user."""
    print(f"note: {text}", file=sys.stderr)


def oldest_first(pieces: Iterable[int], waiting: Iterable[int]) -> list[int]:
    """Pieces that come back stand before those that wait.

    >>> oldest_first([4, 2], [7, 8])
    [2, 4, 7, 8]
    """
    return [*sorted(pieces), *waiting]
