"""Speed for tests of run directories: no questions to git, no waiting for the disk."""

from __future__ import annotations

import os
import sys

import pytest

import fedkeep  # noqa: F401 (so that its modules are there)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    module = sys.modules["fedkeep.experiment.run"]  # by name: the package also has a function `run`
    monkeypatch.setattr(module, "about", lambda command=None: {"command": command, "python": "3"})
    monkeypatch.setattr(os, "fsync", lambda handle: None)
