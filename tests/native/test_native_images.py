"""Convolutions and pools against torch's, in double precision."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kernels import run
from torch.nn import functional

from fedkeep.native.images import (
    Pool,
    Shape,
    clear,
    convolve,
    filter_gradient,
    filters_by_pixel,
    filters_turned,
    pooled,
    unpooled,
    with_border,
)

SMALL, CHANNELS = st.integers(1, 5), st.integers(1, 40)


def shape_of(images, height, width, channels, filters, high, wide, top, left):
    return Shape(
        images,
        height,
        width,
        channels,
        filters,
        high,
        wide,
        top,
        left,
        height + 2 * top - high + 1,
        width + 2 * left - wide + 1,
    )


def last(x):
    """[..., channel] in memory, as the kernels want it."""
    return x.permute(0, 2, 3, 1).contiguous()


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 3), st.integers(2, 11), st.integers(2, 11), CHANNELS, CHANNELS, SMALL, SMALL, SMALL, SMALL)
def test_a_convolution_and_its_gradients(images, height, width, channels, filters, high, wide, top, left):
    top, left = min(top, high) - 1, min(left, wide) - 1
    shape = shape_of(images, height, width, channels, filters, high, wide, top, left)
    assume(shape.out_height > 0 and shape.out_width > 0)
    torch.manual_seed(0)
    x = torch.randn(images, channels, height, width, dtype=torch.float64, requires_grad=True)
    w = torch.randn(filters, channels, high, wide, dtype=torch.float64, requires_grad=True)
    b = torch.randn(filters, dtype=torch.float64)
    y = functional.conv2d(x, w, b, padding=(top, left))
    upstream = torch.randn_like(y)
    y.backward(upstream)

    image, weights, gradient = (last(t.detach().float()) for t in (x, w, upstream))
    bordered, by_pixel = torch.full((shape.bordered,), torch.nan), torch.empty(w.numel())
    out = torch.full((images, shape.out_height, shape.out_width, filters), torch.nan)
    run(lambda k, a, b: with_border(k, shape, a, b), image, bordered)
    run(lambda k, a, b: filters_by_pixel(k, shape, a, w.stride(), b), w.detach().float(), by_pixel)
    run(lambda k, *p: convolve(k, shape, *p), bordered, by_pixel, b.float(), out)
    close(out.permute(0, 3, 1, 2), y.detach())

    back = Shape(
        images,
        shape.out_height,
        shape.out_width,
        filters,
        channels,
        high,
        wide,
        high - 1 - top,
        wide - 1 - left,
        height,
        width,
    )
    bordered_gradient, turned = torch.full((back.bordered,), torch.nan), torch.empty(w.numel())
    to_image = torch.full((images, height, width, channels), torch.nan)
    run(lambda k, a, b: with_border(k, back, a, b), gradient, bordered_gradient)
    run(lambda k, a, b: filters_turned(k, shape, a, b), weights, turned)
    run(lambda k, a, b, c: convolve(k, back, a, b, None, c), bordered_gradient, turned, to_image)
    close(to_image.permute(0, 3, 1, 2), x.grad)

    natural, across = torch.ones(filters, high, wide, channels), torch.ones(high, wide, channels, filters)
    for target, strides in (
        (natural, (high * shape.span, shape.span, 1)),
        (across, (1, shape.span * filters, filters)),
    ):
        run(lambda k, *p, s=strides: filter_gradient(k, shape, *p, s), bordered, gradient, target)
    close(natural.permute(0, 3, 1, 2) - 1, w.grad)
    close(across.permute(3, 2, 0, 1) - 1, w.grad)


def close(found, wanted):
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))


@pytest.mark.parametrize(("height", "width"), [(2, 2), (4, 6), (5, 4), (7, 7)])
@pytest.mark.parametrize("channels", [1, 6, 16, 33])
def test_a_pool_and_its_gradient_with_ties(height, width, channels):
    torch.manual_seed(0)
    x = torch.randint(-2, 3, (3, channels, height, width)).float().requires_grad_()  # few values: many ties
    y = functional.max_pool2d(x, 2)
    upstream = torch.randn_like(y)
    y.backward(upstream)
    pool = Pool(3, height, width, channels)
    image, gradient = last(x.detach()), last(upstream)
    out, back = torch.full_like(gradient, torch.nan), torch.full_like(image, torch.nan)
    run(lambda k, a, b: pooled(k, pool, a, b), image, out)
    assert torch.equal(out, last(y.detach()))
    run(lambda k, *p: unpooled(k, pool, *p), image, out, gradient, back)
    assert torch.equal(back, last(x.grad))


def test_clear():
    numbers = torch.ones(37)
    run(lambda k, a: clear(k, 36, a), numbers)
    assert numbers.tolist() == [0.0] * 36 + [1.0]
