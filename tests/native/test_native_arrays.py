"""Ways through arrays, and places in the workspace."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeep.native.arrays import Array, Buffer, arranged, buffer_of, described, grid, walk
from fedkeep.native.emit import Unsupported


def array(tensor):
    return described(tensor, buffer_of(tensor, 0))


def places(way, one):
    """The elements that a way leads to, in order."""
    strides = way.strides[id(one)]
    return [
        sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*map(range, way.sizes))
    ]


def test_arrays_that_lie_alike_are_walked_through_in_one_loop():
    image = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    target, other = array(image), array(image.clone())
    way = walk(target, [other])
    assert way.sizes == (120,) and way.vector
    assert places(way, target) == places(way, other) == list(range(120))


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(3, 4, 5),
        torch.zeros(4, 1),
        torch.zeros(()),
        torch.zeros(2, 3, 5, 4).transpose(2, 3),
        torch.zeros(1, 3, 1, 1),
    ],
)
def test_a_way_visits_what_broadcasting_would(other):
    target = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    numbered = torch.arange(other.numel()).view(other.shape) if other.is_contiguous() else None
    one, two = array(target), array(other)
    way = walk(one, [two])
    seen = torch.empty(120, dtype=torch.long)
    seen[torch.tensor(places(way, one))] = torch.tensor(places(way, two))
    if numbered is None:
        numbered = torch.arange(other.numel()).view(2, 3, 5, 4).transpose(2, 3)
    wanted = torch.empty_strided(target.shape, target.stride(), dtype=torch.long).copy_(numbered.expand(target.shape))
    assert torch.equal(seen, wanted.permute(0, 2, 3, 1).flatten())


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(Unsupported):
        walk(array(torch.zeros(2, 3)), [array(torch.zeros(2))])
    with pytest.raises(Unsupported, match="side by side"):
        grid((2, 3), [array(torch.zeros(3, 2).T)])
    with pytest.raises(Unsupported):
        array(torch.zeros(3, dtype=torch.int8))


def test_a_view_begins_where_it_begins_in_the_tensor_that_is_given():
    whole = torch.zeros(6, 4)
    given = whole[2:]  # the step was recorded with a part of something larger
    buffer = buffer_of(given, 0)
    assert buffer.bytes == 64 and described(given[1:, 2:], buffer).first == 6


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 20), st.integers(0, 20)), max_size=30))
def test_buffers_that_live_at_the_same_time_do_not_overlap(spans):
    buffers = [(Buffer(size, 9), min(a, b), max(a, b)) for size, a, b in spans]
    end = arranged(buffers)
    for (one, born, dies), (two, first, last) in itertools.combinations(buffers, 2):
        if born <= last and first <= dies:
            assert one.offset + one.bytes <= two.offset or two.offset + two.bytes <= one.offset
    assert all(buffer.offset % 64 == 0 and buffer.offset + buffer.bytes <= end for buffer, _, _ in buffers)


def test_an_array_knows_its_pointer_by_slot():
    assert Array(Buffer(8, 3), (2,), (1,), torch.float32).within((5, 2)) == (0, 1)
