"""The two small convolutional networks.

relu(max_pool(x)) = max_pool(relu(x)), and the pool leaves relu a quarter of the work.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fedkeep.models.pool import halved


class CNN(nn.Module):
    """Two padded 5x5 convolutions (32, 64), each with 2x2 max pool and ReLU, then 512 dense units.

    The Importance paper (Sec. 4.1, "Implementation details"), with the 512 dense units of McMahan et al. 2017.
    The padding keeps the size, so 28x28 images give 7 * 7 * 64 = 3136 features; 1663370 parameters on MNIST.
    """

    smallest = 4

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.dense = nn.Linear(64 * (height // 4) * (width // 4), 512)
        self.classifier = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(halved(self.conv1(x)))
        x = functional.relu(halved(self.conv2(x)))
        return self.classifier(functional.relu(self.dense(x.flatten(1))))


class CNN2(nn.Module):
    """Two unpadded 5x5 convolutions (10, 20), each with 2x2 max pool and ReLU, then 50 dense units.

    The FedWAgg paper says "2-layer CNN" and no more. This is the common small one, that of the PyTorch MNIST
    example without its dropout: 28x28 images give 4 * 4 * 20 = 320 features, 21840 parameters on MNIST.
    """

    smallest = 16

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.dense = nn.Linear(20 * side_after_two_pools(height) * side_after_two_pools(width), 50)
        self.classifier = nn.Linear(50, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(halved(self.conv1(x)))
        x = functional.relu(halved(self.conv2(x)))
        return self.classifier(functional.relu(self.dense(x.flatten(1))))


def side_after_two_pools(side: int) -> int:
    """What two rounds of unpadded 5x5 convolution and 2x2 pool leave of a side.

    >>> side_after_two_pools(28), side_after_two_pools(16)
    (4, 1)
    """
    return ((side - 4) // 2 - 4) // 2
