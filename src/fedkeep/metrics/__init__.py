"""What a run is judged by. Forgetting is measured by pure functions of arrays."""

from __future__ import annotations

from fedkeep.metrics.events import CentralisedEvents, Events, margin_error
from fedkeep.metrics.forgetting import (
    Decomposition,
    Steadiness,
    accuracy_by,
    average,
    decompose,
    decompose_by,
    forgettable,
    local_client_forgetting,
    per_class_forgetting,
    personalised,
    steadiness,
)
from fedkeep.metrics.meter import ForgettingMeter

__all__ = [
    "CentralisedEvents",
    "Decomposition",
    "Events",
    "ForgettingMeter",
    "Steadiness",
    "accuracy_by",
    "average",
    "decompose",
    "decompose_by",
    "forgettable",
    "local_client_forgetting",
    "margin_error",
    "per_class_forgetting",
    "personalised",
    "steadiness",
]
