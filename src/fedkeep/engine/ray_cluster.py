"""The only place that calls Ray: joining or starting a cluster, actors on it, and what they answer."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from fedkeep.errors import ConfigError, RunError

REACH = 5.0  # seconds in which a cluster must accept a connection
SWITCHES = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anyone
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class Lost(Exception):
    """An actor, or the node that it was on, is gone; `node` says whether the whole node seems to be."""

    def __init__(self, why: str, node: bool) -> None:
        super().__init__(why)
        self.node = node


def check_installed() -> None:
    """Refuse before anything is loaded or written."""
    if find_spec("ray") is None:
        raise ConfigError("engine ray needs Ray, which is not installed; get it with: pip install fedkeep[ray]")


class Cluster:
    """A cluster that this process has joined, or started for itself."""

    def __init__(self, address: str = "", cores: int = 1) -> None:
        check_installed()
        address = address or os.environ.get("RAY_ADDRESS", "local")
        _set_switches(address)
        import ray

        self._ray = ray
        self._temporary = ""
        self._terminate = signal.getsignal(signal.SIGTERM)
        self._ours = not ray.is_initialized()
        if self._ours:
            self._init(address, cores)

    def _init(self, address: str, cores: int) -> None:
        from ray._private import worker

        worker.print_to_stdstream = lambda *_, **__: None  # Ray's own news, on the stdout of our results
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "FATAL", "configure_logging": True}
        try:
            if address == "local":
                self._start(cores, quiet)
            else:
                reachable(address)
                self._ray.init(address=address, **quiet)
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            self.close()
            if address == "local":
                raise RunError(f"Ray could not be started here ({_first_line(error)}); try --engine auto") from None
            raise ConfigError(
                f'ray_address "{address}": no cluster to join there ({_first_line(error)}); start one (ray start '
                "--head), or leave --ray-address away to run Ray here"
            ) from None

    def _start(self, cores: int, quiet: dict[str, Any]) -> None:
        """A cluster of this machine alone, on loopback."""
        self._temporary = tempfile.mkdtemp(prefix="fedkeep-ray-")
        self._ray.init(
            address="local",
            num_cpus=cores,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=self._temporary,
            **quiet,
        )

    def close(self) -> None:
        """Leave the cluster, and end it if it is ours; safe to call twice."""
        if not self._ours:
            return
        self._ours = False
        self._ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._terminate)
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def cores(self, device: str = "cpu") -> int:
        """The cores, or GPUs, of all nodes that are alive now."""
        return int(self._ray.cluster_resources().get("CPU" if device == "cpu" else "GPU", 0))

    def hire(self, kind: type, *arguments: Any, device: str = "cpu") -> Any:
        """An actor on one core (and one GPU), somewhere, as soon as there is a free one."""
        needs: dict[str, Any] = {
            "num_cpus": 1,
            "num_gpus": int(device != "cpu"),
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        return self._ray.remote(**needs)(kind).remote(*arguments)

    def dismiss(self, actor: Any) -> None:
        with suppress(Exception):  # it may be gone already
            self._ray.kill(actor, no_restart=True)

    def put(self, value: Any) -> Any:
        """Lay a value into shared memory; it goes to each node once."""
        return self._ray.put(value)

    def ready(self, references: Sequence[Any], seconds: float) -> list[Any]:
        """Those that have an answer, as soon as there is at least one, or none after so many seconds."""
        some, others = self._ray.wait(list(references), num_returns=1, timeout=seconds)
        if some and others:
            some += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
        return some

    def get(self, reference: Any) -> Any:
        """An answer that is ready; `Lost` where it will never come."""
        from ray import exceptions as errors

        try:
            return self._ray.get(reference)
        except errors.RayTaskError:
            raise
        except errors.RayError as error:
            node = isinstance(error, errors.ActorUnavailableError | errors.ObjectLostError | errors.NodeDiedError)
            text = str(error)
            raise Lost(_reason(text), node or "node has died" in text or "node was" in text) from None


def _set_switches(address: str) -> None:
    """Ray reads these when it is imported. A cluster of our own listens only to those who have its token."""
    os.environ.update(SWITCHES)
    if address == "local" and "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def reachable(address: str) -> None:
    """Refuse an address that is none, or where nobody listens: Ray itself would try for minutes."""
    if address == "auto":
        return
    if "://" in address:
        raise ConfigError(
            f'ray_address "{address}": FedKeep runs on a node of the cluster; start it there '
            "(ray job submit, ray exec, srun) and give HOST:PORT of the head node, or auto"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f'ray_address "{address}": give HOST:PORT of the head node, e.g. 10.0.0.1:6379, or auto')
    try:
        socket.create_connection((host, int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f'ray_address "{address}": cannot be reached ({error}); start the head node (ray start --head) and use '
            "its address, or leave --ray-address away to run Ray here"
        ) from None


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _reason(text: str) -> str:
    """Of Ray's long texts, the line that says why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "died" in line or "unavailable" in line]
    return (told or lines or ["no reason given"])[-1][:300]
