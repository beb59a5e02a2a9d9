"""Replaces private methods of verl's trainer, for verl 0.9.1. A test checks them.

`_init_resource_pool_mgr` runs once and selects the training workers. The others run between verl's own steps, in this
order: `_balance_batch` (the rank of a row, for rows with shared tokens), within it `_get_required_batch_multiple`
(number of rows for the forward passes), `_compute_advantage` (credit), `_update_actor` (optimizer steps). Invariants:
credit and mini-batches are formed from episodes as on the local backbone, and rows only carry tokens for verl. Rows
added by verl for divisibility train nothing, and no row is dropped for divisibility.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import build_padding_position_ids, build_padding_routed_experts
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainer
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from ajet.algorithm import Algorithm, assign_credit
from ajet.algorithm.importance import ImportanceCorrection, StaleBounds, stale_metrics
from ajet.algorithm.loss_terms import number_replies
from ajet.algorithm.staleness import build_tightened_metrics
from ajet.algorithm.weights import compute_mini_batch_scale, split_mini_batches
from ajet.backbone.canary import compute_gap
from ajet.config.schema import AjetConfig
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Floats
from ajet_ray.rows import FIELDS, RebuiltBatch, rebuild_groups
from ajet_verl.trainer.losses import AGES, GAP, ON_POLICY, TALLIES, WEIGHTS
from ajet_verl.trainer.mini_batches import TREES, deal_rows

LR_SCHEDULE = "ajet_lr_schedule"
"""Key of ajet under verl's `trainer`: a schedule missing in verl's own key."""
SEQUENCES = ("prompts", "responses", "input_ids", "position_ids", "multi_modal_inputs", "routed_experts")
"""Fields of an update's rows with tokens and their attributes."""
PER_TOKEN = (
    "response_mask", "loss_mask", "rollout_log_probs", "old_log_probs", "ref_log_prob", "advantages", WEIGHTS, AGES,
)  # fmt: skip
"""Fields of an update's rows with a number for each response token."""


