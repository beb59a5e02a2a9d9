"""LocalBackbone joins a model, its trainer and an engine over its weights.

The engine works on the trainer's own tensors, or is a vLLM with a copy.

Invariant: after `weights_changed(version)` the engine samples with the policy's current weights. A paused engine
computes nothing. A rehearsal (the largest possible pass of an update, on synthetic tokens) takes the memory of an
update, and leaves weights, moments, random generators and engine unchanged, bit for bit.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from loguru import logger

from ajet.algorithm import open_algorithm
from ajet.backbone.canary import PROMPT, REPLY, Canary, compute_gap
from ajet.backbone.contract import Backbone, Rehearsal, Scorer, Update, score_samples
from ajet.backbone.local.machine import (
    bound_kernel_caches,
    choose_device,
    choose_dtype,
    freeze_startup_objects,
    release_memory,
)
from ajet.backbone.local.requirements import require_trainable, warn_of_context
from ajet.backbone.local.trainer import Trainer
from ajet.engine.adapters import Adapters
from ajet.engine.contract import TokenEngine
from ajet.engine.drivers import find_driver
from ajet.engine.model_limits import warn_unreplayed_experts
from ajet.engine.models import read_context_length
from ajet.engine.openmp import end_worker_threads
from ajet.engine.thread_count import choose_threads
from ajet.engine.verdict_cache import VerdictCache
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Floats
from ajet.schema.episode import SampledSpan, Timeline
from ajet.schema.errors import ConfigError, UserError

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment
    from ajet.engine.contract import ChatEngine, PausableEngine
    from ajet.engine.model_source import ModelSource


class LocalBackbone(Backbone):
    """Trains in this process.

    Raises:
        UserError: the model, device or engine cannot be used.
    """

    trains = True
    version = 0

    def __init__(self, experiment: Experiment) -> None:
        """Load the model, build the trainer and the engine over its weights, and compare both by the canary."""
        from ajet.engine.model_source import locate_configured_model
        from ajet.engine.models import load_model, load_tokenizer, prepare_folder

        config = experiment.ajet
        require_trainable(config)
        settings = config.trainer_common
        device = choose_device(settings.device)
        bound_kernel_caches()
        choose_threads(settings.threads, device, deterministic=config.rollout.deterministic)
        torch.manual_seed(config.seed)
        source = locate_configured_model(config, experiment.base)
        self.tokenizer: Any = load_tokenizer(source)
        dtype = choose_dtype(config.model.dtype, device)
        model = load_model(source, dtype=dtype, device=device, max_model_len=config.rollout.max_model_len)
        warn_of_context(config, read_context_length(model))
        warn_unreplayed_experts(prepare_folder(source))
        verdicts = VerdictCache() if settings.canary is not None else None  # every cache key includes the weights
        algorithm, start = open_algorithm(config, base=experiment.base), _find_adapter_folder(config, source)
        teacher = None
        if "distribution" in algorithm.needs and config.sft.objective is None:
            from ajet.backbone.local.teacher import LocalTeacher

            teacher = LocalTeacher(experiment, self.tokenizer).forward
        self.trainer = Trainer(model, config, algorithm, start=start, verdicts=verdicts, teacher=teacher)
        weights = self.trainer.policy.weights
        logger.info(
            "{} trains {:.1f}M weights in {} on {}",
            source.path,
            weights.size / 1e6,
            str(weights.values.dtype).removeprefix("torch."),
            device,
        )
        policy = self.trainer.policy
        self._sampler = find_driver(config).open_trained(config, source, policy.model, policy.changed, verdicts)
        self.engine: TokenEngine | ChatEngine = self._sampler
        self._canary = Canary(settings.canary, rounded=dtype != torch.float32)
        self._alarm = settings.mismatch_alarm(rounded=dtype != torch.float32)
        self._gap: float | None = None
        self.compute_canary()
        self._is_gc_frozen = freeze_startup_objects()
        self._should_freeze_rollout = self._is_gc_frozen and settings.mode == "sync"

    @property
    def adapters(self) -> Adapters:
        """The model's adapters and their agents. Empty with a single adapter or none."""
        return self.trainer.policy.adapters

    @property
    def whole_version(self) -> int | None:
        """Version of the current weights. None after an interrupted update."""
        return None if self.trainer.has_partial_update else self.trainer.version

    def scorer(self, *, reference: bool = False) -> AbstractContextManager[Scorer]:
        """Yield a scorer of the current weights or of the reference model."""
        return self.trainer.scorer(reference=reference)

    def values(self, samples: Sequence[Sample]) -> list[Floats]:
        """Return the value head's values before each trained token, shape [T] per sample."""
        return self.trainer.values(samples)

    def update(self, batch: TrainingBatch) -> Update:
        """Train on `batch`. On return, the engine samples with the new weights."""
        with self._sampler.paused():
            # Written replies were not sampled, so no memory has to be released before the update.
            if not batch.written:
                release_memory()
                self._freeze_rollout_modules()
            metrics = self.trainer.update(batch, gap=self._gap, alarm=self._alarm)
        return Update(self.version, metrics | self._weights_changed(), self.trainer.fresh_gap)

    def _freeze_rollout_modules(self) -> None:
        """Exclude the modules that the first rollout imported from garbage collections.

        A client's SDK is about 60,000 objects, which two collections per step would scan for 0.09 s. Not in the
        asynchronous modes: there replies in progress, with their keys and values, would be excluded too.
        """
        if self._should_freeze_rollout:
            self._should_freeze_rollout = False
            gc.freeze()

    def rehearse(self, lengths: Sequence[int]) -> Rehearsal:
        """Run one forward and backward pass over synthetic samples of the given lengths. No state changes.

        The engine stays loaded, as in an update.

        Raises:
            UserError: the memory does not suffice.
        """
        device = self.trainer.policy.weights.values.device
        with self._sampler.paused():
            release_memory()
            return run_rehearsal(self.trainer, lengths, device)

    def save(self, folder: Path) -> None:
        """Write a checkpoint into an existing empty folder."""
        self.trainer.save(folder, self.tokenizer)
        end_worker_threads()

    def load(self, folder: Path) -> None:
        """Restore a checkpoint and update the engine's weights."""
        self.trainer.load(folder)
        self._weights_changed()

    def _weights_changed(self) -> dict[str, float]:
        """Pass the new weights to the engine, and return the metrics of the check that both compute the same model.

        Raises:
            UserError: engine and trainer differed twice in a row.
        """
        self.version = self.trainer.version
        self._sampler.weights_changed(self.version)
        return self.compute_canary()

    def compute_canary(self) -> dict[str, float]:
        """Compare engine and trainer on a fixed prompt, and return the gap as a metric. Raises UserError."""
        if self._canary.tolerance is None:
            return {}
        with self.scorer() as scorer:
            adapters = self.adapters.names
            gap = compute_gap(
                *score_canary_reply(self._sampler, scorer, self.tokenizer, version=self.version, adapters=adapters)
            )
        end_worker_threads()
        self._gap = gap
        self._canary.judge(gap, version=self.version)
        return {"canary_gap": gap}

    def close(self) -> None:
        """Close the engine. Further calls have no effect."""
        self.engine.close()
        if self._is_gc_frozen:
            self._is_gc_frozen = False
            gc.unfreeze()


