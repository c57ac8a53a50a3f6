"""DenseNet-121 for small images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkeep.models.norm import normalisation

GROWTH = 32
BLOCKS = (6, 12, 24, 16)


class DenseLayer(nn.Module):
    """Adds `GROWTH` channels, computed from all channels before, to its input.

    Huang et al. 2017, Eq. (2) with bottleneck (Sec. 3, DenseNet-B):

        [x, conv3x3(relu(norm(conv1x1(relu(norm(x))))))]        1x1: 4 * 32 channels, 3x3: 32
    """

    def __init__(self, channels: int, norm: str) -> None:
        super().__init__()
        self.norm1 = normalisation(norm, channels)
        self.conv1 = nn.Conv2d(channels, 4 * GROWTH, 1, bias=False)
        self.norm2 = normalisation(norm, 4 * GROWTH)
        self.conv2 = nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(functional.relu(self.norm1(x)))
        return torch.cat((x, self.conv2(functional.relu(self.norm2(inner)))), 1)


class Transition(nn.Module):
    """Halves the channels with a 1x1 convolution and the side with a 2x2 mean (Huang et al. 2017, DenseNet-C)."""

    def __init__(self, channels: int, norm: str) -> None:
        super().__init__()
        self.norm = normalisation(norm, channels)
        self.conv = nn.Conv2d(channels, channels // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(self.conv(functional.relu(self.norm(x))), 2)


class DenseNet(nn.Module):
    """DenseNet-121: blocks of 6, 12, 24 and 16 layers, growth 32, transitions that halve channels and side.

    Huang et al. 2017, Table 1; the FedWAvg paper counts forgetting events with it (Table 1).
    Differs from the ImageNet network: the stem is a 3x3 convolution of stride 1 without max pool, so that 28x28 and
    32x32 images keep their detail; 6956426 parameters on CIFAR-10. 8x8 ends as 1x1, where batch norm cannot train on
    a batch of one example.
    """

    smallest = 8

    def __init__(self, shape: tuple[int, ...], classes: int, norm: str = "batch") -> None:
        super().__init__()
        channels = 2 * GROWTH
        self.stem = nn.Conv2d(shape[0], channels, 3, padding=1, bias=False)
        self.stem_norm = normalisation(norm, channels)
        self.stages = nn.Sequential()
        for stage, count in enumerate(BLOCKS):
            if stage > 0:
                self.stages.append(Transition(channels, norm))
                channels //= 2
            self.stages.append(nn.Sequential(*(DenseLayer(channels + i * GROWTH, norm) for i in range(count))))
            channels += count * GROWTH
        self.final_norm = normalisation(norm, channels)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(functional.relu(self.stem_norm(self.stem(x))))
        return self.classifier(functional.relu(self.final_norm(x)).mean((2, 3)))
