"""A contender's side of a race: it runs a round only when it is told to, and says how long it took.

Contenders take turns, so that whatever else the machine does hits all of them alike. Only the standard library and
numpy here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from multiprocessing.connection import Client
from typing import Any

import numpy as np

SOCKET = "BENCH_SOCKET"
TASK = "BENCH_TASK"
STARTED = "BENCH_STARTED"
OPTIONS = "BENCH_OPTIONS"
"""Environment variables: the line, the folder of the task, when the process was started, options of FedKeep's run."""


class Turns:
    """The line to whoever holds the race."""

    def __init__(self) -> None:
        self._line = Client(os.environ[SOCKET], "AF_UNIX")
        self._started = 0.0

    def ready(self, **facts: Any) -> None:
        """Say that everything is loaded."""
        self._say({"ready": facts})

    def start(self) -> None:
        """Wait for the next turn, then start the clock."""
        asked = json.loads(self._line.recv_bytes())
        assert asked == "round", asked
        self._started = time.perf_counter()

    def stop(self) -> None:
        """Stop the clock and say how long the round took."""
        self._say({"seconds": time.perf_counter() - self._started})

    def end(self, params: Mapping[str, np.ndarray]) -> None:
        """Wait for the end of the race, then hand the final weights over."""
        asked = json.loads(self._line.recv_bytes())
        np.savez(asked["save"], **params)
        self._say({"saved": asked["save"]})

    def _say(self, what: Any) -> None:
        self._line.send_bytes(json.dumps(what).encode())
