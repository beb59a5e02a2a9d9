"""Traces as tasks, as rows to learn (`ajet sft`), and as pairs.

Invariant: a row learns nothing that somebody disliked: where a reply was rated by itself only it is learned, and where
it was corrected, the corrected text is learned in its place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.schema.messages import extract_text
from ajet.schema.task import Task
from ajet_datagen.tracing.choosing import asked
from ajet_datagen.tracing.trace import Message, Trace, said_in

if TYPE_CHECKING:
    from ajet_datagen.config import Tracing

WEIGHT = "weight"
"""Of an assistant's message: 0 is context (docs/sft.md)."""


def task_of(trace: Trace, settings: Tracing) -> Task:
    """The task of a trace: its messages up to the reply. A question alone has no `init_messages`."""
    rating = trace.rating
    fine = settings.answers == "any" if rating.worth is None else rating.worth >= settings.liked_from
    answer = rating.corrected
    if answer is None and fine:
        answer = extract_text(trace.reply) or None
    told = {
        "answer": answer,
        "reward": rating.worth,
        "corrected": True if rating.corrected is not None else None,
        "comment": rating.comment,
        "agent": trace.agent or None,
        "model": trace.model or None,
        "session": trace.session or None,
        "trace": trace.where,
        "tools": list(trace.tools) or None,
    }
    context = [dict(each) for each in _asked_of(trace)]
    alone = len(context) == 1 and context[0].get("role") == "user"
    return Task(
        main_query=trace.question if alone else _last_question(context),
        init_messages=[] if alone else context,
        metadata={name: value for name, value in told.items() if value is not None},
    )


def learned_rows(traces: Iterable[Trace], settings: Tracing, left: Counter[str]) -> Iterator[dict[str, Any]]:
    """Rows of `messages` and `tools`, of liked and of corrected replies."""
    for trace in traces:
        worth, corrected = trace.rating.worth, trace.rating.corrected
        if corrected is None and (worth is None or worth < settings.liked_from):
            left["nothing to learn from: not liked"] += 1
            continue
        if corrected is None and not extract_text(trace.reply) and not trace.reply.get("tool_calls"):
            left["nothing to learn from: an empty reply"] += 1
            continue
        only = trace.alone or corrected is not None
        before = [{**each, WEIGHT: 0} if only and each["role"] == "assistant" else each for each in trace.messages]
        yield _row({"messages": [*before, _reply(trace)]}, trace.tools)


def pairs(traces: Iterable[Trace], left: Counter[str]) -> Iterator[dict[str, Any]]:
    """Rows of `prompt`, `chosen` and `rejected`: a corrected text against what was said, and, where the same was asked
    several times, the best reply against the worst one."""
    same: dict[str, list[Trace]] = defaultdict(list)
    for trace in traces:
        if trace.rating.corrected is not None and trace.rating.corrected != extract_text(trace.reply):
            rows = {"prompt": list(trace.messages), "chosen": [_reply(trace)], "rejected": [trace.reply]}
            yield _row(rows, trace.tools)
        elif trace.rating.worth is not None:
            same[_context(trace)].append(trace)
        else:
            left["no pair: not rated"] += 1
    for group in same.values():
        best, worst = max(group, key=_worth), min(group, key=_worth)
        if _worth(best) > _worth(worst) and said_in(best.reply) != said_in(worst.reply):
            rows = {"prompt": list(best.messages), "chosen": [best.reply], "rejected": [worst.reply]}
            yield _row(rows, best.tools)
        else:
            left["no pair: nothing to compare with"] += len(group)


def _row(row: Mapping[str, Any], tools: Sequence[Message]) -> dict[str, Any]:
    return {**row, **({"tools": list(tools)} if tools else {})}


def _reply(trace: Trace) -> Message:
    """The reply that should have been given."""
    corrected = trace.rating.corrected
    return trace.reply if corrected is None else {"role": "assistant", "content": corrected}


def _asked_of(trace: Trace) -> Sequence[Message]:
    """The conversation up to the last word of the user: what an agent is to answer, its own tools used anew."""
    users = [at for at, each in enumerate(trace.messages) if each.get("role") == "user"]
    return trace.messages[: users[-1] + 1] if users else trace.messages


def _last_question(messages: Sequence[Message]) -> str:
    return next((extract_text(each) for each in reversed(messages) if each.get("role") == "user"), "")


def _context(trace: Trace) -> str:
    return (
        asked(trace) + "\0" + "\0".join(extract_text(each) for each in trace.messages if each.get("role") == "system")
    )


def _worth(trace: Trace) -> float:
    worth = trace.rating.worth
    assert worth is not None, "only rated ones are compared"
    return worth
