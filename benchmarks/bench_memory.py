"""Memory: the peak of a training step against the weights, gradients and optimizer state that it must hold.

The step is the addition task's: 8 prompts of 75 tokens, 8 replies of 15 to each, all trained on, over SmolLM2-135M.
What must be held is counted from the tensors themselves: weights, the masters' low halves, two moments, gradients. The
peak is the process's resident memory (or the GPU's), sampled every 5 ms; the first line is before the model is there.

    python benchmarks/bench_memory.py [--steps 3] [key=value ...]
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import psutil
from ratios import kept

from ajet.config import Experiment, load_experiment
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.episode import SampledSpan, Timeline

ADDITION = Path(__file__).parent / "addition" / "addition.yaml"
GROUPS, REPEATS, PROMPT, REPLY = 8, 8, 75, 15
RATIO_LIMIT = 1.5


class Peak:
    """The largest resident memory while the block ran, in bytes."""

    def __enter__(self) -> Peak:
        self.bytes, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        process = psutil.Process()
        while not self._ended.wait(0.005):
            self.bytes = max(self.bytes, process.memory_info().rss)


def batch(step: int, vocabulary: int, *, groups: int = GROUPS) -> TrainingBatch:
    """A step's samples: random tokens, a different reply for each."""
    draw = np.random.default_rng(step)
    samples = []
    for group in range(groups):
        prompt = draw.integers(0, vocabulary, PROMPT)
        for repeat in range(REPEATS):
            ids = np.concatenate([prompt, draw.integers(0, vocabulary, REPLY)]).astype(np.int32)
            mask = np.arange(ids.size) >= PROMPT
            zeros = np.zeros(ids.size, np.float32)
            versions = np.where(mask, 0, -1).astype(np.int32)
            spans = (SampledSpan(0, PROMPT, ids.size),)
            timeline = Timeline(0, "a", "a", ids, mask, zeros, zeros, versions, spans)
            advantages = np.where(mask, draw.normal(), 0).astype(np.float32)
            samples.append(Sample(timeline, f"{group}/{repeat}", group, advantages, 1 / (groups * REPEATS * REPLY)))
    return TrainingBatch(step, samples)


def measure(experiment: Experiment, steps: int) -> float:
    """Print a table; answers the ratio."""
    import torch

    from ajet.backbone.local.machine import bound_kernel_caches, choose_device, choose_dtype
    from ajet.backbone.local.trainer import Trainer
    from ajet.engine.model_source import locate_model
    from ajet.engine.models import load_model
    from ajet.engine.thread_count import choose_threads

    config = experiment.ajet
    device = choose_device(config.trainer_common.device)
    bound_kernel_caches()
    choose_threads(config.trainer_common.threads, device)
    assert config.model.path is not None
    empty = psutil.Process().memory_info().rss
    model = load_model(
        locate_model(config.model.path, base=experiment.base),
        dtype=choose_dtype(config.model.dtype, device),
        device=device,
    )
    vocabulary = model.config.get_text_config().vocab_size
    trainer = Trainer(model, config)
    weights, optimizer = trainer.policy.weights, trainer.optimizer
    held = {"weights": weights.values, "low halves of masters": weights.low}
    held |= {"first moment": optimizer.first, "second moment": optimizer.second}
    sizes = {name: tensor.nbytes for name, tensor in held.items() if tensor is not None}
    opened = weights.open_gradients
    computed = []

    def watched(*, passes: int) -> torch.Tensor:
        gradients = opened(passes=passes)
        sizes[f"gradients ({passes} passes)"] = gradients.nbytes
        return gradients

    weights.open_gradients = watched  # type: ignore[method-assign]
    seconds = []
    with Peak() as peak:
        for step in range(steps):
            start = time.perf_counter()
            computed.append(trainer.update(batch(step, vocabulary))["computed_tokens"])
            seconds.append(time.perf_counter() - start)
    if device.type == "cuda":
        empty, peak.bytes = 0, torch.cuda.max_memory_allocated()
    must = sum(sizes.values())
    for name, size in {"before the model": empty, **sizes}.items():
        print(f"{name:24} {size / 1e6:8.0f} MB")
    print(f"{'peak':24} {peak.bytes / 1e6:8.0f} MB, of which {(peak.bytes - empty) / 1e6:.0f} MB for training")
    each, all_tokens = min(seconds), GROUPS * REPEATS * (PROMPT + REPLY)
    print(f"a step: {each:.2f} s, {torch.get_num_threads()} threads, {computed[0]:.0f} of {all_tokens} tokens computed")
    return (peak.bytes - empty) / must


def main() -> None:
    """Print the ratio; exit 1 above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the addition task's configuration")
    arguments = parser.parse_args()
    experiment = load_experiment(ADDITION, backbone="local", overrides=arguments.overrides)
    ratio = measure(experiment, arguments.steps)
    print(f"peak / what must be held: {ratio:.2f} (limit {RATIO_LIMIT})")
    sys.exit(not kept("peak against what must be held", ratio, at_most=RATIO_LIMIT))


if __name__ == "__main__":
    main()
