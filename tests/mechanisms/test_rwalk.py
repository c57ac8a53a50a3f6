"""RWalk: the path score and the importance that is sent are the twin's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkeep.mechanisms import EWC, RWalk
from fedkeep.mechanisms.rwalk import per_tensor
from fedkeep.method import LocalContext, LocalResult, StepContext
from reference import importance, losses, mlp, rwalk
from toys import Network, as_numpy, as_tensors, assert_trees, blobs, play, whole_batches

LR = 0.1


def test_path_score_is_the_twins():
    generator = np.random.default_rng(0)

    def draw():
        return {"a": generator.normal(size=(2, 3)), "b": generator.normal(size=2)}

    gamma, eps = 0.6, 0.05
    path, gradients = [draw() for _ in range(6)], [draw() for _ in range(5)]
    running = {name: np.zeros(array.shape) for name, array in path[0].items()}
    fishers = []
    for gradient in gradients:
        running = {name: gamma * running[name] + (1 - gamma) * gradient[name] ** 2 for name in running}
        fishers.append(running)
    mechanism = RWalk(1.0, gamma=gamma, eps=eps)
    state = mechanism.track_init(as_tensors(path[0]))
    for step, gradient in enumerate(gradients):
        context = StepContext(as_tensors(path[0]), {}, 0.1)
        before, after = as_tensors(path[step]), as_tensors(path[step + 1])
        state = mechanism.track(state, before, as_tensors(gradient), after, context)
    expected = rwalk.path_score(gradients, path, fishers, eps)
    assert_trees({name: score.clamp(min=0) for name, score in state["score"].items()}, expected)


def test_two_real_rounds_are_the_twins():
    """The score along the real steps, without the penalty in g; Fisher and score added after normalising each."""
    lam, gamma, eps, steps = 3.0, 0.8, 0.01, 5
    clients = [blobs(9, [0, 1], 1), blobs(6, [1, 2], 2)]
    method = f"fedavg+rwalk(lam={lam}, gamma={gamma}, eps={eps})"
    run = play(method, Network(), clients, [[0, 1], [0, 1]], whole_batches(LR, steps))
    received = None
    for number in range(2):
        start = as_numpy(run.states[number].params)
        sent = []
        for k in range(2):
            x, y = clients[k].x.numpy(), clients[k].y.numpy()
            path, gradients, fishers = [start], [], []
            running = {name: np.zeros(start[name].shape) for name in start}
            for _ in range(steps):
                w = path[-1]
                gradient = mlp.gradient(w, x, y, losses.ce_grad)
                pull = {name: np.zeros(w[name].shape) for name in w}
                if received is not None:
                    pull = importance.ewc_semi_implicit_correction(w, start, received, lam, LR)
                running = {name: gamma * running[name] + (1 - gamma) * gradient[name] ** 2 for name in w}
                path.append({name: w[name] - LR * (gradient[name] + pull[name]) for name in w})
                gradients.append(gradient)
                fishers.append(running)
            assert_trees(run.outcomes[number][k].params, path[-1])
            score = rwalk.path_score(gradients, path, fishers, eps)
            own = rwalk.importance(importance.fisher(path[-1], x, y), score)
            sent.append(importance.blend(own, received, gamma))
            assert_trees(run.outcomes[number][k].update.uploads["rwalk"]["importance"], sent[-1], rtol=1e-7)
        received = importance.mean_fisher(sent)


def test_each_tensor_is_brought_to_at_most_one():
    tree = {"a": torch.tensor([0.0, 2.0, 4.0]), "b": torch.zeros(2), "c": torch.tensor([1e-12])}
    found = per_tensor(tree)
    assert found["a"].tolist() == [0.0, 0.5, 1.0]
    assert found["b"].tolist() == [0.0, 0.0]
    assert found["c"].tolist() == [1.0]


def test_steps_uphill_do_not_count():
    """A weight that moved against its gradient's wish has a negative score, which is clipped before it is sent."""
    mechanism = RWalk(1.0)
    w = {"w": torch.zeros(2)}
    gradient, after = {"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([-0.1, 0.1])}  # downhill, uphill
    track = mechanism.track(mechanism.track_init(w), w, gradient, after, StepContext(w, {}, LR))
    assert track["score"]["w"][0] > 0 > track["score"]["w"][1]
    fisher = {"w": torch.tensor([2.0, 1.0])}
    result = LocalResult(after, 1, track, lambda: np.zeros(1), lambda: np.zeros(1), lambda: fisher)
    sent = mechanism.client_end(LocalContext(w, {}, {}, 1, 1, LR, 1), result).upload["importance"]
    assert sent["w"].tolist() == [2.0, 0.5]  # F / max F = (1, 1/2), the score (1, 0)


def test_it_is_ewc_with_another_importance():
    assert isinstance(RWalk(1.0), EWC)
    assert RWalk.uploads == EWC.uploads == ("importance",)
    with pytest.raises(ValueError, match=r"rwalk\(lam=-1"):
        RWalk(-1)