class CreditHooks(PPOTrainer):
    """Mix-in for verl's trainers. A subclass sets `settings` and `algorithm` before verl's `__init__`."""

    settings: AjetConfig
    """Credit and loss settings read from verl's config."""
    algorithm: Algorithm
    """The algorithm named in `settings`."""
    is_decoupled: ClassVar[bool] = False
    """True if remote samplers run the episodes, possibly with different policy versions."""
    _ranks: int
    """Number of data-parallel ranks of the trainer."""
    _logprob_gap: float = 0.0
    """Difference between the log-probabilities of engine and trainer in nats per token, for tokens sampled by the
    newest weights; 0 without such tokens."""
    _parts: list[list[int]]
    """Rows of each optimizer step, as indices into the batch; groups without signal are in no step."""

    def on_credit(self, rebuilt: RebuiltBatch, batch: TrainingBatch) -> None:
        """React to a batch whose episodes have their advantages. This class does nothing.

        Args:
            rebuilt: the episodes of the step's rows.
            batch: the samples to train, and the episodes left out with the reasons.
        """

    def _init_resource_pool_mgr(self) -> None:
        """Replace verl's training workers by ajet's."""
        super()._init_resource_pool_mgr()
        optimizer_config = self.config.actor_rollout_ref.actor.optim
        is_linear = (
            self.config.trainer.get(LR_SCHEDULE) == "linear" and optimizer_config.get("lr_scheduler_type") == "constant"
        )
        from ajet_verl.trainer.workers import Actor, DetachedActor, LinearActor, LinearDetachedActor

        actor, detached = (LinearActor, LinearDetachedActor) if is_linear else (Actor, DetachedActor)
        worker = detached if self.trainer_mode == "separate_async" else actor
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(worker)

    @property
    def _has_trees(self) -> bool:
        """True if the workers compute prefixes shared by several rows only once."""
        return bool(self.config.actor_rollout_ref.get(TREES))

    def _balance_batch(
        self, batch: KVBatchMeta, metrics: dict[str, Any], logging_prefix: str = "global_seqlen",
        keep_minibatch: bool = False,
    ) -> KVBatchMeta:  # fmt: skip
        """Distribute rows over ranks by length as verl does.

        If shared prefixes are computed once, the rows of a task are then put next to each other.
        """
        batch = super()._balance_batch(batch, metrics, logging_prefix, keep_minibatch)
        if self._has_trees:
            batch.reorder(sorted(range(len(batch.keys)), key=lambda row: (_read_task(batch.keys[row]), row)))
        return batch

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Return the number of which the batch's row count must be a multiple in the forward passes.

        It gives each rank an equal number of rows. verl would pad to full mini-batches of rows, so that one more row
        could add an optimizer step.

        Args:
            dp_size: number of data-parallel ranks.
        """
        self._ranks = dp_size
        rollout, reference = self.config.actor_rollout_ref.rollout, self.config.actor_rollout_ref.ref
        sizes = [(rollout.log_prob_use_dynamic_bsz, rollout.log_prob_micro_batch_size_per_gpu)]
        if self.use_reference_policy:
            sizes.append((reference.log_prob_use_dynamic_bsz, reference.log_prob_micro_batch_size_per_gpu))
        return dp_size * math.lcm(*(int(size) for dynamic, size in sizes if not dynamic and size))

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Compute advantages of complete episodes, and write advantage and loss weight of each token to verl's rows.

        This replaces verl's estimators, which see rows without their episodes.
        """
        real_rows = [row for row, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        keys = [batch.keys[row] for row in real_rows]
        field_names = [*FIELDS, "old_log_probs"] + [
            "ref_log_prob"
        ] * self.settings.trainer_common.algorithm.use_kl_in_reward
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=field_names)
        fields = {name: _unbind_rows(data, name) for name in field_names}
        rebuilt = rebuild_groups(keys, fields)
        row_by_timeline = {id(timeline): row for row, timeline in enumerate(rebuilt.timelines) if timeline is not None}

        def expand_field(name: str, samples: list[Sample]) -> list[Floats]:
            """Expand a field of response tokens to the complete token sequences, one array [T] per sample."""
            arrays = []
            for sample in samples:
                values = np.zeros(sample.timeline.ids.size, np.float32)
                row = fields[name][row_by_timeline[id(sample.timeline)]].float().numpy()
                values[-row.size :] = row
                arrays.append(np.where(sample.timeline.mask, values, 0).astype(np.float32))
            return arrays

        credited_batch = assign_credit(
            rebuilt.groups,
            self.settings,
            self.algorithm,
            step=self.global_steps,
            reference=lambda samples: (expand_field("old_log_probs", samples), expand_field("ref_log_prob", samples)),
        )
        metrics.update(credited_batch.metrics)
        optimizer_steps = self.split_optimizer_steps(credited_batch)
        trainer_logprobs = expand_field("old_log_probs", credited_batch.samples)
        metrics.update(self._measure_mismatch(credited_batch.samples, trainer_logprobs))
        extra_fields = [
            fields["extra_fields"][row_by_timeline[id(sample.timeline)]] for sample in credited_batch.samples
        ]
        metrics.update(self.measure_canary(credited_batch.samples, trainer_logprobs, extra_fields))
        self._logprob_gap = float(metrics.get("canary_gap", 0.0))
        correction, tightened = self._choose_correction()
        metrics.update(tightened)
        metrics.update(self._measure_staleness(credited_batch.samples, trainer_logprobs, correction))
        sample_rows = [real_rows[row_by_timeline[id(sample.timeline)]] for sample in credited_batch.samples]
        self._parts = [[sample_rows[index] for index in step_indices] for step_indices in optimizer_steps]
        self.on_credit(rebuilt, credited_batch)

        bounds = StaleBounds.from_settings(self.settings.trainer_common.algorithm)
        needs_ages = bounds is not None and bounds.needs_ages
        advantages, weights, ages = {}, {}, {}
        for sample in credited_batch.samples:
            row = real_rows[row_by_timeline[id(sample.timeline)]]
            # verl's rows have advantages and weights for response tokens only: cut off the prompt.
            start = fields["prompts"][row_by_timeline[id(sample.timeline)]].numel()
            advantages[row] = torch.from_numpy(sample.advantages[start:])
            weights[row] = torch.from_numpy(np.where(sample.timeline.mask[start:], sample.weight, 0).astype(np.float32))
            if needs_ages:
                ages[row] = torch.from_numpy(
                    (self.global_steps - 1 - sample.timeline.versions[start:]).astype(np.float32)
                )
        responses = _unbind_rows(tq.kv_batch_get(batch.keys, batch.partition_id, ["responses"]), "responses")
        row_fields = [
            {
                "advantages": (advantage := advantages.get(row, torch.zeros(response.numel()))),
                "returns": advantage,
                WEIGHTS: weights.get(row, torch.zeros(response.numel())),
                **({AGES: ages.get(row, torch.zeros(response.numel()))} if needs_ages else {}),
            }
            for row, response in enumerate(responses)
        ]
        return tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=list_of_dict_to_tensordict(row_fields)
        )

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Run the optimizer steps of a training step, one per mini-batch of complete groups.

        verl would cut the rows into mini-batches of a fixed number of rows. A batch without a training signal makes no
        optimizer step, but still advances the learning-rate schedule.
        """
        if not self._parts:
            self.actor_rollout_wg.pass_step()
            return batch
        actor = self.config.actor_rollout_ref.actor
        row_order = deal_rows(
            self._parts,
            [tag["seq_len"] for tag in batch.tags],
            ranks=self._ranks,
            multiple=1 if actor.use_dynamic_bsz else int(actor.ppo_micro_batch_size_per_gpu),
            kin=[_read_task(key) for key in batch.keys] if self._has_trees else None,
        )
        fields = [name for name in (*SEQUENCES, *PER_TOKEN) if name in (batch.fields or ())]
        padding_keys = self._add_padding(batch, fields, row_order.count(None))
        padding_keys_left = iter(padding_keys)
        keys = [next(padding_keys_left) if row is None else batch.keys[row] for row in row_order]
        epochs = actor.ppo_epochs
        correction = self.config.algorithm.rollout_correction
        update_info = {
            "num_mini_batch": len(self._parts),
            "epochs": epochs,
            "seed": actor.data_loader_seed,
            "dataloader_kwargs": {"shuffle": False},
            "temperature": self.config.actor_rollout_ref.rollout.temperature,
            "calculate_entropy": bool(actor.entropy_coeff),
            "distillation_use_topk": False,
            "distillation_only": False,
            GAP: self._logprob_gap,
            # With a single optimizer step the old policy is the current one.
            ON_POLICY: len(self._parts) * epochs * self.parameter_sync_step == 1 and not correction.bypass_mode,
        }
        update = KVBatchMeta(keys, [{} for _ in keys], batch.partition_id, fields, update_info)
        output = dict(self.actor_rollout_wg.update_actor(update)["metrics"])
        if padding_keys:
            tq.kv_clear(keys=padding_keys, partition_id=batch.partition_id)
        metrics.update(_read_update_metrics(output))
        # The sums in TALLIES were converted to means above.
        output = rename_dict({name: value for name, value in output.items() if name not in TALLIES}, "actor/")
        output["perf/mfu/actor"] = output.pop("actor/mfu")
        metrics.update(reduce_metrics(output))
        return batch

    def split_optimizer_steps(self, batch: TrainingBatch) -> list[list[int]]:
        """Divide a batch into optimizer steps, and scale the samples' loss weights for the division.

        Returns:
            For each optimizer step, the indices of its samples in the batch.
        """
        count = max(1, self.settings.trainer_common.mini_batch_num // self.parameter_sync_step)
        optimizer_steps = split_mini_batches(batch.samples, count)
        aggregation = self.settings.trainer_common.algorithm.loss_aggregation
        scales = [
            compute_mini_batch_scale(aggregation, batch.samples, [batch.samples[index] for index in sample_indices])
            for sample_indices in optimizer_steps
        ]
        for sample_indices, scale in zip(optimizer_steps, scales, strict=True):
            for index in sample_indices:
                batch.samples[index].weight *= scale
        return optimizer_steps

    def _add_padding(self, batch: KVBatchMeta, fields: list[str], count: int) -> list[str]:
        """Add rows of two tokens without training effect to verl's queue.

        Args:
            fields: names of the fields that the rows need.
            count: number of rows.

        Returns:
            Keys of the rows.
        """
        if not count:
            return []
        end_id = int(self.tokenizer.eos_token_id or 0)
        data = tq.kv_batch_get(batch.keys[:1], batch.partition_id, fields)
        row_positions = _unbind_rows(data, "position_ids")[0] if "position_ids" in fields else None
        token_fields = {name: _unbind_rows(data, name)[0] for name in fields if name in PER_TOKEN}
        row: dict[str, Any] = {name: torch.zeros(1, dtype=values.dtype) for name, values in token_fields.items()}
        row |= {
            "prompts": torch.tensor([end_id]),
            "responses": torch.tensor([end_id]),
            "input_ids": torch.tensor([end_id, end_id]),
        }
        row["position_ids"] = build_padding_position_ids(row_positions, torch.ones(2, dtype=torch.int64))
        if "multi_modal_inputs" in fields:
            row["multi_modal_inputs"] = {}
        if "routed_experts" in fields:
            row["routed_experts"] = build_padding_routed_experts(_unbind_rows(data, "routed_experts")[0], 2)
        keys = [f"pad{uuid.uuid4().hex}_{index}_0" for index in range(count)]
        tq.kv_batch_put(
            keys=keys,
            partition_id=batch.partition_id,
            fields=list_of_dict_to_tensordict([dict(row) for _ in keys]),
            tags=[{"is_padding": True, "status": "success"} for _ in keys],
        )
        return keys

    def _measure_mismatch(self, samples: list[Sample], trainer: list[Floats]) -> dict[str, float]:
        """Measure how far the log-probabilities of engine and trainer differ for the same tokens.

        Args:
            trainer: the trainer's log-probabilities of each sample, [T].

        Returns:
            Metrics in nats, or {} if truncated sampling makes the log-probabilities incomparable.
        """
        if not samples or self.settings.rollout.truncates_sampling:
            return {}
        gaps = [
            (sample.timeline.logprobs - trainer_logprobs)[sample.timeline.mask]
            for sample, trainer_logprobs in zip(samples, trainer, strict=True)
        ]
        return {
            "mismatch_kl": float(np.concatenate(gaps).mean()),
            "logprob_gap_max": max(float(np.abs(gap).max()) for gap in gaps),
        }

    def _measure_staleness(
        self, samples: list[Sample], trainer: list[Floats], correction: ImportanceCorrection | None
    ) -> dict[str, float]:
        """Return metrics of the importance weights of tokens sampled by older weights than the current.

        Args:
            trainer: the trainer's log-probabilities of each sample, [T].
            correction: the importance correction of the update, or None if it uses none.
        """
        token_count = stale_count = capped_count = 0
        weight_sum = 0.0
        for sample, trainer_logprobs in zip(samples, trainer, strict=True):
            line = sample.timeline
            # The update of this step starts from version `global_steps - 1`; lower versions are stale.
            is_stale = torch.from_numpy(line.mask & (line.versions < self.global_steps - 1))
            token_count, stale_count = token_count + line.sampled, stale_count + int(is_stale.sum())
            if correction is not None:
                mask = torch.from_numpy(line.mask)
                policy_logprobs, engine_logprobs = (
                    torch.from_numpy(trainer_logprobs)[mask],
                    torch.from_numpy(line.logprobs)[mask],
                )
                weights = correction.weights(
                    correction.gaps(policy_logprobs, engine_logprobs, number_replies(mask)[mask])
                )[is_stale[mask]]
                weight_sum, capped_count = (
                    weight_sum + float(weights.sum()),
                    capped_count + int(correction.find_bounded(weights).sum()),
                )
        return stale_metrics(
            token_count, stale_count, float(stale_count) if correction is None else weight_sum, capped_count
        )

    def _choose_correction(self) -> tuple[ImportanceCorrection | None, dict[str, float]]:
        """Choose the importance correction of the update.

        Its cap is tightened if engine and trainer differ by more than `mismatch_alarm`.

        Returns:
            The correction (None if disabled), and metrics if the cap was tightened.
        """
        correction = ImportanceCorrection.from_settings(self.settings.trainer_common)
        alarm = self.settings.trainer_common.algorithm.mismatch_alarm
        if correction is None or isinstance(alarm, str):
            return correction, {}
        tightened = correction.tighten(self._logprob_gap, alarm)
        return tightened, build_tightened_metrics(
            self._logprob_gap, tightened.cap
        ) if tightened is not correction else {}

    def measure_canary(
        self, samples: list[Sample], trainer: list[Floats], extra: list[dict[str, Any]]
    ) -> dict[str, float]:
        """Measure the canary: whether engine and trainer compute the same model, by tokens of the newest weights.

        Args:
            trainer: the trainer's log-probabilities of each sample, [T].
            extra: verl's extra fields of each sample's row.

        Returns:
            The metric `canary_gap` in nats per token, or {} if there are no comparable tokens.
        """
        if self.settings.rollout.truncates_sampling:
            return {}
        is_separate = self.is_decoupled or self.config.trainer.v1.trainer_mode == "separate_async"
        gap = measure_canary_gap(samples, trainer, extra, at_least=self.global_steps - 1 if is_separate else 0)
        return {} if gap is None else {"canary_gap": gap}


def _read_task(key: str) -> str:
    """Return the part of a row's key that all rows of its task share."""
    return key.rsplit("_", 2)[0]


