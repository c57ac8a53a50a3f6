"""Losses that a client computes from its own label counts: one family.

Each is  mean_x [ logsumexp_c (s_c f_c(x) + b_c) - (s_y f_y(x) + m_y) ]  with a scale s and a shift b per class that
depend only on how often each label occurs among the client's training examples. A class with b = -inf is absent:
its logit gets exactly zero gradient.

    loss    s                    b                         m
    CE      1                    0                         0
    TCE     1                    0 present, -inf absent    0
    WSM     1                    log share of the label    0
    FedRS   1 present, alpha     0                         0
            absent
    FedLC   1                    -tau n_c^(-1/4)           as b
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedkeep.errors import ConfigError
from fedkeep.method import Loss
from fedkeep.tree import Params

__all__ = ["CrossEntropy", "FedLC", "FedRS", "Truncated", "WeightedSoftmax", "ce", "fedlc", "fedrs", "tce", "wsm"]


def _contrast_minus_tightness(contrast: Tensor, tightness: Tensor, labels: Tensor) -> Tensor:
    own = tightness.gather(1, labels.unsqueeze(1)).squeeze(1)
    return (torch.logsumexp(contrast, dim=1) - own).mean()


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Plain softmax cross-entropy, L = mean_x [ logsumexp_c f_c(x) - f_y(x) ].

    Sends: nothing.
    """

    name = "ce"

    def value(self, logits, labels, adjustment):
        return torch.nn.functional.cross_entropy(logits, labels)


class _Shifted(Loss):
    """b in the contrast term only."""

    def shift(self, counts: Tensor) -> Tensor:
        raise NotImplementedError

    def adjust(self, class_counts: Tensor) -> Params:
        return {"shift": self.shift(class_counts.to(torch.get_default_dtype()))}

    def value(self, logits, labels, adjustment):
        return _contrast_minus_tightness(logits + adjustment["shift"].to(logits.dtype), logits, labels)


@dataclass(frozen=True)
class Truncated(_Shifted):
    """Truncated cross-entropy: the log-sum-exp runs over the classes present on the client.

    Legate et al., TCE paper, Eq. (2). Equal to CE when every class is present.
    Sends: nothing.
    """

    name = "tce"

    def shift(self, counts):
        return torch.where(counts > 0, 0.0, -torch.inf)


@dataclass(frozen=True)
class WeightedSoftmax(_Shifted):
    """Re-weighted softmax cross-entropy, L = mean_x [ log sum_c beta_c exp f_c(x) - f_y(x) ].

    Legate et al., WSM paper, Eq. (4); beta_c is the share of label c among the client's training examples.
    With uniform beta the gradient is CE's; with one class only it is zero. The value may be negative, as it
    lacks log beta_y: that is the paper's definition.
    Sends: nothing.
    """

    name = "wsm"

    def shift(self, counts):
        return torch.log(counts / counts.sum())


@dataclass(frozen=True)
class FedRS(Loss):
    """Restricted softmax: logits of absent classes are scaled by alpha.

    Li and Zhan 2021, "FedRS", Eq. (5). alpha = 1 is CE.
    Sends: nothing.
    """

    alpha: float
    name = "fedrs"

    def __post_init__(self):
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"fedrs(alpha={self.alpha}): alpha scales the absent logits; choose it in [0, 1]")

    def adjust(self, class_counts: Tensor) -> Params:
        return {"scale": torch.where(class_counts > 0, 1.0, self.alpha)}

    def value(self, logits, labels, adjustment):
        scaled = logits * adjustment["scale"].to(logits.dtype)
        return _contrast_minus_tightness(scaled, scaled, labels)


@dataclass(frozen=True)
class FedLC(_Shifted):
    """Logits calibrated by a margin for rare labels: f_c - tau n_c^(-1/4), in both terms.

    Zhang et al. 2022, "Federated Learning with Label Distribution Skew via Logits Calibration", Eq. (7).
    An absent class has an infinite margin and leaves the sum. tau = 0 is TCE.
    Sends: nothing.
    """

    tau: float
    name = "fedlc"

    def __post_init__(self):
        if not self.tau >= 0:
            raise ConfigError(f"fedlc(tau={self.tau}): tau is the size of a margin; choose it >= 0")

    def shift(self, counts):
        margin = -self.tau * counts.clamp(min=1).pow(-0.25)
        return torch.where(counts > 0, margin, -torch.inf)

    def value(self, logits, labels, adjustment):
        calibrated = logits + adjustment["shift"].to(logits.dtype)
        return _contrast_minus_tightness(calibrated, calibrated, labels)


ce = CrossEntropy()
tce = Truncated()
wsm = WeightedSoftmax()
fedrs = FedRS
fedlc = FedLC
