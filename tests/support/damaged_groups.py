"""Damaged groups as a shared store may hold them: each kind a change to one healthy attempt, and the reason expected.

`DAMAGED` are changed before they are put, through the store's interface; `DAMAGED_ROWS` are changed in the database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ajet.schema.call import Terms, VersionRun
from ajet.schema.episode import Episode, Failure, SampledSpan, Verdict
from ajet.schema.process_reward import ProcessReward, ReplySpan
from ajet.schema.task import Task

Change = Callable[[Episode], Episode]


def with_verdict(**more: Any) -> Change:
    return lambda each: replace(each, verdict=replace(each.verdict or Verdict(1.0), **more))


def with_call(**more: Any) -> Change:
    return lambda each: replace(each, calls=[replace(each.calls[0], **more), *each.calls[1:]])


def with_timeline(**more: Any) -> Change:
    return lambda each: replace(each, timelines=[replace(each.timelines[0], **more), *each.timelines[1:]])


def with_id(name: str, value: int) -> Change:
    def change(each: Episode) -> Episode:
        ids = getattr(each.calls[0], name).copy()
        ids[0] = value
        return with_call(**{name: ids})(each)

    return change


def with_first_token_target(each: Episode) -> Episode:
    mask = each.timelines[0].mask.copy()
    mask[0] = True
    return with_timeline(mask=mask)(each)


def with_other_ids(each: Episode) -> Episode:
    ids = each.timelines[0].ids.copy()
    ids[1] += 1
    return with_timeline(ids=ids)(each)


def with_other_logprobs(each: Episode) -> Episode:
    return with_timeline(logprobs=each.timelines[0].logprobs - 1)(each)


def with_other_versions(each: Episode) -> Episode:
    return with_timeline(versions=each.timelines[0].versions + 1)(each)


def with_long_timeline(each: Episode) -> Episode:
    """100,000 tokens more in the prompt, consistently."""
    call, line = each.calls[0], each.timelines[0]
    more = np.full(100_000, int(call.suffix_ids[0]), dtype=np.int32)

    def longer(array: Any, fill: Any) -> Any:
        return np.concatenate([np.full(len(more), fill, dtype=array.dtype), array])

    return replace(
        each,
        calls=[replace(call, suffix_ids=np.concatenate([more, call.suffix_ids])), *each.calls[1:]],
        timelines=[
            replace(
                line, ids=np.concatenate([more, line.ids]), mask=longer(line.mask, False),
                logprobs=longer(line.logprobs, 0), logprobs_unit=longer(line.logprobs_unit, 0),
                versions=longer(line.versions, -1),
                spans=tuple(SampledSpan(s.call, s.start + len(more), s.stop + len(more)) for s in line.spans),
            )
        ],
    )  # fmt: skip


DAMAGED: dict[str, tuple[str, Change]] = {
    "reward text": ("number", with_verdict(reward="high")),
    "reward nan": ("number", with_verdict(reward=float("nan"))),
    "reward infinite": ("number", with_verdict(reward=float("inf"))),
    "reward list": ("number", with_verdict(reward=[1.0])),
    "reward object": ("number", with_verdict(reward={"of": 1})),
    "reward huge integer": ("number", with_verdict(reward=10**400)),
    "reward beyond float32": ("number", with_verdict(reward=1e300)),
    "success text": ("number", with_verdict(success="yes")),
    "judge metric text": ("number", with_verdict(metrics={"votes": "three"})),
    "part of the reward text": ("number", with_verdict(parts={"exact": "1"}, scorer="exact")),
    "rewarded part outside": (
        "call", with_verdict(process=(ProcessReward(reward=1.0, step=0, tokens=(ReplySpan(0, 0, 9999),)),))
    ),
    "metric text": ("number", lambda each: replace(each, metrics={"steps": "many"})),
    "metric nan": ("number", lambda each: replace(each, metrics={"steps": float("nan")})),
    "metric huge": ("number", lambda each: replace(each, metrics={"steps": 10**400})),
    "start text": ("unreadable", lambda each: replace(each, started="yesterday")),
    "status unknown": ("status", lambda each: replace(each, status="perhaps")),
    "failed without a failure": ("status", lambda each: replace(each, status="failed")),
    "failure of no boundary": (
        "status", lambda each: replace(each, failure=Failure("moon", "ValueError", "no"))  # type: ignore[arg-type]
    ),
    "check no text": ("number", lambda each: replace(each, checks=[3])),
    "untrained unknown": ("number", lambda each: replace(each, untrained=Counter({"because": 1}))),
    "untrained negative": ("number", lambda each: replace(each, untrained=Counter({"stale": -1}))),
    "untrained too many": ("timeline", lambda each: replace(each, untrained=Counter({"over_length": 3}))),
    "other task": ("task", lambda each: replace(each, task=Task(main_query="?", task_id="another"))),
    "other position": ("task", lambda each: replace(each, order=each.order + 1000)),
    "other split": ("split", lambda each: replace(each, split="validation")),
    "other run": ("policy_version", lambda each: replace(each, run="another")),
    "policy of the future": ("policy_version", with_call(versions=(VersionRun(0, 10**6, 10**6),))),
    "policy before the first": ("policy_version", with_call(versions=(VersionRun(0, -1, -1),))),
    "policy reversed": ("policy_version", with_call(versions=(VersionRun(0, 1, 0),))),
    "no policy": ("policy_version", with_call(versions=())),
    "sampled id outside": ("token_id", with_id("response_ids", 2**31 - 1)),
    "prompt id outside": ("token_id", with_id("suffix_ids", 10**6)),
    "sampled id negative": ("token_id", with_id("response_ids", -1)),
    "prompt id negative": ("token_id", with_id("suffix_ids", -5)),
    "logprob nan": ("number", lambda e: with_call(logprobs=np.full_like(e.calls[0].logprobs, np.nan))(e)),
    "logprob infinite": ("number", lambda e: with_call(logprobs_unit=np.full_like(e.calls[0].logprobs, np.inf))(e)),
    "call number": ("call", with_call(index=7)),
    "adapter unknown": ("timeline", with_call(terms=Terms(adapter="none"), trained=False)),
    "temperature text": ("number", with_call(temperature="hot")),
    "first token a target": ("timeline", with_first_token_target),
    "timeline twice": ("timeline", lambda each: replace(each, timelines=[*each.timelines, each.timelines[0]])),
    "timeline missing": ("timeline", lambda each: replace(each, timelines=[])),
    "timeline of other ids": ("timeline", with_other_ids),
    "timeline of other logprobs": ("timeline", with_other_logprobs),
    "timeline of other versions": ("timeline", with_other_versions),
    "timeline mask too short": ("timeline", lambda e: with_timeline(mask=e.timelines[0].mask[:-1])(e)),
    "timeline ids too short": ("timeline", lambda e: with_timeline(ids=e.timelines[0].ids[:-1])(e)),
    "timeline of 100,000 tokens": ("length", with_long_timeline),
    "span outside": ("unreadable", with_timeline(spans=(SampledSpan(0, 0, 10**6),))),
}  # fmt: skip
"""By name: the kind of the reason, and what damages an attempt."""
ATTEMPTS = {"no attempt": 0, "one attempt": 1, "120 attempts": 120}
"""Groups of another size than 2."""
