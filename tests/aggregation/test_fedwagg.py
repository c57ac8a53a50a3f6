"""FedWAgg: planted clusters are found, and the weights are the twin's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.aggregation import FedWAgg
from fedkeep.aggregation.fedwagg import cluster
from fedkeep.bundles import collect
from fedkeep.errors import ConfigError
from fedkeep.local_opt import SGD
from fedkeep.losses import ce
from fedkeep.method import Answers, Method, Plan
from fedkeep.rounds import ServerState, ask, probe_model, server_round
from fedkeep.server_opt import ServerSGD
from reference import fedavg
from reference import fedwagg as twin
from toys import as_numpy, as_tensors, assert_trees, update

CENTRES = np.array([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0], [-5.0, -5.0, 5.0]])
START = {"a": np.array([0.3, -0.2]), "b": np.array([0.1])}


def planted(groups, seed=0, noise=0.1, stretch=False, examples=None):
    """Updates around the centre of each client's group; `stretch` gives every client another length."""
    generator = np.random.default_rng(seed)
    updates = []
    for k, group in enumerate(groups):
        delta = CENTRES[group] + noise * generator.normal(size=3)
        delta = delta * (10.0 ** generator.uniform(-2, 2) if stretch else 1.0)
        buffers = {"mean": torch.tensor([float(k)], dtype=torch.float64)}
        count = examples[k] if examples else 3 * k + 1
        updates.append(update(k, count, buffers=buffers, a=delta[:2].tolist(), b=delta[2:].tolist()))
    return updates


def grouped(groups):
    """Positions by group, in the order `cluster` gives them."""
    return sorted(np.flatnonzero(np.array(groups) == g).tolist() for g in set(groups))


@given(
    groups=st.permutations([0, 0, 0, 0, 1, 1, 2, 2, 2]),
    seed=st.integers(0, 100),
    features=st.sampled_from(["weights", "update"]),
)
@settings(deadline=None, max_examples=15)
def test_planted_clusters_are_found(groups, seed, features):
    updates = planted(groups, seed, stretch=features == "update")
    assert cluster(FedWAgg(3, features=features), updates, as_tensors(START)) == grouped(groups)


def test_directions_are_found_where_lengths_hide_them():
    groups = [0, 1, 2, 0, 1, 2, 0, 1, 2]
    updates = planted(groups, seed=4, stretch=True)
    assert cluster(FedWAgg(3, features="update"), updates, as_tensors(START)) == grouped(groups)
    assert cluster(FedWAgg(3), updates, as_tensors(START)) != grouped(groups)


@pytest.mark.parametrize(("clients", "sizes"), [(9, [3, 3, 3]), (8, [2, 3, 3]), (3, [1, 1, 1])])
def test_balanced_clusters_have_equal_sizes(clients, sizes):
    groups = [0] * (clients - 2) + [1, 2]  # far from balanced
    found = cluster(FedWAgg(3, balanced=True), planted(groups), as_tensors(START))
    assert sorted(map(len, found)) == sizes
    assert sorted(k for group in found for k in group) == list(range(clients))


def test_balanced_keeps_what_is_balanced_already():
    groups = [2, 0, 1, 0, 1, 2, 1, 2, 0]
    assert cluster(FedWAgg(3, balanced=True), planted(groups), as_tensors(START)) == grouped(groups)


def test_equal_models_make_fewer_clusters_and_none_is_empty():
    updates = [update(k, w=[1.0, 2.0]) for k in range(4)] + [update(4, w=[5.0, 5.0])]
    found = cluster(FedWAgg(3), updates, {"w": torch.zeros(2, dtype=torch.float64)})
    assert found == [[0, 1, 2, 3], [4]]


def aggregate(spec, updates, accuracy, available=range(20)):
    """One aggregation with the exchange; `accuracy(model, client)` is what a client answers."""
    method = Method(ce, spec, ServerSGD())
    state = ServerState(as_tensors(START), {"mean": torch.zeros(1, dtype=torch.float64)}, {}, {})
    bundle = collect(method, updates)
    probe = ask(method, state, bundle, available, np.random.default_rng(0))
    models = [probe_model(state, probe, index) for index in range(len(probe.deltas))]
    scores = [
        [accuracy(as_numpy(params), k) for k in asked]
        for (params, _), asked in zip(models, probe.evaluators, strict=True)
    ]
    answers = Answers(probe, scores)
    return server_round(method, state, bundle, 20, answers), probe, spec.weights(updates, answers)


