"""verl's FSDP engine with trees: a prefix shared by several rows is computed once, as on the local backbone.

Rows with a common prefix (a group's prompt, an episode's branches) become one packed row (`context_tracker.packing`)
and one forward and backward pass under `tree_attention`. The loss sees each row's own log-probabilities, so it equals
the loss of separate rows. Invariant: loss and gradient equal those of verl's own engine, to float tolerance.
`initialize` first compares every model with its plain forward pass. A model with a different result, or with images,
uses verl's own passes.

The engine is registered in verl under ajet's own vendor name and selected by `choose_engine`. With Ulysses sequence
parallelism a row's tokens are split over a group of ranks (`ulysses`). Not supported, and refused by `config.refusals`:
fused kernels and micro-batches counted in rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from loguru import logger
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name
from verl.utils.py_functional import append_to_dict
from verl.utils.torch_functional import entropy_from_logits
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from ajet.backbone.local import tree_attention
from ajet.backbone.local.packed_forward import token_logprobs
from ajet.backbone.local.tree_attention import TreePlan
from ajet.context_tracker.packing import PackedRow, pack
from ajet.engine.same_model import EAGER, explain_unseen_masks, logits_match, set_attention, use_attention
from ajet.schema.batch import Sample
from ajet.schema.call import Ids
from ajet.schema.episode import Timeline
from ajet.schema.errors import ConfigError
from ajet_verl.trainer import ulysses
from ajet_verl.trainer.chunked_head import HeadOutput, Read, is_gathered_alone, read_in_chunks
from ajet_verl.trainer.ulysses import RowPart, SplitPlan, sum_over_ranks

VENDOR = "ajet_trees"
_VARIABLE = "VERL_ENGINE_VENDOR"
_NOT_COMPUTED = ("calculate_sum_pi_squared", "distillation_use_topk", "distillation_only", "use_fused_kernels")


@contextmanager
def choose_engine(trees: bool) -> Iterator[None]:
    """Make verl create engines of the class TreeEngine while the block runs, if `trees` is true."""
    earlier_vendor = os.environ.get(_VARIABLE)
    if trees:
        os.environ[_VARIABLE] = VENDOR
    try:
        yield
    finally:
        if earlier_vendor is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = earlier_vendor


@EngineRegistry.register("language_model", ["fsdp", "fsdp2"], device=["cuda", "npu"], vendor=VENDOR)
class TreeEngine(FSDPEngineWithLMHead):
    """FSDP engine of verl that computes several rows with shared prefixes as one packed row.

    Models without support for this use verl's own passes.
    """

    packed = False
    """True if the model supports packed rows."""
    theirs = ""
    """Attention of rows in verl's own passes: the model's original attention."""
    head_bytes = 1 << 29
    """Maximum bytes of float32 logits that exist at a time. Smaller logits are computed at once."""
    _read_in_head = False
    """True if the model's logits are its head's output, so that the head can be computed in chunks."""
    _vocabulary = 1
    """Number of logits per token. Between passes a head's weight may be a rank's flat shard (FSDP1), without it."""
    computed = 0
    """Tokens computed in the last batch's passes, on this rank."""

    def initialize(self) -> None:
        """Initialize verl's engine, then test with the loaded weights whether the model supports packed rows."""
        super().initialize()
        model = getattr(self.module, "module", self.module)
        model_attention = model.config._attn_implementation
        self.theirs = model_attention
        unsupported_reason = "it sees images" if hasattr(model.config, "vision_config") else ""
        if not unsupported_reason:
            tree_attention.register_attention()
            ulysses.register_attention()
            with self.eval_mode():
                unsupported_reason = self._probe_model()
        self.packed = not unsupported_reason
        set_attention(self.module, model_attention if unsupported_reason else self.attention)
        if unsupported_reason and self._is_misled:
            raise ConfigError(
                f"{type(model).__name__} does not support computing shared prefixes as trees ({unsupported_reason}), "
                "and verl splits rows only with flash attention.",
                where="ajet.trainer_common.ulysses_sequence_parallel_size",
                expected=f"1 for this model, or a GPU with flash attention (it attends by {model_attention})",
            )
        if unsupported_reason:
            logger.warning(
                "{} does not support computing shared prefixes as trees, so rows are computed one by one ({})",
                type(model).__name__,
                unsupported_reason,
            )
        else:
            logger.info("{}: shared prefixes of rows are computed once", type(model).__name__)

    @property
    def attention(self) -> str:
        """The attention implementation of packed rows."""
        return tree_attention.NAME if self.ulysses_parallel_group is None else ulysses.NAME

    @property
    def _is_misled(self) -> bool:
        """True if verl's own passes would be wrong: each rank would attend only to its own part of a row."""
        return bool(self.use_ulysses_sp) and "flash" not in self.theirs

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool = False
    ) -> Any:
        """Run all forward and backward passes of a batch, as verl's engines do.

        Gradients are summed over the passes, and outputs are in the order of the rows.

        Args:
            data: the rows of this rank.
            loss_function: returns loss and metrics of a pass, or None to compute log-probabilities only.
            forward_only: True to skip the backward passes.
        """
        if not self.packed or any(tu.get_non_tensor_data(data, key, False) for key in _NOT_COMPUTED):
            assert not self._is_misled, "verl's own passes split sequences by flash attention alone"
            verl_method: Any = super().forward_backward_batch
            with use_attention(self.module, self.theirs):
                return verl_method(data, loss_function, forward_only)
        group, device = self.get_data_parallel_group(), get_device_id()
        data = data.to(device)
        trained_tokens = data["loss_mask"].sum()
        dist.all_reduce(trained_tokens, group=group)
        ranks = self.get_data_parallel_size()
        ulysses_ranks = self.ulysses_sequence_parallel_size
        tu.assign_non_tensor(data, sp_size=ulysses_ranks, batch_num_tokens=trained_tokens.item(), dp_size=ranks)

        samples = _build_samples(data)
        passes = _plan_passes(samples, int(data["max_token_len_per_gpu"]) * ulysses_ranks)
        self.computed = sum(row.ids.size for row, _ in passes if row is not None)
        max_passes = torch.tensor(len(passes), device=device)
        dist.all_reduce(max_passes, op=dist.ReduceOp.MAX, group=group)
        passes += [(None, [])] * (int(max_passes) - len(passes))  # every rank must join each pass
        outputs: dict[str, list[Tensor]] = {}
        losses: list[float] = []
        metrics: dict[str, Any] = {}
        keeps_outputs = forward_only or bool(tu.get_non_tensor_data(data, "return_model_output", False))
        for pass_index, (row, row_indices) in enumerate(passes):
            with (
                torch.no_grad()
                if forward_only
                else self._gradient_sync_context(is_last_micro_batch=pass_index == len(passes) - 1)
            ):
                micro_batch = tu.index_select_tensor_dict(data, row_indices) if row_indices else None
                loss, output, pass_metrics = self._run_pass(
                    row, micro_batch, loss_function, [samples[index] for index in row_indices]
                )
                if not forward_only:
                    (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            if micro_batch is None:
                continue
            losses.append(loss.item())
            append_to_dict(metrics, pass_metrics)
            for name, values in output.items() if keeps_outputs else ():
                row_values = outputs.setdefault(
                    name, [torch.zeros(sample.timeline.ids.size, device=device) for sample in samples]
                )
                for index, values_of_row in zip(row_indices, values.detach().unbind(), strict=True):
                    row_values[index] = values_of_row
        nested = {
            name: torch.nested.as_nested_tensor(row_values, layout=torch.jagged) for name, row_values in outputs.items()
        }
        return {"model_output": nested, "loss": losses, "metrics": metrics}

    def _run_pass(
        self,
        row: PackedRow | None,
        micro: TensorDict | None,
        loss_function: Callable[..., Any] | None,
        samples: Sequence[Sample],
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Any]]:
        """Run one forward pass over a packed row.

        Args:
            row: the packed row, or None for a pass over one token without effect, which keeps the ranks in step.
            micro: verl's rows in the packed row, or None if there are none.
            samples: the same rows as samples.

        Returns:
            The loss, the outputs of each row, and the metrics of the loss function.
        """
        is_float32 = self._autocast_dtype == torch.float32
        with nullcontext() if is_float32 else torch.autocast(device_type=get_device_name(), dtype=self._autocast_dtype):
            needs_entropy = micro is not None and bool(tu.get_non_tensor_data(micro, "calculate_entropy", False))
            temperature = 1.0 if micro is None else float(micro["temperature"])

            def read_logits(logits: Tensor, tokens: Tensor) -> Tensor:
                """Return log-probability and entropy of each target token, [C, 2], from its logits [C, V]."""
                logprobs, entropy = token_logprobs(logits, tokens, temperature)
                if needs_entropy and torch.is_grad_enabled():
                    entropy = entropy_from_logits(logits.float() / temperature)
                return torch.stack([logprobs, entropy], -1)

            target_results, own_targets = self._read_targets(row, read_logits)
            # Multiplied by 0, so that a pass without targets still takes part in the backward pass, as FSDP needs.
            zero = target_results.sum() * 0.0
            if micro is None:
                return zero, {}, {}
            row_offsets = np.cumsum([0, *(sample.timeline.ids.size for sample in samples)])
            token_values = torch.zeros(int(row_offsets[-1]), device=zero.device)
            output = {"log_probs": token_values + zero if row is None else token_values}
            if needs_entropy:
                output["entropy"] = token_values
            if row is not None:
                # the target at `offset` is predicted by the token before it
                token_indices = torch.from_numpy(
                    (row_offsets[_rank_values(row.targets.sample)] + row.targets.offset - 1)[own_targets]
                )
                token_indices = token_indices.to(zero.device)
                output["log_probs"] = self._sum_over_parts(
                    token_values.index_put((token_indices,), target_results[:, 0])
                )
                if needs_entropy:
                    output["entropy"] = self._sum_over_parts(
                        token_values.index_put((token_indices,), target_results[:, 1])
                    )
            offsets = torch.from_numpy(row_offsets).to(zero.device)
            nested = {name: torch.nested.nested_tensor_from_jagged(values, offsets) for name, values in output.items()}
            if loss_function is None:
                return zero, nested, {}
            loss, metrics = loss_function(model_output=nested, data=micro, dp_group=self.get_data_parallel_group())
            return loss + zero if row is None else loss, nested, metrics

    def _sum_over_parts(self, values: Tensor) -> Tensor:
        """Sum the values of targets over the ranks of a split row. A rank has zeros for the other ranks' targets."""
        group = self.ulysses_parallel_group
        return values if group is None else sum_over_ranks(values, group)

    def _read_targets(self, row: PackedRow | None, read: Read) -> tuple[Tensor, slice]:
        """Compute the results of `read` for the targets (tokens to score) of this rank's part of a row.

        Returns:
            The results [K, R], and the slice of the row's targets that this rank computed.
        """
        part = self._build_part(row)
        tokens = torch.from_numpy(part.tokens).to(get_device_id())
        head = self._output_head
        # float32 logits have 4 bytes.
        chunk_targets = max(self.head_bytes // (4 * self._vocabulary), 1)
        if not self._read_in_head or tokens.numel() <= chunk_targets:
            return read(self._compute_logits(part), tokens), part.targets
        with read_in_chunks(head, tokens, chunk_targets, read):
            return self._compute_logits(part), part.targets

    @property
    def _output_head(self) -> Any:
        """The module's output head, or None if the model names none."""
        return self.module.get_output_embeddings()

    def _build_part(self, row: PackedRow | None) -> RowPart:
        """Return this rank's part of a row, or of a row of one token without effect if `row` is None."""
        if row is None:
            row = pack([_build_sample(np.zeros(2, np.int32), np.array([False, True]), 0)], 2)[0]
        group = self.ulysses_parallel_group
        return RowPart(row, 0 if group is None else dist.get_rank(group), self.ulysses_sequence_parallel_size)

    def _compute_logits(self, part: RowPart, windows: dict[int, int | None] | None = None) -> Tensor:
        """Return the logits [K, V] that predict the targets of a row's part.

        The module is called as a whole, because FSDP needs this.

        Args:
            windows: filled with the sliding window of each layer, if not None.
        """
        group = self.ulysses_parallel_group
        device = get_device_id()
        ids, positions, source = (
            torch.from_numpy(array).to(device) for array in (part.ids, part.positions, part.source)
        )
        plan = TreePlan(part.trees, positions) if group is None else SplitPlan(part.trees, positions, group)
        output = self.module(
            input_ids=ids[None],
            position_ids=positions[None, part.at],
            logits_to_keep=source,
            trees=plan,
            use_cache=False,
        )
        if windows is not None:
            windows.update(plan.windows)
        logits: Tensor = output.logits[0]
        return logits

    def _probe_model(self) -> str:
        """Return the reason why the model cannot compute packed rows, or "" if it can.

        The test compares random rows in one packed row with the model's eager forward pass over each row. If it fails
        on one rank, all ranks return a reason.
        """
        generator = np.random.default_rng(0)
        vocabulary = self.module.config.get_text_config().vocab_size
        prefix, *suffixes = (generator.integers(0, vocabulary, size).astype(np.int32) for size in (12, 5, 21, 3, 40, 9))
        # The first two sequences share a prefix, so the packed row contains a tree.
        sequences = [np.concatenate([prefix, suffix]) for suffix in suffixes[:2]] + suffixes[2:]
        samples = [
            _build_sample(ids, np.arange(ids.size) > 0, 0 if number < 2 else number)
            for number, ids in enumerate(sequences)
        ]
        (row,) = pack(samples, 1000)
        reason, device = "", get_device_id()
        windows: dict[int, int | None] = {}
        with torch.no_grad():
            with use_attention(self.module, EAGER):
                inputs = [torch.from_numpy(ids).to(device, torch.int64)[None] for ids in sequences]
                expected_logits = [self.module(input_ids=ids, use_cache=False).logits[0] for ids in inputs]
            with use_attention(self.module, self.attention):
                part, head_output = self._build_part(row), HeadOutput(self._output_head)
                try:
                    tree_logits = self._compute_logits(part, windows)
                except (TypeError, ValueError) as error:
                    return str(error)
                finally:
                    head_output.close()
        own_targets, is_head_gathered_alone = part.targets, is_gathered_alone(self._output_head)
        self._read_in_head = head_output.is_all(tree_logits[None]) and not is_head_gathered_alone
        if is_head_gathered_alone:
            logger.warning(
                "FSDP gathers weights of the output head in each pass (for example an adapter's), so the logits "
                "of a pass are computed all at once; strategy: fsdp2, or target_modules without the head, needs "
                "less memory"
            )
        self._vocabulary = tree_logits.shape[-1]
        targets = zip(row.targets.sample[own_targets].tolist(), row.targets.offset[own_targets].tolist(), strict=True)
        target_logits = [expected_logits[sample][offset - 1] for sample, offset in targets]
        expected = (
            torch.stack(target_logits) if target_logits else tree_logits[:0]
        )  # with many ranks, the last ranks have only padding
        reason = explain_unseen_masks(self.module, windows)
        if tree_logits.shape != expected.shape:
            reason = "its forward pass cannot be limited to the positions whose logits are needed"
        elif not reason and not logits_match(tree_logits, expected, self._autocast_dtype):
            reason = "its layers keep a recurrent state, or use an attention of their own"
        any_rank_failed = torch.tensor(int(bool(reason)), device=device)
        dist.all_reduce(any_rank_failed, op=dist.ReduceOp.MAX)
        return reason or ("another process found the reason" if int(any_rank_failed) else "")


def _plan_passes(samples: Sequence[Sample], budget: int) -> list[tuple[PackedRow | None, list[int]]]:
    """Pack samples into rows, one for each forward pass.

    Samples without trained tokens need no pass. If no sample has trained tokens, one empty pass stands for all.

    Args:
        budget: maximum number of tokens of a packed row.

    Returns:
        For each pass the packed row (None if empty), and the indices of its samples, in ascending order.
    """
    trained_indices = [index for index, sample in enumerate(samples) if sample.timeline.mask.any()]
    if not trained_indices:
        return [(None, list(range(len(samples))))]
    rows = pack([samples[index] for index in trained_indices], budget)
    return [(row, [trained_indices[index] for index in np.unique(row.targets.sample)]) for row in rows]


def _rank_values(values: Any) -> Any:
    """Replace each value by its place among the sorted distinct values."""
    return np.unique(values, return_inverse=True)[1]


def _build_samples(data: TensorDict) -> list[Sample]:
    """Convert verl's rows to samples for `pack`, which scores the tokens in each row's response mask."""
    rows = [ids.cpu().numpy().astype(np.int32) for ids in data["input_ids"].unbind()]
    masks = []
    for ids, response_mask in zip(rows, data["response_mask"].unbind(), strict=True):
        mask = np.zeros(ids.size, np.bool_)
        mask[ids.size - response_mask.numel() :] = response_mask.cpu().numpy().astype(np.bool_)
        masks.append(mask)
    families = _find_families(rows, masks)
    return [_build_sample(ids, mask, family) for ids, mask, family in zip(rows, masks, families, strict=True)]


def _find_families(rows: Sequence[Ids], masks: Sequence[Any]) -> list[int]:
    """Assign a family number to each row. Only rows of one family are packed as a tree.

    Neighbours in sorted order are of one family if they share at least half of the shorter prompt. A prompt here is
    the tokens before the first trained token.

    Args:
        rows: token ids of each row.
        masks: for each row, True at trained tokens.
    """
    order = sorted(range(len(rows)), key=lambda index: rows[index].tobytes())
    families, family = [0] * len(rows), 0
    for previous, index in zip(order, order[1:], strict=False):
        size = min(rows[previous].size, rows[index].size)
        is_different = rows[previous][:size] != rows[index][:size]
        shared_tokens = int(is_different.argmax()) if is_different.any() else size
        shorter_prompt = min(int(masks[row].argmax()) for row in (previous, index))
        family += 2 * shared_tokens < shorter_prompt or not shared_tokens
        families[index] = family
    return families


def _build_sample(ids: Ids, mask: Any, family: int) -> Sample:
    """Wrap a token sequence as a sample for `pack`, with empty names and log-probabilities of 0.

    Args:
        mask: True at the tokens to score, [T].
        family: only samples of one family may share a prefix in a packed row.
    """
    zeros = np.zeros(ids.size, np.float32)
    timeline = Timeline(0, "", "", ids, mask, zeros, zeros, np.zeros(ids.size, np.int32), ())
    return Sample(timeline, "", family, zeros, 1.0)
