"""The models of the five papers, by name. All are plain modules whose last dense layer is called `classifier`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fedkeep.errors import ConfigError, nearest
from fedkeep.models.cnn import CNN, CNN2
from fedkeep.models.densenet import DenseNet
from fedkeep.models.lenet import LeNet
from fedkeep.models.mlp import MLP
from fedkeep.models.norm import check_norm
from fedkeep.models.resnet import ResNet, resnet18, resnet_shallow

__all__ = ["build", "names"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Entry:
    """How a model is made, and the smallest side of an image it can read (0: any shape, image or not)."""

    make: Callable[[Shape, int, str], nn.Module]
    smallest: int


def _plain(make: Callable[[Shape, int], nn.Module]) -> Callable[[Shape, int, str], nn.Module]:
    """A model without normalisation."""
    return lambda shape, classes, norm: make(shape, classes)


_MODELS = {
    "cnn": _Entry(_plain(CNN), CNN.smallest),
    "cnn2": _Entry(_plain(CNN2), CNN2.smallest),
    "densenet121": _Entry(DenseNet, DenseNet.smallest),
    "lenet": _Entry(_plain(LeNet), LeNet.smallest),
    "mlp": _Entry(_plain(MLP), 0),
    "resnet-shallow": _Entry(resnet_shallow, ResNet.smallest),
    "resnet18": _Entry(resnet18, ResNet.smallest),
}


def names() -> list[str]:
    """The names `build` knows.

    >>> names()
    ['cnn', 'cnn2', 'densenet121', 'lenet', 'mlp', 'resnet-shallow', 'resnet18']
    """
    return sorted(_MODELS)


def build(name: str, shape: tuple[int, ...], classes: int, norm: str = "batch") -> nn.Module:
    """A new model for examples of one shape, its weights drawn from torch's current random state.

    shape: of one example, (channels, height, width); "mlp" takes any shape.
    norm: "batch" or "group"; models without normalisation ignore it.

    >>> build("mlp", (1, 28, 28), 10).classifier
    Linear(in_features=200, out_features=10, bias=True)
    """
    if name not in _MODELS:
        raise ConfigError(f'model "{name}" is unknown: {nearest(name, _MODELS)}')
    check_norm(norm)
    if classes < 2:
        raise ConfigError(f'model "{name}": classes={classes}; a classifier needs at least 2')
    _check_shape(name, shape)
    return _MODELS[name].make(shape, classes, norm)


def _check_shape(name: str, shape: Shape) -> None:
    smallest = _MODELS[name].smallest
    if not shape or any(side < 1 for side in shape):
        raise ConfigError(f'model "{name}": shape={shape}; every side of an example must be at least 1')
    if smallest and len(shape) != 3:
        raise ConfigError(f'model "{name}": shape={shape}; give (channels, height, width), or use "mlp" for any shape')
    if smallest and min(shape[1:]) < smallest:
        fitting = [other for other in names() if _MODELS[other].smallest <= min(shape[1:])]
        raise ConfigError(
            f'model "{name}" needs images of at least {smallest}x{smallest}, not {shape[1]}x{shape[2]}; '
            f"these take them: {', '.join(fitting)}"
        )
