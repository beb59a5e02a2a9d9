"""Converts OpenTelemetry GenAI spans (messages as attributes, since 1.37), and AgentScope's, to traces.

Invariant: an unreadable model or agent span raises BadRowError. A span of another kind, or without messages, gives None
and is counted. If a trace has readable model calls, the agent's own span, which sums them up, is dropped.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ajet.task_reader.rows import BadRowError, json_kind, read_finite
from ajet_datagen.tracing.trace import AgentTrace, Message, ReplyRating, select_last

CALLS = ("chat", "generate_content", "text_completion")
AGENTS = ("invoke_agent",)
AGENTSCOPE_REPLY = "ReActAgent.reply"
"""Name of an agent's span in AgentScope before the conventions."""
EVALUATION = "gen_ai.evaluation.result"
_GOOD = {"good", "liked", "like", "positive", "pass", "passed", "correct", "thumbs_up", "thumbs-up", "up"}
_BAD = {"bad", "disliked", "dislike", "negative", "fail", "failed", "incorrect", "thumbs_down", "thumbs-down", "down"}


@dataclass(frozen=True, slots=True)
class Span:
    """One span with flat attribute names. `trace` and `at` give its trace and time."""

    where: str
    name: str
    trace: str
    at: int
    attributes: Mapping[str, Any]
    events: Sequence[tuple[str, Mapping[str, Any]]] = ()


def build_traces(spans: Iterable[Span], bad: list[tuple[str, str]]) -> tuple[list[AgentTrace], int]:
    """Convert spans to the conversations that no later span continues.

    Model calls are preferred to spans of agents, which repeat the same messages with less detail.

    Args:
        bad: receives (place, reason) of unreadable spans.

    Returns:
        The traces, and the number of spans without messages.
    """
    traces: list[AgentTrace] = []
    silent = 0
    for _, group in groupby(sorted(spans, key=lambda span: (span.trace, span.at)), key=lambda span: span.trace):
        calls: list[AgentTrace] = []
        agents: list[AgentTrace] = []
        for span in group:
            kind = _find_kind(span)
            try:
                trace = _build_trace(span) if kind else None
            except BadRowError as problem:
                bad.append((span.where, str(problem)))
                continue
            except RecursionError:
                bad.append((span.where, "nested too deeply"))
                continue
            if trace is None:
                silent += 1
            else:
                (calls if kind == "call" else agents).append(trace)
        agent_names = {agent.agent for agent in agents}
        if len(agent_names) == 1:  # AgentScope's calls do not name their agent
            calls = [call if call.agent else replace(call, agent=agents[0].agent) for call in calls]
        rated = [agent.rating for agent in agents if agent.rating != ReplyRating()]
        if calls and rated:  # an agent's rating is about its answer, the last reply
            last_index = len(calls) - 1
            calls[last_index] = replace(calls[last_index], rating=rated[-1].update_with(calls[last_index].rating))
        traces += select_last(calls or agents)
    return traces, silent


