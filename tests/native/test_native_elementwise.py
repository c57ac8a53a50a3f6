"""Elementwise kernels and those along rows, against numpy in double precision."""

import numpy as np
import pytest
import torch
from kernels import run

from fedkeep.native.elementwise import each, exp, logsumexp, positive, put_at_label, softmax, take_at_label, where_above
from fedkeep.native.emit import Unsupported

INF = float("inf")


def mapped(function, *inputs, dtype=torch.float32):
    """A function of vectors, applied to all elements."""
    out = torch.empty_like(inputs[0])

    def write(kernel, target, *sources):
        def body(indices, lanes):
            values = [kernel.load(source, indices[0], lanes, dtype) for source in sources]
            kernel.store(function(kernel, *values), target, indices[0], dtype)

        each(kernel, [out.numel()], True, body)

    run(write, out, *inputs)
    return out


def test_exp_is_as_good_as_single_precision():
    x = torch.linspace(-87.3, 88.3, 100_003)
    wanted = np.exp(x.double().numpy())
    assert np.abs(mapped(exp, x).double().numpy() / wanted - 1).max() < 3e-7


def test_exp_at_the_edges():
    x = torch.tensor([-INF, -1000.0, -88.0, 0.0, 89.0, 1000.0, INF, torch.nan])
    found = mapped(exp, x)
    assert found.tolist()[:7] == [0.0, 0.0, 0.0, 1.0, INF, INF, INF] and found[7].isnan()


def test_exp_in_double_precision_is_refused():
    with pytest.raises(Unsupported):
        mapped(exp, torch.zeros(3, dtype=torch.float64), dtype=torch.float64)


def test_relu_and_its_gradient():
    x = torch.tensor([-1.0, 0.0, 2.0, -INF, INF, torch.nan, -0.0, 5.0, 6.0])
    found = mapped(positive, x)
    torch.testing.assert_close(found, torch.relu(x), equal_nan=True, rtol=0, atol=0)
    back = mapped(lambda k, g, y: where_above(k, g, y, 0.0), torch.full_like(x, 3.0), x)
    assert back.tolist() == [0, 0, 3, 0, 3, 3, 0, 3, 3]


@pytest.mark.parametrize("columns", [1, 3, 10, 16, 37, 100])
def test_softmax_and_logsumexp(columns):
    x = torch.from_numpy(np.random.default_rng(columns).normal(scale=30, size=(5, columns)).astype("float32"))
    x[0, 0] = -INF if columns > 1 else 0.0
    x[1] += 1e4
    exact = x.double().numpy()
    peak = exact.max(1, keepdims=True)
    total = np.exp(exact - peak).sum(1, keepdims=True)
    out, logs = torch.empty_like(x), torch.empty(5)
    run(lambda k, a, b: softmax(k, 5, columns, a, b), x, out)
    run(lambda k, a, b: logsumexp(k, 5, columns, a, b), x, logs)
    np.testing.assert_allclose(out, np.exp(exact - peak) / total, rtol=1e-5, atol=1e-37)
    np.testing.assert_allclose(logs, (peak + np.log(total))[:, 0], rtol=1e-6)
    if columns > 1:
        assert out[0, 0] == 0.0  # exactly: an absent class has no gradient


def test_softmax_of_what_is_not_finite_is_nan():
    x = torch.tensor([[0.0, torch.nan], [INF, 1.0]])
    out = torch.empty_like(x)
    run(lambda k, a, b: softmax(k, 2, 2, a, b), x, out)
    assert out[0].isnan().all() and out[1, 0].isnan()


def test_numbers_at_labels():
    labels, numbers = torch.tensor([2, 0, 17]), torch.tensor([1.0, -2.0, 3.0])
    out, back = torch.full((3, 18), 7.0), torch.empty(3)
    run(lambda k, a, b, c: put_at_label(k, 3, 18, a, lambda row: k.scalar(b, row), c), labels, numbers, out)
    wanted = torch.zeros(3, 18)
    wanted[torch.arange(3), labels] = numbers
    assert torch.equal(out, wanted)
    run(lambda k, a, b, c: take_at_label(k, 3, 18, a, b, c), labels, out, back)
    assert torch.equal(back, numbers)
