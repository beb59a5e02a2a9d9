"""Runs a packed row through the model: hidden states once, logits in chunks and only for trained positions.

Invariant: the result equals the model's eager forward pass over each sample alone, to float tolerance. `probe_packing`
checks every model token by token before the first row. A model that fails (no transformers attention interface, or
state carried along the row) gets its samples one at a time. Models with a stored verdict for this machine
(ajet.engine.verdict_cache) skip the check.

The head runs forward and backward chunk by chunk, before the trunk's backward pass, so at most `CHUNK_BYTES` of float32
logits exist. `token_logprobs` computes log-probability and entropy of given tokens in float32 and stores one [C, V]
buffer for the backward pass: equal to log_softmax(logits / temperature) gathered at the targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from loguru import logger
from torch import Tensor

from ajet.backbone.local import tree_attention
from ajet.backbone.local.flat_weights import add_sliced
from ajet.backbone.local.tree_attention import TreePlan
from ajet.context_tracker import packing
from ajet.context_tracker.packing import PackedRow, Tree
from ajet.engine.same_model import (
    EAGER,
    explain_unseen_masks,
    logits_match,
    pad_sequences,
    set_attention,
    use_attention,
)
from ajet.engine.thread_count import adjust_threads
from ajet.engine.verdict_cache import VerdictCache, build_verdict_key
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.context_tracker.packing import Indices


CHUNK_BYTES = 32 * 2**20

ChunkLoss = Callable[[Tensor, Tensor, slice], Tensor]
"""Maps logprobs [C], entropies [C] and their target range [start, stop) to the chunk's summed loss."""
LogitsLoss = Callable[[Tensor, slice], Tensor]
"""Maps logits [C, V] and their target range to a further summed loss of the chunk."""
HeadGradient = Callable[[Tensor, slice], Tensor | None]
"""Maps hidden states [C, H] and their target range to another head's gradient of them: [C, H] or None."""


def _ignore_adapter(adapter: str | None) -> None:
    """Does nothing, for models without several adapters: all rows use the same weights."""


