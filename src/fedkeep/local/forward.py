"""A model's forward pass as machine code, for judging models on many examples."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fedkeep.local.compiled import Compiled, compile_graph
from fedkeep.local.rewrite import cancel_transposes, fast_calls
from fedkeep.local.sparse import SparseForward, sparse_forward
from fedkeep.model import Model
from fedkeep.native.emit import Unsupported
from fedkeep.tree import Params

ROWS = 20  # examples at a time; an example's logits do not depend on those beside it


@dataclass(frozen=True)
class Forward:
    """The logits of a model in evaluation mode."""

    compiled: Compiled
    names: tuple[str, ...]  # of weights and buffers, in the order of the inputs

    def __call__(self, params: Params, buffers: Params, x: Tensor) -> Tensor:
        whole = len(x) // ROWS * ROWS
        parts = [self._run(params, buffers, x[:whole])] if whole else []
        if whole < len(x):
            rest = x[torch.arange(whole, whole + ROWS).clamp_(max=len(x) - 1)]  # the last one again and again
            parts.append(self._run(params, buffers, rest)[: len(x) - whole])
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _run(self, params: Params, buffers: Params, x: Tensor) -> Tensor:
        like = self.compiled.inputs[0]
        target = torch.empty((len(x), *like.shape[1:]), dtype=like.dtype)
        tensors = {**params, **buffers}
        return self.compiled([target, *(tensors[name] for name in self.names), x], len(x) // ROWS)[0]


def forward_of(model: Model, params: Params, buffers: Params, x: Tensor) -> Forward | SparseForward | None:
    """The compiled forward pass for examples that lie like these, or None where torch is to be used."""
    if model.compiled is None:
        return None
    key = (tuple(x.shape[1:]), tuple(x.stride()))
    if key not in model.compiled:
        model.compiled[key] = _compile(model, params, buffers, x)
    return model.compiled[key]


def _compile(model: Model, params: Params, buffers: Params, x: Tensor) -> Forward | SparseForward | None:
    with torch.inference_mode(False), torch.no_grad():
        weights, others = ({name: tensor.clone() for name, tensor in tree.items()} for tree in (params, buffers))
        some = torch.empty_strided((ROWS, *x.shape[1:]), x.stride(), dtype=x.dtype, device=x.device)
        some.copy_(x[torch.arange(ROWS) % len(x)])
        wanted, _ = model.forward(weights, others, some, train=False)
        with suppress(Exception):  # an operation without a kernel, or a forward pass that cannot be recorded
            graph, names = _recorded(model, weights, others, some, wanted), (*weights, *others)
            sparse = None
            if model.typical is not None and x.is_contiguous():
                with suppress(Unsupported):
                    sparse = sparse_forward(graph, names, model.typical)
            for found in (sparse, Forward(compile_graph(graph, moving=(0, -1)), names)):
                if found and _close(found(weights, others, some), wanted):
                    return found
    return None


def _close(logits: Tensor, wanted: Tensor) -> bool:
    return torch.allclose(logits, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


def _recorded(model: Model, params: Params, buffers: Params, x: Tensor, logits: Tensor) -> fx.Graph:
    """(place for the logits, weights, buffers, x) -> logits, operation by operation."""

    def flat(target: Tensor, *tensors: Tensor) -> list[Tensor]:
        weights = dict(zip(params, tensors, strict=False))
        others = dict(zip(buffers, tensors[len(params) :], strict=False))
        return [model.forward(weights, others, tensors[-1], train=False)[0]]

    with torch.enable_grad():  # where models take the pool that has a kernel
        trace = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)
        graph = trace(torch.empty_like(logits), *params.values(), *buffers.values(), x).graph
    cancel_transposes(graph)
    graph.eliminate_dead_code()
    fast_calls(graph)
    return graph
