"""Residual networks for small images: ResNet-18 and the shallow one of FedWAvg."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from fedkeep.models.norm import normalisation

WIDTHS = (64, 128, 256, 512)


class Block(nn.Module):
    """A residual block of two 3x3 convolutions, each normalised.

    He et al. 2016, Fig. 2 and Eq. (1), (2):

        relu(norm(conv(relu(norm(conv(x))))) + shortcut(x))

    The shortcut is x itself, or a normalised 1x1 convolution where the size or the number of channels changes.
    """

    def __init__(self, channels: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = normalisation(norm, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = normalisation(norm, width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut.append(nn.Conv2d(channels, width, 1, stride, bias=False))
            self.shortcut.append(normalisation(norm, width))

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    """Four stages of residual blocks, 64-128-256-512 wide, then the global average and one dense layer.

    The stem is the one for small images, a 3x3 convolution of stride 1 without max pool. Each stage but the first
    halves the side, so 32x32 ends as 4x4 and 8x8 as 1x1 (where batch norm cannot train on a batch of one example).
    """

    smallest = 8

    def __init__(self, shape: tuple[int, ...], classes: int, blocks: Sequence[int], norm: str = "batch") -> None:
        super().__init__()
        self.stem = nn.Conv2d(shape[0], WIDTHS[0], 3, padding=1, bias=False)
        self.stem_norm = normalisation(norm, WIDTHS[0])
        self.stages = nn.Sequential()
        channels = WIDTHS[0]
        for stage, (width, count) in enumerate(zip(WIDTHS, blocks, strict=True)):
            first = Block(channels, width, 1 if stage == 0 else 2, norm)
            others = [Block(width, width, 1, norm) for _ in range(count - 1)]
            self.stages.append(nn.Sequential(first, *others))
            channels = width
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(functional.relu(self.stem_norm(self.stem(x))))
        return self.classifier(x.mean((2, 3)))


def resnet18(shape: tuple[int, ...], classes: int, norm: str = "batch") -> ResNet:
    """ResNet-18 with the stem for small images, two blocks a stage; 11173962 parameters on CIFAR-10.

    He et al. 2016, Table 1; used by the WSM and TCE papers with batch or group norm.
    """
    return ResNet(shape, classes, (2, 2, 2, 2), norm)


def resnet_shallow(shape: tuple[int, ...], classes: int, norm: str = "batch") -> ResNet:
    """The shallow ResNet of FedWAvg (Sec. 3.3): four residual blocks, three of them with 1x1 shortcuts.

    The paper gives neither widths nor stem. Three shortcuts on four blocks are what ResNet-18 has with one block a
    stage, so its widths (64-128-256-512), strides and stem are taken: 4903242 parameters on CIFAR-10.
    """
    return ResNet(shape, classes, (1, 1, 1, 1), norm)