def _find_adapter_folder(config: AjetConfig, source: ModelSource) -> Path | None:
    """Return the folder with the adapters to resume from, or None if the model has no adapters.

    Raises:
        ConfigError: the settings omit some of the saved adapters.
    """
    saved = Adapters.from_folder(source.folder)
    omitted = sorted({*saved.names} - {*config.trainer_common.lora.adapters})
    if omitted:
        raise ConfigError(
            f"The model has adapters that this training would not include: {', '.join(omitted)}.",
            where="ajet.trainer_common.lora.adapters",
            expected=f"the adapters of {source.path}: {', '.join(saved.names)}, and optionally more",
            do="add them to trainer_common.lora.adapters, or delete the folder adapters/ of the model to train "
            "without them",
        )
    return source.folder if saved else None


def score_canary_reply(
    engine: PausableEngine, scorer: Scorer, tokenizer: Any, *, version: int, adapters: Sequence[str] = ()
) -> tuple[Floats, Floats]:
    """Return log-probabilities of a fixed prompt's reply at temperature 1, by engine and by trainer, shape [T] each.

    The reply is the engine's most likely continuation. Several adapters give one reply each. Caches, counters and
    random generators of the run stay unchanged.

    Args:
        version: policy version of the weights.
        adapters: Names of the adapters. Empty: the model itself.
    """
    adapters_or_none: Sequence[str | None] = adapters or [None]
    logprob_pairs = [_score_reply(engine, scorer, tokenizer, version, adapter) for adapter in adapters_or_none]
    return np.concatenate([by_engine for by_engine, _ in logprob_pairs]), np.concatenate(
        [by_trainer for _, by_trainer in logprob_pairs]
    )


