"""The diagonal Fisher: the fast way by layers, the definition per sample, and the numpy twins."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedkeep.local import fisher as module_under_test
from fedkeep.local.fisher import by_layers, diagonal_fisher, per_sample
from fedkeep.model import Model
from fedkeep.models import build
from reference import conv_fisher, importance, losses, mlp
from toys import Network, as_numpy, assert_trees, blobs


def examples(shape, count=4, classes=10, seed=0):
    generator = np.random.default_rng(seed)
    x = torch.from_numpy(generator.normal(size=(count, *shape)))
    return x, torch.from_numpy(generator.integers(0, classes, count))


def shaken(module: nn.Module, seed: int = 1) -> tuple[Model, dict, dict]:
    """A model in float64 whose normalisation layers are not at their initial, neutral values."""
    model = Model.of(module.double())
    params, buffers = model.initial()
    generator = torch.Generator().manual_seed(seed)
    for name in params:
        if params[name].dim() == 1:
            params[name] = params[name] + 0.3 * torch.randn(
                params[name].shape, generator=generator, dtype=torch.float64
            )
    for name in buffers:
        if buffers[name].is_floating_point():
            buffers[name] = buffers[name] + torch.rand(buffers[name].shape, generator=generator, dtype=torch.float64)
    return model, params, buffers


def assert_equal_ways(module, x, y, closed_form=True):
    """The Fisher is the mean of the squares per sample, and was (or was not) found by layers."""
    model, params, buffers = shaken(module)
    definition = {name: tensor / len(y) for name, tensor in per_sample(model, params, buffers, x, y).items()}
    assert any(float(tensor.abs().max()) > 1e-8 for tensor in definition.values())
    found = diagonal_fisher(model, params, buffers, x, y)
    assert_trees(found, as_numpy(definition), rtol=1e-7, atol=1e-12)
    if closed_form:
        direct = by_layers(model, params, buffers, x, y)
        assert_trees({name: tensor / len(y) for name, tensor in direct.items()}, as_numpy(definition), 1e-7, 1e-12)


@pytest.mark.parametrize(
    ("name", "shape", "norm"),
    [
        ("mlp", (1, 8, 8), "batch"),
        ("cnn", (1, 8, 8), "batch"),
        ("lenet", (1, 28, 28), "batch"),
        ("resnet-shallow", (1, 8, 8), "batch"),
        ("resnet-shallow", (1, 8, 8), "group"),
    ],
)
def test_our_models(name, shape, norm):
    torch.manual_seed(0)
    count = 2 if name == "resnet-shallow" else 4
    assert_equal_ways(build(name, shape, 10, norm), *examples(shape, count))


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (1, 3), "padding": (0, 2), "stride": (2, 1)},
        {"kernel_size": 3, "groups": 2, "padding": 1},
        {"kernel_size": 3, "groups": 4, "bias": False},
        {"kernel_size": 2, "dilation": 2},
    ],
    ids=str,
)
def test_convolutions_of_every_kind(options):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(4, 8, **options), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)).double()
    network(torch.zeros(1, 4, 7, 6, dtype=torch.float64))
    assert_equal_ways(network, *examples((4, 7, 6), classes=3))


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(6),
        nn.BatchNorm1d(6, affine=False),
        nn.GroupNorm(3, 6),
        nn.GroupNorm(2, 6, affine=False),
        nn.BatchNorm1d(6, eps=0.1),
        nn.GroupNorm(3, 6, eps=0.1),
    ],
    ids=str,
)
def test_normalisation_layers(layer):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), layer, nn.Tanh(), nn.Linear(6, 3))
    assert_equal_ways(network, *examples((4,), 6, 3))


def test_the_network_twin():
    data = blobs(11, [0, 1, 2])
    model = Model.of(Network())
    params, buffers = model.initial()
    expected = importance.fisher(as_numpy(params), data.x.numpy(), data.y.numpy())
    assert_trees(diagonal_fisher(model, params, buffers, data.x, data.y), expected)


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 1)])
def test_the_convolution_twin(stride, padding):
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 3, (2, 3), stride, padding)
    network = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.LazyLinear(4)).double()
    x, y = examples((2, 5, 5), 3, 4)
    network(x)
    model = Model.of(network)
    params, buffers = model.initial()
    w = as_numpy(params)
    gradients = []
    for sample, label in zip(x.numpy(), y.numpy(), strict=True):
        out = conv_fisher.conv2d(sample, w["0.weight"], w["0.bias"], stride, padding)
        head = {"head.weight": w["3.weight"], "head.bias": w["3.bias"]}
        features = np.maximum(out, 0.0).reshape(1, -1)
        error = losses.ce_grad(mlp.logits(head, features, ["head"]), [label])[0]
        gradients.append((w["3.weight"].T @ error).reshape(out.shape) * (out > 0))
    weight, bias = conv_fisher.fisher(x.numpy(), np.array(gradients), (2, 3), stride, padding)
    found = diagonal_fisher(model, params, buffers, x, y)
    np.testing.assert_allclose(found["0.weight"].numpy(), weight, rtol=1e-9)
    np.testing.assert_allclose(found["0.bias"].numpy(), bias, rtol=1e-9)


def test_squares_of_sample_gradients_not_of_the_batch_gradient():
    """Two examples with opposite gradients: the batch gradient vanishes, the Fisher does not."""
    model = Model.of(nn.Sequential(nn.Linear(1, 2, bias=False)).double())
    params = {"0.weight": torch.zeros(2, 1, dtype=torch.float64)}
    x, y = torch.ones(2, 1, dtype=torch.float64), torch.tensor([0, 1])
    # p = 1/2, so the gradient of each example is +-1/2 in each logit: squares of 1/4
    assert diagonal_fisher(model, params, {}, x, y)["0.weight"].tolist() == [[0.25], [0.25]]


@pytest.mark.parametrize(
    ("layers", "shape", "chunk"),
    [
        ([nn.Linear(4, 3)], (4,), "CHUNK"),
        ([nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 3)], (1, 3, 3), "CHUNK_PER_SAMPLE"),
    ],
)
def test_many_chunks_are_one_mean(monkeypatch, layers, shape, chunk):
    model, params, buffers = shaken(nn.Sequential(*layers))
    x, y = examples(shape, 23, 3)
    whole = diagonal_fisher(model, params, buffers, x, y)
    monkeypatch.setattr(module_under_test, chunk, 7)
    assert_trees(diagonal_fisher(model, params, buffers, x, y), as_numpy(whole))


class Reused(nn.Module):
    """One layer used twice in a pass."""

    def __init__(self):
        super().__init__()
        self.inner, self.classifier = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.classifier(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Sequence(nn.Module):
    """A dense layer applied to each of several positions."""

    def __init__(self):
        super().__init__()
        self.inner, self.classifier = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.classifier(torch.tanh(self.inner(x.reshape(-1, 2, 2))).sum(1))


class Tied(nn.Module):
    """Two layers that share a weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.classifier = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.classifier(torch.tanh(self.second(torch.tanh(self.first(x)))))


