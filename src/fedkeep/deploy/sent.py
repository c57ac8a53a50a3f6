"""What leaves a client, in plain words."""

from __future__ import annotations

from collections.abc import Sequence

from fedkeep.deploy.options import Options
from fedkeep.deploy.privacy import Privacy
from fedkeep.experiment.config import Config
from fedkeep.method import Method


def statement(method: Method, options: Options, config: Config, privacy: Privacy | None) -> list[str]:
    """What leaves a client in this deployment, line by line."""
    lines = [part.sends().rstrip(".") for part in (method.aggregate, *method.parts)]
    lines = [line for line in dict.fromkeys(lines) if line != "nothing"]
    if privacy:
        lines = [
            f"the trained model's change, clipped to norm {privacy.clip:g}; the server adds noise of {privacy.noise:g} "
            "times that to the sum before anybody else sees it"
        ]
    for what, how in options.encodings.items():
        side = "the server sends the model" if what == "broadcast" else f"{what} is sent"
        lines.append(f"{side} {how.describe()}")
    if config.forgetting != "off":
        lines.append(
            "for the forgetting meter: how many of its examples it has of each class, and how many of them the models "
            "before and after each round have right"
        )
    if options.probe:
        lines.append("for F_ki (--probe): the server passes each client's trained model on to other clients")
    return lines


def warn_of_probe(names: Sequence[str], everyone: bool) -> str:
    """What --probe means, in plain words."""
    who = f"all {len(names)} clients" if everyone else "every other client of the round"
    return (
        f"--probe: the server sends each client's trained model to {who}, who can then study it, for instance to find "
        "out what that client holds. Use it only where all clients trust each other"
    )
