"""Calling the command line as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import fedkeep
from fedkeep.cli import app

SMALL = ("--clients", "4", "--rounds", "2", "--local-epochs", "1", "--limit", "200", "--workers", "1")
"""A run of a few hundredths of a second."""


def call(*words: object, columns: int = 120) -> Any:
    """Call `fedkeep WORDS` in this process; a defect of ours is raised, not swallowed."""
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": str(columns)})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def ok(*words: object, columns: int = 120) -> Any:
    """Call and insist on success."""
    result = call(*words, columns=columns)
    assert result.exit_code == 0, result.output
    return result


def document(*words: object) -> Any:
    """The JSON document that a call prints; nothing else may stand on stdout."""
    return json.loads(ok(*words, "--json").stdout)


def refused(*words: object) -> str:
    """The message of a call that must be refused."""
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def process(*words: object, **options: Any) -> subprocess.Popen[str]:
    """Start a real `fedkeep WORDS`."""
    source = Path(fedkeep.__file__).parents[1]
    paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.Popen(
        [sys.executable, "-c", "from fedkeep.cli import main; main()", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )
