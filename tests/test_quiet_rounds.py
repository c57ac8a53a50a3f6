"""Rounds in which nobody asks for a judgement cost none."""

from __future__ import annotations

import math

import pytest

import fedkeep as fk
from fedkeep.engine.serial import SerialEngine


@pytest.mark.parametrize(
    ("options", "judged"),
    [
        ({"judge_every": 0}, ["test"]),  # the last round only
        ({"judge_every": 2}, ["test"] * 2),  # rounds 2 and 3
        ({"judge_every": 0, "validation": 0.2}, ["train"] * 3 + ["test"]),  # held-out examples choose the best model
    ],
)
def test_a_round_is_judged_only_when_due(monkeypatch, options, judged):
    seen = []
    judge = SerialEngine.judge

    def counting(self, params, buffers, pool, rows=None):
        seen.append(pool)
        return judge(self, params, buffers, pool, rows)

    monkeypatch.setattr(SerialEngine, "judge", counting)
    given = {"validation": 0.0, "forgetting": "off", "data": "digits", "clients": 10, "rounds": 3, "workers": 1}
    done = fk.run("fedavg", **{**given, **options})
    assert seen == judged
    assert not math.isnan(done.accuracy)
