"""nn.Module <-> (params, buffers): the one file that knows state_dict and batch norm.

A model is a function of trainable tensors and buffers, both by name. Buffers (batch norm's running statistics) are
never corrected, never given control variates; they are averaged with the clients' weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fedkeep.errors import ConfigError
from fedkeep.tree import Params, add, clone


class MachineCode(dict[Any, Any]):
    """Compiled functions by the shapes they are for; they stay in their process, a copy elsewhere begins empty."""

    def __reduce__(self) -> tuple[type[MachineCode], tuple[()]]:
        return MachineCode, ()


@dataclass(frozen=True, eq=False)
class Model:
    """A module seen as a function; `frozen` names layers whose weights are fixed and never travel."""

    module: nn.Module
    frozen: tuple[str, ...] = ()
    fixed: Params = field(default_factory=dict, repr=False)
    has_batch_norm: bool = False
    compiled: MachineCode | None = field(default=None, repr=False)  # of its forward pass, where that is wanted
    typical: Tensor | None = field(default=None, repr=False)  # a flat example, if others have much in common with it

    @staticmethod
    def of(module: nn.Module, frozen: Sequence[str] = (), compile: bool = False) -> Model:
        """Wrap a module. A name in `frozen` freezes that parameter or every parameter of that layer.

        `compile`: judge it with machine code, where its forward pass allows that.
        """
        names = [name for name, _ in module.named_parameters()]
        for layer in frozen:
            if not any(_belongs(name, layer) for name in names):
                raise ConfigError(f'cannot freeze "{layer}": the model has no such layer; it has {", ".join(names)}')
        fixed = {n: p.detach().clone() for n, p in module.named_parameters() if any(_belongs(n, f) for f in frozen)}
        if len(fixed) == len(names):
            raise ConfigError(f"freezing {', '.join(frozen)} leaves nothing to train; freeze fewer layers")
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        batch_norm = any(isinstance(part, _BatchNorm) for part in module.modules())
        return Model(module, tuple(frozen), fixed, batch_norm, MachineCode() if compile else None)

    def initial(self) -> tuple[Params, Params]:
        """Copies of the module's own trainable tensors and buffers."""
        params = {n: p.detach() for n, p in self.module.named_parameters() if n not in self.fixed}
        state = self.module.state_dict()
        buffers = {n: b.detach() for n, b in self.module.named_buffers() if n in state}
        return clone(params), clone(buffers)

    def forward(self, params: Params, buffers: Params, x: Tensor, train: bool) -> tuple[Tensor, Params]:
        """Logits and the buffers after the pass; the buffers given stay as they are."""
        if self.module.training != train:
            self.module.train(train)
        if train and buffers:
            buffers = clone(buffers)
        return functional_call(self.module, {**self.fixed, **params, **buffers}, (x,)), buffers

    def load(self, params: Params, buffers: Params) -> nn.Module:
        """The module with these tensors copied into it."""
        with torch.no_grad():
            self.module.load_state_dict({**self.fixed, **params, **buffers}, strict=False)
        return self.module


def _belongs(parameter: str, layer: str) -> bool:
    return parameter == layer or parameter.startswith(layer + ".")


def weigh_buffers(buffers: Params, weight: float) -> Params:
    """weight * buffers, in double precision: what is added up over clients."""
    return {name: weight * tensor.double() for name, tensor in buffers.items()}


def settle_buffers(total: Params, weight: float, like: Params) -> Params:
    """The mean from a sum of weighed buffers; integer buffers (counters) are rounded."""
    mean = {name: tensor / weight for name, tensor in total.items()}
    return {n: (t if like[n].is_floating_point() else t.round()).to(like[n].dtype) for n, t in mean.items()}


def mean_buffers(buffers: Sequence[Params], weights: Sequence[float]) -> Params:
    """The mean of the clients' buffers with weights that sum to one.

    >>> mean_buffers([{"n": torch.tensor(3)}, {"n": torch.tensor(4)}], [0.2, 0.8])["n"]
    tensor(4)
    """
    weighed = [weigh_buffers(one, weight) for one, weight in zip(buffers, weights, strict=True)]
    return settle_buffers(reduce(add, weighed), 1.0, buffers[0])


def laid_out(nested: Any) -> Any:
    """Images and convolution weights with channels last in memory; all else as it is.

    With one channel both layouts are the same bytes, and torch would take them for the usual one: strides say which.
    """
    if isinstance(nested, Tensor):
        if nested.dim() != 4:
            return nested
        last = nested.contiguous(memory_format=torch.channels_last)
        _, channels, height, width = last.shape
        return last if channels > 1 else last.as_strided(last.shape, (height * width, 1, width, 1))
    return {key: laid_out(value) for key, value in nested.items()}


def row_major(nested: Any) -> Any:
    """Every tensor in the usual layout again."""
    if isinstance(nested, Tensor):
        return nested.contiguous()
    return {key: row_major(value) for key, value in nested.items()}
