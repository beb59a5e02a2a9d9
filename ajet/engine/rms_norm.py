"""RMS norm, forward and backward, in pieces of rows that stay in a processor's cache.

transformers writes the norm out in ten operators forward and some twenty backward, each of which goes through all rows,
most in float32: on a CPU their time is that of memory.

Invariant: the numbers are those of the module that is replaced, bit for bit, gradients included: the same operators in
the same order, row by row; a module for which a probe says otherwise keeps its own. What is kept for the backward pass
is the input, its normed rows and a number a row, half of what the operators keep; so the input may not be changed in
place between the passes (torch refuses the backward pass then). Only in bfloat16: in float32, where the operators
convert nothing, they are as fast.
"""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

PIECE = 1 << 16
"""Elements of a piece, a thread: a few of these, in float32, fit a core's cache."""
ROWS = 5
"""Of the probe's input: its pieces are of two rows, so that the last one is shorter."""


def replace_norms(model: Any) -> int:
    """Give the norms of `model` on a CPU the forward pass of this file, in place; return how many."""
    known: dict[Any, bool] = {}
    count = 0
    for module in model.modules():
        if not _is_replaceable(module):
            continue
        kind = (type(module), module.weight.dtype, module.weight.shape, module.variance_epsilon)
        if kind not in known:
            known[kind] = _same_bits(module)
        if known[kind]:
            module.forward = MethodType(_forward_in_pieces, module)  # a method: copies of a module have their own
            count += 1
    return count


def _is_replaceable(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return (
        type(module).__name__.endswith("RMSNorm")
        and "forward" not in vars(module)
        and isinstance(weight, torch.nn.Parameter)
        and isinstance(getattr(module, "variance_epsilon", None), float)
        and [name for name, _ in module.named_parameters()] == ["weight"]
        and weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and weight.ndim == 1
        and list(inspect.signature(type(module).forward).parameters)
        == ["self", "hidden_states"]  # no gate, no residual
    )


def _forward_in_pieces(module: Any, hidden_states: Tensor) -> Tensor:
    """Return the norm of the hidden states, by the module's own forward pass where they are not as probed."""
    if not _is_as_probed(hidden_states, module.weight):
        given: Tensor = type(module).forward(module, hidden_states)
        return given
    piece = PIECE * torch.get_num_threads()
    if not torch.is_grad_enabled():
        return _compute_norm(hidden_states, module.weight, module.variance_epsilon, piece, keep=False)[0]
    result: Tensor = _RmsNorm.apply(hidden_states, module.weight, module.variance_epsilon, piece)
    return result


def _is_as_probed(given: Tensor, weight: Tensor) -> bool:
    return given.dtype == weight.dtype and given.device.type == weight.device.type == "cpu" and given.is_contiguous()


def _compute_norm(
    given: Tensor, weight: Tensor, epsilon: float, piece: int, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The norm, what each row [N, 1] was multiplied by, and with `keep` the rows [N, W] before their weights."""
    width = given.shape[-1]
    result = torch.empty_like(given)
    rows, out = given.view(-1, width), result.view(-1, width)
    inverse = torch.empty(rows.shape[0], 1, dtype=torch.float32)
    scaled = torch.empty_like(rows) if keep else None
    step = max(1, piece // width)
    wide, squares = (torch.empty(min(step, rows.shape[0]), width, dtype=torch.float32) for _ in range(2))
    for at in range(0, rows.shape[0], step):
        part = slice(at, at + step)
        count = rows[part].shape[0]
        h, s = wide[:count].copy_(rows[part]), squares[:count]
        mean = torch.pow(h, 2, out=s).mean(-1, keepdim=True)
        torch.rsqrt(mean.add_(epsilon), out=inverse[part])
        normed = out[part] if scaled is None else scaled[part]
        torch.mul(normed.copy_(h.mul_(inverse[part])), weight, out=out[part])
    return result, inverse, scaled


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, epsilon: float, piece: int) -> Tensor:
        out, inverse, scaled = _compute_norm(given, weight, epsilon, piece, keep=ctx.needs_input_grad[1])
        ctx.save_for_backward(given, weight, inverse, scaled)
        ctx.step = max(1, piece // given.shape[-1])
        return out  # no view: a model may change it in place, as Mixtral's jitter does

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden_states, weight, inverse, scaled = ctx.saved_tensors
        shape, width, step = hidden_states.shape, hidden_states.shape[-1], ctx.step
        rows, given = hidden_states.view(-1, width), grads[0].reshape(-1, width)
        to_weight = (given * scaled).sum(0) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, to_weight, None, None
        to_rows = torch.empty_like(rows)
        most = min(step, rows.shape[0])
        narrow = torch.empty(most, width, dtype=rows.dtype)
        wide, hidden, product = (torch.empty(most, width, dtype=torch.float32) for _ in range(3))
        for at in range(0, rows.shape[0], step):
            part = slice(at, at + step)
            count = rows[part].shape[0]
            g, h, p = wide[:count], hidden[:count].copy_(rows[part]), product[:count]
            g.copy_(torch.mul(given[part], weight, out=narrow[:count]))
            to_inverse = torch.mul(g, h, out=p).sum(-1, keepdim=True)
            to_mean = (inverse[part].pow(3).mul_(-0.5)).mul_(to_inverse).div_(width)
            g.mul_(inverse[part])
            to_rows[part] = g.add_(h.mul_(2).mul_(to_mean))
        return to_rows.view(shape), to_weight, None, None


def _same_bits(module: Any) -> bool:
    """Whether outputs and gradients are those of the module's own forward pass, with weights of our own: at its first,
    which are often all 1, a product may come at another place."""
    draw = torch.Generator().manual_seed(0)
    width, dtype = module.weight.shape[0], module.weight.dtype
    given, grad = (torch.randn(1, ROWS, width, generator=draw).mul_(3).to(dtype) for _ in range(2))
    weight = torch.randn(width, generator=draw).add_(1).to(dtype)
    found = []
    for piece in (None, 2 * width):
        x, w = given.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.enable_grad():
            try:
                if piece is None:
                    out = torch.func.functional_call(module, {"weight": w}, (x,))
                else:
                    out = _RmsNorm.apply(x, w, module.variance_epsilon, piece)
                found.append((out, *torch.autograd.grad(out, (x, w), grad)))
            except (TypeError, ValueError, RuntimeError):  # it wants rows of another shape, or is not learned that way
                return False
    return all(one.dtype == other.dtype and torch.equal(one, other) for one, other in zip(*found, strict=True))
