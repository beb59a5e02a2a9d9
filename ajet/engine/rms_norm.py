"""RMS norm, forward and backward, in pieces of rows that fit a processor's cache.

transformers computes the norm with ten operators forward and about twenty backward. Each passes over all rows, most in
float32, so memory bandwidth limits the speed on a CPU.

Invariant: outputs and gradients equal the replaced module's, bit for bit, because the same operators run in the same
order, row by row. A module with another result in a probe stays unchanged. Backward stores the input, its normed rows
and one number per row, half of the original memory; the input must not change in place between the passes (torch
reports such a change as an error). Only bfloat16 is replaced: in float32 the operators convert no data and are as fast.
"""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

PIECE = 1 << 16
"""Elements per piece and thread: a few pieces in float32 fit a core's cache."""
ROWS = 5
"""Rows of the probe's input: pieces have two rows, so the last piece is shorter."""


def replace_norms(model: Any) -> int:
    """Replace the forward pass of the norms of `model` on a CPU in place, and return their number."""
    same_by_kind: dict[Any, bool] = {}
    count = 0
    for module in model.modules():
        if not _is_replaceable(module):
            continue
        kind = (type(module), module.weight.dtype, module.weight.shape, module.variance_epsilon)
        if kind not in same_by_kind:
            same_by_kind[kind] = _same_bits(module)
        if same_by_kind[kind]:
            # The method is bound with MethodType, so that copies of the module get their own.
            module.forward = MethodType(_forward_in_pieces, module)
            count += 1
    return count


def _is_replaceable(module: Any) -> bool:
    """Return True for a plain RMS norm in bfloat16 on a CPU, with its weight as the only parameter."""
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
    """Return the norm of the hidden states. Inputs unlike the probe's use the module's own forward pass."""
    if not _is_as_probed(hidden_states, module.weight):
        output: Tensor = type(module).forward(module, hidden_states)
        return output
    piece = PIECE * torch.get_num_threads()
    if not torch.is_grad_enabled():
        return _compute_norm(hidden_states, module.weight, module.variance_epsilon, piece, keep=False)[0]
    result: Tensor = _RmsNorm.apply(hidden_states, module.weight, module.variance_epsilon, piece)
    return result


def _is_as_probed(inputs: Tensor, weight: Tensor) -> bool:
    """Return True if the inputs are of the kind compared by the probe: the weight's dtype, contiguous, on a CPU."""
    return inputs.dtype == weight.dtype and inputs.device.type == weight.device.type == "cpu" and inputs.is_contiguous()


def _compute_norm(
    inputs: Tensor, weight: Tensor, epsilon: float, piece: int, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the norm, the factor of each row [N, 1], and with `keep` the rows [N, W] before multiplication by
    weights."""
    width = inputs.shape[-1]
    result = torch.empty_like(inputs)
    rows, out_rows = inputs.view(-1, width), result.view(-1, width)
    inverse = torch.empty(rows.shape[0], 1, dtype=torch.float32)
    scaled = torch.empty_like(rows) if keep else None
    step = max(1, piece // width)
    # One piece in float32 each, reused by all pieces.
    hidden_buffer, squares_buffer = (
        torch.empty(min(step, rows.shape[0]), width, dtype=torch.float32) for _ in range(2)
    )
    for begin in range(0, rows.shape[0], step):
        piece_rows = slice(begin, begin + step)
        count = rows[piece_rows].shape[0]
        hidden, piece_squares = hidden_buffer[:count].copy_(rows[piece_rows]), squares_buffer[:count]
        mean = torch.pow(hidden, 2, out=piece_squares).mean(-1, keepdim=True)
        torch.rsqrt(mean.add_(epsilon), out=inverse[piece_rows])
        normed = out_rows[piece_rows] if scaled is None else scaled[piece_rows]
        torch.mul(normed.copy_(hidden.mul_(inverse[piece_rows])), weight, out=out_rows[piece_rows])
    return result, inverse, scaled


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, epsilon: float, piece: int) -> Tensor:
        """Return the norm of the inputs, and save what the backward pass needs."""
        out, inverse, scaled = _compute_norm(inputs, weight, epsilon, piece, keep=ctx.needs_input_grad[1])
        ctx.save_for_backward(inputs, weight, inverse, scaled)
        ctx.step = max(1, piece // inputs.shape[-1])
        return out  # not a view, because some models change the output in place (Mixtral's jitter)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """Return the gradients of inputs and weight. The operators and their order are those of autograd."""
        hidden_states, weight, inverse, scaled = ctx.saved_tensors
        shape, width, step = hidden_states.shape, hidden_states.shape[-1], ctx.step
        rows, output_grads = hidden_states.view(-1, width), grads[0].reshape(-1, width)
        weight_grad = (output_grads * scaled).sum(0) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, weight_grad, None, None
        row_grads = torch.empty_like(rows)
        largest_piece = min(step, rows.shape[0])
        weighted_buffer = torch.empty(largest_piece, width, dtype=rows.dtype)
        grads_buffer, hidden_buffer, product_buffer = (
            torch.empty(largest_piece, width, dtype=torch.float32) for _ in range(3)
        )
        for begin in range(0, rows.shape[0], step):
            piece_rows = slice(begin, begin + step)
            count = rows[piece_rows].shape[0]
            piece_grads, piece_hidden, piece_product = (
                grads_buffer[:count],
                hidden_buffer[:count].copy_(rows[piece_rows]),
                product_buffer[:count],
            )
            piece_grads.copy_(torch.mul(output_grads[piece_rows], weight, out=weighted_buffer[:count]))
            inverse_grad = torch.mul(piece_grads, piece_hidden, out=piece_product).sum(-1, keepdim=True)
            mean_grad = (inverse[piece_rows].pow(3).mul_(-0.5)).mul_(inverse_grad).div_(width)
            piece_grads.mul_(inverse[piece_rows])
            row_grads[piece_rows] = piece_grads.add_(piece_hidden.mul_(2).mul_(mean_grad))
        return row_grads.view(shape), weight_grad, None, None


def _same_bits(module: Any) -> bool:
    """True if outputs and gradients equal the module's own forward pass.

    The probe uses random weights: initial weights are often all 1, and would hide a product at another place.
    """
    generator = torch.Generator().manual_seed(0)
    width, dtype = module.weight.shape[0], module.weight.dtype
    inputs, grad = (torch.randn(1, ROWS, width, generator=generator).mul_(3).to(dtype) for _ in range(2))
    weight = torch.randn(width, generator=generator).add_(1).to(dtype)
    results = []
    for piece in (None, 2 * width):
        probe_inputs, probe_weight = inputs.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.enable_grad():
            try:
                if piece is None:
                    out = torch.func.functional_call(module, {"weight": probe_weight}, (probe_inputs,))
                else:
                    out = _RmsNorm.apply(probe_inputs, probe_weight, module.variance_epsilon, piece)
                results.append((out, *torch.autograd.grad(out, (probe_inputs, probe_weight), grad)))
            # The module needs rows of another shape, or has no such gradient.
            except (TypeError, ValueError, RuntimeError):
                return False
    return all(
        own_result.dtype == new_result.dtype and torch.equal(own_result, new_result)
        for own_result, new_result in zip(*results, strict=True)
    )
