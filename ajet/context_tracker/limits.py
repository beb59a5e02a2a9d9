"""Which timelines of an episode may be trained: how long, and how many.

Invariant: what is left out is counted by reason, token for token, so that sampled = trained + counted; the choice
among too many timelines depends on the seed and the episode alone. A timeline is only ever cut at its end: what
remains is still the exact context that the model saw.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ajet.schema.timeline import SampledSpan, Timeline


def cut_over_length(timelines: Sequence[Timeline], max_tokens: int) -> tuple[list[Timeline], Counter[str]]:
    """Timelines of at most `max_tokens` tokens; the sampled tokens cut off their ends are counted as `over_length`.
    A timeline without a sampled token before the cut is dropped whole."""
    kept: list[Timeline] = []
    untrained: Counter[str] = Counter()
    for timeline in timelines:
        if timeline.ids.size <= max_tokens:
            kept.append(timeline)
            continue
        short = replace(
            timeline,
            ids=timeline.ids[:max_tokens],
            mask=timeline.mask[:max_tokens],
            logprobs=timeline.logprobs[:max_tokens],
            logprobs_unit=timeline.logprobs_unit[:max_tokens],
            versions=timeline.versions[:max_tokens],
            spans=tuple(
                SampledSpan(span.call, span.start, min(span.stop, max_tokens))
                for span in timeline.spans
                if span.start < max_tokens
            ),
        )
        untrained["over_length"] += timeline.sampled - short.sampled
        if short.spans:
            kept.append(short)
    return kept, untrained


def choose(
    timelines: Sequence[Timeline], max_samples: int, *, seed: int, episode: str
) -> tuple[list[Timeline], Counter[str]]:
    """At most `max_samples` of an episode's timelines, each as likely as any other, in their order; the sampled tokens
    of the rest are counted as `max_sample_per_task`."""
    if len(timelines) <= max_samples:
        return list(timelines), Counter()
    chosen = set(random.Random(f"{seed}/{episode}").sample(range(len(timelines)), max_samples))
    dropped = sum(timeline.sampled for index, timeline in enumerate(timelines) if index not in chosen)
    kept = [timeline for index, timeline in enumerate(timelines) if index in chosen]
    return kept, Counter({"max_sample_per_task": dropped})
