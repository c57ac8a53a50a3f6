"""The multilayer perceptron."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional


class MLP(nn.Module):
    """One hidden layer of 200 ReLU units on the flattened input.

    The Importance paper, Sec. 4.1, "Implementation details":

        classifier(relu(hidden(x)))         784-200-10 on MNIST, 159010 parameters
    """

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int = 200) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(shape), hidden)
        self.classifier = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(functional.relu(self.hidden(x.flatten(1))))
