"""What a reply says, in each of the client languages, whole and streamed: the text first, then the rest.

A stream must say what the whole says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _chat_sum(reply: Any) -> tuple[Any, ...]:
    message = reply.choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    thought = (message.model_extra or {}).get("reasoning_content") or ""
    return message.content or "", thought, calls, reply.choices[0].finish_reason


def _chat_add_up(events: Any) -> tuple[Any, ...]:
    deltas = [event.choices[0].delta for event in events if event.choices]
    calls: dict[int, tuple[str, str]] = {}
    for delta in deltas:
        for call in delta.tool_calls or ():
            name, arguments = calls.get(call.index, ("", ""))
            calls[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
    thought = "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas)
    said = "".join(delta.content or "" for delta in deltas)
    return said, thought, [calls[at] for at in sorted(calls)], events[-1].choices[0].finish_reason


def _completions_sum(reply: Any) -> tuple[Any, ...]:
    return reply.choices[0].text, reply.choices[0].finish_reason


def _completions_add_up(events: Any) -> tuple[Any, ...]:
    told = [event.choices[0] for event in events if event.choices]
    return "".join(choice.text for choice in told), told[-1].finish_reason


def _responses_sum(reply: Any) -> tuple[Any, ...]:
    thoughts = [item for item in reply.output if item.type == "reasoning"]
    thought = "".join(part.text for item in thoughts for part in item.content or item.summary)
    calls = [(item.name, item.arguments) for item in reply.output if item.type == "function_call"]
    usage = reply.usage
    return reply.output_text, thought, calls, reply.status, usage.input_tokens, usage.output_tokens


def _responses_add_up(events: Any) -> tuple[Any, ...]:
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = [event.item for event in events if event.type == "response.output_item.done"]
    last = events[-1].response
    assert [item.id for item in last.output] == [item.id for item in done]
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == last.output_text
    return _responses_sum(last)


def _messages_sum(reply: Any) -> tuple[Any, ...]:
    texts = "".join(block.text for block in reply.content if block.type == "text")
    thoughts = "".join(block.thinking for block in reply.content if block.type == "thinking")
    calls = [(block.name, block.input) for block in reply.content if block.type == "tool_use"]
    return texts, thoughts, calls, reply.stop_reason, reply.usage.input_tokens, reply.usage.output_tokens


def _messages_add_up(events: Any) -> tuple[Any, ...]:
    from anthropic.lib.streaming._messages import accumulate_event

    message: Any = None
    partial: dict[int, bytes] = {}
    for event in events:
        message = accumulate_event(event=event, current_snapshot=message, json_bufs=partial)
    return _messages_sum(message)


SUM: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "/chat/completions": _chat_sum,
    "/completions": _completions_sum,
    "/responses": _responses_sum,
    "/messages": _messages_sum,
}
"""Of a whole reply, by the language's path."""
ADD_UP: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "/chat/completions": _chat_add_up,
    "/completions": _completions_add_up,
    "/responses": _responses_add_up,
    "/messages": _messages_add_up,
}
"""Of a stream's events."""
