"""The normalisation layer of a model: batch or group norm, chosen by name."""

from __future__ import annotations

import math

from torch import nn

from fedkeep.errors import ConfigError, nearest

NORMS = ("batch", "group")
GROUPS = 32


def check_norm(kind: str) -> None:
    """Refuse an unknown normalisation."""
    if kind not in NORMS:
        raise ConfigError(f'norm="{kind}" is not a normalisation: {nearest(kind, NORMS)}')


def normalisation(kind: str, channels: int) -> nn.Module:
    """A layer that normalises images of `channels` channels, with a learned scale and shift per channel.

    "batch": running statistics live in buffers, which the server has to aggregate.
    "group": Wu & He 2018, 32 groups and no buffers, as Hsieh et al. 2020 advise for unlike clients. Where 32 does
    not divide the channels, the largest power of two that does (at most 32) is the number of groups.

    >>> normalisation("group", 64).num_groups, normalisation("group", 16).num_groups
    (32, 16)
    """
    check_norm(kind)
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(math.gcd(GROUPS, channels), channels)
