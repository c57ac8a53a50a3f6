"""The diagonal empirical Fisher information of a model on a client's data.

Kim et al. 2020, Eq. (1):  F = mean_i (d log p(y_i | x_i) / dw)^2  with the true labels: squares of *per-sample*
gradients, not the square of a batch gradient. Two ways, tested against each other:

- `per_sample`: the definition, by vmap; works for every model without batch statistics in the way
- `by_layers`: one forward and one backward pass of the whole batch. A dense layer needs no per-sample gradient,
  mean_i (delta_i outer a_i)^2 = (delta^2)^T (a^2) / n; a convolution's is one product per sample; normalisation
  layers sum over positions first.

Both run in evaluation mode, where samples do not see each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedkeep.model import Model
from fedkeep.tree import Params, add_into, scale_in_place, zeros_like

CHUNK = 1000  # examples at a time
CHUNK_PER_SAMPLE = 200  # where each example has a gradient of its own in memory


def diagonal_fisher(model: Model, params: Params, buffers: Params, x: Tensor, y: Tensor) -> Params:
    """The Fisher of all trainable parameters, by layers where every layer is known, else per sample."""
    if _all_known(model):
        light = not any(isinstance(layer, nn.Conv2d) for layer in model.module.modules())
        try:
            return _mean(by_layers, model, params, buffers, x, y, CHUNK if light else CHUNK_PER_SAMPLE)
        except _Unknown:
            pass
    return _mean(per_sample, model, params, buffers, x, y, CHUNK_PER_SAMPLE)


class _Unknown(Exception):
    """A layer is used in a way whose closed form we do not have."""


def _mean(
    one: Callable[..., Params], model: Model, params: Params, buffers: Params, x: Tensor, y: Tensor, size: int
) -> Params:
    if not len(y):
        return zeros_like(params)
    chunks = zip(x.split(size), y.split(size), strict=True)
    total = reduce(add_into, (one(model, params, buffers, *chunk) for chunk in chunks))
    return scale_in_place(total, 1.0 / len(y))


def per_sample(model: Model, params: Params, buffers: Params, x: Tensor, y: Tensor) -> Params:
    """Sum over samples of the squared gradient, straight from the definition."""

    def loss(w: Params, row: Tensor, label: Tensor) -> Tensor:
        logits, _ = model.forward(w, buffers, row.unsqueeze(0), train=False)
        return F.cross_entropy(logits, label.unsqueeze(0))

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)
    return {name: gradient.pow(2).sum(0) for name, gradient in gradients.items()}


def by_layers(model: Model, params: Params, buffers: Params, x: Tensor, y: Tensor) -> Params:
    """Sum over samples of the squared gradient from the inputs and output gradients of each layer."""
    seen: list[Seen] = []
    handles = []
    for name, layer in model.module.named_modules():
        trained = any(f"{name}.{part}" in params for part, _ in layer.named_parameters(recurse=False))
        if type(layer) in LAYERS and trained:
            handles.append(layer.register_forward_hook(_remember(name, seen)))
    try:
        leaves = {k: v.detach().requires_grad_() for k, v in params.items()}
        model.module.eval()
        with torch.enable_grad():
            logits = functional_call(model.module, {**model.fixed, **leaves, **buffers}, (x,))
            loss = F.cross_entropy(logits, y, reduction="sum")
            deltas = _output_gradients(loss, seen)
    finally:
        for handle in handles:
            handle.remove()
    fisher: Params = {}
    with torch.no_grad():
        for one, delta in zip(seen, deltas, strict=True):
            for part, value in LAYERS[type(one.layer)](one, delta).items():
                if f"{one.name}.{part}" in params:
                    fisher[f"{one.name}.{part}"] = value
    if fisher.keys() != params.keys():
        raise _Unknown("a parameter acts outside its own layer's forward pass")
    return {name: fisher[name] for name in params}


def _output_gradients(loss: Tensor, seen: list[Seen]) -> list[Tensor]:
    """The gradient at each layer's output, where the outputs are still what the layers made."""
    if not seen or any(one.output._version != one.version for one in seen):
        raise _Unknown("an output was changed in place")
    found = torch.autograd.grad(loss, [one.output for one in seen], allow_unused=True)
    deltas = [delta for delta in found if delta is not None]
    if len(deltas) < len(seen):
        raise _Unknown("an output has no part in the loss")
    return deltas


@dataclass(frozen=True)
class Seen:
    """One layer in one forward pass."""

    name: str
    layer: nn.Module
    input: Tensor
    output: Tensor
    version: int  # of the output; an activation that works in place raises it
    statistics: tuple[Tensor | None, Tensor | None]  # batch norm's, as they were in this pass


def _remember(name: str, seen: list[Seen]) -> Callable:
    def hook(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if any(layer is one.layer for one in seen) or (isinstance(layer, nn.Linear) and args[0].dim() != 2):
            raise _Unknown(name)
        statistics = (getattr(layer, "running_mean", None), getattr(layer, "running_var", None))
        seen.append(Seen(name, layer, args[0].detach(), output, output._version, statistics))

    return hook


def _dense(one: Seen, delta: Tensor) -> dict[str, Tensor]:
    square = delta.pow(2)
    return {"weight": square.T @ one.input.pow(2), "bias": square.sum(0)}


def _convolution(one: Seen, delta: Tensor) -> dict[str, Tensor]:
    layer = one.layer
    assert isinstance(layer, nn.Conv2d)
    columns = F.unfold(one.input, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
    groups, weight = layer.groups, layer.weight
    columns = columns.unflatten(1, (groups, -1))  # [n, groups, in/groups * kh * kw, positions]
    flat = delta.flatten(2).unflatten(1, (groups, -1))  # [n, groups, out/groups, positions]
    gradient = flat @ columns.transpose(-1, -2)
    return {"weight": gradient.pow_(2).sum(0).reshape(weight.shape), "bias": flat.sum(-1).pow(2).sum(0).flatten()}


def _normalisation(one: Seen, delta: Tensor) -> dict[str, Tensor]:
    layer = one.layer
    if isinstance(layer, nn.GroupNorm):
        plain = F.group_norm(one.input, layer.num_groups, eps=layer.eps)
    else:
        assert isinstance(layer, _BatchNorm)
        plain = F.batch_norm(one.input, *one.statistics, eps=layer.eps)
    positions = tuple(range(2, delta.dim()))
    weight = (delta * plain).sum(positions) if positions else delta * plain
    bias = delta.sum(positions) if positions else delta
    return {"weight": weight.pow(2).sum(0), "bias": bias.pow(2).sum(0)}


LAYERS: dict[type, Callable[[Seen, Tensor], dict[str, Tensor]]] = {
    nn.Linear: _dense,
    nn.Conv2d: _convolution,
    nn.BatchNorm1d: _normalisation,
    nn.BatchNorm2d: _normalisation,
    nn.GroupNorm: _normalisation,
}


def _all_known(model: Model) -> bool:
    """Whether every parameter belongs to a layer whose per-sample squares we know in closed form."""
    names = {name for name, _ in model.module.named_parameters(remove_duplicate=False)}  # a shared tensor has two
    covered = set()
    for name, layer in model.module.named_modules():
        odd = isinstance(layer, nn.Conv2d) and (isinstance(layer.padding, str) or layer.padding_mode != "zeros")
        if type(layer) in LAYERS and not odd:
            covered.update(f"{name}.{part}" for part, _ in layer.named_parameters(recurse=False))
    return covered >= names and len(names) == len(list(model.module.parameters()))
