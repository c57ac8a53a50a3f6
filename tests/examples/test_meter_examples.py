from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pytorch_example_prints_a_table_and_the_average(capsys: pytest.CaptureFixture[str]) -> None:
    example("meter_pytorch").main(["--rounds", "2"])
    printed = capsys.readouterr().out
    rounds = re.findall(r"^ +(\d) +[\d.]+ +(-?[\d.]+) +[\d.]+$", printed, re.MULTILINE)
    assert [number for number, _ in rounds] == ["1", "2"]
    average = float(printed.rpartition(":")[2])
    assert average == pytest.approx(sum(float(value) for _, value in rounds) / 2, abs=0.001)


def test_two_digits_a_client_make_models_forget() -> None:
    pairs = example("meter_pytorch").federated(rounds=5).frame("forgetting")
    last = pairs[pairs["round"] == 5]
    others = last[last["model"] != last["data"]]
    # a model that has just seen two digits only knows nothing of the others: it forgets all that the global model knew
    assert (others["accuracy_local"] < 0.05).all()
    assert others["forgetting"].mean() > 0.3


def without_flower() -> bool:
    return importlib.util.find_spec("flwr") is None


@pytest.mark.skipif(not without_flower(), reason="flwr is installed")
def test_the_flower_example_says_what_it_needs() -> None:
    module = example("meter_flower")
    with pytest.raises(SystemExit, match=re.escape('pip install "fedkeep[flower]"')):
        module.main()


@pytest.mark.skipif(without_flower(), reason="flwr is not installed")
@pytest.mark.slow
def test_the_flower_example_runs(tmp_path: Path) -> None:
    switches = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(tmp_path)}
    command = [sys.executable, str(EXAMPLES / "meter_flower.py")]
    done = subprocess.run(command, env=os.environ | switches, capture_output=True, text=True, timeout=120, check=True)
    table = done.stdout.splitlines()
    assert table[0].split() == ["round", "validation_accuracy", "forgetting", "forgettable"]
    assert [row.split()[0] for row in table[1:]] == ["1", "2", "3"]
