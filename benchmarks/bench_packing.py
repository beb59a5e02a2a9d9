"""Packing: an update whose tasks begin alike, against one that computes their common beginning once a group.

The model is the addition task's, SmolLM2-135M in bfloat16 on one thread, and so are the lengths: a system prompt and a
worked example of 50 tokens that all tasks share, 9 of the question, replies of 15. What is timed is a whole update, the
optimizer's step included, in processor seconds, each way in turn; the loss must be the same, and the gradient's norm
within rounding. With `--shared` of some hundreds rounding is all that is left of the norm: in bfloat16 the gradients of
so many random tokens are several times those of float32 in transformers' own pass, too, so that it is printed only.

    python benchmarks/bench_packing.py [--rounds 2] [--shared 50]

Limit, over 32 tasks of 2 attempts: at least 1.3 times faster.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from ratios import kept

from ajet.config import load_experiment
from ajet.context_tracker import packing
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.episode import SampledSpan, Timeline

ADDITION = Path(__file__).parent / "addition" / "addition.yaml"
SHARED, QUESTION, REPLY = 50, 9, 15
SCENES = ((8, 8), (16, 4), (32, 2))
LIMIT = 1.3


def batch(groups: int, repeats: int, shared: int, vocabulary: int) -> TrainingBatch:
    """Random tokens: all begin alike, those of a group go on alike, each reply is its own."""
    draw = np.random.default_rng(0)
    beginning, samples = draw.integers(0, vocabulary, shared), []
    for group in range(groups):
        prompt = np.concatenate([beginning, draw.integers(0, vocabulary, QUESTION)])
        for repeat in range(repeats):
            ids = np.concatenate([prompt, draw.integers(0, vocabulary, REPLY)]).astype(np.int32)
            mask = np.arange(ids.size) >= prompt.size
            zeros, versions = np.zeros(ids.size, np.float32), np.where(mask, 0, -1).astype(np.int32)
            spans = (SampledSpan(0, prompt.size, ids.size),)
            timeline = Timeline(0, "a", "a", ids, mask, zeros, zeros, versions, spans)
            advantages = np.where(mask, draw.normal(), 0).astype(np.float32)
            samples.append(Sample(timeline, f"{group}/{repeat}", group, advantages, 1 / (groups * repeats * REPLY)))
    return TrainingBatch(1, samples)


def updated(trainer: Any, of: TrainingBatch, *, joined: bool) -> tuple[float, dict[str, float]]:
    """Processor seconds of an update and its metrics."""
    small, long = packing.SMALL, packing.LONG
    if not joined:
        packing.SMALL, packing.LONG = 0, sys.maxsize
    try:
        began = time.process_time()
        metrics = trainer.update(of)
        return time.process_time() - began, metrics
    finally:
        packing.SMALL, packing.LONG = small, long


def main() -> None:
    """Print a table; exit 1 below the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--shared", type=int, default=SHARED)
    given = parser.parse_args()
    import torch

    from ajet.backbone.local.trainer import Trainer
    from ajet.engine.model_source import locate_model
    from ajet.engine.models import load_model

    torch.set_num_threads(1)
    experiment = load_experiment(ADDITION, overrides=["trainer_common.optim.lr=0"])  # the weights stay as they are
    config = experiment.ajet
    assert config.model.path is not None
    where = locate_model(config.model.path, base=experiment.base)
    model = load_model(where, dtype=torch.bfloat16, device=torch.device("cpu"))
    vocabulary, trainer = model.config.get_text_config().vocab_size, Trainer(model, config)
    trainer.update(batch(2, 2, given.shared, vocabulary))  # takes the memory that all share
    ratio = math.nan
    for groups, repeats in SCENES:
        of, told = batch(groups, repeats, given.shared, vocabulary), {}
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(given.rounds):
            for joined in (False, True):
                took, told[joined] = updated(trainer, of, joined=joined)
                seconds[joined].append(took)
        apart, both = (told[joined] for joined in (False, True))
        assert math.isclose(apart["loss"], both["loss"], rel_tol=1e-4, abs_tol=1e-6), (apart, both)
        norms = apart["grad_norm"], both["grad_norm"]
        if given.shared <= SHARED:
            assert math.isclose(*norms, rel_tol=0.02), (apart, both)
        slow, fast = (statistics.median(seconds[joined]) for joined in (False, True))
        ratio = slow / fast
        print(f"{groups:3} tasks of {repeats}: {slow:5.1f} s, {apart['computed_tokens']:.0f} tokens", end=", ")
        print(f"joined {fast:5.1f} s, {both['computed_tokens']:.0f} tokens: {ratio:.2f} ×", end=", ")
        print("gradients of norm {:.3g} and {:.3g}".format(*norms), flush=True)
    sys.exit(not kept("an update of 32 tasks of 2 that begin alike", ratio, at_least=LIMIT))


if __name__ == "__main__":
    main()
