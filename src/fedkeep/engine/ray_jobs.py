"""Whole programs on a Ray cluster: generator functions, one core each, whose answers come home one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from fedkeep.engine.base import TRIES
from fedkeep.engine.crew import Crew, Member
from fedkeep.engine.ray_cluster import Cluster, Lost
from fedkeep.engine.ray_worker import JobWorker


def spread(
    cluster: Cluster,
    function: Callable[..., Iterator[Any]],
    arguments: Callable[[int], tuple[Any, ...]],
    jobs: int,
    at_once: int,
    hear: Callable[[int, Any], None],
    give_up: Callable[[int, str], None],
) -> None:
    """Do jobs 0, 1 ... on the cluster, each by function(*arguments(job)); `hear` gets every answer.

    A job whose worker is lost is begun again elsewhere, with the arguments that `arguments` gives then. One that costs
    three workers their lives, or raises, is given up.
    """
    crew = Crew(cluster, lambda: cluster.hire(JobWorker), min(at_once, jobs))
    waiting, deaths = deque(range(jobs)), [0] * jobs
    try:
        while waiting or any(member.work for member in crew.members):
            for member in crew.ready:
                if waiting and not member.work:
                    job = waiting.popleft()
                    answers = member.actor.do.options(num_returns="streaming").remote(function, *arguments(job))
                    member.work[answers] = job
            for member, answers in crew.wait():
                if member in crew.members:
                    _take(cluster, crew, member, answers, hear, give_up, waiting, deaths)
    finally:
        crew.close()


def _take(
    cluster: Cluster,
    crew: Crew,
    member: Member,
    answers: Any,
    hear: Callable[[int, Any], None],
    give_up: Callable[[int, str], None],
    waiting: deque[int],
    deaths: list[int],
) -> None:
    job = member.work[answers]
    try:
        answer = cluster.get(next(answers))
    except StopIteration:
        del member.work[answers]
    except Lost as lost:
        crew.lose(member, lost)
        deaths[job] += not lost.node
        if deaths[job] < TRIES:
            waiting.appendleft(job)
        else:
            give_up(job, f"its worker died {TRIES} times ({lost}); is memory short on the nodes?")
    except Exception as error:  # a defect of ours: the other jobs go on
        del member.work[answers]
        give_up(job, f"{type(error).__name__}: {error}")
    else:
        hear(job, answer)
