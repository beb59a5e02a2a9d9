"""Tiny models, samples and configurations for the tests of algorithm/ and backbone/local/."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ajet.config.schema.experiment import AjetConfig
from ajet.schema.batch import Sample
from ajet.schema.call import Call, VersionRun
from ajet.schema.episode import Episode, Group, SampledSpan, Timeline, Verdict
from ajet.schema.task import Task

VOCABULARY = 97


def tiny_qwen3(*, seed: int = 0, dtype: torch.dtype = torch.float32, layers: int = 2, **config: Any) -> Any:
    """A Qwen3 with 2 key heads for 4 query heads."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    shape = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=layers)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=0.2)
    return Qwen3ForCausalLM(Qwen3Config(**{**shape, **heads, "tie_word_embeddings": True, **config})).to(dtype).eval()


def tiny_llama(*, seed: int = 0, **config: Any) -> Any:
    """A Llama with untied embeddings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    shape = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2)
    return LlamaForCausalLM(LlamaConfig(**{**shape, **heads, **config})).eval()


def config_of(**changes: Any) -> AjetConfig:
    """Defaults without a KL term; `a__b=value` sets ajet.trainer_common.a.b, `rollout__x` and `data__x` theirs."""
    config = AjetConfig()
    for name, value in {"use_kl_loss": False, "rollout__temperature": 1.0, **changes}.items():
        *path, last = name.split("__")
        node: Any = config if path and path[0] in ("rollout", "data") else config.trainer_common
        for part in path:
            node = getattr(node, part)
        assert last in type(node).model_fields, name
        object.__setattr__(node, last, value)
    return config


def timeline_of(ids: Sequence[int], runs: Sequence[tuple[int, int]], logprobs: Any = None) -> Timeline:
    """A timeline whose tokens in `runs` were sampled, one call each."""
    mask = np.zeros(len(ids), np.bool_)
    for start, stop in runs:
        mask[start:stop] = True
    values = np.zeros(len(ids), np.float32) if logprobs is None else np.asarray(logprobs, np.float32)
    spans = tuple(SampledSpan(call, start, stop) for call, (start, stop) in enumerate(runs))
    versions = np.where(mask, 0, -1).astype(np.int32)
    return Timeline(len(runs) - 1, "a", "a", np.asarray(ids, np.int32), mask, values, values.copy(), versions, spans)


def sample_of(
    ids: Sequence[int],
    runs: Sequence[tuple[int, int]],
    *,
    advantage: float = 1.0,
    weight: float = 1.0,
    group: int = 0,
    episode: str = "e",
    logprobs: Any = None,
) -> Sample:
    """A sample with one advantage for all its trained tokens."""
    timeline = timeline_of(ids, runs, logprobs)
    advantages = np.where(timeline.mask, advantage, 0).astype(np.float32)
    return Sample(timeline, episode, group, advantages, weight)


def random_samples(seed: int = 0, *, groups: int = 2, size: int = 3, turns: int = 2) -> list[Sample]:
    """Groups of samples that share a prompt; some share a first reply too, as two attempts with a common turn do."""
    draw = np.random.default_rng(seed)
    samples = []
    for group in range(groups):
        prompt = draw.integers(0, VOCABULARY, 6).tolist()
        opening = draw.integers(0, VOCABULARY, 4).tolist()
        for index in range(size):
            ids, runs = list(prompt), []
            for turn in range(turns):
                reply = opening if turn == 0 and index > 0 else draw.integers(0, VOCABULARY, 2 + index).tolist()
                runs.append((len(ids), len(ids) + len(reply)))
                ids += reply + draw.integers(0, VOCABULARY, 2).tolist()
            logprobs = np.log(draw.uniform(0.01, 0.9, len(ids)))
            advantage = float(draw.normal())
            samples.append(
                sample_of(
                    ids,
                    runs,
                    advantage=advantage,
                    weight=0.1 + 0.05 * index,
                    group=group,
                    episode=f"{group}/{index}",
                    logprobs=logprobs,
                )
            )
    return samples


def plain_logprobs(model: Any, sample: Sample, temperature: float = 1.0) -> torch.Tensor:
    """[T_e] the trained tokens' logprobs by the model's own forward pass over this sample alone."""
    ids = torch.from_numpy(sample.timeline.ids).long()
    logits = model(input_ids=ids[None], use_cache=False).logits[0].float() / temperature
    at = torch.from_numpy(np.flatnonzero(sample.timeline.mask))
    return torch.log_softmax(logits[at - 1], -1).gather(1, ids[at][:, None]).squeeze(1)


def episode_of(
    reward: float | None, lengths: Sequence[int] = (3,), *, uuid: str = "e", status: Any = "completed", seed: int = 0
) -> Episode:
    """An episode with one timeline per entry of `lengths`, each with that many sampled tokens after two of prompt."""
    draw = np.random.default_rng(seed)
    calls, timelines = [], []
    for index, length in enumerate(lengths):
        ids = draw.integers(0, VOCABULARY, 2 + length).tolist()
        zeros = np.zeros(length, np.float32)
        calls.append(
            Call(
                index,
                "a",
                "a",
                True,
                None,
                0,
                np.asarray(ids[:2], np.int32),
                np.asarray(ids[2:], np.int32),
                zeros,
                zeros,
                (VersionRun(0, 0, 0),),
                "stop",
                (),
                None,
                None,
            )
        )
        timeline = timeline_of(ids, [(2, 2 + length)])
        timeline.spans = (SampledSpan(index, 2, 2 + length),)
        timelines.append(timeline)
    task = Task(task_id="t")
    verdict = Verdict(reward) if reward is not None else None
    return Episode(uuid, task, 0, 1, "train", status=status, verdict=verdict, calls=calls, timelines=timelines)


def calls_of(timeline: Timeline, like: Call) -> list[Call]:
    """The calls that a timeline came of, each going on from the one before; it ends in the last."""
    made: list[Call] = []
    before = 0
    for span in timeline.spans:
        part = slice(span.start, span.stop)
        made.append(
            replace(
                like,
                index=span.call,
                parent=span.call - 1 if made else None,
                prefix=before,
                suffix_ids=timeline.ids[before : span.start],
                response_ids=timeline.ids[part],
                logprobs=timeline.logprobs[part],
                logprobs_unit=timeline.logprobs[part],
            )
        )
        before = span.stop
    timeline.leaf = timeline.spans[-1].call
    return made


def group_of(*episodes: Episode) -> Group:
    """A group of one task."""
    return Group(Task(task_id="t"), 0, list(episodes))


def weights_of(trainer: Any) -> torch.Tensor:
    """All that it trains, in the precision of its optimizer."""
    return trainer.policy.weights.master(0, trainer.policy.weights.size).clone()
