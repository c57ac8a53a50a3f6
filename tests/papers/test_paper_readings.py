from __future__ import annotations

import math

import pandas as pd
import pytest

from fedkeep.errors import ConfigError
from fedkeep.papers.cells import Cell
from fedkeep.papers.readings import IN_WORDS, READINGS, Asked, read
from fedkeep.papers.recipe import Number

NAN = math.nan
TABLE = pd.DataFrame(
    {
        "round": [1, 2, 3, 4, 5, 6],
        "accuracy": [0.1, 0.5, NAN, 0.3, NAN, 0.7],
        "loss": [2.0, 1.0, NAN, 1.5, NAN, 0.5],
        "validation_accuracy": [0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
        "forgetting": [NAN, 0.1, 0.2, 0.3, 0.4, 0.6],
    }
)


@pytest.mark.parametrize(
    ("reading", "asked", "value"),
    [
        ("final", Asked(last=3), 0.5),  # rounds 4 and 6 were judged
        ("final", Asked(last=1), 0.7),
        ("final", Asked(last=100), 0.4),
        ("last", Asked(), 0.7),
        ("top", Asked(), 0.7),
        ("mean", Asked(), 0.4),
        ("at", Asked(at=2), 0.5),
        ("at", Asked(at=3), 0.3),  # the next round that was judged
        ("until", Asked(at=4), 0.3),
        ("rounds", Asked(target=0.5), 2.0),
        ("rounds", Asked(target=0.6), 6.0),
        ("rounds", Asked(target=0.8), NAN),
        ("stays", Asked(target=0.3), 2.0),  # 0.5, 0.3, 0.7
        ("stays", Asked(target=0.5), 6.0),
        ("stays", Asked(target=0.05), 1.0),
        ("stays", Asked(target=0.8), NAN),
        ("loss", Asked(last=3), 1.0),
        ("validation", Asked(last=2), 0.9),
        ("forgetting", Asked(last=2), 0.5),
        ("forgetting", Asked(last=100), 0.32),
        ("drop", Asked(), 0.2),
        # changes 0.4, -0.2, 0.4: mean 0.2, squared deviations 0.04, 0.16, 0.04
        ("change", Asked(), math.sqrt(0.08)),
        # changes -1, 0.5, -1: mean -0.5, squared deviations 0.25, 1, 0.25
        ("loss_change", Asked(), math.sqrt(0.5)),
        ("top", Asked(held=0.7), 1.0),
        ("rounds", Asked(target=0.5, held=0.2), 1.0),
    ],
)
def test_readings(reading, asked, value):
    assert read(reading, TABLE, asked) == pytest.approx(value, nan_ok=True)


def test_every_reading_has_words():
    assert READINGS.keys() == IN_WORDS.keys()
    with pytest.raises(ConfigError, match='reading "finl" is unknown: did you mean "final"'):
        read("finl", TABLE, Asked())


def test_cells_in_words():
    three = Cell("r", "c", {0: 0.5, 1: 0.52, 2: 0.51}, Number(0.608, 0.01), "share")
    assert (three.ours(), three.theirs()) == ("0.510 ± 0.025", "0.608 ± 0.010")
    assert Cell("r", "c", {0: 41.257}).ours() == "41.26"
    assert Cell("r", "c", {0: -0.25}, unit="share").ours() == "\N{MINUS SIGN}0.250"
    assert Cell("r", "c", {}, Number(text="NC")).theirs() == "NC"
    assert Cell("r", "c", {0: 10.0, 1: NAN, 2: 12.0}, unit="count", never=21.0).ours() == "11 ± 13 (2 of 3 seeds)"
    assert Cell("r", "c", {0: NAN}, unit="count", never=21.0).ours() == "never"
    assert Cell("r", "c", {0: NAN}, unit="count").ours() == "\N{EN DASH}"
    assert Cell.of(three.document()) == three
