"""Episodes as the record sees them: calls that extend, fork and were cut off, with timelines built by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel

from ajet.record.episode_codec import rebuild
from ajet.schema.call import Call, RawPrompt, Terms, VersionRun
from ajet.schema.episode import Episode, Failure, SampledSpan, Verdict
from ajet.schema.process_reward import ProcessReward, ReplySpan
from ajet.schema.task import Task
from ajet.schema.tool_use import ToolUse, compute_digest

PARTS = (
    ProcessReward(reward=0.5, step=0, tokens=(ReplySpan(0, 0, 5),)),
    ProcessReward(reward=-1.0, text="no", name="a guess", tokens=(ReplySpan(1, 2, 4), ReplySpan(2, 0, 1))),
)


def call(index: int, parent: int | None, prefix: int, suffix: int, replied: int, seed: int = 0, **more: Any) -> Call:
    """A call of random tokens with the given lengths."""
    draw = np.random.default_rng((seed, index))
    values: dict[str, Any] = {
        "index": index,
        "agent": "solver",
        "target": "policy",
        "trained": True,
        "parent": parent,
        "prefix": prefix,
        "suffix_ids": draw.integers(0, 150_000, suffix).astype(np.int32),
        "response_ids": draw.integers(0, 150_000, replied).astype(np.int32),
        "logprobs": -draw.random(replied, dtype=np.float32),
        "logprobs_unit": -draw.random(replied, dtype=np.float32),
        "versions": (VersionRun(0, 3, 3), VersionRun(replied // 2, 3, 4)),
        "finish": "stop",
        "messages": (0, 1),
        "tools": None,
        "reply": 2,
    }
    return Call(**(values | more))


TOLD: dict[str, Any] = {
    "terms": Terms(True, 0.9, 5, "named", "f", False, RawPrompt("and", 9)),
    "stop": "END",
    "rejected": "no JSON",
    "resumed": 2,
    "checks": ("nonsense",),
}
"""All that is said of a call that is not as most are."""


def episode(uuid: str = "e0", seed: int = 0, **more: Any) -> Episode:
    """Two calls that extend each other, a fork of the first, and a call that was cut off."""
    calls = [
        call(0, None, 0, 12, 5, seed),
        call(1, 0, 17, 4, 6, seed, messages=(0, 1, 2, 3), tools=0),
        call(2, 0, 9, 3, 4, seed, fork="template", finish="length", extra={"served": "ajet"}, **TOLD),
        call(3, None, 0, 2, 0, seed, finish="aborted", versions=(), reply=None, error="cancelled"),
    ]
    timelines = [
        rebuild(calls, 1, "solver", "policy", (SampledSpan(0, 12, 17), SampledSpan(1, 21, 27))),
        rebuild(calls, 2, "solver", "policy", (SampledSpan(2, 12, 16),)),
    ]
    values: dict[str, Any] = {
        "uuid": uuid,
        "task": Task(main_query="1+1?", task_id="t1", metadata={"answer": "2"}),
        "repeat": 1,
        "step": 7,
        "split": "train",
        "group": "g0",
        "order": 3,
        "run": "abc",
        "sampler": "machine-7",
        "verdict": Verdict(1.0, True, "equal", process=PARTS),
        "calls": calls,
        "messages": [{"role": "user", "content": "α"}, {"role": "system", "content": "s"}, {"role": "assistant"}, {}],
        "tools": [[{"type": "function", "function": {"name": "f"}}]],
        "tool_uses": [
            ToolUse("f", {"x": [1, None]}, "αβ", compute_digest("αβγ"), 1.5, 1.75, "", "s", "call-0", whole=3),
            ToolUse("f", {}, "", compute_digest("gone"), 1.75, 2.0, "transport"),
        ],
        "timelines": timelines,
        "untrained": Counter({"aborted_call": 0, "over_length": 3}),
        "metadata": {"final_answer": "2", "nested": {"list": [1, None, True]}},
        "metrics": {"tool_calls": 2.0},
        "printed": "a line",
        "checks": ["nonsense"],
        "started": 1.5,
        "ended": 2.25,
        "utc_offset": -12600,
    }
    return Episode(**(values | more))


def failed(uuid: str = "e1") -> Episode:
    """An episode whose workflow raised before any call."""
    failure = Failure("agent", "ValueError", "no", retryable=True, traceback="Traceback…")
    return episode(uuid, status="failed", failure=failure, verdict=None, calls=[], timelines=[])


def assert_equal(one: Any, other: Any, where: str = "episode") -> None:
    """Raises AssertionError at the first field that differs; arrays are compared by type and bits."""
    assert type(one) is type(other), where
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes(), where
    elif is_dataclass(one):
        for field in fields(one):
            assert_equal(getattr(one, field.name), getattr(other, field.name), f"{where}.{field.name}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal(a, b, f"{where}[{index}]")
    elif isinstance(one, BaseModel):
        assert one.model_dump() == other.model_dump(), where
    else:
        assert one == other, where
