"""FedWAgg: cluster the clients' models, weigh the clusters by their accuracy on other clients' data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedkeep.errors import ConfigError, nearest
from fedkeep.method import Aggregator, Probe, Update
from fedkeep.model import mean_buffers
from fedkeep.tree import Params, add, flatten, weighted_sum

FEATURES = ("weights", "update")


@dataclass(frozen=True)
class FedWAgg(Aggregator):
    """Group similar client models, score each group's mean on randomly drawn clients, weigh groups by score.

    Song et al. 2023, "FEDWAGG", phases 1 to 4:

        1. k-means of the client models (flattened weights)
        2. cluster model = FedAvg of its members
        3. each cluster model goes to randomly drawn clients, members included; its score is their mean accuracy
        4. w_t = sum_c score_c / sum score * cluster model_c

    All scores zero: uniform. `balanced` gives equal cluster sizes, as in the paper's experiment; `features="update"`
    clusters the normalised changes instead of the weights, which stay distinct when the weights become alike.
    One cluster is FedAvg.
    Sends: the trained model and the number of examples; the clients that are drawn receive cluster models and send
    one accuracy for each.
    """

    clusters: int
    evaluators: int | None = None  # per cluster; None: the cluster's size
    features: str = "weights"
    balanced: bool = False
    seed: int = 0
    name = "fedwagg"
    streaming = False
    copies = 3  # as rows of doubles for k-means; one for each cluster is less

    def __post_init__(self):
        if self.clusters < 1:
            raise ConfigError(f"fedwagg(clusters={self.clusters}): choose at least one cluster")
        if self.evaluators is not None and self.evaluators < 1:
            raise ConfigError(f"fedwagg(evaluators={self.evaluators}): ask at least one client per cluster")
        if self.features not in FEATURES:
            raise ConfigError(f"fedwagg(features={self.features}): {nearest(self.features, FEATURES)}")

    def check(self, plan, cohort=None):
        if cohort is not None and cohort < self.clusters:
            raise ConfigError(
                f"fedwagg(clusters={self.clusters}) with {cohort} clients a round: more clusters than clients; "
                "lower clusters or raise the fraction"
            )

    def ask(self, updates, start, available, rng):
        members = cluster(self, updates, start)
        shares = [_shares(updates, group) for group in members]
        deltas = [weighted_sum((updates[k].delta for k in g), s) for g, s in zip(members, shares, strict=True)]
        buffers = [mean_buffers([updates[k].buffers for k in g], s) for g, s in zip(members, shares, strict=True)]
        wanted = [min(self.evaluators or len(group), len(available)) for group in members]
        # by position: `available` may be a range of a million
        drawn = [[int(available[p]) for p in rng.choice(len(available), size, replace=False)] for size in wanted]
        return Probe(deltas, buffers, drawn, state=(members, shares))

    def weights(self, updates, answers=None):
        if answers is None:
            raise ValueError("fedwagg needs the answers to its probe; send the cluster models out first")
        members, shares = answers.probe.state
        scores = np.array([np.mean(scores) if len(scores) else 0.0 for scores in answers.scores])
        total = scores.sum()
        scores = scores / total if total > 0 else np.full(len(scores), 1.0 / len(scores))
        weights = [0.0] * len(updates)
        for group, share, score in zip(members, shares, scores, strict=True):
            for k, p in zip(group, share, strict=True):
                weights[k] = float(score) * p
        return weights


def cluster(spec: FedWAgg, updates: Sequence[Update], start: Params) -> list[list[int]]:
    """Positions of the updates in each cluster, largest model similarity together; no cluster is empty."""
    if spec.features == "weights":
        rows = np.stack([flatten(add(start, update.delta)).numpy() for update in updates])
    else:
        rows = np.stack([flatten(update.delta).numpy() for update in updates])
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    from sklearn.cluster import KMeans  # slow to import, and only needed here

    count = min(spec.clusters, len(np.unique(rows, axis=0)))
    fitted = KMeans(count, init="k-means++", n_init=10, random_state=spec.seed).fit(rows)  # type: ignore[arg-type]
    labels = _balance(rows, fitted.cluster_centers_) if spec.balanced else fitted.labels_
    groups = [np.flatnonzero(labels == c).tolist() for c in range(count)]
    return sorted(group for group in groups if group)


def _balance(rows: np.ndarray, centres: np.ndarray, sweeps: int = 10) -> np.ndarray:
    """Equal cluster sizes (they differ by at most one): Lloyd's iteration with an assignment problem inside."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and only needed here

    seats = np.arange(len(rows)) % len(centres)
    labels = np.full(len(rows), -1)
    for _ in range(sweeps):
        distance = ((rows[:, None, :] - centres[None, :, :]) ** 2).sum(-1)
        _, seat = linear_sum_assignment(distance[:, seats])
        if (seats[seat] == labels).all():
            break
        labels = seats[seat]
        centres = np.stack([rows[labels == c].mean(0) for c in range(len(centres))])
    return labels


def _shares(updates: Sequence[Update], group: Sequence[int]) -> list[float]:
    total = sum(updates[k].facts.examples for k in group)
    return [updates[k].facts.examples / total for k in group]
