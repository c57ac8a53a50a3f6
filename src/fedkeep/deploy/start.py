"""What a server has before round 1, with every refusal."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedkeep.deploy import encoding, messages
from fedkeep.deploy.messages import Expected
from fedkeep.deploy.privacy import Privacy, check_covered
from fedkeep.deploy.scene import ServerScene
from fedkeep.errors import ConfigError
from fedkeep.local.step import EagerStep
from fedkeep.rounds import ServerState, Trainer, begin


@dataclass(frozen=True)
class Start:
    """What a server has before round 1."""

    trainer: Trainer
    state: ServerState
    expected: Expected
    privacy: Privacy | None


def start_of(scene: ServerScene) -> Start:
    """Everything ready for round 1; whatever cannot work is refused here."""
    config, options = scene.config, scene.options
    check_covered(scene.method, scene.model, config, options)
    if options.min_replies > scene.cohort_size:
        raise ConfigError(
            f"min_replies={options.min_replies}: a round asks {scene.cohort_size} clients; choose at most that many"
        )
    if options.probe and config.forgetting == "off":
        raise ConfigError("probe with forgetting off: there is nothing to measure; leave one of them away")
    trainer = Trainer.of(scene.model, scene.method, config.plan, EagerStep)
    state = begin(scene.method, *scene.model.initial())
    expected = messages.expected_update(trainer, state, scene.shape, scene.classes)
    encoding.check(options.encodings, expected.slots)
    privacy = Privacy.of(config, options, scene.cohort_size)
    return Start(trainer, state, replace(expected, encodings=options.encodings), privacy)
