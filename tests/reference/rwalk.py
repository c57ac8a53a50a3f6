"""RWalk (003, Table 4; Chaudhry et al. 2018, "Riemannian Walk for Incremental Learning", Sec. 4).

Path score of parameter j, over the local steps of one round:

    s_j += (-g_j dw_j) / (0.5 F_j dw_j^2 + eps)         dw = w after the step - w before it

g is the gradient of the local loss before the step, without penalty. After the last step negative scores become zero:
the clip is on the accumulated score, not on each step's share. The client uploads

    normalised Fisher + normalised score

both scaled per tensor to [0, 1] by their maximum; a tensor of zeros stays zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Model = dict[str, np.ndarray]


def step_score(gradient: Model, before: Model, after: Model, fisher: Model, epsilon: float) -> Model:
    """One step's share of the path score, not clipped."""
    result = {}
    for name in gradient:
        result[name] = np.zeros(gradient[name].shape)
        for j in np.ndindex(*gradient[name].shape):
            dw = float(after[name][j]) - float(before[name][j])
            loss_decrease = -float(gradient[name][j]) * dw
            distance = 0.5 * float(fisher[name][j]) * dw**2
            result[name][j] = loss_decrease / (distance + epsilon)
    return result


def path_score(gradients: Sequence[Model], path: Sequence[Model], fishers: Sequence[Model], epsilon: float) -> Model:
    """Sum over steps, then clip at 0. path has one model more than there are gradients; fishers one per step."""
    total = {name: np.zeros(path[0][name].shape) for name in path[0]}
    for step in range(len(gradients)):
        share = step_score(gradients[step], path[step], path[step + 1], fishers[step], epsilon)
        for name in total:
            total[name] = total[name] + share[name]
    return clip_at_zero(total)


def clip_at_zero(score: Model) -> Model:
    """Negative scores become 0."""
    result = {}
    for name in score:
        result[name] = np.zeros(score[name].shape)
        for j in np.ndindex(*score[name].shape):
            result[name][j] = max(float(score[name][j]), 0.0)
    return result


def normalise(values: Model) -> Model:
    """Every tensor divided by its maximum, so that it lies in [0, 1]; a tensor of zeros stays zero."""
    result = {}
    for name in values:
        largest = 0.0
        for value in values[name].reshape(-1):
            largest = max(largest, float(value))
        result[name] = values[name] / largest if largest > 0 else np.zeros(values[name].shape)
    return result


def importance(fisher: Model, score: Model) -> Model:
    """What the client uploads in place of its Fisher: both normalised, then added. Lies in [0, 2]."""
    normal_fisher = normalise(fisher)
    normal_score = normalise(clip_at_zero(score))
    return {name: normal_fisher[name] + normal_score[name] for name in fisher}
