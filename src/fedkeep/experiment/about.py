"""What a run should be remembered with: versions, machine, git state, command."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PACKAGES = ("fedkeep", "torch", "numpy", "scipy", "scikit-learn", "safetensors", "pyarrow")


def about(command: list[str] | None = None) -> dict[str, Any]:
    """Versions, machine, git state and command of this process."""
    return {
        "command": command or sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "machine": machine(),
        "git": _git(),
    }


def machine() -> dict[str, Any]:
    """The machine in a few words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 2**30, 1),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _git() -> dict[str, Any] | None:
    """Commit of the working directory, and whether it has changes; None outside a repository."""
    try:
        commit = _ask_git("rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(_ask_git("status", "--porcelain"))} if commit else None
    except (OSError, subprocess.SubprocessError):
        return None


def _ask_git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=5, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
