"""What is started is ended, by its process id, with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from fedkeep.deploy.processes import Processes, descendants, environment, free_ports, wait_for_port
from fedkeep.errors import RunError

# a program with a child in a session of its own, as Flower's programs have
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(300)
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(300)"


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as handle:
            return handle.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def first_line(processes, name):
    wait_until(lambda: processes.tail(name))
    return int(processes.tail(name).split()[0])


def test_a_program_and_its_detached_child_end_together(tmp_path):
    with Processes(tmp_path) as processes:
        parent = processes.start("family", [sys.executable, "-c", FAMILY])
        child = first_line(processes, "family")
        assert child in {pid for pid, _ in descendants(parent)}
    assert not alive(parent) and not alive(child)


def test_an_orphan_that_was_seen_is_ended_too(tmp_path):
    with Processes(tmp_path) as processes:
        parent = processes.start("family", [sys.executable, "-c", FAMILY])
        child = first_line(processes, "family")
        processes.look()
        os.kill(parent, signal.SIGKILL)
        wait_until(lambda: processes.dead())
        assert processes.dead() == {"family": -9} and alive(child)
    assert not alive(child)


def test_who_does_not_listen_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("fedkeep.deploy.processes.GRACE", 0.3)
    with Processes(tmp_path) as processes:
        pid = processes.start("stubborn", [sys.executable, "-c", STUBBORN])
        first_line(processes, "stubborn")
    assert not alive(pid)


def test_everything_ends_on_an_error(tmp_path):
    with pytest.raises(KeyboardInterrupt), Processes(tmp_path) as processes:
        pid = processes.start("one", ["sleep", "300"])
        raise KeyboardInterrupt
    assert not alive(pid)


def test_everything_ends_when_this_program_is_killed(tmp_path):
    script = textwrap.dedent(
        f"""
        import sys, time
        sys.path[:0] = {sys.path!r}
        from pathlib import Path
        from fedkeep.deploy.processes import Processes
        with Processes(Path({str(tmp_path)!r})) as processes:
            print(processes.start("one", ["sleep", "300"]), flush=True)
            time.sleep(300)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as program:
        pid = int(program.stdout.readline())
        assert alive(pid)
        program.kill()
    wait_until(lambda: not alive(pid), 20)


def test_a_single_program_can_be_cut_off(tmp_path):
    with Processes(tmp_path) as processes:
        one, two = processes.start("one", ["sleep", "300"]), processes.start("two", ["sleep", "300"])
        processes.kill("one")
        assert not alive(one) and alive(two)


def test_a_program_that_ends_at_its_start_is_quoted(tmp_path):
    with Processes(tmp_path) as processes:
        processes.start("bad", ["sh", "-c", "echo no such certificate; exit 3"])
        with pytest.raises(RunError, match="no such certificate"):
            wait_for_port(free_ports(1)[0], processes, "bad", 20)


def test_programs_beside_python_are_found():
    assert environment({"A": "b"})["PATH"].split(":")[0] == os.path.dirname(sys.executable)
    assert environment({"A": "b"})["A"] == "b"


def test_ports_are_different():
    assert len(set(free_ports(5))) == 5
