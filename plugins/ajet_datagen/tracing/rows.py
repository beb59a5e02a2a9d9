"""Convert traces to tasks, training rows (`ajet sft`) and preference pairs.

Invariant: disliked replies are never trained on. If a reply was rated by itself, only that reply is trained; a
corrected text replaces its reply.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.schema.messages import extract_text
from ajet.schema.task import Task
from ajet_datagen.tracing.choosing import question_key
from ajet_datagen.tracing.trace import AgentTrace, Message, reply_key

if TYPE_CHECKING:
    from ajet_datagen.config import Tracing

WEIGHT = "weight"
"""Loss weight of an assistant message: 0 is context (docs/sft.md)."""


def build_task(trace: AgentTrace, settings: Tracing) -> Task:
    """Return the task of a trace: its messages up to the reply. A single question has no `init_messages`."""
    rating = trace.rating
    fine = settings.answers == "any" if rating.score is None else rating.score >= settings.liked_from
    answer = rating.corrected
    if answer is None and fine:
        answer = extract_text(trace.reply) or None
    metadata = {
        "answer": answer,
        "reward": rating.score,
        "corrected": True if rating.corrected is not None else None,
        "comment": rating.comment,
        "agent": trace.agent or None,
        "model": trace.model or None,
        "session": trace.session or None,
        "trace": trace.where,
        "tools": list(trace.tools) or None,
    }
    context = [dict(each) for each in _get_context(trace)]
    alone = len(context) == 1 and context[0].get("role") == "user"
    return Task(
        main_query=trace.question if alone else _find_last_question(context),
        init_messages=[] if alone else context,
        metadata={name: value for name, value in metadata.items() if value is not None},
    )


def build_learned_rows(traces: Iterable[AgentTrace], settings: Tracing, left: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield rows of `messages` and `tools` for liked and corrected replies."""
    for trace in traces:
        score, corrected = trace.rating.score, trace.rating.corrected
        if corrected is None and (score is None or score < settings.liked_from):
            left["not used for training, because the reply is not liked"] += 1
            continue
        if corrected is None and not extract_text(trace.reply) and not trace.reply.get("tool_calls"):
            left["not used for training, because the reply is empty"] += 1
            continue
        only = trace.is_rated_alone or corrected is not None
        before = [{**each, WEIGHT: 0} if only and each["role"] == "assistant" else each for each in trace.messages]
        yield _build_row({"messages": [*before, _get_wanted_reply(trace)]}, trace.tools)


def build_pairs(traces: Iterable[AgentTrace], left: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield rows of `prompt`, `chosen` and `rejected`: a corrected text against the reply, and the best against the
    worst reply to equal questions."""
    same: dict[str, list[AgentTrace]] = defaultdict(list)
    for trace in traces:
        if trace.rating.corrected is not None and trace.rating.corrected != extract_text(trace.reply):
            rows = {"prompt": list(trace.messages), "chosen": [_get_wanted_reply(trace)], "rejected": [trace.reply]}
            yield _build_row(rows, trace.tools)
        elif trace.rating.score is not None:
            same[_context_key(trace)].append(trace)
        else:
            left["no pair, because the reply is not rated"] += 1
    for group in same.values():
        best, worst = max(group, key=_get_score), min(group, key=_get_score)
        if _get_score(best) > _get_score(worst) and reply_key(best.reply) != reply_key(worst.reply):
            rows = {"prompt": list(best.messages), "chosen": [best.reply], "rejected": [worst.reply]}
            yield _build_row(rows, best.tools)
        else:
            left["no pair, because there is no second reply to compare with"] += len(group)


def _build_row(row: Mapping[str, Any], tools: Sequence[Message]) -> dict[str, Any]:
    return {**row, **({"tools": list(tools)} if tools else {})}


def _get_wanted_reply(trace: AgentTrace) -> Message:
    """Return the corrected reply, or the reply without correction."""
    corrected = trace.rating.corrected
    return trace.reply if corrected is None else {"role": "assistant", "content": corrected}


def _get_context(trace: AgentTrace) -> Sequence[Message]:
    """Return the messages up to the last user message; the agent's own tool calls after it are left out."""
    users = [at for at, each in enumerate(trace.messages) if each.get("role") == "user"]
    return trace.messages[: users[-1] + 1] if users else trace.messages


def _find_last_question(messages: Sequence[Message]) -> str:
    return next((extract_text(each) for each in reversed(messages) if each.get("role") == "user"), "")


def _context_key(trace: AgentTrace) -> str:
    return (
        question_key(trace)
        + "\0"
        + "\0".join(extract_text(each) for each in trace.messages if each.get("role") == "system")
    )


def _get_score(trace: AgentTrace) -> float:
    score = trace.rating.score
    assert score is not None, "only rated replies are compared"
    return score
