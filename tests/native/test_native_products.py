"""Matrix products against numpy in double precision."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import run

from fedkeep.native.emit import INDEX, Unsupported
from fedkeep.native.products import BLOCK, DEEP, Matrix, part, pieces, product

SIZES = st.integers(1, 40)


def drawn(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype("float32"))


def multiply(a, b, alpha=1.0, start=None, again=False):
    """alpha a b (+ start), by the kernel; a and b may be transposed views."""
    rows, depth = a.shape if a is not None else (1, b.shape[0])
    columns = b.shape[1]
    out = torch.full((rows, columns), torch.nan)
    begin = torch.zeros(columns) if start is None else start

    def write(kernel, c, first, second, third):
        def place(row, column):
            return kernel.at([(row, columns), (column, 1)])

        left = None if a is None else Matrix(first, *a.stride())
        product(
            kernel,
            (rows, columns, depth),
            left,
            Matrix(second, *b.stride()),
            alpha,
            lambda row, column, lanes: kernel.load(third, column, lanes),
            lambda row, column, value: kernel.store(value, c, place(row, column)),
            (lambda row, column, lanes: kernel.load(c, place(row, column), lanes)) if again else None,
        )

    run(write, out, b if a is None else a, b, begin)
    return out


def expected(a, b, alpha=1.0, start=None):
    left = np.ones((1, b.shape[0])) if a is None else a.double().numpy()
    return alpha * left @ b.double().numpy() + (0 if start is None else start.double().numpy())


@settings(deadline=None, max_examples=25)
@given(
    SIZES, SIZES, SIZES, st.sampled_from(["rows", "left turned", "right turned", "sum"]), st.sampled_from([1.0, -0.3])
)
def test_a_product_is_numpys(rows, columns, depth, kind, alpha):
    a, b, start = drawn(0, rows, depth), drawn(1, depth, columns), drawn(2, columns)
    if kind == "left turned":
        a = drawn(0, depth, rows).T
    elif kind == "right turned":
        b = drawn(1, columns, depth).T
    elif kind == "sum":
        a = None
    np.testing.assert_allclose(multiply(a, b, alpha, start), expected(a, b, alpha, start), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("depth", [BLOCK, BLOCK + 1, 5 * BLOCK, 5 * BLOCK + 3])
def test_a_large_second_matrix_is_read_in_blocks(depth):
    columns = DEEP // 4 // BLOCK
    a, b, start = drawn(0, 3, depth), drawn(1, depth, columns), drawn(2, columns)
    found = multiply(a, b, 0.5, start, again=True)
    np.testing.assert_allclose(found, expected(a, b, 0.5, start), rtol=1e-4, atol=1e-4)


def test_matrices_that_lie_otherwise_are_refused():
    with pytest.raises(Unsupported, match="lie like this"):
        multiply(drawn(0, 4, 3).T, drawn(1, 5, 4).T)


def test_kernels_run_once_for_each_batch_and_inputs_move_on():
    numbers, total = torch.tensor([1.0, 2.0, 4.0]), torch.zeros(1)

    def write(kernel, source, target):
        kernel.put(
            kernel.builder.fadd(kernel.scalar(source, INDEX(0)), kernel.scalar(target, INDEX(0))), target, INDEX(0)
        )

    run(write, numbers, total, times=3, advance={0: 4})
    assert total.item() == 7.0


@given(st.integers(1, 300), st.integers(1, 30))
def test_parts_cover_a_count_and_are_nearly_equal(count, most):
    size = part(count, most)
    parts = -(-count // size)
    assert 1 <= size <= most and parts == -(-count // most)
    assert sum(length for _, length in pieces(count)) == count
    assert max(length for _, length in pieces(count)) <= 16
