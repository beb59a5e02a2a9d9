"""Output: a reply as items, and the events of its stream.

Invariant: the events of a reply build exactly its items. An item's events lie between its `output_item.added` and its
`output_item.done`; items follow each other in the model's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet.gateway.dialects.responses.items import sealed
from ajet.gateway.dialects.responses.stored import Item
from ajet.gateway.dialects.responses.tools import Namespaces
from ajet.gateway.dialects.token_logprobs import Decode, build_token_logprobs
from ajet.gateway.reply import Reply, ReplyChunk

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Telling:
    """The optional parts of a response requested by the client."""

    decode: Decode | None = None
    """Returns a token's text; set if the client requests logprobs."""
    top_logprobs: int = 0
    summary: bool = False
    """True if reasoning also goes into the summary, in full."""
    sealed: bool = False
    """True if reasoning also goes into `encrypted_content`."""
    namespaces: Namespaces = field(default_factory=dict)


class Output:
    """The growing items of one response. The dialect's stream adds the sequence numbers of the events."""

    def __init__(self, response: str, telling: Telling, called: Callable[[str, str], None]) -> None:
        """Begin a response.

        Args:
            response: Id of the response.
            telling: Optional parts that the client requested.
            called: Called with (call id, response id) for every function call.
        """
        self.items: list[Item] = []
        self._response_id = response
        self._format = telling
        self._on_call = called
        self._open_item_type: str | None = None
        """The type of the item extended by the next delta."""
        self._call: int | None = None
        self._pending: list[str] = []
        """Text of the open item, not yet appended: appending to a long text each time would copy it."""
        self._pending_logprobs: list[dict[str, Any]] = []
        """Logprobs of tokens whose text was not sent yet."""

    def feed(self, chunk: ReplyChunk) -> Iterator[Event]:
        """Yield the events of the next part of the reply."""
        options = self._format
        if options.decode is not None and len(chunk.ids):
            self._pending_logprobs += [
                _with_bytes(entry)
                for entry in build_token_logprobs(
                    options.decode, options.top_logprobs, chunk.ids, chunk.logprobs, chunk.top
                )
            ]
        for delta in chunk.deltas:
            if delta.get("reasoning_content"):
                yield from self._add_reasoning(delta["reasoning_content"])
            if delta.get("content"):
                yield from self._begin_text(delta["content"])
            for call in delta.get("tool_calls") or ():
                yield from self._add_call(call)

    def end(self, status: str) -> Iterator[Event]:
        """Yield the events of the reply's end. `status` becomes the status of the last item."""
        if not any(item["type"] != "reasoning" for item in self.items):
            yield from self._begin_text("")
        yield from self._end_item(status)

    def settle(self) -> None:
        """Append the text collected for the open item to the item."""
        text, self._pending = "".join(self._pending), []
        if self._open_item_type == "function_call":
            self.items[-1]["arguments"] += text
        elif self._open_item_type is not None:
            for part in (*self.items[-1]["content"], *self.items[-1].get("summary", ())):
                part["text"] += text

    def _add_reasoning(self, text: str) -> Iterator[Event]:
        """Yield the events of more reasoning. The first text opens a new item."""
        if self._open_item_type != "reasoning":
            item: Item = {"type": "reasoning", "summary": [], "content": []}
            yield from self._begin_item(item, "rs")
            part = {"type": "reasoning_text", "text": ""}
            item["content"].append(part)
            yield self._build_event("response.content_part.added", content_index=0, part=dict(part))
            if self._format.summary:
                part = {"type": "summary_text", "text": ""}
                item["summary"].append(part)
                yield self._build_event("response.reasoning_summary_part.added", summary_index=0, part=dict(part))
        self._pending.append(text)
        yield self._build_event("response.reasoning_text.delta", content_index=0, delta=text)
        if self._format.summary:
            yield self._build_event("response.reasoning_summary_text.delta", summary_index=0, delta=text)

    def _begin_text(self, text: str) -> Iterator[Event]:
        """Yield the events of more text. The first text opens a new message item."""
        if self._open_item_type != "message":
            item: Item = {"type": "message", "role": "assistant", "content": []}
            yield from self._begin_item(item, "msg")
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"].append(part)
            yield self._build_event("response.content_part.added", content_index=0, part={**part, "logprobs": []})
        if text:
            yield self._add_text(text)

    def _add_text(self, text: str) -> Event:
        """Add text with the logprobs of the tokens sampled since the last text."""
        logprobs, self._pending_logprobs = self._pending_logprobs, []
        self._pending.append(text)
        self.items[-1]["content"][0]["logprobs"] += logprobs
        return self._build_event("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _add_call(self, call: dict[str, Any]) -> Iterator[Event]:
        """Yield the events of a tool call's next part. Another call's first part opens a new item."""
        function = call.get("function") or {}
        if self._open_item_type != "function_call" or self._call != call.get("index", 0):
            call_id = call.get("id") or f"call_{self._response_id}_{len(self.items)}"
            self._on_call(call_id, self._response_id)
            function_name = function.get("name") or ""
            namespace, function_name = self._format.namespaces.get(function_name, (None, function_name))
            item: Item = {"type": "function_call", "call_id": call_id, "name": function_name, "arguments": ""}
            if namespace is not None:
                item["namespace"] = namespace
            yield from self._begin_item(item, "fc")
            self._call = call.get("index", 0)
        arguments = function.get("arguments")
        if arguments:
            self._pending.append(arguments)
            yield self._build_event("response.function_call_arguments.delta", delta=arguments)

    def _begin_item(self, item: Item, kind: str) -> Iterator[Event]:
        """Complete the open item, append a new one, and yield the events of both.

        Args:
            item: The new item, without id and status.
            kind: Prefix of its id, such as "msg".
        """
        yield from self._end_item("completed")
        item["id"] = f"{kind}_{self._response_id.partition('_')[2]}_{len(self.items)}"
        item["status"] = "in_progress"
        self._open_item_type = item["type"]
        # A copy: the event shows the item without the parts that are added later.
        empty_item = {name: [] if isinstance(value, list) else value for name, value in item.items()}
        self.items.append(item)
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": empty_item}

    def _end_item(self, status: str) -> Iterator[Event]:
        """Yield the events that complete the open item, if there is one."""
        if self._open_item_type is None:
            return
        if self._open_item_type == "message" and self._pending_logprobs:  # the end token of the reply has no text
            yield self._add_text("")
        self.settle()
        item = self.items[-1]
        if self._open_item_type == "message":
            part = item["content"][0]
            texts = {"text": part["text"], "logprobs": part["logprobs"]}
            yield self._build_event("response.output_text.done", content_index=0, **texts)
            yield self._build_event("response.content_part.done", content_index=0, part=part)
        elif self._open_item_type == "reasoning":
            part = item["content"][0]
            yield self._build_event("response.reasoning_text.done", content_index=0, text=part["text"])
            yield self._build_event("response.content_part.done", content_index=0, part=part)
            for part in item["summary"]:
                yield self._build_event("response.reasoning_summary_text.done", summary_index=0, text=part["text"])
                yield self._build_event("response.reasoning_summary_part.done", summary_index=0, part=part)
            if self._format.sealed:
                item["encrypted_content"] = sealed(item["content"][0]["text"])
        else:
            call = {"name": item["name"], "arguments": item["arguments"]}
            yield self._build_event("response.function_call_arguments.done", **call)
        item["status"] = status
        self._open_item_type = None
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    def _build_event(self, kind: str, **values: Any) -> Event:
        """Return an event about the latest item."""
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **values}


