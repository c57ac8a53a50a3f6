from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from fedkeep.errors import ConfigError
from fedkeep.models import build, names
from fedkeep.models.densenet import DenseLayer, Transition
from fedkeep.models.norm import normalisation
from fedkeep.models.pool import halved
from fedkeep.models.resnet import Block
from fedkeep.rng import stream, torch_seeded

NORMALISED = ["resnet18", "resnet-shallow", "densenet121"]
SMALL = {"mlp": (1, 8, 8), "cnn": (1, 8, 8), "cnn2": (1, 16, 16), "lenet": (1, 28, 28)} | dict.fromkeys(
    NORMALISED, (1, 8, 8)
)
VARIANTS = [(name, norm) for name in SMALL for norm in (("batch", "group") if name in NORMALISED else ("batch",))]


def make(name: str, shape: tuple[int, ...], classes: int = 10, norm: str = "batch", seed: int = 0) -> nn.Module:
    with torch_seeded(stream(seed, "test-init")):
        return build(name, shape, classes, norm)


def images(shape: tuple[int, ...], count: int = 5) -> Tensor:
    return torch.from_numpy(stream(0, "test-images").standard_normal((count, *shape)).astype(np.float32))


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def dense_layers(channels: int, count: int) -> int:
    """Parameters of a dense block by hand: norm, 1x1 to 128, norm, 3x3 to 32, each layer on 32 channels more."""
    widths = [channels + 32 * i for i in range(count)]
    return sum(2 * c + 128 * c + 2 * 128 + 9 * 128 * 32 for c in widths)


def densenet121_by_hand(channels: int, classes: int, kernel: int) -> int:
    stem = channels * 64 * kernel**2 + 2 * 64
    blocks = dense_layers(64, 6) + dense_layers(128, 12) + dense_layers(256, 24) + dense_layers(512, 16)
    transitions = sum(2 * c + c * c // 2 for c in (256, 512, 1024))
    return stem + blocks + transitions + 2 * 1024 + 1024 * classes + classes


def test_densenet_formula_gives_the_published_imagenet_count():
    assert densenet121_by_hand(3, 1000, kernel=7) == 7978856


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("mlp", (1, 28, 28), 10, 784 * 200 + 200 + 200 * 10 + 10),
        ("mlp", (1, 28, 28), 10, 159010),
        ("mlp", (3, 32, 32), 10, 3072 * 200 + 200 + 2010),
        ("mlp", (1, 8, 8), 10, 64 * 200 + 200 + 2010),
        ("mlp", (20,), 3, 20 * 200 + 200 + 603),
        ("cnn", (1, 28, 28), 10, 1663370),
        ("cnn", (3, 32, 32), 10, 2432 + 51264 + 4096 * 512 + 512 + 5130),
        ("cnn", (1, 8, 8), 10, 832 + 51264 + 256 * 512 + 512 + 5130),
        ("cnn2", (1, 28, 28), 10, 21840),
        ("cnn2", (3, 32, 32), 10, 760 + 5020 + 500 * 50 + 50 + 510),
        ("lenet", (3, 32, 32), 10, 62006),
        ("lenet", (3, 32, 32), 100, 62006 + 90 * 85),
        ("lenet", (1, 28, 28), 10, 62006 - 2 * 6 * 25),
        ("resnet18", (3, 32, 32), 10, 11173962),
        ("resnet18", (1, 28, 28), 10, 11173962 - 2 * 64 * 9),
        ("resnet-shallow", (3, 32, 32), 10, 1856 + 73984 + 230144 + 919040 + 3673088 + 5130),
        ("densenet121", (3, 32, 32), 10, densenet121_by_hand(3, 10, kernel=3)),
        ("densenet121", (1, 28, 28), 10, densenet121_by_hand(1, 10, kernel=3)),
    ],
)
def test_parameter_count(name, shape, classes, expected):
    assert parameters(make(name, shape, classes)) == expected