def _unbind_rows(data: TensorDict, name: str) -> list[Any]:
    """Return a field of verl's queue as a list with one entry per row, whatever tensor type it has."""
    values = data[name]
    return list(values.unbind()) if isinstance(values, torch.Tensor) else list(values)


def _read_update_metrics(output: dict[str, Any]) -> dict[str, float]:
    """Convert the output of verl's update to the metrics of the local backbone.

    They are means over the trained tokens of all optimizer steps.
    """
    tokens, divergence, clipped, capped = (float(np.sum(output[name])) for name in TALLIES)
    norms = np.atleast_1d(output["grad_norm"]).astype(float)
    finite_norms = norms[np.isfinite(norms)]
    tokens = max(tokens, 1.0)
    return {
        "loss": float(np.mean(output["loss"])),
        "kl": divergence / tokens,
        "clip_fraction": clipped / tokens,
        "is_capped_fraction": capped / tokens,
        "grad_norm": float(finite_norms.mean()) if finite_norms.size else math.nan,
        "lr": float(np.atleast_1d(output["lr"])[-1]),
        "steps_skipped": float(norms.size - finite_norms.size),
    }


def measure_canary_gap(
    samples: Sequence[Sample], trainer: Sequence[Floats], rows: Sequence[Mapping[str, Any]], *, at_least: int
) -> float | None:
    """Measure the difference between the log-probabilities of engine and trainer for tokens of the newest weights.

    Returns:
        Nats per token, or None if no sample comes from the newest weights.

    Args:
        trainer: the trainer's log-probabilities of each sample, [T].
        rows: verl's extra fields of each sample's row.
        at_least: the newest version among the samples is measured only if it is at least this one. Samplers may be
            behind the trainer, whose log-probabilities then differ for another reason. 0: always.
    """
    newest = max((int(row["max_global_steps"]) for row in rows), default=-1)
    newest_logprobs = [
        (sample.timeline.logprobs[sample.timeline.mask], trainer_logprobs[sample.timeline.mask])
        for sample, trainer_logprobs, row in zip(samples, trainer, rows, strict=True)
        if row["min_global_steps"] == newest and newest >= at_least  # all tokens of the sample are of one version
    ]
    if not newest_logprobs:
        return None
    return compute_gap(*(np.concatenate(parts) for parts in zip(*newest_logprobs, strict=True)))
