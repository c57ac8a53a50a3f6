"""Judging with machine code against judging with torch."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedkeep import models
from fedkeep.local.evaluate import evaluate, logits_of, right_of
from fedkeep.local.forward import ROWS
from fedkeep.local.span import much_in_common, typical_of
from fedkeep.local.sparse import CHUNK, SparseForward
from fedkeep.model import Model, laid_out


def pair(name, shape):
    """The same model twice: judged by torch, and by machine code where that is possible."""
    torch.manual_seed(0)
    module = models.build(name, shape, 5, "batch")
    return Model.of(module), Model.of(module, compile=True)


@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn2", "lenet"])
@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS, 2 * ROWS + 3])
def test_the_logits_are_torchs(name, rows):
    plain, fast = pair(name, (3, 28, 28))
    params, buffers = plain.initial()
    x = laid_out(torch.randn(rows, 3, 28, 28, generator=torch.Generator().manual_seed(1)))
    found = logits_of(fast, params, buffers, x)
    assert all(fast.compiled.values())
    torch.testing.assert_close(found, logits_of(plain, params, buffers, x), rtol=1e-4, atol=1e-5)
    laid = {key: laid_out(value) for key, value in params.items()}  # as a client has them after training
    torch.testing.assert_close(logits_of(fast, laid, buffers, x), found, rtol=1e-6, atol=1e-6)


def test_an_examples_logits_do_not_depend_on_those_beside_it():
    _, fast = pair("mlp", (1, 8, 8))
    params, buffers = fast.initial()
    x = torch.randn(3 * ROWS + 7, 1, 8, 8)
    whole = logits_of(fast, params, buffers, x)
    for first, last in ((0, 1), (5, 5 + ROWS), (ROWS - 1, 3 * ROWS + 7)):
        assert torch.equal(logits_of(fast, params, buffers, x[first:last]), whole[first:last])


def test_other_weights_need_no_new_code():
    plain, fast = pair("mlp", (1, 8, 8))
    params, buffers = plain.initial()
    x = torch.randn(ROWS, 1, 8, 8)
    logits_of(fast, params, buffers, x)
    others = {name: tensor + 0.1 for name, tensor in params.items()}
    found = logits_of(fast, others, buffers, x)
    assert len(fast.compiled) == 1
    torch.testing.assert_close(found, logits_of(plain, others, buffers, x), rtol=1e-4, atol=1e-5)


def test_weights_are_taken_by_name_in_whatever_order_they_come():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.second(torch.relu(self.first(x)))

    fast = Model.of(Twice(), compile=True)
    params, buffers = fast.initial()
    x = torch.randn(3, 4)
    found = logits_of(fast, params, buffers, x)
    assert all(fast.compiled.values())
    assert torch.equal(logits_of(fast, dict(reversed(params.items())), buffers, x), found)


class Sine(nn.Module):
    """Has an operation without a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(4, 3)

    def forward(self, x):
        return torch.sin(self.classifier(x))


@pytest.mark.parametrize("module", [Sine(), models.build("resnet-shallow", (1, 8, 8), 3, "batch")])
def test_what_has_no_kernels_is_judged_by_torch(module):
    plain, fast = Model.of(module), Model.of(module, compile=True)
    params, buffers = plain.initial()
    x = torch.randn(5, *((4,) if isinstance(module, Sine) else (1, 8, 8)))
    assert torch.equal(logits_of(fast, params, buffers, x), logits_of(plain, params, buffers, x))
    assert list(fast.compiled.values()) == [None]


def test_right_is_what_evaluate_calls_correct():
    plain, _ = pair("mlp", (1, 8, 8))
    model = plain.initial()
    x, y = torch.randn(30, 1, 8, 8), torch.arange(30) % 5
    right = right_of(plain, *model, x, y)
    assert np.array_equal(right, evaluate(plain, *model, x, y).correct) and 0 < right.sum() < 30
    assert len(right_of(plain, *model, x[:0], y[:0])) == len(evaluate(plain, *model, x[:0], y[:0]).correct) == 0


def test_machine_code_stays_in_its_process():
    _, fast = pair("mlp", (1, 8, 8))
    logits_of(fast, *fast.initial(), torch.randn(2, 1, 8, 8))
    assert fast.compiled and pickle.loads(pickle.dumps(fast)).compiled == {}


# ---------------------------------------------------------------- examples that have much in common


def blank_images(rows, shape=(1, 28, 28), seed=0):
    """Two numbers of three are the same in all."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, *shape)).astype("float32")
    x[draw.random(x.shape) < 2 / 3] = -0.5
    return torch.from_numpy(x)


def sparse_pair(shape=(1, 28, 28), module=None):
    torch.manual_seed(0)
    module = module or models.build("mlp", shape, 5, "batch")
    return Model.of(module), replace(Model.of(module, compile=True), typical=typical_of(blank_images(50, shape)))


@pytest.mark.parametrize("rows", [1, ROWS, CHUNK - 1, CHUNK, 2 * CHUNK + 31])
def test_what_examples_have_in_common_may_be_left_out(rows):
    plain, fast = sparse_pair()
    params, buffers = plain.initial()
    x = blank_images(rows)
    found = logits_of(fast, params, buffers, x)
    (used,) = fast.compiled.values()
    assert isinstance(used, SparseForward)
    torch.testing.assert_close(found, logits_of(plain, params, buffers, x), rtol=1e-4, atol=1e-5)
    others = {name: tensor + 0.1 for name, tensor in reversed(params.items())}
    again = logits_of(fast, others, buffers, x)
    torch.testing.assert_close(again, logits_of(plain, others, buffers, x), rtol=1e-4, atol=1e-4)
    assert len(fast.compiled) == 1


def test_no_bit_of_an_examples_logits_depends_on_those_beside_it():
    _, fast = sparse_pair()
    params, buffers = fast.initial()
    x = blank_images(2 * CHUNK + 7)
    whole = logits_of(fast, params, buffers, x)
    for first, last in ((0, 1), (5, 5 + ROWS), (CHUNK - 3, 2 * CHUNK + 7), (6, CHUNK + 9)):
        assert torch.equal(logits_of(fast, params, buffers, x[first:last]), whole[first:last])


def test_numbers_of_another_kind_are_refused():
    _, fast = sparse_pair()
    params, buffers = fast.initial()
    logits_of(fast, params, buffers, blank_images(3))
    with pytest.raises(RuntimeError, match="compiled for"):
        logits_of(fast, params, buffers, blank_images(3).double())


def test_small_layers_and_other_first_layers_are_judged_as_before():
    for shape, module in (((1, 8, 8), None), ((1, 28, 28), models.build("cnn", (1, 28, 28), 5, "batch"))):
        plain, fast = sparse_pair(shape, module)
        params, buffers = plain.initial()
        x = blank_images(ROWS, shape)
        torch.testing.assert_close(
            logits_of(fast, params, buffers, x), logits_of(plain, params, buffers, x), rtol=1e-4, atol=1e-5
        )
        assert not any(isinstance(used, SparseForward) for used in fast.compiled.values())


def test_examples_with_little_in_common_are_not_searched_for_it():
    blank, noise = blank_images(200), torch.randn(200, 1, 28, 28)
    assert much_in_common(blank, typical_of(blank)) and not much_in_common(noise, typical_of(noise))
