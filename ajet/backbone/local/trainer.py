"""One training step: mini batches, packed rows, gradients, and one optimizer step per mini batch.

Invariant: an update is all or nothing. Until the last optimizer step has succeeded, an error leaves weights, moments
and version unchanged. An update with a single step makes no copy of the state; `has_partial_update` reports an
interrupt in its middle. A step with a loss or gradient that is not finite changes no weight and is counted. The batch
alone determines the order of all work, so equal batches give equal bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from loguru import logger

from ajet.algorithm import open_algorithm
from ajet.algorithm.gkd import compute_reverse_kl
from ajet.algorithm.importance import stale_metrics
from ajet.algorithm.learning_rate import LearningRateSchedule
from ajet.algorithm.staleness import build_tightened_metrics, warn_of_mismatch
from ajet.algorithm.token_loss import TokenLoss
from ajet.algorithm.weights import compute_mini_batch_scale, split_mini_batches
from ajet.backbone.contract import score_samples
from ajet.backbone.local import checkpoint
from ajet.backbone.local.losses import LossTally, RowLoss, StepLoss
from ajet.backbone.local.machine import release_memory
from ajet.backbone.local.optimizer import FlatAdamW, gradient_norm
from ajet.backbone.local.policy import LocalPolicy
from ajet.backbone.local.scorer import ForwardScorer
from ajet.backbone.local.value_head import StepValueLoss, ValueHead, ValueTally
from ajet.context_tracker.packing import PackedRow, pack, placed
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Floats
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm
    from ajet.backbone.local.packed_forward import LogitsLoss, PackedForward
    from ajet.config import AjetConfig
    from ajet.engine.verdict_cache import VerdictCache


class Trainer:
    """Owns the policy and its optimizer, independent of any engine.

    Args:
        model: the trainer takes ownership.
        algorithm: None for the algorithm in `config`.
        start: model folder whose adapters are loaded.
        verdicts: as in PackedForward.
        teacher: model whose distributions an algorithm with the need "distribution" compares with.
    """

    def __init__(
        self,
        model: Any,
        config: AjetConfig,
        algorithm: Algorithm | None = None,
        *,
        start: Path | None = None,
        verdicts: VerdictCache | None = None,
        teacher: PackedForward | None = None,
    ) -> None:
        """Build the policy, its optimizer and, if the algorithm needs one, the critic, all at version 0."""
        self.settings = config.trainer_common
        algorithm = algorithm or open_algorithm(config)
        self.tokens = TokenLoss.from_settings(self.settings, algorithm)
        self.temperature = config.rollout.temperature
        self.truncates = config.rollout.truncates_sampling
        optim = self.settings.optim
        self.schedule = LearningRateSchedule.from_config(optim, self.settings.total_training_steps)
        self.policy = LocalPolicy(
            model,
            lora=self.settings.lora,
            reference=config.needs_reference_model,
            gradient_checkpointing=self.settings.gradient_checkpointing,
            start=start,
            verdicts=verdicts,
        )
        self.policy.weights.dither(config.seed)
        self.optimizer = FlatAdamW(
            self.policy.weights,
            betas=(optim.betas[0], optim.betas[1]),
            eps=optim.eps,
            weight_decay=optim.weight_decay,
            clip=optim.grad_clip,
        )
        self._teacher = teacher
        self.critic: ValueHead | None = None
        """The value head if the algorithm needs one; training on written replies uses none."""
        if "critic" in algorithm.needs and config.sft.objective is None:
            width = int(self.policy.forward.head.weight.shape[1])
            self.critic = ValueHead(width, self.policy.weights.values.device, self.settings)
        self.version = 0
        self.has_partial_update = False
        """True if an update has begun to move the weights and has not ended: no version describes them."""
        self.fresh_gap: float | None = None
        """Gap of the last update, as in `Update`."""

    def logprobs(
        self, samples: Sequence[Sample], *, reference: bool = False, temperature: float | None = None
    ) -> list[Floats]:
        """Return logprobs of the policy or the reference, shape [T] per sample, 0 outside the mask.

        Args:
            temperature: None for the rollout's temperature.
        """
        with self.scorer(reference=reference) as scorer:
            return score_samples(
                scorer,
                samples,
                tokens=self.settings.micro_batch_tokens,
                temperature=temperature or self.temperature,
            )

    @contextmanager
    def scorer(self, *, reference: bool = False) -> Iterator[ForwardScorer]:
        """Yield a scorer of the current weights or of the reference model.

        Raises:
            ValueError: no reference model was configured.
        """
        with self.policy.reference() if reference else nullcontext(self.policy.forward) as forward:
            yield ForwardScorer(forward, self.policy.weights.values)

    def values(self, samples: Sequence[Sample]) -> list[Floats]:
        """Return the critic's values, shape [T] per sample: one before each trained token, 0 elsewhere.

        Raises:
            ValueError: the algorithm has no critic.
        """
        if self.critic is None:
            raise ValueError("this policy has no value head, because its algorithm needs none")
        forward = self.policy.forward
        rows = self._pack_rows(samples, forward)
        return placed(samples, rows, [self.critic.compute_values(forward, row) for row in rows])

    def update(self, batch: TrainingBatch, *, gap: float | None = None, alarm: float | None = None) -> dict[str, float]:
        """Take `mini_batch_num` optimizer steps, or as many as there are episodes, and return the metrics.

        Args:
            gap: measured nats per token between the engine's and the trainer's logprobs; None if not measured.
            alarm: above this gap the importance weights are bounded more tightly.
        """
        began = time.monotonic()
        self._require_adapters(batch.samples)
        mini_batches = split_mini_batches(batch.samples, self.settings.mini_batch_num)
        lr = self.schedule.rate_at(batch.step - 1)
        tallies: list[LossTally] = []
        norms: list[float] = []
        adapter_norms: list[dict[str, float]] = []
        critic_tallies: list[ValueTally] = []
        computed_tokens = 0
        tokens_loss = self.tokens.tighten(gap, alarm)
        trains_critic_only = self.critic is not None and batch.step <= self.critic.settings.warmup
        with self._all_or_nothing(
            sum(
                self._count_moves([batch.samples[index] for index in sample_indices]) for sample_indices in mini_batches
            )
        ):
            needs_old_logprobs = len(mini_batches) > 1 or self.tokens.needs_old_logprobs
            old = self.logprobs(batch.samples, temperature=batch.temperature) if needs_old_logprobs else None
            for number, sample_indices in enumerate(mini_batches):
                samples = [batch.samples[index] for index in sample_indices]
                # A loss over complete replies compares with the weights before this optimizer step, not only before
                # the update.
                weights_have_moved = number > 0 and self.tokens.policy.over_replies
                loss = StepLoss(
                    samples,
                    tokens_loss,
                    compute_mini_batch_scale(self.settings.algorithm.loss_aggregation, batch.samples, samples),
                    compare_engine=not (self.truncates or batch.written),
                    old=[old[index] for index in sample_indices] if old is not None else None,
                    present=self.logprobs(samples, temperature=batch.temperature) if weights_have_moved else None,
                    version=self.version,
                    written=batch.written,
                )
                critic = StepValueLoss(self.critic, samples, loss.scale) if self.critic is not None else None
                computed_tokens += self.add_gradients(loss, batch.temperature, critic=critic)
                norm, norms_by_adapter = self._step_optimizer(loss, lr, critic, warming=trains_critic_only)
                norms.append(norm)
                adapter_norms.append(norms_by_adapter)
                tallies.append(loss.tally)
                critic_tallies += [critic.tally] if critic is not None else []
        if not batch.written:
            release_memory()
        self.version += 1
        self.has_partial_update = False
        tally = LossTally.merge(tallies)
        self.fresh_gap = tally.fresh_gap / tally.fresh if tally.fresh else None
        metrics = self.build_metrics(tally, norms, lr, computed_tokens, time.monotonic() - began)
        metrics |= self._adapter_metrics(batch.samples, adapter_norms)
        if self._teacher is not None:
            metrics["distillation/reverse_kl"] = tally.teacher_kl / max(tally.tokens, 1)
        metrics |= ValueTally.merge(critic_tallies).means() if critic_tallies else {}
        if tokens_loss is not self.tokens:
            assert gap is not None and tokens_loss.is_cap is not None
            metrics |= build_tightened_metrics(gap, tokens_loss.is_cap)
            warn_of_mismatch(metrics, alarm)
        return metrics

    def _require_adapters(self, samples: Sequence[Sample]) -> None:
        """Check that the policy has the adapters that sampled the batch.

        Raises:
            UserError: an adapter is missing, or a sample names none.
        """
        adapter_names: set[str | None] = {*self.policy.adapters.names} or {None}
        for sample in samples:
            if sample.timeline.sampled and sample.timeline.adapter not in adapter_names:
                adapter = sample.timeline.adapter
                adapter_text = "the base model, without an adapter" if adapter is None else f"the adapter {adapter}"
                raise UserError(
                    f"Episode {sample.episode} was sampled with {adapter_text}, which this trainer does not train.",
                    where="ajet.trainer_common.lora.adapters",
                    expected="a trainer with the adapters that sampled the episodes: the same YAML on both sides",
                )

    def rehearse(self, samples: Sequence[Sample]) -> None:
        """Allocate everything that the first pass of an update over `samples` needs, without changing state.

        This covers forward, backward, the critic and the copies for several optimizer steps. Weights, moments,
        gradients and random numbers stay unchanged.
        """
        device = self.policy.weights.values.device
        for state_tensor in self._list_state_tensors():
            state_tensor.mul_(1)  # touches pages that were allocated but never used
        with (
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            self._all_or_nothing(self.settings.mini_batch_num * max(1, len(self.policy.adapters.names))),
        ):
            old = self.logprobs(samples) if self.tokens.needs_old_logprobs else None
            loss = StepLoss(samples, self.tokens, 1.0, compare_engine=False, old=old, version=self.version)
            critic = None
            if self.critic is not None:
                for sample, values_of_sample in zip(samples, self.values(samples), strict=True):
                    sample.values = sample.returns = values_of_sample
                critic = StepValueLoss(self.critic, samples, 1.0)
            # gradients of several passes are float32, the larger case
            self.add_gradients(loss, self.temperature, passes=2, critic=critic)
        release_memory()

    def save(self, folder: Path, tokenizer: Any) -> None:
        """Write the complete trainer state, and the model in transformers' layout."""
        checkpoint.write_checkpoint(folder, self.policy, self.optimizer, tokenizer, self.version, self.critic)

    def load(self, folder: Path) -> None:
        """Restore a saved state, bit for bit.

        Raises:
            UserError: the checkpoint does not match.
        """
        self.version = checkpoint.read_checkpoint(folder, self.policy, self.optimizer, self.critic)

    def add_gradients(
        self, loss: StepLoss, temperature: float, *, passes: int = 0, critic: StepValueLoss | None = None
    ) -> int:
        """Run forward and backward over all rows and sum their gradients. Return the number of computed tokens.

        Args:
            loss: The losses of the optimizer step.
            passes: allocate the gradient buffer as for at least this number of backward passes. Several passes need
                float32. One pass over bfloat16 weights needs bfloat16 only.
            critic: The value losses of the optimizer step. None: no critic.
        """
        forward = self.policy.forward
        rows = self._pack_rows(loss.samples, forward)
        passes = max(passes, len(rows))
        self.policy.weights.open_gradients(passes=passes)
        if critic is not None:
            critic.head.weights.open_gradients(passes=len(rows))
        for row in rows:
            reference = None
            if loss.needs_reference:
                with self.policy.reference() as frozen:
                    reference = frozen.logprobs(row, temperature)
            row_loss = loss.row(row.targets, forward.device, reference)
            head_gradient = critic.row(row.targets, forward.device) if critic is not None else None
            forward.backward(
                row,
                temperature,
                row_loss,
                gather=passes == 1,
                head_gradient=head_gradient,
                logits_loss=self._compare_with_teacher(row, row_loss) if self._teacher is not None else None,
            )
        return sum(row.ids.size for row in rows)

    def _compare_with_teacher(self, row: PackedRow, loss: RowLoss) -> LogitsLoss:
        """Return the loss of the divergence from the teacher at a row's targets."""
        teacher, settings = self._teacher, self.settings.algorithm.teacher
        assert teacher is not None
        with torch.no_grad():
            hidden = teacher.hidden(row)

        def logits_loss(logits_C_V: torch.Tensor, target_range: slice) -> torch.Tensor:
            """Return the weighted divergence at some targets, from the policy's logits [C, V]. The teacher has no
            gradient.
            """
            with torch.no_grad():
                target = teacher.logits(hidden[target_range])
            return loss.weigh_divergence(
                compute_reverse_kl(logits_C_V, target, settings.top_k), target_range, settings.weight
            )

        return logits_loss

    def _step_optimizer(
        self, loss: StepLoss, lr: float, critic: StepValueLoss | None = None, *, warming: bool = False
    ) -> tuple[float, dict[str, float]]:
        """Take one optimizer step on the gradients, and the critic's step.

        Several adapters step separately. An adapter without samples stays unchanged.

        Args:
            warming: True to step the critic only.

        Returns:
            The norm of all gradients, nan if the step was skipped because a number is not finite, and the norm per
                adapter.
        """
        gradients = self.policy.weights.gradients
        assert gradients is not None
        is_finite, critic_state = math.isfinite(loss.tally.loss), None
        if critic is not None and is_finite:
            critic_state = critic.head.held()
            is_finite = math.isfinite(critic.learn())
        sampling_adapters, norms_by_adapter = self._list_sampling_adapters(loss.samples), dict[str, float]()
        # While the critic warms up, the policy's gradients are measured but not applied.
        if warming and is_finite:
            norm = gradient_norm(gradients)
        elif not self.policy.adapters:
            self.has_partial_update |= is_finite
            norm = self.optimizer.step(gradients, lr) if is_finite else math.nan
        else:
            norm = gradient_norm(gradients) if is_finite else math.nan
            for name in sampling_adapters if math.isfinite(norm) else ():
                self.has_partial_update = True
                norms_by_adapter[name] = self.optimizer.step(gradients, lr, part=name, at=self.policy.locate_part(name))
        self.policy.weights.drop_gradients()
        if not math.isfinite(norm):
            if critic is not None and critic_state is not None:
                # The critic has stepped already. A skipped step must change nothing.
                critic.head.restore(critic_state)
            logger.warning(
                "loss {} and gradient norm {} are not finite: ajet skips this optimizer step", loss.tally.loss, norm
            )
            return math.nan, norms_by_adapter
        return norm, norms_by_adapter

    def _adapter_metrics(self, samples: Sequence[Sample], norms: Sequence[dict[str, float]]) -> dict[str, float]:
        """Return trained tokens and gradient norm for each of several adapters."""
        metrics: dict[str, float] = {}
        for name in self.policy.adapters.names:
            token_counts = [sample.timeline.sampled for sample in samples if sample.timeline.adapter == name]
            metrics[f"adapters/{name}/trained_tokens"] = sum(token_counts)
            finite_norms = [norm[name] for norm in norms if math.isfinite(norm.get(name, math.nan))]
            if finite_norms:
                metrics[f"adapters/{name}/grad_norm"] = float(np.mean(finite_norms))
        return metrics

    def _list_sampling_adapters(self, samples: Sequence[Sample]) -> list[str]:
        """Return the adapters that sampled the samples, in configured order."""
        sampled = {sample.timeline.adapter for sample in samples if sample.timeline.sampled}
        return [name for name in self.policy.adapters.names if name in sampled]

    def _count_moves(self, samples: Sequence[Sample]) -> int:
        """Return the number of optimizer steps for the samples: one per adapter that sampled, one without adapters."""
        return len(self._list_sampling_adapters(samples)) if self.policy.adapters else 1

    def _pack_rows(self, samples: Sequence[Sample], forward: PackedForward) -> list[PackedRow]:
        """Pack samples into rows. Prefixes are shared only if the policy, and the teacher if there is one, can compute
        them.
        """
        shares = forward.packed and (self._teacher is None or self._teacher.packed)
        return pack(samples, self.settings.micro_batch_tokens, share_prefixes=shares)

    @contextmanager
    def _all_or_nothing(self, steps: int) -> Iterator[None]:
        """Restore weights, moments and critic if the block fails.

        Before an update's only optimizer step no weight has changed, so a copy is made only for several steps. An
        interrupt inside the only step sets `has_partial_update`.

        Args:
            steps: Number of optimizer steps in the block.
        """
        weights, optimizer, state_tensors = self.policy.weights, self.optimizer, self._list_state_tensors()
        copies = [tensor.clone() for tensor in state_tensors] if steps > 1 else None
        counts = dict(optimizer.counts)
        critic_state = self.critic.held() if self.critic is not None else None
        try:
            yield
        except BaseException:
            # True if the state can be restored: there is a copy, or no weight has changed yet.
            can_restore = copies is not None or not self.has_partial_update
            self.has_partial_update = True  # stays set during the restore, in case of another interrupt
            if copies is not None:
                for tensor, copied in zip(state_tensors, copies, strict=True):
                    tensor.copy_(copied)
                optimizer.counts = counts
            if self.critic is not None and critic_state is not None:
                self.critic.restore(critic_state)
            self.has_partial_update = not can_restore
            raise
        finally:
            weights.drop_gradients()
            if self.critic is not None:
                self.critic.weights.drop_gradients()

    def _list_state_tensors(self) -> list[torch.Tensor]:
        """Return the tensors changed by an optimizer step."""
        weights, optimizer = self.policy.weights, self.optimizer
        low = [] if weights.low is None else [weights.low]
        return [weights.values, optimizer.first, optimizer.second, *low]

    @staticmethod
    def build_metrics(
        tally: LossTally, norms: Sequence[float], lr: float, tokens: int, seconds: float
    ) -> dict[str, float]:
        """Return the metrics of an update.

        Args:
            norms: Gradient norm of each optimizer step. nan for a skipped step.
            tokens: Computed tokens.
            seconds: Duration of the update.
        """
        metrics = tally.means() if tally.steps else {}
        metrics |= stale_metrics(tally.tokens, tally.stale, tally.stale_weight, tally.stale_capped)
        finite_norms = [norm for norm in norms if math.isfinite(norm)]
        metrics["grad_norm"] = float(np.mean(finite_norms)) if finite_norms else math.nan
        metrics |= {"steps_skipped": len(norms) - len(finite_norms), "lr": lr, "computed_tokens": tokens}
        metrics["seconds/train"] = seconds
        return metrics
