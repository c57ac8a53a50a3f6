"""The workloads' models in plain PyTorch, for the peers; names of weights as in the task."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from workloads import Task


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.classifier = nn.Linear(784, 200), nn.Linear(200, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(functional.relu(self.hidden(x)))


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.dense, self.classifier = nn.Linear(3136, 512), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        return self.classifier(functional.relu(self.dense(x.flatten(1))))


class Block(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(32, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(32, width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut.append(nn.Conv2d(channels, width, 1, stride, bias=False))
            self.shortcut.append(nn.GroupNorm(32, width))

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.GroupNorm(32, 64)
        stages, channels = [], 64
        for width in (64, 128, 256, 512):
            stages.append(nn.Sequential(Block(channels, width, 1 if width == 64 else 2), Block(width, width, 1)))
            channels = width
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.stages(functional.relu(self.stem_norm(self.stem(x)))).mean((2, 3)))


MODELS = {"mlp": MLP, "cnn": CNN, "resnet18": ResNet18}


def build(task: Task) -> nn.Module:
    """The task's model with its initial weights."""
    model = MODELS[task.model]()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in task.initial.items()})
    return model


def tensors(task: Task) -> tuple[Tensor, Tensor, Tensor]:
    """Examples, labels, and the rows of each client."""
    return torch.from_numpy(task.x), torch.from_numpy(task.y), torch.from_numpy(task.parts)


def final(model: nn.Module) -> dict:
    """The weights by name, as arrays."""
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}