@pytest.mark.parametrize("name", NORMALISED)
def test_group_norm_has_the_same_parameters_and_no_buffers(name):
    batch, group = make(name, (1, 8, 8)), make(name, (1, 8, 8), norm="group")
    assert {n: p.shape for n, p in batch.named_parameters()} == {n: p.shape for n, p in group.named_parameters()}
    assert not list(group.buffers())
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in batch.modules())
    assert norms > 0
    assert len(list(batch.buffers())) == 3 * norms
    assert {m.num_groups for m in group.modules() if isinstance(m, nn.GroupNorm)} == {32}


@pytest.mark.parametrize(("channels", "groups"), [(4, 4), (16, 16), (32, 32), (48, 16), (96, 32), (5, 1)])
def test_group_count_divides_the_channels(channels, groups):
    layer = normalisation("group", channels)
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == groups


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name in names() for shape in ((1, 28, 28), (3, 32, 32))]
    + [(name, (1, 8, 8)) for name in ("mlp", "cnn", *NORMALISED)],
)
def test_output_shape_and_finite(name, shape):
    model = make(name, shape, classes=7).eval()
    with torch.no_grad():
        logits = model(images(shape, 2))
    assert logits.shape == (2, 7)
    assert torch.isfinite(logits).all()


def test_unequal_sides_are_accepted():
    for name in names():
        with torch.no_grad():
            assert make(name, (2, 29, 34), classes=3).eval()(images((2, 29, 34), 2)).shape == (2, 3)


@pytest.mark.parametrize(("name", "norm"), VARIANTS)
def test_gradient_reaches_every_parameter(name, norm):
    shape = SMALL[name]
    model = make(name, shape, norm=norm)
    labels = torch.arange(5)
    functional.cross_entropy(model(images(shape)), labels).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize(("name", "norm"), VARIANTS)
def test_eval_mode_treats_samples_independently(name, norm):
    shape = SMALL[name]
    model, x = make(name, shape, norm=norm), images(shape)
    with torch.no_grad():
        model(x)  # moves the running statistics off their start
        model.eval()
        together = model(x)
        alone = torch.cat([model(x[i : i + 1]) for i in (3, 0)])
    torch.testing.assert_close(together[[3, 0]], alone, rtol=1e-4, atol=1e-5)
    assert (together[3] - together[0]).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["resnet-shallow", "densenet121"])
def test_only_batch_norm_mixes_the_samples_in_training(name):
    x = images((1, 8, 8))
    for norm, mixes in (("batch", True), ("group", False)):
        model = make(name, (1, 8, 8), norm=norm)
        with torch.no_grad():
            difference = (model(x)[:2] - model(x[:2])).abs().max()
        assert (difference > 1e-3) == mixes


