"""LeNet-5."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fedkeep.models.cnn import side_after_two_pools
from fedkeep.models.pool import halved

SIDE = 32


class LeNet(nn.Module):
    """LeNet-5 with ReLU and max pool: convolutions 6 and 16 (5x5), dense 120 and 84.

    LeCun et al. 1998, as used by the WSM paper (Table 3) on CIFAR-10 and CIFAR-100; 62006 parameters on CIFAR-10.
    Made for 32x32 images. Smaller ones, down to 28x28, get a border of zeros up to 32, as LeCun's digits did.
    Differs from the 1998 network: ReLU for tanh, max for mean pool, all connections in the second convolution, a dense
    output for the radial one.
    """

    smallest = 28

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.border = (*_border(width), *_border(height))  # left, right, top, bottom
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        features = 16 * side_after_two_pools(max(height, SIDE)) * side_after_two_pools(max(width, SIDE))
        self.dense1 = nn.Linear(features, 120)
        self.dense2 = nn.Linear(120, 84)
        self.classifier = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        if any(self.border):
            x = functional.pad(x, self.border)
        x = functional.relu(halved(self.conv1(x)))
        x = functional.relu(halved(self.conv2(x)))
        x = functional.relu(self.dense1(x.flatten(1)))
        return self.classifier(functional.relu(self.dense2(x)))


def _border(side: int) -> tuple[int, int]:
    """Zeros before and after a side that bring it up to 32."""
    missing = max(SIDE - side, 0)
    return missing // 2, missing - missing // 2