class ByHand(nn.Module):
    """A layer whose weight is used without its forward pass."""

    def __init__(self):
        super().__init__()
        self.inner, self.classifier = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.classifier(torch.tanh(nn.functional.linear(x, self.inner.weight, self.inner.bias)))


class Idle(nn.Module):
    """A layer whose output is thrown away, and one that is never used."""

    def __init__(self):
        super().__init__()
        self.inner, self.classifier, self.never = nn.Linear(4, 5), nn.Linear(4, 3), nn.Linear(2, 2)

    def forward(self, x):
        self.inner(x)
        return self.classifier(x)


@pytest.mark.parametrize(
    "make",
    [
        Reused,
        Sequence,
        Tied,
        ByHand,
        Idle,
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)),
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(8, 3)
        ),
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 2, 2)),
            nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"),
            nn.Flatten(),
            nn.Linear(8, 3),
        ),
        lambda: nn.Linear(4, 3),
    ],
    ids=["reused", "3-D", "tied", "by hand", "idle", "in place", "unknown layer", "same", "circular", "bare"],
)
def test_what_has_no_closed_form_falls_back_and_still_agrees(make):
    torch.manual_seed(0)
    assert_equal_ways(make(), *examples((4,), 5, 3), closed_form=False)


@pytest.mark.parametrize("frozen", [["0"], ["2"], ["0.weight"]])
def test_frozen_layers_have_no_fisher(frozen):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = examples((4,), 5, 3)
    free = Model.of(network)
    everything = diagonal_fisher(free, *free.initial(), x, y)
    model = Model.of(network, frozen)
    params, buffers = model.initial()
    assert_trees(diagonal_fisher(model, params, buffers, x, y), {name: everything[name].numpy() for name in params})


def test_it_runs_in_evaluation_mode_and_leaves_no_trace():
    network = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.9), nn.Linear(5, 3)).double()
    model, params, buffers = shaken(network)
    before = {name: tensor.clone() for name, tensor in buffers.items()}
    x, y = examples((4,), 6, 3)
    found = diagonal_fisher(model, params, buffers, x, y)
    assert_trees(found, as_numpy(diagonal_fisher(model, params, buffers, x, y)), rtol=0, atol=0)
    for name in buffers:
        assert torch.equal(buffers[name], before[name])
    assert not any(layer._forward_hooks for layer in network.modules())
    assert all(not tensor.requires_grad for tensor in (*params.values(), *found.values()))