def build_complete_chunk(reply: Reply) -> ReplyChunk:
    """Return a complete reply as one chunk."""
    message = reply.message or {}
    deltas: list[dict[str, Any]] = [
        {name: message[name]} for name in ("reasoning_content", "content") if message.get(name)
    ]
    for index, call in enumerate(message.get("tool_calls") or ()):
        deltas.append({"tool_calls": [{**call, "index": index}]})
    return ReplyChunk(deltas, reply.ids, reply.unit_logprobs, reply.top)


def reasoning_tokens(ids: Sequence[int], message: dict[str, Any], decode: Decode | None) -> int:
    """Return how many first tokens of the reply contain its reasoning, the opening tag included."""
    thought = message.get("reasoning_content")
    if not thought or decode is None:
        return 0
    low, high = 0, len(ids)
    while low < high:  # binary search for the shortest beginning whose text has the reasoning
        middle = (low + high) // 2
        if thought in decode(ids[:middle]):
            high = middle
        else:
            low = middle + 1
    return low


def _with_bytes(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a logprobs entry with [] for unknown bytes, since this protocol's `bytes` is never null."""
    alternatives = [{**alternative, "bytes": alternative["bytes"] or []} for alternative in entry["top_logprobs"]]
    return {**entry, "bytes": entry["bytes"] or [], "top_logprobs": alternatives}
