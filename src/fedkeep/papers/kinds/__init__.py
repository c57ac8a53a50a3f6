"""How each kind of table or figure is made from finished runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedkeep.papers.kinds.base import Context, Outcome
from fedkeep.papers.kinds.by_reading import curves, lines, table
from fedkeep.papers.kinds.counts import counts
from fedkeep.papers.kinds.events import events
from fedkeep.papers.kinds.heatmap import heatmap
from fedkeep.papers.kinds.partition import partition
from fedkeep.papers.kinds.personalised import personalised
from fedkeep.papers.kinds.robustness import robustness

EVALUATE: Mapping[str, Callable[[Context], Outcome]] = {
    "table": table,
    "curves": curves,
    "lines": lines,
    "counts": counts,
    "events": events,
    "heatmap": heatmap,
    "partition": partition,
    "personalised": personalised,
    "robustness": robustness,
}

WITHOUT_RUNS = ("partition",)

__all__ = ["EVALUATE", "WITHOUT_RUNS", "Context", "Outcome"]
