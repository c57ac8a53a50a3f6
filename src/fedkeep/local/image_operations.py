"""The operations on images that a recorded step may have in it, as kernels."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fedkeep.local.operations import into_new
from fedkeep.native.arrays import Array, Buffer
from fedkeep.native.emit import Kernel, Unsupported, processor, rounded
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

if TYPE_CHECKING:
    from fedkeep.local.compiled import Plan

aten = torch.ops.aten
FLOAT = 4  # bytes


def _image(plan: Plan, node: Any) -> Array:
    """An array [image][height][width][channel] in memory, whose axes torch calls N, C, H, W."""
    array = plan.arrays.get(node)
    if array is None or len(array.shape) != 4 or array.dtype != torch.float32:
        raise Unsupported("an image of another kind")
    _, channels, height, width = array.shape
    wanted = (height * width * channels, 1, width * channels, channels)
    if any(size > 1 and a != b for size, a, b in zip(array.shape, array.strides, wanted, strict=True)):
        raise Unsupported("an image whose channels do not lie side by side")
    return array


def _shape(image: Array, filters: Array, out: tuple[int, ...], how: tuple[Any, ...]) -> Shape:
    stride, padding, dilation, transposed, _, groups = how
    if set(stride) != {1} or set(dilation) != {1} or transposed or groups != 1:
        raise Unsupported("a convolution with strides, gaps or groups")
    images, channels, height, width = image.shape
    count, _, high, wide = filters.shape
    return Shape(images, height, width, channels, count, high, wide, padding[0], padding[1], out[2], out[3])


def _room(plan: Plan, numbers: int) -> Array:
    """Memory for so many numbers."""
    return Array(Buffer(numbers * FLOAT, len(plan.inputs)), (numbers,), (1,), torch.float32)


def _bordered(plan: Plan, shape: Shape, image: Array) -> Array:
    """The image with its border, made once for all who read it."""
    if shape.row == shape.width * shape.channels:
        return image
    key = (id(image), shape.left, shape.row)
    if key not in plan.bordered:
        target = _room(plan, shape.bordered)
        plan.task(lambda k: with_border(k, shape, image.pointer(k), target.pointer(k)), image, target)
        plan.bordered[key] = target
    return plan.bordered[key]


def _convolution(plan: Plan, node: Any) -> None:
    given, weight, bias, *how = node.args
    image, filters, target = _image(plan, given), plan.arrays[weight], plan.new(node)
    added = plan.arrays[bias] if bias is not None else None
    shape = _shape(image, filters, target.shape, tuple(how))
    _image(plan, node)
    by_pixel = _room(plan, math.prod(filters.shape))

    def arrange(kernel: Kernel) -> None:
        filters_by_pixel(kernel, shape, filters.pointer(kernel), filters.strides, by_pixel.pointer(kernel))

    plan.task(arrange, filters, by_pixel)
    _convolve(plan, shape, image, by_pixel, added, target)


def _convolve(plan: Plan, shape: Shape, image: Array, by_pixel: Array, bias: Array | None, target: Array) -> None:
    bordered = _bordered(plan, shape, image)

    def write(kernel: Kernel) -> None:
        added = bias.pointer(kernel) if bias else None
        convolve(kernel, shape, bordered.pointer(kernel), by_pixel.pointer(kernel), added, target.pointer(kernel))

    plan.task(write, bordered, by_pixel, target, *([bias] if bias else []))


def _convolution_backward(plan: Plan, node: Any) -> None:
    upstream, given, weight, _, *how, wanted = node.args
    gradient, image, filters = _image(plan, upstream), _image(plan, given), _image(plan, weight)
    shape = _shape(image, filters, gradient.shape, tuple(how))
    parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    if wanted[0] and 0 in parts:
        _image_gradient(plan, shape, gradient, filters, parts[0])
    if wanted[1] and 1 in parts:
        plan.arrays[parts[1]] = _filter_gradient(plan, shape, image, gradient, filters)
    if wanted[2] and 2 in parts:
        _channel_sums(plan, gradient, parts[2])


def _image_gradient(plan: Plan, shape: Shape, gradient: Array, filters: Array, node: Any) -> None:
    """The gradient goes back through a convolution with the filters turned."""
    high, wide = shape.kernel_height, shape.kernel_width
    sizes = (shape.images, shape.out_height, shape.out_width, shape.filters, shape.channels)
    back = Shape(*sizes, high, wide, high - 1 - shape.top, wide - 1 - shape.left, shape.height, shape.width)
    if back.top < 0 or back.left < 0:
        raise Unsupported("a border wider than the filter")
    target, turned = plan.new(node), _room(plan, math.prod(filters.shape))
    _image(plan, node)
    plan.task(lambda k: filters_turned(k, shape, filters.pointer(k), turned.pointer(k)), filters, turned)
    _convolve(plan, back, gradient, turned, None, target)


def _filter_gradient(plan: Plan, shape: Shape, image: Array, gradient: Array, filters: Array) -> Array:
    """In the layout that fills vectors best: along the filters, or along what a filter's row sees."""
    bordered = _bordered(plan, shape, image)
    count, channels, _, _ = filters.shape
    if _filled(shape.filters) > _filled(shape.span):
        strides = (1, count, shape.span * count, channels * count)
        order = (1, shape.span * count, count)
    else:
        strides = (shape.kernel_height * shape.span, 1, shape.span, channels)
        order = (shape.kernel_height * shape.span, shape.span, 1)
    numbers = math.prod(filters.shape)
    target = Array(Buffer(numbers * FLOAT, len(plan.inputs)), filters.shape, strides, torch.float32)

    def write(kernel: Kernel) -> None:
        clear(kernel, numbers, target.pointer(kernel))
        filter_gradient(
            kernel, shape, bordered.pointer(kernel), gradient.pointer(kernel), target.pointer(kernel), order
        )

    plan.task(write, bordered, gradient, target)
    return target


