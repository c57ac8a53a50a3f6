"""Products with a client's examples, against numpy in double precision."""

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import run

from fedkeep.native import span
from fedkeep.native.emit import INDEX, Program, player
from fedkeep.native.span import WORD, Layer

SHAPES = st.tuples(st.integers(1, 70), st.integers(1, 90), st.integers(1, 2 * WORD + 4))
"""inputs, outputs, examples"""


class Scene:
    """Some examples of a pool, most of whose numbers are those of the typical example."""

    def __init__(self, shape, seed, common=0.7, batch=0):
        inputs, outputs, examples = shape
        draw = np.random.default_rng(seed)
        self.layer = Layer(inputs, outputs, examples + int(draw.integers(0, 3)))
        self.typical = torch.from_numpy(draw.normal(size=inputs).astype("float32"))
        pool = draw.normal(size=(examples + 5, inputs)).astype("float32")
        same = draw.random(pool.shape) < common
        self.pool = torch.where(torch.from_numpy(same), self.typical, torch.from_numpy(pool))
        self.rows = torch.from_numpy(draw.permutation(len(pool))[:examples])
        self.x = self.pool[self.rows].double().numpy()
        self.counts = torch.tensor([examples, 0, batch])
        self.differences = torch.full((self.layer.most, inputs), torch.nan)
        self.marks = torch.zeros(self.layer.words, inputs, dtype=torch.int32)
        self.columns = torch.zeros(inputs, dtype=torch.int64)
        self.coefficients = torch.zeros(self.layer.most, outputs)
        self.coefficients[:examples] = torch.from_numpy(draw.normal(size=(examples, outputs)).astype("float32"))
        self.run(span.gather, self.pool, self.typical, self.rows, self.counts, self.differences)
        self.run(span.mark, self.differences, self.counts, self.marks, self.columns)

    def run(self, kernel, *tensors):
        run(lambda writer, *places: kernel(writer, self.layer, *places), *tensors)

    @property
    def examples(self):
        return len(self.x)

    @property
    def sum(self):
        """coefficients turned times examples, [outputs, inputs]"""
        return self.coefficients[: self.examples].double().numpy().T @ self.x


def close(found, wanted):
    np.testing.assert_allclose(found.double().numpy(), wanted, rtol=1e-4, atol=2e-4)


