"""Runs of a comparison on a cluster, without one: what comes home, in which order, and when a node is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.fake_cluster import FakeCluster, Method
from experiment.kill_and_compare import assert_same_run, small
from fedkeep.engine import crew
from fedkeep.engine.ray_cluster import Lost
from fedkeep.engine.ray_jobs import spread
from fedkeep.engine.ray_worker import greeting
from fedkeep.engine.sealed import sealed
from fedkeep.errors import RunError
from fedkeep.experiment import away
from fedkeep.experiment.away import place_files, read_files, run_here
from fedkeep.experiment.build import load_data
from fedkeep.experiment.jobs import Job
from fedkeep.experiment.run import execute
from fedkeep.experiment.rundir import RunDirectory


@pytest.fixture
def data(monkeypatch):
    monkeypatch.setattr(away, "lend", lambda key, dataset: None)  # not beyond this test
    return sealed(load_data(("digits", "", 120, "standard")))


def test_what_comes_home_is_the_run_itself(tmp_path, data):
    config = small("scaffold+wsm")
    answers = list(run_here(config, {}, data, "home"))
    assert [answer["kind"] for answer in answers] == ["round"] * 3 + ["done"]
    execute(config, tmp_path / "alone")
    (tmp_path / "run").mkdir()
    for answer in answers:
        place_files(tmp_path / "run", answer["files"], answer["gone"])
    assert_same_run(tmp_path / "run", tmp_path / "alone", states=False)
    names = {path.name for path in (tmp_path / "alone").iterdir()} - {"lock"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == names
    assert sum(len(answer["files"].get("config.toml", b"")) > 0 for answer in answers) == 1  # what stays is sent once


@pytest.mark.parametrize("heard", [0, 1, 2, 3])
def test_a_run_goes_on_elsewhere_from_what_came_home(tmp_path, data, heard):
    config, home = small("scaffold+wsm"), tmp_path / "run"
    home.mkdir()
    for answer in list(run_here(config, {}, data, str(home)))[:heard]:
        place_files(home, answer["files"], answer["gone"])
    rest = list(run_here(config, read_files(home), data, str(home)))
    assert [answer["round"] for answer in rest[:-1]] == list(range(heard + 1, 4))
    for answer in rest:
        place_files(home, answer["files"], answer["gone"])
    execute(config, tmp_path / "alone")
    assert_same_run(home, tmp_path / "alone", states=False)


def test_killed_at_any_moment_while_files_are_put_in_place(tmp_path, data, monkeypatch):
    """After every single write, what lies at home is a run that can go on, or a finished one."""
    config = small("fedavg", rounds=2)
    answers = list(run_here(config, {}, data, "home"))
    moments = 0

    class Killed(BaseException):
        pass

    def until(step: int) -> RunDirectory:
        home = tmp_path / str(step)
        home.mkdir()
        left = [step]

        def counted(write):
            def wrapped(*arguments):
                if not left[0]:
                    raise Killed
                left[0] -= 1
                write(*arguments)

            return wrapped

        with monkeypatch.context() as patched:
            patched.setattr(away, "write_whole", counted(away.write_whole))
            patched.setattr(away, "write_folder_as_it_is", counted(away.write_folder_as_it_is))
            for answer in answers:
                place_files(home, answer["files"], answer["gone"])
        return RunDirectory(home)

    execute(config, tmp_path / "alone")
    while True:
        try:
            until(moments)
            break
        except Killed:
            home = tmp_path / str(moments)
            execute(config, home)
            assert_same_run(home, tmp_path / "alone", states=False)
        moments += 1
    assert moments > 12


def test_a_failed_run_speaks_of_the_directory_at_home(data):
    *_, last = run_here(small("fedavg", lr=1e30), {}, data, "HOME")
    assert last["kind"] == "failed" and "none of the" in last["text"]
    assert "fedkeep-" not in last["text"]


def test_a_locked_directory_fails_alone(tmp_path):
    held = RunDirectory(tmp_path / "a")
    held.hold()
    heard = []
    try:
        jobs = [Job(name, small(), tmp_path / name) for name in "ab"]
        one = away._Away(None, jobs, heard.append)  # type: ignore[arg-type]
        assert [one._hold(0), one._hold(1)] == [False, True]
    finally:
        held.close()
    assert [(event.job.name, event.kind) for event in heard] == [("a", "failed")]
    assert "another process is writing this run" in heard[0].text
    with pytest.raises(RunError):
        RunDirectory(tmp_path / "b").hold()
    one.held[1].close()


# -- who does which job


class Streaming(Method):
    """A method whose answers come one by one."""

    def options(self, num_returns: str) -> Streaming:
        assert num_returns == "streaming"
        return self

    def remote(self, function, *arguments: Any) -> Any:
        return Answers(self.actor, function(*arguments))


class Answers:
    def __init__(self, actor: Any, real: Iterator[Any]) -> None:
        self.actor, self.real = actor, real

    def __next__(self) -> Any:
        answer = next(self.real)
        return type("Reference", (), {"actor": self.actor, "work": lambda self: answer})()


class JobCluster(FakeCluster):
    def hire(self, kind: type, *arguments: Any, device: str = "cpu") -> Any:
        self.hired += 1
        actor: Any = type("Actor", (), {"alive": True})()
        me = greeting(f"node {self.hired}", f"10.0.0.{self.hired}")
        actor.hello, actor.do = Method(actor, lambda: (None, me)), Streaming(actor, lambda: None)
        self.actors.append(actor)
        return actor


def counting(job: int, known: int) -> Iterator[int]:
    """A job of five answers that goes on from what is known."""
    if job == 2:
        raise ZeroDivisionError("job 2 is broken")
    yield from range(known + 1, 6)


@pytest.mark.parametrize("seed", range(5))
def test_jobs_go_on_elsewhere_and_fail_alone(seed, monkeypatch, capsys):
    monkeypatch.setattr(crew, "LOOK", 0.0)
    script = iter([None] * (8 + seed) + ["node"] + [None] * 3 + ["worker"])
    cluster = JobCluster(3, seed, lambda: next(script, None))
    heard: dict[int, list[int]] = {job: [] for job in range(5)}
    given_up: dict[int, str] = {}

    def arguments(job: int) -> tuple[int, int]:
        return job, max(heard[job], default=0)

    spread(cluster, counting, arguments, 5, 2, lambda j, a: heard[j].append(a), given_up.__setitem__)  # type: ignore[arg-type]
    assert given_up == {2: "ZeroDivisionError: job 2 is broken"}
    assert all(heard[job] == [1, 2, 3, 4, 5] for job in (0, 1, 3, 4))
    assert not cluster.actors and cluster.hired <= 4 + 2
    assert capsys.readouterr().err.count("note: ") <= 2


def test_a_job_that_kills_its_workers_is_given_up(monkeypatch):
    monkeypatch.setattr(crew, "LOOK", 0.0)
    cluster = JobCluster(2)

    class Deadly(Answers):
        def __next__(self):
            raise Lost("killed for the test", node=False)

    monkeypatch.setattr(Streaming, "remote", lambda self, function, *_: Deadly(self.actor, iter(())))
    given_up: dict[int, str] = {}
    spread(cluster, counting, lambda job: (job,), 1, 1, lambda *_: None, given_up.__setitem__)  # type: ignore[arg-type]
    assert "died 3 times" in given_up[0]
