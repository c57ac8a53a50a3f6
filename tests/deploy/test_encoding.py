"""Smaller payloads: how much is lost, and that nothing else is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkeep.deploy.encoding import PLAIN, Encoding, Float16, Int8, Top, check, format_encodings, parse
from fedkeep.errors import ConfigError

torch.set_num_threads(1)


def sent(encoding: Encoding, tensor: torch.Tensor) -> torch.Tensor:
    kind = (tuple(tensor.shape), tensor.dtype)
    parts = encoding.encode(tensor)
    assert {name: (tuple(part.shape), part.dtype) for name, part in parts.items()} == encoding.parts(kind)
    found = encoding.decode(parts, kind)
    assert (tuple(found.shape), found.dtype) == kind
    return found


@st.composite
def floats(draw):
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    return torch.randn(shape, generator=generator) * 10.0 ** draw(st.integers(-30, 30))


@given(floats())
def test_float16_keeps_11_bits_of_the_largest_whatever_the_scale(tensor):
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    error = (sent(Float16(), tensor) - tensor).abs()
    assert bool((error <= tensor.abs() * 2**-11 + largest * 2**-24 * 1.01).all())


def test_float16_is_exact_for_what_float16_can_hold():
    tensor = torch.tensor([1.0, -0.5, 0.25, 3.0, 0.0])
    assert torch.equal(sent(Float16(), tensor * 2**40), tensor * 2**40)
    assert torch.equal(sent(Float16(), tensor * 2**-40), tensor * 2**-40)


@given(floats())
def test_int8_of_signed_numbers_is_within_half_a_step(tensor):
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if not bool((tensor < 0).any()):
        tensor = -tensor
    error = (sent(Int8(), tensor) - tensor).abs()
    assert bool((error <= largest / 127 / 2 * 1.001).all())


@given(floats())
def test_int8_of_squares_is_within_half_a_step_of_the_root(tensor):
    squares = tensor.abs()
    largest = float(squares.max()) if squares.numel() else 0.0
    found = sent(Int8(), squares)
    step = (largest**0.5) / 255 / 2
    assert bool(((found.double().sqrt() - squares.double().sqrt()).abs() <= step * 1.001 + 1e-12 * largest**0.5).all())


def test_int8_by_hand():
    # 255 sqrt(1/4) = 127.5 rounds to 128 (half to even), and (128/255)^2 = 0.25196...
    assert sent(Int8(), torch.tensor([4.0, 1.0, 0.0])).tolist() == pytest.approx([4.0, 4 * (128 / 255) ** 2, 0.0])
    # 127 * 0.5 = 63.5 rounds to 64
    assert sent(Int8(), torch.tensor([-2.0, 1.0])).tolist() == pytest.approx([-2.0, 2 * 64 / 127])


def test_top_keeps_the_largest_and_nothing_else():
    tensor = torch.tensor([[1.0, -9.0, 3.0], [4.0, 0.5, -2.0]])
    assert sent(Top(50), tensor).tolist() == [[0.0, -9.0, 3.0], [4.0, 0.0, 0.0]]
    assert torch.equal(sent(Top(100), tensor), tensor)
    assert sent(Top(1), tensor).tolist() == [[0.0, -9.0, 0.0], [0.0, 0.0, 0.0]]  # at least one is kept
    assert sent(Top(50), torch.zeros(0)).shape == (0,)


def test_top_counts_percent_exactly():
    assert [Top(10).kept(n) for n in (0, 1, 10, 11, 100)] == [0, 1, 1, 2, 10]
    assert Top(29).kept(100) == 29  # 29 % of 100 is 28.999999999999996 in floating point


@given(floats(), st.floats(0.1, 100), st.sampled_from(["as-is", "float16", "int8"]))
def test_top_with_any_inner_encoding_is_that_encoding_of_the_kept(tensor, q, then):
    top = Top(q, then)
    kept = sent(top, tensor).reshape(-1)
    places = tensor.reshape(-1).abs().topk(top.kept(tensor.numel())).indices.sort().values
    wanted = torch.zeros(tensor.numel())
    wanted[places] = sent(top.inner, tensor.reshape(-1)[places])
    assert torch.equal(kept, wanted)


def test_notation():
    text = "delta=float16, importance=top(q=10, then=int8)"
    assert format_encodings(parse(text)) == text
    assert parse("") == {} and parse("dc=as-is") == {"dc": PLAIN}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("delta", "has no encoding"),
        ("delta=float16,delta=int8", "given twice"),
        ("delta=flaot16", 'did you mean "float16"'),
        ("delta=top", "top\\(q=10\\)"),
        ("delta=top(q=0)", "above 0"),
        ("delta=top(q=5, then=zip)", "then=zip"),
        ("delta=float16(bits=3)", "not understood"),
    ],
)
def test_nonsense_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        parse(text)


def test_encodings_of_what_is_never_sent_are_refused():
    with pytest.raises(ConfigError, match='"importence" is sent: did you mean "importance"'):
        check(parse("importence=int8"), ["delta", "broadcast", "importance"])
    with pytest.raises(ConfigError, match="broadcast=top"):
        check(parse("broadcast=top(q=5)"), ["delta", "broadcast"])


def test_top_tells_the_places_the_shorter_way():
    sizes = {q: sum(part.nbytes for part in Top(q).encode(torch.randn(8000)).values()) for q in (1, 10, 50)}
    assert sizes == {1: 80 * (4 + 4), 10: 800 * 4 + 1000, 50: 4000 * 4 + 1000}