def _filled(count: int) -> float:
    """How much of the vectors so many numbers fill; a vector may be a half one."""
    lanes = processor().lanes
    whole, rest = divmod(count, lanes)
    return count / (whole * lanes + (rounded(rest) if rest else 0))


def _channel_sums(plan: Plan, gradient: Array, node: Any) -> None:
    images, channels, height, width = gradient.shape
    flat = Array(gradient.buffer, (images * height * width, channels), (channels, 1), gradient.dtype, gradient.first)
    into_new(plan, node, None, flat)


def _pool(array: Array) -> Pool:
    images, channels, height, width = array.shape
    return Pool(images, height, width, channels)


def _max_pool(plan: Plan, node: Any) -> None:
    image, parts = _image(plan, node.args[0]), {user.args[1]: user for user in node.users}
    if list(node.args[1]) != [2, 2] or len(node.args) > 2 or 0 not in parts:
        raise Unsupported("another pool than of two by two")
    target = plan.new(parts[0])
    _image(plan, parts[0])
    if 1 in parts:
        plan.arrays[parts[1]] = target  # which pixel it was is found by looking for its value
    plan.task(lambda k: pooled(k, _pool(image), image.pointer(k), target.pointer(k)), image, target)


def _max_pool_backward(plan: Plan, node: Any) -> None:
    upstream, before, size, stride, padding, dilation, ceil, indices = node.args
    plain = list(size) == [2, 2] and list(stride) in ([], [2, 2]) and set(padding) == {0} and set(dilation) == {1}
    if not plain or ceil:
        raise Unsupported("another pool than of two by two")
    gradient, image, largest = _image(plan, upstream), _image(plan, before), plan.arrays[indices]
    target = plan.new(node)
    _image(plan, node)

    def write(kernel: Kernel) -> None:
        given = (one.pointer(kernel) for one in (image, largest, gradient, target))
        unpooled(kernel, _pool(image), *given)

    plan.task(write, gradient, image, largest, target)


def _pad(plan: Plan, node: Any) -> None:
    """Zeros around images: the whole is cleared, then its inside filled."""
    source, target = _image(plan, node.args[0]), plan.new(node)
    border = list(node.args[1])
    if len(border) != 4 or min(border) < 0 or (node.args[2:] or (0.0,))[0] != 0:
        raise Unsupported("a border of another kind")
    left, _, top, _ = border
    numbers = math.prod(target.shape)
    plan.task(lambda k: clear(k, numbers, target.pointer(k)), target)
    first = top * target.strides[2] + left * target.strides[3]
    inside = Array(target.buffer, source.shape, target.strides, target.dtype, first)
    plan.fill(inside, [source], partial(plan.evaluate, node.args[0], source.dtype))


IMAGE_OPERATIONS: dict[Any, Callable[[Plan, Any], None]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    torch._C._nn.max_pool2d_with_indices: _max_pool,  # type: ignore[attr-defined]
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
    aten.constant_pad_nd.default: _pad,
}