@settings(deadline=None, max_examples=25)
@given(SHAPES, st.integers(0, 99), st.sampled_from([0.0, 0.7, 0.99, 1.0]))
def test_what_differs_from_the_typical_example_is_marked(shape, seed, common):
    scene = Scene(shape, seed, common)
    differs = scene.x != scene.typical.double().numpy()
    close(scene.differences[: scene.examples], scene.x - scene.typical.double().numpy())
    for example in range(scene.examples):
        found = scene.marks[example // WORD].numpy() >> (example % WORD) & 1
        assert (found == differs[example]).all()
    listed = scene.columns[: int(scene.counts[1])].tolist()
    assert listed == np.flatnonzero(differs.any(0)).tolist()


@settings(deadline=None, max_examples=25)
@given(SHAPES, st.integers(0, 99), st.sampled_from([0.0, 0.7, 1.0]))
def test_examples_times_weights(shape, seed, common):
    scene = Scene(shape, seed, common)
    inputs, outputs, _ = shape
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
    turned = torch.cat([weight.T, (weight @ scene.typical)[None]])
    target, room = torch.full((scene.layer.most, outputs), torch.nan), torch.zeros(inputs, dtype=torch.int64)
    scene.run(span.apply, scene.differences, scene.counts, scene.marks, scene.columns, room, turned, target)
    close(target[: scene.examples], scene.x @ weight.double().numpy().T)
    assert target[scene.examples :].isnan().all()


@settings(deadline=None, max_examples=25)
@given(SHAPES, st.integers(0, 99), st.integers(0, 70))
def test_inner_products_of_examples(shape, seed, batch):
    scene = Scene(shape, seed, batch=batch)
    table = torch.full((scene.layer.most, scene.layer.most), torch.nan)
    scene.run(span.inner_products, scene.differences, scene.typical, scene.counts, table)
    wanted = scene.x @ scene.x.T
    for i in range(scene.examples):
        needed = scene.examples if batch == 0 else i // batch * batch
        close(table[i, :needed], wanted[i, :needed])


@settings(deadline=None, max_examples=25)
@given(SHAPES, st.integers(0, 99), st.sampled_from([0.0, 0.7, 1.0]))
def test_changes_in_the_span_are_added_up(shape, seed, common):
    scene = Scene(shape, seed, common)
    inputs, outputs, _ = shape
    total = torch.randn(inputs + 1, outputs, generator=torch.Generator().manual_seed(seed))
    before, typical = total.double().numpy().copy(), scene.typical.double().numpy()
    factor = torch.tensor([2.5])
    scene.run(
        span.add_span,
        *(scene.differences, scene.counts, scene.marks, scene.columns, scene.coefficients, factor, total),
    )
    change = total.double().numpy() - before
    close(torch.from_numpy(change[:-1] + np.outer(typical, change[-1])), 2.5 * scene.sum.T)


@settings(deadline=None, max_examples=25)
@given(SHAPES, st.integers(0, 99))
def test_a_weight_is_written_out(shape, seed):
    scene = Scene(shape, seed)
    inputs, outputs, _ = shape
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
    target, totals = torch.full((outputs, inputs), torch.nan), torch.zeros(outputs)
    scene.run(
        span.write_out,
        *(scene.differences, scene.typical, scene.counts, scene.coefficients, weight, totals, target),
    )
    close(target, weight.double().numpy() + scene.sum)


@pytest.mark.parametrize("write", [span.mark, span.apply, span.inner_products, span.add_span, span.write_out])
def test_a_larger_layer_takes_no_more_code(write):
    def code(layer):
        program = Program()
        with program.kernel() as kernel:
            write(kernel, layer, *(kernel.pointer(slot, 0) for slot in range(write.__code__.co_argcount - 2)))
        return len(str(program.module).splitlines())

    assert code(Layer(24_000, 2400, 60)) == code(Layer(2400, 240, 60))


@pytest.mark.parametrize("size", [0, 1, 16, 37])
def test_numbers_are_set_back_checked_and_added(size):
    start, end, total = torch.arange(size) + 1.0, torch.full((48 + size,), 7.0), torch.ones(size)
    run(lambda kernel, *places: span.reset(kernel, 48, size, *places), start, end)
    assert torch.equal(end, torch.cat([torch.zeros(48), start]))
    end[48:] *= 3
    run(lambda kernel, *places: span.add_change(kernel, size, 48, *places), start, end, torch.tensor([0.5]), total)
    assert torch.equal(total, 1 + start)  # 1 + 0.5 (3 start - start)


def test_squares_see_every_number():
    numbers, found = torch.ones(64), torch.zeros(1)
    numbers[63] = -3.0
    run(lambda kernel, *places: span.squares(kernel, 64, *places), numbers, found)
    assert found.item() == 72
    for odd in (torch.nan, torch.inf, 1e30):
        numbers[17] = odd
        run(lambda kernel, *places: span.squares(kernel, 64, *places), numbers, found)
        assert not found.item() < 1e30


@pytest.mark.parametrize("word", [0, 1, 0b1010011, 1 << 29, (1 << 30) - 1])
def test_the_bits_of_a_word(word):
    target = torch.zeros(30)

    def write(kernel, source, place):
        with kernel.bits(kernel.scalar(source, INDEX(0), torch.int32)) as bit:
            kernel.put(kernel.first(kernel.number(1.0, 1)), place, bit)

    run(write, torch.tensor([word], dtype=torch.int32), target)
    assert target.tolist() == [float(word >> bit & 1) for bit in range(30)]


def test_a_table_of_calls_is_done_in_order_and_nothing_no_times():
    called = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    first, second = (kind(lambda frame, times, name=name: called.append((name, frame, times))) for name in "ab")
    address = [ctypes.cast(one, ctypes.c_void_p).value for one in (first, second)]
    table = np.array([(address[1], 16, 2), (address[0], 32, 0), (address[0], 48, 1)], np.int64)
    player()(table.ctypes.data, len(table))
    assert called == [("b", 16, 2), ("a", 48, 1)]