@pytest.mark.parametrize("name", names())
def test_last_dense_layer_is_the_classifier(name):
    model = make(name, SMALL[name], classes=4)
    dense = [(key, layer) for key, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    assert dense[-1][0] == "classifier"
    assert dense[-1][1].out_features == 4
    with torch.no_grad():
        dense[-1][1].weight.zero_()
        logits = model.eval()(images(SMALL[name], 2))
    torch.testing.assert_close(logits, dense[-1][1].bias.expand(2, 4))


@pytest.mark.parametrize("name", names())
def test_weights_come_from_torch_random_state(name):
    first, second, other = (make(name, SMALL[name], seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


@pytest.mark.parametrize("name", names())
def test_no_dropout_and_no_module_that_writes_in_place(name):
    for module in make(name, SMALL[name]).modules():
        assert "Dropout" not in type(module).__name__
        assert not getattr(module, "inplace", False)


@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn2", "lenet", "resnet-shallow"])
def test_a_traced_gradient_equals_the_eager_one(name):
    shape = SMALL[name]
    model, x, labels = make(name, shape, norm="group"), images(shape), torch.arange(5)
    weights = {key: value.detach() for key, value in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, weights, (x,)), labels)

    traced = make_fx(grad(loss))(weights, x)(weights, x)
    functional.cross_entropy(model(x), labels).backward()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(traced[key], parameter.grad, rtol=1e-4, atol=1e-6)


def test_mlp_against_matrix_products():
    model, x = make("mlp", (1, 2, 3), classes=2), images((1, 2, 3), 4)
    w = {key: value.detach().numpy().astype(np.float64) for key, value in model.named_parameters()}
    hidden = np.maximum(x.numpy().reshape(4, 6) @ w["hidden.weight"].T + w["hidden.bias"], 0)
    expected = hidden @ w["classifier.weight"].T + w["classifier.bias"]
    np.testing.assert_allclose(model(x).detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def layers(name: str) -> list[nn.Module]:
    """The small networks layer by layer, on 32x32 colour images."""
    relu, pool = nn.ReLU(), nn.MaxPool2d(2)
    if name == "cnn":
        convolutions = [nn.Conv2d(3, 32, 5, padding=2), relu, pool, nn.Conv2d(32, 64, 5, padding=2), relu, pool]
        return [*convolutions, nn.Flatten(), nn.Linear(4096, 512), relu, nn.Linear(512, 10)]
    first, second = (10, 20) if name == "cnn2" else (6, 16)
    convolutions = [nn.Conv2d(3, first, 5), relu, pool, nn.Conv2d(first, second, 5), relu, pool, nn.Flatten()]
    widths = (500, 50, 10) if name == "cnn2" else (400, 120, 84, 10)
    dense = [[nn.Linear(a, b), relu] for a, b in itertools.pairwise(widths)]
    return [*convolutions, *itertools.chain.from_iterable(dense)][:-1]


@pytest.mark.parametrize("name", ["cnn", "cnn2", "lenet"])
def test_small_networks_layer_by_layer(name):
    model, twin, x = make(name, (3, 32, 32)), nn.Sequential(*layers(name)), images((3, 32, 32), 3)
    with torch.no_grad():
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            theirs.copy_(ours)
        torch.testing.assert_close(model(x), twin(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "ends"), [("resnet-shallow", []), ("densenet121", ["final_norm", "relu"])])
def test_both_ends_of_the_deep_networks(name, ends):
    model, x = make(name, (3, 16, 16)), images((3, 16, 16), 3)  # in training, where the norms do something
    parts = dict(model.named_children()) | {"relu": nn.ReLU()}
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), parts["classifier"]]
    twin = nn.Sequential(*(parts[key] for key in ("stem", "stem_norm", "relu", "stages", *ends)), *tail)
    with torch.no_grad():
        torch.testing.assert_close(model(x), twin(x), rtol=1e-4, atol=1e-5)


def test_cnn_has_the_features_of_the_paper():
    dense = make("cnn", (1, 28, 28)).get_submodule("dense")
    assert isinstance(dense, nn.Linear)
    assert dense.in_features == 3136


def test_lenet_puts_small_images_in_the_middle_of_zeros():
    small, full = make("lenet", (2, 29, 28)), make("lenet", (2, 32, 32), seed=1)
    full.load_state_dict(small.state_dict())
    x = images((2, 29, 28), 3)
    padded = np.zeros((3, 2, 32, 32), np.float32)
    padded[:, :, 1:30, 2:30] = x.numpy()
    torch.testing.assert_close(small(x), full(torch.from_numpy(padded)))


def sides(model: nn.Module, kind: type[nn.Module], x: Tensor) -> list[int]:
    """The side of the image after each module of one kind, in order."""
    seen: list[int] = []
    for module in model.modules():
        if isinstance(module, kind):
            module.register_forward_hook(lambda _module, _args, output: seen.append(output.shape[-1]))
    with torch.no_grad():
        model.eval()(x)
    return seen


def test_the_side_halves_three_times():
    x = images((3, 32, 32), 1)
    assert sides(make("resnet18", (3, 32, 32)), Block, x) == [32, 32, 16, 16, 8, 8, 4, 4]
    assert sides(make("resnet-shallow", (3, 32, 32)), Block, x) == [32, 16, 8, 4]
    assert sides(make("densenet121", (3, 32, 32)), DenseLayer, x) == [32] * 6 + [16] * 12 + [8] * 24 + [4] * 16


def test_shallow_resnet_has_three_shortcuts_with_convolution():
    blocks = [m for m in make("resnet-shallow", (3, 32, 32)).modules() if isinstance(m, Block)]
    assert [len(block.shortcut) for block in blocks] == [0, 2, 2, 2]


def test_a_silent_residual_block_passes_its_input_on():
    block, x = Block(4, 4, 1, "group"), images((4, 5, 5))
    with torch.no_grad():
        block.norm2.weight.zero_()  # norm2 now gives its shift, zero
        torch.testing.assert_close(block(x), x.clamp(min=0))


def test_a_residual_block_step_by_step():
    block, x = Block(2, 4, 2, "batch"), images((2, 6, 6))
    weights = dict(block.named_parameters())

    def normalised(y: Tensor) -> Tensor:
        y = y.detach()
        centred = y - y.mean((0, 2, 3), keepdim=True)
        return centred / (centred.square().mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()

    inner = normalised(functional.conv2d(x, weights["conv1.weight"], stride=2, padding=1)).clamp(min=0)
    outer = normalised(functional.conv2d(inner, weights["conv2.weight"], padding=1))
    short = normalised(functional.conv2d(x, weights["shortcut.0.weight"], stride=2))
    torch.testing.assert_close(block(x).detach(), (outer + short).clamp(min=0), rtol=1e-4, atol=1e-5)


def test_a_dense_layer_keeps_its_input_and_adds_32_channels():
    layer, x = DenseLayer(6, "group"), images((6, 4, 4))
    with torch.no_grad():
        y = layer(x)
        assert y.shape == (5, 38, 4, 4)
        assert torch.equal(y[:, :6], x)
        layer.norm2.weight.zero_()
        assert torch.equal(layer(x)[:, 6:], torch.zeros(5, 32, 4, 4))


def test_dense_layer_and_transition_step_by_step():
    layer, transition, x = DenseLayer(6, "batch"), Transition(38, "batch"), images((6, 4, 4))
    relu = nn.ReLU()
    grown = nn.Sequential(layer.norm1, relu, layer.conv1, layer.norm2, relu, layer.conv2)
    halved = nn.Sequential(transition.norm, relu, transition.conv, nn.AvgPool2d(2))
    with torch.no_grad():
        y = layer(x)
        torch.testing.assert_close(y[:, 6:], grown(x))
        torch.testing.assert_close(transition(y), halved(y))
        assert transition(y).shape == (5, 19, 2, 2)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ConfigError, match=r'"resnet81".*did you mean "resnet18"'):
        build("resnet81", (3, 32, 32), 10)
    with pytest.raises(ConfigError, match=r'"bacth".*did you mean "batch"'):
        build("resnet18", (3, 32, 32), 10, norm="bacth")


@pytest.mark.parametrize(
    ("name", "smallest"),
    [("cnn", 4), ("cnn2", 16), ("lenet", 28), ("resnet18", 8), ("resnet-shallow", 8), ("densenet121", 8)],
)
def test_the_smallest_image_works_and_a_smaller_one_is_refused(name, smallest):
    shape = (1, smallest, smallest)
    with torch.no_grad():
        assert make(name, shape, norm="group")(images(shape, 1)).shape == (1, 10)
    with pytest.raises(ConfigError, match=f"at least {smallest}x{smallest}, not {smallest}x{smallest - 1}.*mlp"):
        build(name, (1, smallest, smallest - 1), 10)


def test_senseless_shapes_and_class_counts_are_refused():
    with pytest.raises(ConfigError, match="channels, height, width"):
        build("cnn", (784,), 10)
    with pytest.raises(ConfigError, match="at least 1"):
        build("mlp", (1, 0, 28), 10)
    with pytest.raises(ConfigError, match="at least 1"):
        build("mlp", (), 10)
    with pytest.raises(ConfigError, match="classes=1"):
        build("mlp", (4,), 1)


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 6, 7, 5), (3, 20, 4, 9)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_pool_without_gradients_is_the_pool(shape, layout):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=layout)
    x[0, 0, 0, 0] = float("nan")
    wanted = torch.nn.functional.max_pool2d(x, 2)
    with torch.inference_mode():
        got = halved(x)
    assert torch.equal(got.nan_to_num(9.0), wanted.nan_to_num(9.0)) and wanted.isnan().any()
    assert torch.equal(halved(x).nan_to_num(9.0), wanted.nan_to_num(9.0))
    assert got.is_contiguous(memory_format=layout)
