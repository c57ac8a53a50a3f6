"""The slow twins against closed forms, identities and numbers worked by hand."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pytest

from reference import (
    conv_fisher,
    fedavg,
    fednova,
    fedprox,
    fedwagg,
    fedwavg,
    importance,
    local_sgd,
    losses,
    mlp,
    rwalk,
    scaffold,
    server_optimizers,
)

COUNTS = [5, 0, 1, 12, 0]
LOSSES = {
    "ce": (losses.ce, losses.ce_grad),
    "tce": (lambda f, y: losses.tce(f, y, COUNTS), lambda f, y: losses.tce_grad(f, y, COUNTS)),
    "wsm": (lambda f, y: losses.wsm(f, y, COUNTS), lambda f, y: losses.wsm_grad(f, y, COUNTS)),
    "fedrs": (lambda f, y: losses.fedrs(f, y, COUNTS, 0.3), lambda f, y: losses.fedrs_grad(f, y, COUNTS, 0.3)),
    "fedlc": (lambda f, y: losses.fedlc(f, y, COUNTS, 0.7), lambda f, y: losses.fedlc_grad(f, y, COUNTS, 0.7)),
}


def vector(*values: float) -> dict[str, np.ndarray]:
    return {"w": np.array(values, dtype=np.float64)}


def quadratic(curvature: float, centre: float):
    """Oracle of (curvature / 2) (w - centre)^2."""
    return lambda w, batch: {"w": curvature * (w["w"] - centre)}


def some_logits() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(6, 5)) * 3, np.array([0, 2, 3, 3, 0, 3])


def some_network(*sizes: int) -> tuple[dict[str, np.ndarray], list[str]]:
    generator = np.random.default_rng(1)
    w, layers = {}, []
    for position in range(len(sizes) - 1):
        layers.append(f"layer{position}")
        w[f"layer{position}.weight"] = generator.normal(size=(sizes[position + 1], sizes[position]))
        w[f"layer{position}.bias"] = generator.normal(size=sizes[position + 1])
    return w, layers


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("name", LOSSES)
def test_loss_gradients_are_the_numeric_ones(name):
    logits, labels = some_logits()
    loss, gradient = LOSSES[name]
    numeric = losses.numeric_gradient(lambda f: loss(f, labels), logits)
    np.testing.assert_allclose(gradient(logits, labels), numeric, atol=1e-8)


def test_loss_literals():
    logits = np.array([[0.0, log(2), log(3)]])  # exponentials 1, 2, 3
    label = [1]
    counts = [1, 3, 0]
    assert losses.ce(logits, label) == pytest.approx(log(3))
    assert losses.tce(logits, label, counts) == pytest.approx(log(1.5))
    assert losses.wsm(logits, label, counts) == pytest.approx(log(0.875))  # (1/4 + 3/4 * 2) / 2, negative loss
    assert losses.fedrs(logits, label, counts, 0.5) == pytest.approx(log((3 + sqrt(3)) / 2))
    # n = 1, 16 and tau = log 4: margins log 4 and log 2, exponentials 1/4 and 1
    assert losses.fedlc(logits, label, [1, 16, 0], log(4)) == pytest.approx(log(1.25))
    np.testing.assert_allclose(losses.ce_grad(logits, label), [[1 / 6, -2 / 3, 1 / 2]])
    np.testing.assert_allclose(losses.tce_grad(logits, label, counts), [[1 / 3, -1 / 3, 0]])
    np.testing.assert_allclose(losses.wsm_grad(logits, label, counts), [[1 / 7, -1 / 7, 0]])
    np.testing.assert_allclose(losses.fedlc_grad(logits, label, [1, 16, 0], log(4)), [[0.2, -0.2, 0]])
    total = 3 + sqrt(3)
    expected = [[1 / total, 2 / total - 1, 0.5 * sqrt(3) / total]]
    np.testing.assert_allclose(losses.fedrs_grad(logits, label, counts, 0.5), expected)


def test_loss_special_cases():
    logits, labels = some_logits()
    everything = [4, 4, 4, 4, 4]
    assert losses.tce(logits, labels, [1, 2, 3, 4, 5]) == pytest.approx(losses.ce(logits, labels))
    assert losses.wsm(logits, labels, everything) == pytest.approx(losses.ce(logits, labels) - log(5))
    np.testing.assert_allclose(losses.wsm_grad(logits, labels, everything), losses.ce_grad(logits, labels))
    assert losses.fedrs(logits, labels, COUNTS, 1.0) == pytest.approx(losses.ce(logits, labels))
    assert losses.fedlc(logits, labels, COUNTS, 0.0) == pytest.approx(losses.tce(logits, labels, COUNTS))
    equal = losses.fedlc(logits, labels, [7, 0, 7, 7, 0], 2.0)
    assert equal == pytest.approx(losses.tce(logits, labels, COUNTS))


@pytest.mark.parametrize("name", ["tce", "wsm", "fedlc"])
def test_absent_classes_get_exactly_zero_gradient(name):
    logits, labels = some_logits()
    gradient = LOSSES[name][1](logits, labels)
    assert (gradient[:, [1, 4]] == 0).all()


def test_one_class_has_zero_gradient():
    logits = np.array([[3.0, -1.0, 9.0]])
    for gradient in (
        losses.tce_grad(logits, [1], [0, 6, 0]),
        losses.wsm_grad(logits, [1], [0, 6, 0]),
        losses.fedlc_grad(logits, [1], [0, 6, 0], 1.0),
    ):
        np.testing.assert_array_equal(gradient, np.zeros((1, 3)))


def test_losses_do_not_overflow_and_refuse_absent_labels():
    logits = np.array([[1000.0, -1000.0, 2000.0]])
    assert losses.tce(logits, [0], [1, 1, 0]) == 0.0
    assert losses.ce(logits, [0]) == 1000.0
    with pytest.raises(ValueError, match="label 2"):
        losses.wsm(logits, [2], [1, 1, 0])


def test_personalised_prediction():
    logits = np.array([[log(4), log(2), 100.0], [log(7), log(2), 0.0]])
    # shares 1/4, 3/4, 0: 4/4 against 6/4, then 7/4 against 6/4
    np.testing.assert_array_equal(losses.personalised_prediction(logits, [1, 3, 0]), [1, 0])


# ---------------------------------------------------------------- network


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("sizes", [(3, 5), (3, 4, 5), (3, 4, 3, 5)])
def test_network_gradient_is_the_numeric_one(name, sizes):
    w, layers = some_network(*sizes)
    inputs = np.random.default_rng(2).normal(size=(4, 3))
    labels = np.array([0, 3, 2, 3])
    loss, logit_gradient = LOSSES[name]
    gradient = mlp.gradient(w, inputs, labels, logit_gradient, layers)
    assert set(gradient) == set(w)
    for tensor in w:
        numeric = losses.numeric_gradient(
            lambda value, tensor=tensor: loss(mlp.logits({**w, tensor: value}, inputs, layers), labels), w[tensor]
        )
        np.testing.assert_allclose(gradient[tensor], numeric, atol=1e-7)


def test_network_literal():
    w = {
        "hidden.weight": np.array([[1.0, -1.0], [2.0, 0.0]]),
        "hidden.bias": np.array([0.0, -1.0]),
        "output.weight": np.array([[1.0, 1.0], [0.0, -1.0]]),
        "output.bias": np.array([0.5, 0.0]),
    }
    # x = (1, 3): z = (-2, 1), a = (0, 1), f = (1.5, -1)
    np.testing.assert_array_equal(mlp.logits(w, np.array([[1.0, 3.0]])), [[1.5, -1.0]])
    np.testing.assert_array_equal(mlp.predict(w, np.array([[1.0, 3.0], [-1.0, 0.0]])), [0, 0])
    g = mlp.backward_sample(w, np.array([1.0, 3.0]), np.array([2.0, -1.0]))
    np.testing.assert_array_equal(g["output.weight"], [[0, 2], [0, -1]])
    np.testing.assert_array_equal(g["output.bias"], [2, -1])
    np.testing.assert_array_equal(g["hidden.bias"], [0, 3])  # 2 * 1 + (-1) * (-1), first unit is off
    np.testing.assert_array_equal(g["hidden.weight"], [[0, 0], [3, 9]])


# ---------------------------------------------------------------- local optimisers


def test_sgd_literal():
    ones = lambda w, batch: vector(1.0)  # noqa: E731
    path = local_sgd.train_sgd(vector(10.0), ones, [None, None], 1.0, momentum=0.5, weight_decay=0.1)
    # g = 1 + 1, v = 2, w = 8; g = 1 + 0.8, v = 1 + 1.8, w = 5.2
    np.testing.assert_allclose([p["w"][0] for p in path], [10, 8, 5.2])


def test_adam_closed_forms():
    constant = lambda w, batch: vector(0.3, -5.0)  # noqa: E731
    path = local_sgd.train_adam(vector(1.0, 1.0), constant, range(4), 0.1, epsilon=0.0)
    # constant gradient: both corrected moments are exact, each step has length lr
    np.testing.assert_allclose(path[-1]["w"], [0.6, 1.4])
    half = local_sgd.train_adam(vector(0.0), lambda w, batch: vector(1e-8), [None], 0.1)
    np.testing.assert_allclose(half[-1]["w"], [-0.05])  # g / (|g| + eps) = 1/2
    decayed = local_sgd.train_adam(
        vector(3.0), lambda w, batch: vector(0.0), [None], 0.1, epsilon=0.0, weight_decay=0.01
    )
    np.testing.assert_allclose(decayed[-1]["w"], [2.9])


def test_adam_second_step_literal():
    gradients = iter([vector(1.0), vector(2.0)])
    path = local_sgd.train_adam(vector(0.0), lambda w, b: next(gradients), [0, 1], 1.0, 0.5, 0.5, epsilon=0.0)
    # m = 0.5, 1.25; v = 0.5, 2.25; corrections 0.5, 0.75
    np.testing.assert_allclose(path[1]["w"], [-1.0])
    np.testing.assert_allclose(path[2]["w"], [-1.0 - (1.25 / 0.75) / sqrt(3.0)])


# ---------------------------------------------------------------- FedAvg, FedProx


def test_fedavg_literal_weights_and_mean():
    assert fedavg.weights_by_examples([1, 3]) == [0.25, 0.75]
    assert fedavg.uniform_weights(4) == [0.25] * 4
    mean = fedavg.aggregate([vector(0.0, 4.0), vector(8.0, 4.0)], [0.25, 0.75])
    np.testing.assert_array_equal(mean["w"], [6, 4])


def test_fedavg_one_full_step_is_a_centralised_step():
    gradients = [quadratic(1.0, 2.0), quadratic(3.0, -1.0)]
    after = fedavg.simulate(vector(0.5), gradients, [[0, 1]], [1, 1], 0.1, examples=[10, 30])[-1]
    pooled = 0.25 * 1.0 * (0.5 - 2.0) + 0.75 * 3.0 * (0.5 + 1.0)
    np.testing.assert_allclose(after["w"], [0.5 - 0.1 * pooled])


def test_fedavg_uses_each_clients_own_batches():
    seen = []

    def gradient(w, batch):
        seen.append(batch)
        return vector(0.0)

    fedavg.simulate(vector(0.0), [gradient] * 3, [[2], [0]], [1, 1, 2], 0.1, batches=lambda t, k, s: (t, k, s))
    assert seen == [(0, 2, 0), (0, 2, 1), (1, 0, 0)]


def test_fedprox_gradient_is_that_of_its_penalty_and_mu_zero_is_fedavg():
    w, start = vector(1.0, -2.0, 0.5), vector(0.0, 1.0, 0.5)
    assert fedprox.penalty(w, start, 0.4) == pytest.approx(0.2 * (1 + 9))
    numeric = losses.numeric_gradient(lambda value: fedprox.penalty({"w": value}, start, 0.4), w["w"])
    np.testing.assert_allclose(fedprox.penalty_gradient(w, start, 0.4)["w"], numeric, atol=1e-8)
    gradients = [quadratic(1.0, 2.0), quadratic(3.0, -1.0)]
    arguments = (vector(0.5), gradients, [[0, 1], [1]], [3, 2], 0.1)
    plain = fedavg.simulate(*arguments, examples=[1, 2])
    np.testing.assert_allclose(fedprox.simulate(*arguments, mu=0.0, examples=[1, 2])[-1]["w"], plain[-1]["w"])


def test_fedprox_closed_form_on_a_quadratic():
    # the local objective h/2 (w - m)^2 + mu/2 (w - w0)^2 has its minimum at (h m + mu w0) / (h + mu)
    trained = fedprox.local_training(vector(4.0), quadratic(2.0, -1.0), [None] * 400, 0.1, mu=3.0)
    np.testing.assert_allclose(trained["w"], [(2.0 * -1.0 + 3.0 * 4.0) / 5.0])


# ---------------------------------------------------------------- SCAFFOLD


def test_scaffold_two_rounds_by_hand():
    gradients = [quadratic(1.0, 1.0), quadratic(3.0, -1.0)]
    run = scaffold.simulate(vector(0.0), gradients, [[0], [1]], [2, 1], 0.5, server_learning_rate=0.5)
    # round 1: w = 0, 0.5, 0.75; c_0 = -0.75; server w = 0.375, c = -0.375
    # round 2: g = 4.125, w = 0.375 - 0.5 (4.125 - 0.375) = -1.5; c_1 = 0.375 + 1.875 / 0.5; c = -0.375 + 4.125 / 2
    np.testing.assert_allclose([w["w"][0] for w in run.models], [0, 0.375, -0.5625])
    np.testing.assert_allclose([c["w"][0] for c in run.server_controls], [0, -0.375, 1.6875])
    np.testing.assert_allclose([c[0]["w"][0] for c in run.client_controls], [0, -0.75, -0.75])
    np.testing.assert_allclose([c[1]["w"][0] for c in run.client_controls], [0, 0, 4.125])


def test_scaffold_reaches_the_stationary_point_with_half_the_clients_and_fedavg_does_not():
    curvatures, centres = [1.0, 3.0, 0.5, 2.0], [4.0, -1.0, 2.0, 0.0]
    gradients = [quadratic(h, m) for h, m in zip(curvatures, centres, strict=True)]
    stationary = np.dot(curvatures, centres) / np.sum(curvatures)
    generator = np.random.default_rng(3)
    cohorts = [sorted(generator.choice(4, size=2, replace=False).tolist()) for _ in range(600)]
    steps = [5, 3, 4, 6]
    run = scaffold.simulate(vector(10.0), gradients, cohorts, steps, 0.05)
    np.testing.assert_allclose(run.models[-1]["w"], [stationary], atol=1e-6)
    # the server's control variate is always the mean of the clients', and ends as the mean gradient: zero
    for c, clients in zip(run.server_controls, run.client_controls, strict=True):
        np.testing.assert_allclose(c["w"], np.mean([own["w"] for own in clients], axis=0), atol=1e-12)
    np.testing.assert_allclose(run.server_controls[-1]["w"], [0.0], atol=1e-6)
    # FedAvg, all clients: the fixed point weights client k by 1 - (1 - eta h_k)^steps_k
    pull = [1 - (1 - 0.05 * h) ** s for h, s in zip(curvatures, steps, strict=True)]
    fixed = np.dot(pull, centres) / np.sum(pull)
    averaged = fedavg.simulate(vector(10.0), gradients, [[0, 1, 2, 3]] * 200, steps, 0.05)[-1]
    np.testing.assert_allclose(averaged["w"], [fixed])
    assert abs(fixed - stationary) > 0.1


def test_scaffold_first_round_is_fedavg():
    gradients = [quadratic(1.0, 2.0), quadratic(3.0, -1.0)]
    run = scaffold.simulate(vector(0.5), gradients, [[0, 1]], [3, 2], 0.1)
    plain = fedavg.simulate(vector(0.5), gradients, [[0, 1]], [3, 2], 0.1)
    np.testing.assert_allclose(run.models[-1]["w"], plain[-1]["w"])


# ---------------------------------------------------------------- FedNova


def test_fednova_literal_vectors_and_norms():
    assert fednova.vector_momentum(2, 0.5) == [1.5, 1.0]
    assert fednova.norm_momentum(2, 0.5) == pytest.approx(2.5)
    np.testing.assert_allclose(fednova.vector_proximal(3, 0.1, 1.0), [0.81, 0.9, 1.0])
    assert fednova.norm_proximal(3, 0.1, 1.0) == pytest.approx(2.71)
    assert fednova.norm_plain(7) == fednova.norm_momentum(7, 0.0) == fednova.norm_proximal(7, 0.1, 0.0) == 7


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_fednova_closed_forms_are_the_sums_of_the_unrolled_vectors(steps):
    np.testing.assert_allclose(fednova.vector_plain(steps), fednova.vector_unrolled(steps))
    np.testing.assert_allclose(fednova.vector_momentum(steps, 0.9), fednova.vector_unrolled(steps, momentum=0.9))
    assert sum(fednova.vector_unrolled(steps, momentum=0.9)) == pytest.approx(fednova.norm_momentum(steps, 0.9))
    proximal = fednova.vector_unrolled(steps, learning_rate=0.1, mu=2.0)
    np.testing.assert_allclose(fednova.vector_proximal(steps, 0.1, 2.0), proximal)
    assert sum(proximal) == pytest.approx(fednova.norm_proximal(steps, 0.1, 2.0))


def test_fednova_vector_describes_what_local_training_does():
    noise = np.random.default_rng(4).normal(size=6)
    momentum_path = local_sgd.train_sgd(vector(1.0), lambda w, g: vector(g), list(noise), 0.1, momentum=0.8)
    change = momentum_path[0]["w"] - momentum_path[-1]["w"]
    np.testing.assert_allclose(change, [0.1 * np.dot(fednova.vector_momentum(6, 0.8), noise)])
    proximal = fedprox.local_training(vector(1.0), lambda w, g: vector(g), list(noise), 0.1, mu=0.5)
    np.testing.assert_allclose(1.0 - proximal["w"], [0.1 * np.dot(fednova.vector_proximal(6, 0.1, 0.5), noise)])
    both = local_sgd.train_sgd(
        vector(1.0), lambda w, g: {"w": g + 0.5 * (w["w"] - 1.0)}, list(noise), 0.1, momentum=0.8
    )
    unrolled = fednova.vector_unrolled(6, momentum=0.8, learning_rate=0.1, mu=0.5)
    np.testing.assert_allclose(1.0 - both[-1]["w"], [0.1 * np.dot(unrolled, noise)])


def test_fednova_update_by_hand_and_equal_norms_are_fedavg():
    # d = (-1, -1.5), tau_eff = 0.25 + 1.5, w = 1.75 (0.25 + 1.125)
    new = fednova.aggregate(vector(0.0), [vector(1.0), vector(3.0)], [0.25, 0.75], [1.0, 2.0])
    np.testing.assert_allclose(new["w"], [2.40625])
    models = [vector(1.0, 5.0), vector(3.0, -2.0)]
    equal = fednova.aggregate(vector(0.3, 0.4), models, [0.25, 0.75], [4.0, 4.0])
    np.testing.assert_allclose(equal["w"], fedavg.aggregate(models, [0.25, 0.75])["w"])


def test_fednova_does_not_favour_the_client_with_more_steps():
    # constant gradients 1 and -1, equal weights, 2 and 10 steps: FedNova stays where it is, FedAvg drifts
    paths = [
        local_sgd.train_sgd(vector(0.0), lambda w, b: vector(1.0), range(2), 0.1)[-1],
        local_sgd.train_sgd(vector(0.0), lambda w, b: vector(-1.0), range(10), 0.1)[-1],
    ]
    new = fednova.aggregate(vector(0.0), paths, [0.5, 0.5], [2.0, 10.0])
    np.testing.assert_allclose(new["w"], [0.0], atol=1e-15)
    np.testing.assert_allclose(fedavg.aggregate(paths, [0.5, 0.5])["w"], [0.4])


# ---------------------------------------------------------------- server optimisers


def test_server_sgd_with_rate_one_is_plain_averaging():
    models = [vector(1.0, 5.0), vector(3.0, -2.0)]
    delta = server_optimizers.pseudo_gradient(vector(9.0, 9.0), models, [0.5, 0.5])
    np.testing.assert_allclose(server_optimizers.sgd(vector(9.0, 9.0), [delta], 1.0)[-1]["w"], [2.0, 1.5])


def test_fedavgm_literal():
    path = server_optimizers.fedavgm(vector(1.0), [vector(0.5), vector(0.5)], 2.0, 0.9)
    np.testing.assert_allclose([p["w"][0] for p in path], [1.0, 2.0, 3.9])  # v = 0.5, 0.95


def test_adaptive_server_literals():
    # tau = 1, so v starts at 1; deltas chosen so that v = 4
    adam = server_optimizers.fedadam(vector(0.0), [vector(sqrt(7))], 6.0, tau=1, beta1=0.5, beta2=0.5)
    np.testing.assert_allclose(adam[-1]["w"], [6 * 0.5 * sqrt(7) / 3])
    yogi = server_optimizers.fedyogi(vector(0.0), [vector(sqrt(6))], 6.0, tau=1, beta1=0.5, beta2=0.5)
    np.testing.assert_allclose(yogi[-1]["w"], [6 * 0.5 * sqrt(6) / 3])
    adagrad = server_optimizers.fedadagrad(vector(0.0), [vector(sqrt(3))], 6.0, tau=1)
    np.testing.assert_allclose(adagrad[-1]["w"], [6 * sqrt(3) / 3])


def test_adaptive_second_step_and_yogi_sign():
    deltas = [vector(sqrt(3)), vector(sqrt(5))]
    path = server_optimizers.fedadagrad(vector(0.0), deltas, 1.0, tau=1, beta1=0.5)
    # m = sqrt(3)/2 then sqrt(3)/4 + sqrt(5)/2; v = 4 then 9
    np.testing.assert_allclose(path[1]["w"], [sqrt(3) / 2 / 3])
    np.testing.assert_allclose(path[2]["w"], [sqrt(3) / 2 / 3 + (sqrt(3) / 4 + sqrt(5) / 2) / 4])
    assert server_optimizers.second_moment_yogi(1.0, 0.5, 0.5) == 0.875
    assert server_optimizers.second_moment_yogi(1.0, 1.0, 0.5) == 1.0
    assert server_optimizers.second_moment_yogi(1.0, 2.0, 0.5) == 3.0


# ---------------------------------------------------------------- FedWAvg


def test_fedwavg_weights_literal_and_sum():
    assert fedwavg.averaging_weights([1, 3], 0.5) == [0.75, 1.25]
    np.testing.assert_allclose(fedwavg.averaging_weights([2, None, 4], 0.3), [0.9, 1.0, 1.1])
    assert fedwavg.averaging_weights([0, 0, 0], 0.3) == [1, 1, 1]
    assert fedwavg.averaging_weights([None, None], 0.3) == [1, 1]
    assert fedwavg.averaging_weights([5, 1], 0.0) == [1, 1]
    for counts in ([7, 0, 2, 11], [None, 3, 0, None, 9]):
        assert sum(fedwavg.averaging_weights(counts, 0.7)) == pytest.approx(len(counts))


def test_forgettable_needs_right_before_and_wrong_after():
    assert fedwavg.forgettable_count([True, True, False, False], [True, False, True, False]) == 1


def threshold_world():
    """The model is a threshold. Client 0 always trains to 0, client 1 to 2; both have the inputs 1 and 3."""
    inputs = np.array([1.0, 3.0])
    data = [(inputs, np.array([1, 1])), (inputs, np.array([0, 1]))]
    predict = lambda w, x: [1 if value > w["w"][0] else 0 for value in x]  # noqa: E731
    train = lambda w, number, k: vector(0.0 if k == 0 else 2.0)  # noqa: E731
    return data, predict, train


def test_fedwavg_simulation_by_hand():
    data, predict, train = threshold_world()
    rounds = fedwavg.simulate(vector(0.0), data, predict, train, [[0, 1]] * 3, alpha=0.5)
    assert [r.counts for r in rounds] == [[None, None], [1, 0], [0, 1]]
    assert [r.weights for r in rounds] == [[1, 1], [1.5, 0.5], [0.5, 1.5]]
    assert [r.model["w"][0] for r in rounds] == [1.0, 0.5, 1.5]


def test_fedwavg_partial_participation_and_event_period():
    data, predict, train = threshold_world()
    cohorts = [[0], [0, 1], [1, 0], [0, 1], [0]]
    rounds = fedwavg.simulate(vector(0.0), data, predict, train, cohorts, alpha=0.5, event_period=2)
    # round 2: the global model is client 0's own, nothing forgotten; client 1 is new. Round 3 is no event: counts kept.
    assert [r.counts for r in rounds] == [[None], [0, None], [None, 0], [1, 0], [1]]
    assert [r.weights for r in rounds] == [[1], [1, 1], [1, 1], [1.5, 0.5], [1]]
    assert [r.model["w"][0] for r in rounds] == [0.0, 1.0, 1.0, 0.5, 0.0]


# ---------------------------------------------------------------- FedWAgg


def test_fedwagg_by_hand():
    models = [vector(0.0), vector(4.0), vector(10.0)]
    merged = fedwagg.cluster_models(models, [1, 3, 5], [0, 0, 1], 2)
    assert [m["w"][0] for m in merged] == [3.0, 10.0]
    table = {3.0: [0.2, 0.4, 0.9], 10.0: [0.1, 0.5, 0.1]}
    client_accuracy = lambda model, k: table[float(model["w"][0])][k]  # noqa: E731
    scores = fedwagg.scores(merged, [[0, 1], [2]], client_accuracy)
    np.testing.assert_allclose(scores, [0.3, 0.1])
    weights = fedwagg.final_weights(scores)
    np.testing.assert_allclose(weights, [0.75, 0.25])
    np.testing.assert_allclose(fedwagg.aggregate(merged, weights)["w"], [4.75])
    new = fedwagg.global_round(models, [1, 3, 5], [0, 0, 1], 2, [[0, 1], [2]], client_accuracy)
    np.testing.assert_allclose(new["w"], [4.75])


def test_fedwagg_edges():
    assert fedwagg.final_weights([0.0, 0.0, 0.0, 0.0]) == [0.25] * 4
    assert fedwagg.accuracy([1, 2, 3, 4], [1, 2, 0, 0]) == 0.5
    with pytest.raises(ValueError, match="cluster 1"):
        fedwagg.cluster_models([vector(1.0)], [1], [0], 2)
    np.testing.assert_allclose(fedwagg.update_features(vector(4.0, 1.0), vector(1.0, 5.0)), [0.6, -0.8])
    assert fedwagg.update_features(vector(1.0), vector(1.0)) == [0.0]


# ---------------------------------------------------------------- Importance


def test_fisher_by_hand():
    w = {
        "hidden.weight": np.array([[1.0]]),
        "hidden.bias": np.array([0.0]),
        "output.weight": np.array([[log(3) / 2], [0.0]]),
        "output.bias": np.array([0.0, 0.0]),
    }
    # x = 2: a = 2, p = (3/4, 1/4), label 1: d f = (-3/4, 3/4), d a = -3/8 log 3.  x = -1: unit off, p = (1/2, 1/2)
    both = importance.fisher(w, np.array([[2.0], [-1.0]]), [1, 0])
    np.testing.assert_allclose(both["output.weight"], [[2.25 / 2], [2.25 / 2]])
    np.testing.assert_allclose(both["output.bias"], [(9 / 16 + 1 / 4) / 2] * 2)
    np.testing.assert_allclose(both["hidden.bias"], [(3 / 8 * log(3)) ** 2 / 2])
    np.testing.assert_allclose(both["hidden.weight"], [[(3 / 4 * log(3)) ** 2 / 2]])


def test_fisher_is_the_mean_square_of_numeric_per_sample_gradients():
    w, layers = some_network(3, 4, 5)
    inputs = np.random.default_rng(5).normal(size=(6, 3))
    labels = np.array([0, 1, 2, 3, 4, 0])
    fast = importance.fisher(w, inputs, labels, *layers)
    for tensor in w:
        expected = np.zeros(w[tensor].shape)
        for i in range(6):
            gradient = losses.numeric_gradient(
                lambda value, tensor=tensor, i=i: losses.ce(
                    mlp.logits({**w, tensor: value}, inputs[i : i + 1], layers), labels[i : i + 1]
                ),
                w[tensor],
            )
            expected += gradient**2 / 6
        np.testing.assert_allclose(fast[tensor], expected, atol=1e-7)


def test_importance_two_clients_by_hand():
    fishers = [vector(1.0, 3.0, 0.0), vector(4.0, 4.0, 0.0)]
    # per tensor: (1/4, 3/4, 0) and (1/2, 1/2, 0); over clients: (1/3, 2/3), (3/5, 2/5), uniform
    weights = importance.aggregation_weights(fishers)
    np.testing.assert_allclose(weights[0]["w"], [1 / 3, 3 / 5, 1 / 2])
    np.testing.assert_allclose(weights[1]["w"], [2 / 3, 2 / 5, 1 / 2])
    new = importance.aggregate([vector(3.0, 5.0, 1.0), vector(6.0, 10.0, 2.0)], fishers)
    np.testing.assert_allclose(new["w"], [5.0, 7.0, 1.5])
    np.testing.assert_allclose(importance.mean_fisher(fishers)["w"], [2.5, 3.5, 0.0])


def test_importance_special_cases():
    zero_client = importance.aggregation_weights([vector(0.0, 0.0), vector(1.0, 0.0)])
    np.testing.assert_array_equal(zero_client[0]["w"], [0.0, 0.5])
    np.testing.assert_array_equal(zero_client[1]["w"], [1.0, 0.5])
    models = [vector(1.0, 5.0), vector(3.0, -2.0)]
    same = [vector(2.0, 6.0), vector(20.0, 60.0)]  # equal up to scale: the first stage removes the scale
    np.testing.assert_allclose(importance.aggregate(models, same)["w"], [2.0, 1.5])
    np.testing.assert_allclose(importance.blend(vector(1.0), vector(2.0), 0.9)["w"], [1.9])
    np.testing.assert_allclose(importance.blend(vector(1.0), None, 0.9)["w"], [1.0])
    np.testing.assert_allclose(importance.buffer_mean([vector(0.0), vector(4.0)], [1, 3])["w"], [3.0])


def test_ewc_gradient_and_semi_implicit_step():
    w, start, received = vector(1.0, -2.0, 0.5), vector(0.0, 1.0, 0.0), vector(0.1, 0.0, 3.0)
    assert importance.ewc_penalty(w, start, received, 4.0) == pytest.approx(2 * (0.1 + 0.0 + 0.75))
    explicit = importance.ewc_explicit_gradient(w, start, received, 4.0)
    numeric = losses.numeric_gradient(lambda v: importance.ewc_penalty({"w": v}, start, received, 4.0), w["w"])
    np.testing.assert_allclose(explicit["w"], numeric, atol=1e-8)
    # w - lr * correction solves v = w - lr * penalty gradient at v
    correction = importance.ewc_semi_implicit_correction(w, start, received, 4.0, 0.5)
    landed = {"w": w["w"] - 0.5 * correction["w"]}
    back = landed["w"] + 0.5 * importance.ewc_explicit_gradient(landed, start, received, 4.0)["w"]
    np.testing.assert_allclose(back, w["w"])
    tiny = importance.ewc_semi_implicit_correction(w, start, received, 4.0, 1e-12)
    np.testing.assert_allclose(tiny["w"], explicit["w"])


def test_ewc_explicit_stability_bound():
    assert importance.ewc_explicit_is_stable(vector(0.1, 3.0), 1.0, 0.66)
    assert not importance.ewc_explicit_is_stable(vector(0.1, 4.0), 1.0, 0.5)


# ---------------------------------------------------------------- RWalk


def test_rwalk_by_hand():
    fisher = vector(8.0, 8.0, 0.0)
    path = [vector(0.0, 0.0, 0.0), vector(0.5, 0.5, 1.0), vector(1.0, 1.0, 1.0)]
    gradients = [vector(-2.0, 2.0, -0.5), vector(1.0, 1.0, 9.0)]
    # 1 / (1 + 1) - 0.5 / (1 + 1) = 0.25;  -0.5 - 0.25 -> 0;  0.5 / (0 + 1) + 0 = 0.5
    score = rwalk.path_score(gradients, path, [fisher, fisher], 1.0)
    np.testing.assert_allclose(score["w"], [0.25, 0.0, 0.5])
    np.testing.assert_allclose(rwalk.importance(fisher, score)["w"], [1.5, 1.0, 1.0])
    np.testing.assert_array_equal(rwalk.normalise(vector(0.0, 0.0))["w"], [0.0, 0.0])


# ---------------------------------------------------------------- convolution


def test_convolution_by_hand():
    x = np.arange(9.0).reshape(1, 3, 3)
    weight = np.array([[[[1.0, 0.0], [0.0, -1.0]]]])
    np.testing.assert_array_equal(conv_fisher.conv2d(x, weight, np.array([0.5])), np.full((1, 2, 2), -3.5))
    error = np.array([[[1.0, 0.0], [0.0, 2.0]]])
    d_weight, d_bias = conv_fisher.sample_gradient(x, error, (2, 2))
    np.testing.assert_array_equal(d_weight, [[[[0 + 8, 1 + 10], [3 + 14, 4 + 16]]]])
    np.testing.assert_array_equal(d_bias, [3])


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 2), (2, 1)])
def test_convolution_fisher_is_the_mean_square_of_numeric_gradients(stride, padding):
    generator = np.random.default_rng(6)
    inputs = generator.normal(size=(3, 2, 5, 4))
    weight, bias = generator.normal(size=(2, 2, 3, 2)), generator.normal(size=2)
    shape = conv_fisher.conv2d(inputs[0], weight, bias, stride, padding).shape
    errors = generator.normal(size=(3, *shape))
    expected_weight, expected_bias = np.zeros(weight.shape), np.zeros(bias.shape)
    for x, error in zip(inputs, errors, strict=True):

        def loss(kernel, offset, x=x, error=error):
            return float((error * conv_fisher.conv2d(x, kernel, offset, stride, padding)).sum())

        expected_weight += losses.numeric_gradient(lambda v, loss=loss: loss(v, bias), weight) ** 2 / 3
        expected_bias += losses.numeric_gradient(lambda v, loss=loss: loss(weight, v), bias) ** 2 / 3
    fisher_weight, fisher_bias = conv_fisher.fisher(inputs, errors, (3, 2), stride, padding)
    np.testing.assert_allclose(fisher_weight, expected_weight, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(fisher_bias, expected_bias, rtol=1e-6, atol=1e-7)
