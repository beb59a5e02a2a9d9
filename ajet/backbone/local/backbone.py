"""LocalBackbone: the contract's face of this folder. It joins a model, its trainer and an engine over its weights."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from loguru import logger

from ajet.algorithm import opened
from ajet.backbone.canary import PROMPT, REPLY, Canary, gap_of
from ajet.backbone.contract import Rehearsal, Scorer, Update
from ajet.backbone.local.engines import PausableEngine, open_engine
from ajet.backbone.local.machine import (
    bound_kernel_caches,
    choose_device,
    choose_dtype,
    choose_threads,
    leave_start_out,
    release_memory,
)
from ajet.backbone.local.rehearsal import rehearsed
from ajet.backbone.local.requirements import require_trainable
from ajet.backbone.local.trainer import Trainer
from ajet.backbone.scoring import scored
from ajet.engine.adapters import Adapters
from ajet.engine.agreed import Agreed
from ajet.engine.openmp import leave_team
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Floats
from ajet.schema.errors import ConfigError
from ajet.schema.timeline import SampledSpan, Timeline

if TYPE_CHECKING:
    from ajet.backbone.contract import Scorer
    from ajet.backbone.local.engines import PausableEngine
    from ajet.config import AjetConfig, Experiment
    from ajet.engine.contract import ChatEngine, TokenEngine
    from ajet.engine.model_source import ModelSource


class LocalBackbone:
    """Trains in this process. Raises UserError for a model, device or engine that cannot be used."""

    trains = True

    def __init__(self, experiment: Experiment) -> None:
        from ajet.engine.model_source import locate
        from ajet.engine.models import load_model, load_tokenizer

        config = experiment.ajet
        path = require_trainable(config)
        settings = config.trainer_common
        device = choose_device(settings.device)
        bound_kernel_caches()
        choose_threads(settings.threads, device)
        torch.manual_seed(config.seed)
        source = locate(path, base=experiment.base, trust_remote_code=config.model.trust_remote_code)
        self.tokenizer: Any = load_tokenizer(source)
        dtype = choose_dtype(config.model.dtype, device)
        model = load_model(source, dtype=dtype, device=device, max_model_len=config.rollout.max_model_len)
        agreed = Agreed() if settings.canary is not None else None  # which holds the weights that a verdict does not
        algorithm, start = opened(config, base=experiment.base), _beginning(config, source)
        self.trainer = Trainer(model, config, algorithm, start=start, agreed=agreed)
        weights = self.trainer.policy.weights
        logger.info(
            "{} trains {:.1f}M weights in {} on {}",
            source.path,
            weights.size / 1e6,
            str(weights.values.dtype).removeprefix("torch."),
            device,
        )
        self.version = 0
        self._sampler: PausableEngine = open_engine(config, source, self.trainer.policy, agreed)
        self.engine: TokenEngine | ChatEngine = self._sampler
        self._canary = Canary(settings.canary, rounded=dtype != torch.float32)
        self._alarm = settings.mismatch_alarm(rounded=dtype != torch.float32)
        self._gap: float | None = None
        self._ask_canary()
        self._left_out = leave_start_out()

    @property
    def adapters(self) -> Adapters:
        """Which agents have which; empty where there is one or none."""
        return self.trainer.policy.adapters

    @property
    def whole_version(self) -> int | None:
        """The version of the weights as they are."""
        return None if self.trainer.torn else self.trainer.version

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
            return rehearsed(self.trainer, lengths, device)

    def save(self, folder: Path) -> None:
        """Write a checkpoint into an existing empty folder."""
        self.trainer.save(folder, self.tokenizer)
        leave_team()

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        self.trainer.load(folder)
        self._weights_changed()

    def _weights_changed(self) -> dict[str, float]:
        """Hand them over; answers what the canary says. Raises UserError when it says so twice."""
        self.version = self.trainer.version
        self._sampler.weights_changed(self.version)
        return self._ask_canary()

    def _ask_canary(self) -> dict[str, float]:
        if self._canary.tolerance is None:
            return {}
        with self.scorer() as scorer:
            adapters = self.adapters.names
            gap = gap_of(*scored_reply(self._sampler, scorer, self.tokenizer, version=self.version, adapters=adapters))
        leave_team()
        self._gap = gap
        self._canary.judge(gap, version=self.version)
        return {"canary_gap": gap}

    def close(self) -> None:
        """End the engine. Idempotent."""
        self.engine.close()
        if self._left_out:
            self._left_out = False
            gc.unfreeze()


def _beginning(config: AjetConfig, source: ModelSource) -> Path | None:
    """The folder whose adapters training goes on from; None: there are none. Raises ConfigError where they would be
    left behind."""
    saved = Adapters.saved(source.folder) if source.folder is not None else Adapters([])
    left = sorted({*saved.names} - {*config.trainer_common.lora.adapters})
    if left:
        raise ConfigError(
            f"The model has adapters that this training would leave behind: {', '.join(left)}.",
            where="ajet.trainer_common.lora.adapters",
            expected=f"those of {source.path}: {', '.join(saved.names)}, and more where you like",
            do="name them there, or remove the model folder's adapters/ to begin without",
        )
    return source.folder if saved else None


def scored_reply(
    engine: PausableEngine, scorer: Scorer, tokenizer: Any, *, version: int, adapters: Sequence[str] = ()
) -> tuple[Floats, Floats]:
    """Return the logprobs of the canary's reply at temperature 1 by the engine and by the trainer, [T] each.

    The reply is the engine's most likely tokens after a fixed prompt; with several adapters there is one of each. No
    cache, count or random number of the run changes. `version`: of the weights.
    """
    each: Sequence[str | None] = adapters or [None]
    both = [_reply(engine, scorer, tokenizer, version, adapter) for adapter in each]
    return np.concatenate([found for found, _ in both]), np.concatenate([own for _, own in both])


def _reply(
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
    [own] = scored(scorer, [sample], tokens=ids.size, temperature=1.0)
    return found[mask], own[mask]