def client_models(updates):
    return [{name: START[name] + tensor.numpy() for name, tensor in u.delta.items()} for u in updates]


@given(seed=st.integers(0, 1000), groups=st.permutations([0, 0, 1, 1, 1, 2]))
@settings(deadline=None, max_examples=15)
def test_phases_two_to_four_are_the_twins(seed, groups):
    updates = planted(groups, seed)
    table = np.random.default_rng(seed).random(20)

    def accuracy(model, k):
        return float(table[k] / (1 + abs(model["a"].sum())))

    new, probe, weights = aggregate(FedWAgg(3), updates, accuracy)
    found = grouped(groups)
    assignment = [next(c for c, members in enumerate(found) if k in members) for k in range(6)]
    examples = [u.facts.examples for u in updates]
    expected = twin.global_round(client_models(updates), examples, assignment, 3, probe.evaluators, accuracy)
    assert_trees(new.params, expected)
    assert sum(weights) == pytest.approx(1.0)
    np.testing.assert_allclose(float(new.buffers["mean"]), np.dot(weights, np.arange(6)))
    assert [len(asked) for asked in probe.evaluators] == [len(members) for members in found]


def test_weights_worked_by_hand():
    updates = planted([0, 0, 1], examples=[1, 3, 5])
    scores = {0: 0.6, 1: 0.2}
    new, probe, weights = aggregate(FedWAgg(2), updates, lambda model, k: scores[int(model["a"][1] > 2)])
    # clusters {0, 1} and {2} weigh 3/4 and 1/4; inside the first one example against three
    np.testing.assert_allclose(weights, [0.75 * 0.25, 0.75 * 0.75, 0.25])
    assert float(probe.buffers[0]["mean"]) == pytest.approx(0.75)
    assert float(new.buffers["mean"]) == pytest.approx(0.75 * 0.75 + 0.25 * 2)


def test_all_scores_zero_weigh_clusters_alike():
    updates = planted([0, 0, 0, 1], examples=[2, 2, 2, 2])
    _, _, weights = aggregate(FedWAgg(2), updates, lambda model, k: 0.0)
    np.testing.assert_allclose(weights, [1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_one_cluster_is_fedavg():
    updates = planted([0, 1, 2, 1])
    new, probe, weights = aggregate(FedWAgg(1), updates, lambda model, k: 0.3)
    shares = fedavg.weights_by_examples([u.facts.examples for u in updates])
    np.testing.assert_allclose(weights, shares)
    assert_trees(new.params, fedavg.aggregate(client_models(updates), shares))
    assert len(probe.deltas) == 1


def test_who_is_asked():
    updates = planted([0, 0, 0, 0, 1, 1])
    _, probe, _ = aggregate(FedWAgg(2, evaluators=5), updates, lambda model, k: 0.5, available=range(30, 40))
    for asked in probe.evaluators:
        assert len(asked) == len(set(asked)) == 5 and set(asked) <= set(range(30, 40))
    assert probe.evaluators[0] != probe.evaluators[1]
    _, probe, _ = aggregate(FedWAgg(2, evaluators=50), updates, lambda model, k: 0.5, available=range(3))
    assert [sorted(asked) for asked in probe.evaluators] == [[0, 1, 2], [0, 1, 2]]
    again, other = (
        FedWAgg(2).ask(updates, as_tensors(START), range(20), np.random.default_rng(seed)) for seed in (0, 0)
    )
    assert again.evaluators == other.evaluators


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 0}, "choose at least one cluster"),
        ({"clusters": 2, "evaluators": 0}, "ask at least one client"),
        ({"clusters": 2, "features": "weight"}, 'did you mean "weights"'),
    ],
)
def test_nonsense_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        FedWAgg(**options)


def test_more_clusters_than_clients_are_refused_before_the_first_round():
    FedWAgg(3).check(Plan(SGD(0.1)), cohort=3)
    with pytest.raises(ConfigError, match="more clusters than clients; lower clusters or raise the fraction"):
        FedWAgg(3).check(Plan(SGD(0.1)), cohort=2)
    with pytest.raises(ValueError, match="needs the answers to its probe"):
        FedWAgg(3).weights([update(w=[1.0])])