class PackedForward:
    """Runs one model over packed rows.

    Args:
        model: a transformers causal language model.
        packed: True or False to skip the packing check. None: check whether the model can compute packed rows.
        verdicts: stores which models passed the packing check on this machine.
    """

    def __init__(self, model: Any, *, packed: bool | None = None, verdicts: VerdictCache | None = None) -> None:
        """Find the model's layers and output head, and decide whether the model can compute packed rows."""
        self.model = model
        trunk = model.get_decoder()
        self.trunk = trunk if trunk is not model else model.model  # Llama 4's text model returns itself as decoder
        self.head = model.get_output_embeddings()
        self.choose: Callable[[str | None], None] = _ignore_adapter
        """Switches the model to the given adapter for later passes."""
        self.packed = self._computes_rows(verdicts) if packed is None else packed

    @property
    def device(self) -> torch.device:
        """The device of the model and its inputs."""
        device: torch.device = self.model.device
        return device

    def logprobs(self, row: PackedRow, temperature: float) -> Tensor:
        """Return float32 logprobs of the row's targets, shape [K], without gradient."""
        with torch.no_grad():
            hidden = self.hidden(row)
            targets = self._on_device(row.targets.token)
            parts = [
                token_logprobs(self.logits(hidden[chunk]), targets[chunk], temperature)[0]
                for chunk in self.split_targets(row)
            ]
        return torch.cat(parts)

    def truncated(
        self, row: PackedRow, temperature: float, top_p: float, top_k: int, *, slack: float
    ) -> tuple[Tensor, Tensor]:
        """Return bounds of each target's log-probability after truncation: lowest [K] and highest [K].

        Float32, without gradient. Arguments: as in `truncated_logprobs`.
        """
        with torch.no_grad():
            hidden = self.hidden(row)
            targets = self._on_device(row.targets.token)
            parts = [
                truncated_logprobs(self.logits(hidden[chunk]), targets[chunk], temperature, top_p, top_k, slack=slack)
                for chunk in self.split_targets(row)
            ]
        return torch.cat([low for low, _ in parts]), torch.cat([high for _, high in parts])

    def backward(
        self,
        row: PackedRow,
        temperature: float,
        loss: ChunkLoss,
        *,
        gather: bool = False,
        head_gradient: HeadGradient | None = None,
        logits_loss: LogitsLoss | None = None,
    ) -> float:
        """Add the gradient of the row's loss to the weights' gradients and return the loss.

        Args:
            gather: True if the gradients have fewer bits than float32; the head's are then summed over chunks in
                float32.
            head_gradient: returns another head's gradient of the hidden states.
            logits_loss: returns a loss of the complete distributions, added to `loss`.
        """
        hidden = self.hidden(row)
        targets = self._on_device(row.targets.token)
        total, grads = 0.0, []
        chunks = self.split_targets(row)
        narrow_head = [
            parameter
            for parameter in self.head.parameters()
            if parameter.requires_grad and parameter.dtype != torch.float32
        ]
        sums = (
            [torch.empty_like(parameter, dtype=torch.float32) for parameter in narrow_head]
            if gather and len(chunks) > 1
            else []
        )
        for chunk in chunks:
            # Detached here, so that each chunk's logits are freed at once; the trunk's backward pass runs once, at the
            # end.
            chunk_hidden = hidden[chunk].detach().requires_grad_()
            logits = self.logits(chunk_hidden)
            logprobs, entropy = token_logprobs(logits, targets[chunk], temperature)
            value = loss(logprobs, entropy, chunk)
            if logits_loss is not None:
                value = value + logits_loss(logits, chunk)
            if sums:
                leaf_gradient, *head_gradients = torch.autograd.grad(value, [chunk_hidden, *narrow_head])
                for total_of_parameter, head_gradient_of_chunk in zip(sums, head_gradients, strict=True):
                    add_sliced(
                        total_of_parameter.view(-1), head_gradient_of_chunk.reshape(-1), first=chunk is chunks[0]
                    )
                grads.append(leaf_gradient)
            else:
                value.backward()
                assert chunk_hidden.grad is not None
                grads.append(chunk_hidden.grad)
            if head_gradient is not None and (other_gradient := head_gradient(chunk_hidden, chunk)) is not None:
                grads[-1] = grads[-1] + other_gradient.to(grads[-1].dtype)
            total += value.item()
        for parameter, summed in zip(narrow_head, sums, strict=False):
            parameter.backward(summed.to(parameter.dtype))
        del sums
        if hidden.requires_grad:
            hidden.backward(torch.cat(grads))
        return total

    def hidden(self, row: PackedRow) -> Tensor:
        """Return the hidden states that predict the row's targets, shape [K, H]."""
        adjust_threads()
        self.choose(row.adapter)
        ids, positions = self._on_device(row.ids)[None], self._on_device(row.positions)[None]
        source = self._on_device(row.targets.source)
        if self.packed:
            plan = TreePlan(row.trees, positions[0])
            states = self.trunk(input_ids=ids, position_ids=positions, use_cache=False, trees=plan).last_hidden_state
            return states[0].index_select(0, source)
        parts = [self._compute_tree(tree, ids, positions) for tree in row.trees]
        return torch.cat(parts).index_select(0, source)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [C, V] from hidden states [C, H], with the scalings that transformers' models apply after the
        head.
        """
        logits = self.head(hidden)
        config = self.model.config.get_text_config()
        if (divisor := getattr(config, "logits_scaling", None)) is not None:
            logits = logits / divisor
        if (factor := getattr(config, "logit_scale", None)) is not None:
            logits = logits * factor
        if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
            logits = torch.tanh(logits / cap) * cap
        result: Tensor = logits
        return result

    def _computes_rows(self, verdicts: VerdictCache | None) -> bool:
        """True if the model computes packed rows correctly: by a stored result for this model and machine, or by the
        check.
        """
        if verdicts is None:
            return probe_packing(self)
        key = build_verdict_key(self.model, code=[Path(__file__).parent, Path(packing.__file__).parent])
        if verdicts.has(key):
            use_tree_attention(self.model)
            return True
        if computes := probe_packing(self):
            verdicts.add(key)
        return computes

    def _compute_tree(self, tree: Tree, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the hidden states of one sample [T, H], for a model that cannot compute several samples
        in one pass.
        """
        assert tree.parents.size == 1, "rows for this model are packed without sharing"
        columns = slice(tree.start, tree.stop)
        states: Tensor = self.trunk(
            input_ids=ids[:, columns], position_ids=positions[:, columns], use_cache=False
        ).last_hidden_state[0]
        return states

    def split_targets(self, row: PackedRow) -> list[slice]:
        """Return ranges of the row's targets, each with logits of at most CHUNK_BYTES."""
        count, vocabulary = row.targets.token.size, self.head.weight.shape[0]
        size = max(1, CHUNK_BYTES // (4 * vocabulary))
        pieces = max(1, math.ceil(count / size))
        edges = np.linspace(0, count, pieces + 1).astype(int).tolist()
        return [slice(start, stop) for start, stop in zip(edges, edges[1:], strict=False)]

    def _on_device(self, array: Indices | Any) -> Tensor:
        """Return a numpy array as int64 tensor on the model's device."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, torch.int64)


PREFIX, ENDS, LENGTHS = 12, (5, 21), (3, 40, 9)
"""Token counts of the probe's samples: two with a shared prefix and three separate ones."""


def probe_packing(forward: PackedForward) -> bool:
    """Compare packed rows with unpacked ones. Return True and install tree attention if they agree.

    If they differ, return False. The model then keeps its attention if the attention's outputs match transformers'
    eager attention; if not, eager attention is installed.

    Raises:
        ConfigError: the model's logits cannot be computed from its hidden states.
    """
    model, dtype = forward.model, forward.head.weight.dtype
    rng = np.random.default_rng(0)
    token_ids = [rng.integers(0, forward.head.weight.shape[0], size) for size in (PREFIX, *ENDS, *LENGTHS)]
    prefix, first_branch, second_branch, *single_samples = token_ids
    samples = [np.concatenate([prefix, first_branch]), np.concatenate([prefix, second_branch]), *single_samples]
    original_attention = model.config._attn_implementation
    with torch.no_grad():
        with use_attention(model, EAGER):
            logits = model(input_ids=pad_sequences(samples, forward.device), use_cache=False).logits
            expected_logits = [row[: ids.size] for row, ids in zip(logits, samples, strict=True)]
            separate_logits = _compute_alone(forward, samples)
        if not logits_match(separate_logits, torch.cat(expected_logits), dtype):
            raise ConfigError(
                f"ajet cannot train {type(model).__name__} correctly: its logits are not the output of its head.",
                where="ajet.model.path",
                expected="a causal language model whose logits are lm_head(hidden states), scaled or soft-capped",
            )
        use_tree_attention(model)
        try:
            windows: dict[int, int | None] = {}
            packed = _compute_packed(forward, prefix, first_branch, second_branch, single_samples, windows)
            reason = explain_unseen_masks(model, windows)
            if not reason and logits_match(packed, _arrange_rows(expected_logits), dtype):
                return True
            reason = reason or "its layers keep a recurrent state, or use an attention of their own"
        except (TypeError, ValueError) as error:
            reason = str(error)
        set_attention(model, original_attention)
        if original_attention != EAGER and not logits_match(
            _compute_alone(forward, samples), torch.cat(expected_logits), dtype
        ):
            set_attention(model, EAGER)
    logger.warning(
        "{} does not support several samples in one pass, so they are computed one at a time ({})",
        type(model).__name__,
        reason,
    )
    return False


def use_tree_attention(model: Any) -> None:
    """Set tree attention on the model permanently."""
    tree_attention.register_attention()
    set_attention(model, tree_attention.NAME)


def _compute_alone(forward: PackedForward, samples: list[Any]) -> Tensor:
    """Return the logits of samples run separately, shape [sum of T, V], computed from hidden states by the head."""
    states = forward.trunk(input_ids=pad_sequences(samples, forward.device), use_cache=False).last_hidden_state
    return forward.logits(
        torch.cat([states_of_sample[: ids.size] for states_of_sample, ids in zip(states, samples, strict=True)])
    )


def _compute_packed(
    forward: PackedForward,
    prefix: Any,
    first_branch: Any,
    second_branch: Any,
    single_samples: list[Any],
    windows: dict[int, int | None],
) -> Tensor:
    """Return the logits of two packed rows, to compare them with separate passes.

    The tree lies between two neighbours in the first row, and at the end of the second row.

    Args:
        prefix: Ids shared by the two samples of the tree.
        first_branch: Further ids of the tree's first sample.
        second_branch: Further ids of the tree's second sample.
        single_samples: Ids of the neighbouring samples.
        windows: Gets each layer's sliding window in tokens, None without one.
    """
    sizes = (prefix.size, first_branch.size, second_branch.size)
    tree = (
        np.concatenate([prefix, first_branch, second_branch]),
        np.concatenate([np.arange(sizes[0] + sizes[1]), np.arange(sizes[0], sizes[0] + sizes[2])]),
        np.repeat(np.arange(3), sizes),
        np.array([-1, 0, 0]),
    )
    chains = [(ids, np.arange(ids.size), np.zeros(ids.size, np.int64), np.array([-1])) for ids in single_samples]
    logits = []
    for row in ([chains[0], tree, chains[1]], [chains[2], chains[1], tree]):
        trees, end = [], 0
        for ids, _, segments, parents in row:
            trees.append(Tree(end, end + ids.size, segments, parents))
            end += ids.size
        position_ids = forward._on_device(np.concatenate([positions for _, positions, _, _ in row]))
        plan = TreePlan(trees, position_ids)
        states = forward.trunk(
            input_ids=forward._on_device(np.concatenate([ids for ids, *_ in row]))[None],
            position_ids=position_ids[None],
            use_cache=False,
            trees=plan,
        ).last_hidden_state[0]
        windows.update(plan.windows)
        logits.append(forward.logits(states))
    return torch.cat(logits)


def _arrange_rows(plain: list[Tensor]) -> Tensor:
    """Concatenate the expected logits in the order of `_compute_packed`."""
    first_branch, second_branch, *single_logits = plain
    tree = [first_branch, second_branch[PREFIX:]]
    return torch.cat([single_logits[0], *tree, single_logits[1], single_logits[2], single_logits[1], *tree])


ROWS = 8
"""Rows of log-probabilities copied at a time to compute the entropy."""


class _TokenLogprobs(torch.autograd.Function):
    """The autograd function behind `token_logprobs`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Return the targets' log-probabilities and the entropies, float32 [C] each. Saves the probabilities [C, V] for
        backward.
        """
        if temperature == 1.0:
            table = torch.log_softmax(logits, -1, dtype=torch.float32)
        else:
            table = torch.log_softmax(logits.float().div_(temperature), -1)
        target_logprobs = table.gather(1, targets[:, None]).squeeze(1)
        entropy = torch.empty_like(target_logprobs)
        for rows, out in zip(table.split(ROWS), entropy.split(ROWS), strict=True):
            # `exp_` overwrites `rows`, so the table holds probabilities afterwards: backward needs these.
            log_probs = rows.clone()
            torch.linalg.vecdot(rows.exp_(), log_probs, out=out)
        entropy.neg_()
        ctx.save_for_backward(table, targets)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.mark_non_differentiable(entropy)
        return target_logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        """Return the gradient of the logits [C, V]: (one-hot of the target minus probabilities) / temperature, times
        the gradient.
        """
        probs, targets = ctx.saved_tensors
        scale = grads[0] / ctx.temperature
        grad = probs.neg_()
        grad.scatter_add_(1, targets[:, None], torch.ones_like(targets, dtype=grad.dtype)[:, None])
        return grad.mul_(scale[:, None]).to(ctx.dtype), None, None


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return logprobs and entropies of `targets` under softmax(logits / temperature), float32 [C] each.

    The logprobs can be differentiated once; the entropies have no gradient.

    Args:
        logits: shape [C, V].
        targets: shape [C].
    """
    result: tuple[Tensor, Tensor] = _TokenLogprobs.apply(logits, targets, temperature)
    return result


def truncated_logprobs(
    logits: Tensor, targets: Tensor, temperature: float, top_p: float, top_k: int, *, slack: float
) -> tuple[Tensor, Tensor]:
    """Return bounds of each target's log-probability after truncation by top-k, then top-p: lowest [C] and highest [C].

    The distribution is softmax(logits / temperature). Both results are float32, without gradient. Rounding decides
    about tokens at the border of top_p, so only bounds are known.

    Args:
        logits: shape [C, V].
        targets: shape [C].
        top_p: 1 disables truncation.
        top_k: -1 disables truncation.
        slack: probability mass that rounding may move across the border of top_p.
    """
    logprobs = torch.log_softmax(logits.float() / temperature, -1)
    target_logits = logprobs.gather(1, targets[:, None]).squeeze(1)
    ordered = logprobs.sort(-1, descending=True).values
    if 0 < top_k < ordered.shape[1]:
        ordered = ordered[:, :top_k]
    probabilities = ordered.softmax(-1)
    mass_before = probabilities.cumsum(-1) - probabilities
    bounds = []
    # More remaining tokens mean a lower probability of each: the larger mass gives the lower bound.
    for mass in (top_p + slack, top_p - slack):
        outside = mass_before >= mass if top_p < 1 else torch.zeros_like(mass_before, dtype=torch.bool)
        # The most likely token always belongs to the distribution.
        outside[:, 0] = False
        bounds.append(target_logits - ordered.masked_fill(outside, float("-inf")).logsumexp(-1))
    return bounds[0], bounds[1]