def flatten_attributes(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested attributes under dotted names. Texts, lists and already dotted names stay unchanged.

    Args:
        before: dotted name of `tree`; "" for the top.
    """
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{before}.{name}" if before else str(name)
        if isinstance(value, Mapping) and path.split(".")[0] in ("gen_ai", "agentscope", "error"):
            # Arguments and result of a traced function keep their structure.
            is_structure = path in ("agentscope.function.input", "agentscope.function.output")
            flat |= {path: value} if is_structure else flatten_attributes(value, path)
        else:
            flat[path] = value
    return flat


def _find_kind(span: Span) -> str:
    """Return "call" for a model call, "agent" for an agent's span, "" for any other span."""
    operation = span.attributes.get("gen_ai.operation.name")
    if operation in CALLS:
        return "call"
    return "agent" if operation in AGENTS or span.name == AGENTSCOPE_REPLY else ""


def _build_trace(span: Span) -> AgentTrace | None:
    """Convert a span to a trace, or return None without messages. Raises BadRowError."""
    attributes = span.attributes
    messages, reply = _read_input(attributes), _read_output(attributes)
    if not messages or reply is None:
        return None
    return AgentTrace(
        span.where,
        tuple(messages),
        reply,
        tuple(_read_tools(attributes)),
        str(attributes.get("gen_ai.agent.name") or ""),
        str(attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model") or ""),
        str(attributes.get("gen_ai.conversation.id") or span.trace).strip('"'),
        str(attributes.get("gen_ai.response.id") or ""),
        _read_rating(span),
    )


def _read_input(attributes: Mapping[str, Any]) -> list[Message]:
    """Return the messages that the model or agent received, in OpenTelemetry's or AgentScope's format.

    AgentScope records the arguments of the traced function. Raises BadRowError for another shape.
    """
    system = _parse_json_value(attributes.get("gen_ai.system_instructions"))
    text = _join_texts(system) if isinstance(system, list) else system
    system_messages = [{"role": "system", "content": text}] if isinstance(text, str) and text else []
    input_value = _parse_json_value(attributes.get("gen_ai.input.messages"))
    if input_value is not None:
        return [
            *system_messages,
            *(
                parsed
                for input_message in _require_list(input_value, "gen_ai.input.messages")
                for parsed in _parse_message(input_message)
            ),
        ]
    input_value = _parse_json_value(attributes.get("agentscope.function.input") or attributes.get("input"))
    if not isinstance(input_value, Mapping):
        return []
    kwargs, args = input_value.get("kwargs") or {}, input_value.get("args") or []
    if not isinstance(args, list) or not isinstance(kwargs, Mapping):
        argument_name, wrong_value = ("args", args) if not isinstance(args, list) else ("kwargs", kwargs)
        raise BadRowError(f"{argument_name} of the agent's input is {json_kind(wrong_value)}")
    message = kwargs.get("messages") or kwargs.get("msg")
    return [*system_messages, *_parse_agentscope_value(message if message is not None else args[0] if args else None)]


def _read_output(attributes: Mapping[str, Any]) -> Message | None:
    """Return the last assistant message of the span's output, or None. Raises BadRowError."""
    output_value = _parse_json_value(attributes.get("gen_ai.output.messages"))
    if output_value is not None:
        output_messages = _require_list(output_value, "gen_ai.output.messages")
        messages = [
            parsed
            for output_message in output_messages
            for parsed in _parse_message(output_message)
            if parsed["role"] == "assistant"
        ]
    else:
        messages = _parse_agentscope_value(
            _parse_json_value(attributes.get("agentscope.function.output") or attributes.get("output"))
        )
    return messages[-1] if messages else None


def _require_list(value: Any, name: str) -> list[Any]:
    """Return a list of messages; AgentScope sometimes wrote one message as an object."""
    if isinstance(value, Mapping):
        return [value]
    if not isinstance(value, list):
        raise BadRowError(f"{name} is {json_kind(value)}, expected a list of messages")
    return value


def _parse_message(raw_message: Any) -> list[Message]:
    """Convert a message of OpenTelemetry's parts to Chat Completions messages; tool results become separate messages.

    Raises BadRowError for a part of unknown kind.
    """
    if (
        not isinstance(raw_message, Mapping)
        or not isinstance(raw_message.get("parts"), list)
        or not isinstance(raw_message.get("role"), str)
    ):
        raise BadRowError("a message without role or parts")
    messages: list[Message] = []
    calls: list[Message] = []
    texts: list[str] = []
    thoughts: list[str] = []
    for part in raw_message["parts"]:
        if not isinstance(part, Mapping):
            raise BadRowError("a part that is not an object")
        kind = part.get("type")
        if kind == "text":
            texts.append(str(part.get("content") or ""))
        elif kind == "reasoning":
            thoughts.append(str(part.get("content") or ""))
        elif kind == "tool_call":
            function = {"name": str(part.get("name") or ""), "arguments": _encode_json(part.get("arguments"))}
            calls.append({"id": str(part.get("id") or ""), "type": "function", "function": function})
        elif kind == "tool_call_response":
            response = part.get("response", part.get("result"))
            messages.append(
                {"role": "tool", "tool_call_id": str(part.get("id") or ""), "content": _parse_tool_result(response)}
            )
        else:
            raise BadRowError(f"a part of kind {kind!r:.60}, expected text")
    role = "assistant" if raw_message["role"] in ("assistant", "model") else raw_message["role"]
    if texts or calls or thoughts:
        message: Message = {"role": role, "content": "".join(texts) or (None if calls else "")}
        message |= {"reasoning_content": "".join(thoughts)} if thoughts else {}
        messages.append(message | ({"tool_calls": calls} if calls else {}))
    return messages


def _parse_agentscope_value(value: Any) -> list[Message]:
    """Convert AgentScope's own attributes: formatted messages, or the text of a `Msg`."""
    if isinstance(value, str):
        message = _parse_repr(value)
        return [message] if message is not None else []
    if isinstance(value, list):
        return [message for item in value for message in _parse_agentscope_value(item)]
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        return []
    content = value.get("content")
    text = _join_texts(content) if isinstance(content, list) else content
    message = {"role": value["role"], "content": text if isinstance(text, str) else None}
    message |= {name: str(value[name]) for name in ("tool_call_id", "reasoning_content") if value.get(name)}
    if value.get("tool_calls"):
        message["tool_calls"] = [_parse_tool_call(call) for call in _require_list(value["tool_calls"], "tool_calls")]
    return [message | ({} if message["content"] is not None or "tool_calls" in message else {"content": ""})]


def _parse_tool_call(call: Any) -> Message:
    """Convert a tool call to Chat Completions format."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRowError("a tool call without a function name")
    arguments = {**function, "arguments": _encode_json(function.get("arguments"))}
    return {**call, "id": str(call.get("id") or ""), "type": "function", "function": arguments}


def _parse_repr(text: str) -> Message | None:
    """Parse AgentScope's printed `Msg(name='user', content='…', role='user', …)`; None for another text.

    Only literals are evaluated, no code runs.
    """
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "Msg":
            return None
        fields = {
            keyword.arg: ast.literal_eval(keyword.value)
            for keyword in call.keywords
            if keyword.arg in ("role", "content")
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    messages = _parse_agentscope_value(fields)
    return messages[0] if messages else None


def _join_texts(parts: Sequence[Any]) -> str:
    """Return the texts of content parts, joined."""
    texts = [part.get("content", part.get("text")) for part in parts if isinstance(part, Mapping)]
    return "".join(text for text in texts if isinstance(text, str))


def _read_tools(attributes: Mapping[str, Any]) -> list[Message]:
    """Return the span's tool definitions in Chat Completions format."""
    definitions = _parse_json_value(attributes.get("gen_ai.tool.definitions"))
    tools = []
    for definition in definitions if isinstance(definitions, list) else []:
        if isinstance(definition, Mapping) and isinstance(definition.get("name"), str):
            function = {
                name: definition[name] for name in ("name", "description", "parameters") if definition.get(name)
            }
            tools.append({"type": "function", "function": function})
    return tools


def _read_rating(span: Span) -> ReplyRating:
    """Return the rating in a span's attributes and evaluation events; later ones take precedence.

    Raises BadRowError.
    """
    rating = ReplyRating()
    for attributes in (span.attributes, *(event for name, event in span.events if name == EVALUATION)):
        value, label = attributes.get("gen_ai.evaluation.score.value"), attributes.get("gen_ai.evaluation.score.label")
        label_word = str(label or "").lower()
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        score = read_finite(value, "gen_ai.evaluation.score.value") if is_number else None
        liked = True if label_word in _GOOD else False if label_word in _BAD else None
        comment = attributes.get("gen_ai.evaluation.explanation")
        rating = rating.update_with(ReplyRating(score, liked, None, comment if isinstance(comment, str) else None))
    return rating


def _parse_json_value(value: Any) -> Any:
    """Parse a structure stored as JSON text. Raises BadRowError for malformed JSON."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise BadRowError(f"an attribute that is not JSON: {value[:60]!r}") from None
    return value


def _encode_json(value: Any) -> str:
    """Return a value as JSON text; text stays as it is, and None is an empty object."""
    return value if isinstance(value, str) else json.dumps({} if value is None else value, ensure_ascii=False)


def _parse_tool_result(value: Any) -> str:
    """Convert a tool result; AgentScope stores lists of blocks as JSON."""
    try:
        parts = _parse_json_value(value)
    except BadRowError:
        parts = value
    if isinstance(parts, list) and parts and all(isinstance(part, Mapping) for part in parts):
        return _join_texts(parts) or _encode_json(parts)
    return parts if isinstance(parts, str) else _encode_json(parts)
