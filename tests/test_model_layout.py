"""Memory layouts of images and convolution weights."""

from __future__ import annotations

import torch

from fedkeep.model import laid_out, row_major


def test_one_channel_is_laid_out_by_its_strides():
    """With one channel the bytes are the same in both layouts; only strides tell torch which is meant."""
    images = torch.arange(24.0).reshape(2, 1, 3, 4)
    last = laid_out(images)
    assert last.stride() == (12, 1, 4, 1) and torch.equal(last, images)
    assert laid_out(torch.zeros(2, 3, 3, 4)).stride() == (36, 1, 12, 3)
    bias = torch.zeros(5)
    assert laid_out({"w": images, "b": bias})["b"] is bias
    assert torch.equal(row_major(last), images)
    made = torch.nn.functional.conv2d(last, laid_out(torch.ones(6, 1, 2, 2)))
    assert made.is_contiguous(memory_format=torch.channels_last) and not made.is_contiguous()
