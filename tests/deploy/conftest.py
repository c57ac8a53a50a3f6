"""Speed for tests of deployments, and none of them without Flower."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

HAS_FLOWER = find_spec("flwr") is not None
collect_ignore_glob = [] if HAS_FLOWER else ["loopback.py", "real.py"]


@pytest.fixture(autouse=True)
def quick(monkeypatch, request):
    """No questions to git, no waiting for the disk; nothing of it where real processes are started."""
    if not HAS_FLOWER or "network" in request.keywords:
        return
    from fedkeep.deploy import serve

    monkeypatch.setattr(serve, "about", lambda command=None: {"command": command, "python": "3"})
    monkeypatch.setattr(os, "fsync", lambda handle: None)
