"""LocalBackbone: the contract's face of this folder. It joins a model, its trainer and an engine over its weights.

Invariant of the engine (over the trainer's own tensors, or vLLM with a copy): after `weights_changed(version)` it
samples with the policy's present weights, and while it is paused it computes nothing. Invariant of a rehearsal, the
largest pass that an update may have, on made-up tokens: weights, moments, random generators and the engine are as
before, bit for bit; it takes the memory that an update takes.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from loguru import logger

from ajet.algorithm import open_algorithm
from ajet.backbone.canary import PROMPT, REPLY, Canary, compute_gap
from ajet.backbone.contract import Rehearsal, Scorer, Update, score_samples
from ajet.backbone.local.machine import (
    bound_kernel_caches,
    choose_device,
    choose_dtype,
    choose_threads,
    freeze_startup_objects,
    release_memory,
)
from ajet.backbone.local.requirements import require_trainable
from ajet.backbone.local.trainer import Trainer
from ajet.engine.adapters import Adapters
from ajet.engine.contract import TokenEngine
from ajet.engine.models import read_context_length
from ajet.engine.openmp import end_worker_threads
from ajet.engine.verdict_cache import VerdictCache
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Floats, Ids
from ajet.schema.errors import ConfigError, UserError
from ajet.schema.timeline import SampledSpan, Timeline

if TYPE_CHECKING:
    from ajet.backbone.local.policy import LocalPolicy
    from ajet.config import AjetConfig, Experiment
    from ajet.engine.contract import ChatEngine
    from ajet.engine.model_source import ModelSource


class LocalBackbone:
    """Trains in this process. Raises UserError for a model, device or engine that cannot be used."""

    trains = True

    def __init__(self, experiment: Experiment) -> None:
        from ajet.engine.model_source import locate_model
        from ajet.engine.models import load_model, load_tokenizer

        config = experiment.ajet
        path = require_trainable(config)
        settings = config.trainer_common
        device = choose_device(settings.device)
        bound_kernel_caches()
        choose_threads(settings.threads, device)
        torch.manual_seed(config.seed)
        source = locate_model(path, base=experiment.base, trust_remote_code=config.model.trust_remote_code)
        self.tokenizer: Any = load_tokenizer(source)
        dtype = choose_dtype(config.model.dtype, device)
        model = load_model(source, dtype=dtype, device=device, max_model_len=config.rollout.max_model_len)
        verdicts = (
            VerdictCache() if settings.canary is not None else None
        )  # which holds the weights that a verdict does not
        algorithm, start = open_algorithm(config, base=experiment.base), _find_adapter_folder(config, source)
        self.trainer = Trainer(model, config, algorithm, start=start, verdicts=verdicts)
        weights = self.trainer.policy.weights
        logger.info(
            "{} trains {:.1f}M weights in {} on {}",
            source.path,
            weights.size / 1e6,
            str(weights.values.dtype).removeprefix("torch."),
            device,
        )
        self.version = 0
        self._sampler: PausableEngine = open_engine(config, source, self.trainer.policy, verdicts)
        self.engine: TokenEngine | ChatEngine = self._sampler
        self._canary = Canary(settings.canary, rounded=dtype != torch.float32)
        self._alarm = settings.mismatch_alarm(rounded=dtype != torch.float32)
        self._gap: float | None = None
        self.compute_canary()
        self._is_gc_frozen = freeze_startup_objects()

    @property
    def adapters(self) -> Adapters:
        """Which agents have which; empty where there is one or none."""
        return self.trainer.policy.adapters

    @property
    def whole_version(self) -> int | None:
        """The version of the weights as they are."""
        return None if self.trainer.has_partial_update else self.trainer.version

    def scorer(self, *, reference: bool = False) -> AbstractContextManager[Scorer]:
        """A scorer at the present weights, or at those of the reference model."""
        return self.trainer.scorer(reference=reference)

    def values(self, samples: Sequence[Sample]) -> list[Floats]:
        """[T] per sample: what the value head expects before each trained token."""
        return self.trainer.values(samples)

    def update(self, batch: TrainingBatch) -> Update:
        """Train on `batch`; when this returns, the engine samples from the new weights."""
        with self._sampler.paused():
            if not batch.written:  # nothing was sampled, so nothing is left of it, and the next phase is another update
                release_memory()
            metrics = self.trainer.update(batch, gap=self._gap, alarm=self._alarm)
        return Update(self.version, metrics | self._weights_changed(), self.trainer.fresh_gap)

    def rehearse(self, lengths: Sequence[int]) -> Rehearsal:
        """Make one forward and backward pass over made-up samples of these lengths, with the engine there as it is in
        an update; nothing is changed by it. Raises UserError where the memory does not suffice."""
        device = self.trainer.policy.weights.values.device
        with self._sampler.paused():
            release_memory()
            return run_rehearsal(self.trainer, lengths, device)

    def save(self, folder: Path) -> None:
        """Write a checkpoint into an existing empty folder."""
        self.trainer.save(folder, self.tokenizer)
        end_worker_threads()

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        self.trainer.load(folder)
        self._weights_changed()

    def _weights_changed(self) -> dict[str, float]:
        """Hand them over; answers what the canary says. Raises UserError when it says so twice."""
        self.version = self.trainer.version
        self._sampler.weights_changed(self.version)
        return self.compute_canary()

    def compute_canary(self) -> dict[str, float]:
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
        """End the engine. Idempotent."""
        self.engine.close()
        if self._is_gc_frozen:
            self._is_gc_frozen = False
            gc.unfreeze()


def _find_adapter_folder(config: AjetConfig, source: ModelSource) -> Path | None:
    """The folder whose adapters training goes on from; None: there are none. Raises ConfigError where they would be
    left behind."""
    saved = Adapters.from_folder(source.folder) if source.folder is not None else Adapters([])
    left = sorted({*saved.names} - {*config.trainer_common.lora.adapters})
    if left:
        raise ConfigError(
            f"The model has adapters that this training would leave behind: {', '.join(left)}.",
            where="ajet.trainer_common.lora.adapters",
            expected=f"those of {source.path}: {', '.join(saved.names)}, and more where you like",
            do="name them there, or remove the model folder's adapters/ to begin without",
        )
    return source.folder if saved else None


def score_canary_reply(
    engine: PausableEngine, scorer: Scorer, tokenizer: Any, *, version: int, adapters: Sequence[str] = ()
) -> tuple[Floats, Floats]:
    """Return the logprobs of the canary's reply at temperature 1 by the engine and by the trainer, [T] each.

    The reply is the engine's most likely tokens after a fixed prompt; with several adapters there is one of each. No
    cache, count or random number of the run changes. `version`: of the weights.
    """
    each: Sequence[str | None] = adapters or [None]
    both = [_score_reply(engine, scorer, tokenizer, version, adapter) for adapter in each]
    return np.concatenate([found for found, _ in both]), np.concatenate([own for _, own in both])


def _score_reply(
    engine: PausableEngine, scorer: Scorer, tokenizer: Any, version: int, adapter: str | None
) -> tuple[Floats, Floats]:
    room = engine.max_model_len
    prompt = np.asarray(tokenizer.encode(PROMPT, add_special_tokens=False), np.int32)[: max(1, room - REPLY)]
    reply, logprobs = engine.greedy(prompt, min(REPLY, room - prompt.size), adapter)
    ids = np.concatenate([prompt, np.asarray(reply, np.int32)])
    mask = np.arange(ids.size) >= prompt.size
    found = np.zeros(ids.size, np.float32)
    found[mask] = logprobs
    span = (SampledSpan(0, prompt.size, ids.size),)
    versions = np.where(mask, version, -1).astype(np.int32)
    timeline = Timeline(0, "canary", "canary", ids, mask, found, found, versions, span, adapter)
    sample = Sample(timeline, "canary", 0, np.zeros(ids.size, np.float32), 0.0)
    [own] = score_samples(scorer, [sample], tokens=ids.size, temperature=1.0)
    return found[mask], own[mask]


GIB = 1 << 30


class PausableEngine(TokenEngine, Protocol):
    """A TokenEngine that makes room for an update."""

    def paused(self) -> AbstractContextManager[None]:
        """A block within which no forward pass runs; calls wait."""
        ...

    def greedy(self, prompt_ids: Ids, count: int, adapter: str | None = None) -> tuple[list[int], list[float]]:
        """The `count` most likely tokens after the prompt and their logprobs at temperature 1; no call of the run is
        changed by it."""
        ...


def open_engine(
    config: AjetConfig, source: ModelSource, policy: LocalPolicy, verdicts: VerdictCache | None = None
) -> PausableEngine:
    """The engine that `rollout.engine` names. `verdicts`: as in TransformersEngine. Raises UserError."""
    if config.rollout.engine == "vllm":
        return _open_vllm(config, source, policy)
    from ajet.engine.transformers import TransformersEngine

    return TransformersEngine(
        policy.model,
        version=0,
        max_num_seqs=config.rollout.max_num_seqs,
        max_model_len=min(config.rollout.max_model_len, read_context_length(policy.model)),
        adapters=policy.adapters.names,
        verdicts=verdicts,
    )


def _open_vllm(config: AjetConfig, source: ModelSource, policy: LocalPolicy) -> PausableEngine:
    from ajet.engine.models import prepare_folder
    from ajet.engine.vllm import VllmEngine

    values = policy.weights.values
    logger.info("starting vLLM; on a CPU this takes about a minute")
    engine = VllmEngine(
        prepare_folder(source),
        dtype=values.dtype,
        device=values.device,
        max_num_seqs=config.rollout.max_num_seqs,
        max_model_len=min(config.rollout.max_model_len, read_context_length(policy.model)),
        weights=policy.changed,
        seed=config.seed,
        threads=torch.get_num_threads(),
        cache_bytes=int(config.rollout.vllm.cache_gib * GIB) if config.rollout.vllm.cache_gib else None,
        eager=config.rollout.vllm.eager,
        trust_remote_code=source.trust_remote_code,
    )
    try:
        if policy.adapted is None:
            engine.check_weights()
    except BaseException:
        engine.close()
        raise
    sizes = {name: f"{size / 1e6:,.0f} MB" for name, size in engine.memory.items()}
    logger.info(
        "vLLM holds a copy of the weights ({weights}) and {cache} of keys and values in processes of its own; an "
        "update passes by {bucket} of shared memory",
        **sizes,
    )
    return engine


_NO_MEMORY = ("not enough memory", "out of memory", "can't allocate memory")


def run_rehearsal(trainer: Trainer, lengths: Sequence[int], device: torch.device) -> Rehearsal:
    """Pass over a made-up sample of each length. Raises UserError for a lack of memory."""
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
            f"An update does not fit into the memory: a pass over {sum(lengths):,} tokens, the longest samples that "
            "the settings allow.",
            where="the rehearsal before step 1; nothing was played",
            expected="room for one forward and backward pass beside weights, optimizer and engine",
            do="lower data.max_response_length, data.max_prompt_length or rollout.max_model_len (the longest sample) "
            "and trainer_common.micro_batch_tokens; gradient_checkpointing: true; lora.rank: 8; a smaller model. "
            "--no-rehearsal starts without this test",
        ) from error
    return Rehearsal(sum(lengths), time.monotonic() - began, _measure_peak(device))


def make_sample(length: int, vocabulary: int, seed: int, adapter: str | None = None) -> Sample:
    """A sample of which every token but the first is trained."""
    ids = np.random.default_rng(seed).integers(0, vocabulary, length).astype(np.int32)
    mask = np.arange(length) > 0
    zeros = np.zeros(length, np.float32)
    spans = (SampledSpan(0, 1, length),)
    versions = np.where(mask, 0, -1).astype(np.int32)
    timeline = Timeline(0, "", "", ids, mask, zeros, zeros, versions, spans, adapter)
    return Sample(timeline, f"rehearsal-{seed}", seed, mask.astype(np.float32), 1.0)


def _lacks_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(w in str(error).lower() for w in _NO_MEMORY)


def _measure_peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024
