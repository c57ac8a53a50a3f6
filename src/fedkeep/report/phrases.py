"""Numbers in words."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedkeep.report.compare import ALIKE
from fedkeep.report.curves import PerSeed


def percent(value: float) -> str:
    """A share as a percentage.

    >>> percent(0.8825)
    '88.2 %'
    """
    return f"{100 * value:.1f} %" if math.isfinite(value) else "unknown"


def points(value: float) -> str:
    """A difference of accuracies in percentage points.

    >>> points(0.3), points(0.01), points(-0.004)
    ('30.0 points', '1.0 point', '\N{MINUS SIGN}0.4 points')
    """
    number = f"{100 * value:.1f}".replace("-", "\N{MINUS SIGN}")
    return f"{number} point" if number == "1.0" else f"{number} points"


def spanned(number: PerSeed, write: Callable[[float], str]) -> str:
    """A number with its range over the seeds.

    >>> spanned(PerSeed({0: 0.25, 1: 0.75}), points)
    '50.0 points (25.0 to 75.0 points over 2 seeds)'
    """
    seeds = len(number.by_seed)
    if seeds < 2:
        return write(number.mean)
    low = write(number.low).partition(" ")[0]
    return f"{write(number.mean)} ({low} to {write(number.high)} over {seeds} seeds)"


def costs(forgetting: float) -> str:
    """What local training does to the accuracy on other clients' data.

    >>> costs(0.25), costs(-0.1)
    ('costs 25.0 points of accuracy', 'gains 10.0 points of accuracy')
    """
    return f"{'gains' if forgetting < -ALIKE else 'costs'} {points(max(forgetting, -forgetting))} of accuracy"