def _score_reply(
    engine: PausableEngine, scorer: Scorer, tokenizer: Any, version: int, adapter: str | None
) -> tuple[Floats, Floats]:
    """Return the log-probabilities of one adapter's reply by engine and trainer, as `score_canary_reply` does."""
    context_length = engine.max_model_len
    prompt = np.asarray(tokenizer.encode(PROMPT, add_special_tokens=False), np.int32)[: max(1, context_length - REPLY)]
    reply, logprobs = engine.greedy(prompt, min(REPLY, context_length - prompt.size), adapter)
    ids = np.concatenate([prompt, np.asarray(reply, np.int32)])
    mask = np.arange(ids.size) >= prompt.size
    engine_logprobs = np.zeros(ids.size, np.float32)
    engine_logprobs[mask] = logprobs
    span = (SampledSpan(0, prompt.size, ids.size),)
    versions = np.where(mask, version, -1).astype(np.int32)
    # The greedy reply as a trained sample with zero weight, so that the trainer's own packing and forward pass score
    # it.
    timeline = Timeline(0, "canary", "canary", ids, mask, engine_logprobs, engine_logprobs, versions, span, adapter)
    sample = Sample(timeline, "canary", 0, np.zeros(ids.size, np.float32), 0.0)
    [trainer_logprobs] = score_samples(scorer, [sample], tokens=ids.size, temperature=1.0)
    return engine_logprobs[mask], trainer_logprobs[mask]


_NO_MEMORY = ("not enough memory", "out of memory", "can't allocate memory")


def run_rehearsal(trainer: Trainer, lengths: Sequence[int], device: torch.device) -> Rehearsal:
    """Run a forward and backward pass over one synthetic sample per length, and measure time and memory.

    Args:
        lengths: Tokens of each sample.

    Raises:
        UserError: the memory does not suffice.
    """
    vocabulary = int(trainer.policy.forward.head.weight.shape[0])
    adapter = next(iter(trainer.policy.adapters.names), None)
    samples = [make_sample(length, vocabulary, seed, adapter) for seed, length in enumerate(lengths)]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.monotonic()
    try:
        trainer.rehearse(samples)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not _lacks_memory(error):
            raise
        raise UserError(
            "The memory is too small for an update of the longest samples that the settings allow: a pass over "
            f"{sum(lengths):,} tokens.",
            where="the trial update before step 1; no episode was run",
            expected="memory for a forward and backward pass in addition to weights, optimizer and engine",
            do="lower data.max_response_length, data.max_prompt_length or rollout.max_model_len (the longest "
            "sample) and trainer_common.micro_batch_tokens; set gradient_checkpointing: true or lora.rank: "
            "8; or use a smaller model. --no-rehearsal starts without the trial update",
        ) from error
    return Rehearsal(time.monotonic() - began, _measure_peak(device))


def make_sample(length: int, vocabulary: int, seed: int, adapter: str | None = None) -> Sample:
    """Build a sample of random tokens, all trained except the first, to measure the memory of an update."""
    ids = np.random.default_rng(seed).integers(0, vocabulary, length).astype(np.int32)
    mask = np.arange(length) > 0
    zeros = np.zeros(length, np.float32)
    spans = (SampledSpan(0, 1, length),)
    versions = np.where(mask, 0, -1).astype(np.int32)
    timeline = Timeline(0, "", "", ids, mask, zeros, zeros, versions, spans, adapter)
    return Sample(timeline, f"rehearsal-{seed}", seed, mask.astype(np.float32), 1.0)


def _lacks_memory(error: BaseException) -> bool:
    """True if the error says that memory was exhausted. Some torch devices raise a plain RuntimeError for that."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        words in str(error).lower() for words in _NO_MEMORY
    )


def _measure_peak(device: torch.device) -> int:
    """Return the peak memory in bytes: of the GPU, or of this process since its start. Linux reports the latter in KiB,
    macOS in bytes.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024
