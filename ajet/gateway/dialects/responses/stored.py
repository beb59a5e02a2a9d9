"""Stored responses: the state of the protocol's server between requests.

Invariant: a stored response is found by its id until it is deleted or its episode's session ends; the items of a
conversation are stored once each, however many responses contain them. All code runs on the gateway's loop.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ajet.gateway.request import Refused

Item = dict[str, Any]
CALLS = 16
"""Assumed number of function calls per response, if only the newest are stored."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A stored response, its predecessor, its own input items, and the response as sent."""

    previous: StoredResponse | None
    input: Sequence[Item]
    response: dict[str, Any]

    def conversation(self) -> list[Item]:
        """Return all items up to the response's input: items of earlier responses, then its own."""
        items: list[Item] = []
        chain: list[StoredResponse] = [self]
        while chain[-1].previous is not None:
            chain.append(chain[-1].previous)
        for link in reversed(chain):
            items += link.input
            if link is not self:
                items += link.response["output"]
        return items


class StoredResponses:
    """The stored responses of one session."""

    def __init__(self) -> None:
        self._responses: dict[str, StoredResponse] = {}
        self._items_by_id: dict[str, Item] = {}
        self._value_by_digest: dict[bytes, Any] = {}
        self._replies: dict[str, str] = {}
        """Id of a function call -> id of the response with the call."""

    def keep(self, previous: StoredResponse | None, items: Sequence[Item], response: dict[str, Any]) -> None:
        """Store a response that has ended.

        Args:
            previous: The response that it continues.
            items: Its own input items.
            response: The response as sent.
        """
        own_items = tuple([self._intern_value(item) for item in items])
        response = {**response, "tools": self._intern_value(response["tools"])}
        self._responses[response["id"]] = StoredResponse(previous, own_items, response)
        for item in (*own_items, *response["output"]):
            if isinstance(item.get("id"), str):
                self._items_by_id[item["id"]] = item

    def called(self, call: str, response: str) -> None:
        """Record which response contains a function call. The response itself need not be stored.

        Args:
            call: Id of the function call.
            response: Id of the response.
        """
        self._replies[call] = response

    def reply_of(self, call: str) -> str | None:
        """Return the id of the response that contains a function call, or None for calls outside this session."""
        return self._replies.get(call)

    def find(self, name: str) -> StoredResponse | None:
        """Return the response with an id, or `None` if not stored."""
        return self._responses.get(name)

    def get(self, name: str) -> StoredResponse:
        """Return the response with an id. Raises Refused (404)."""
        stored = self._responses.get(name)
        if stored is None:
            raise Refused(f"Response with id '{name}' not found.", status=404, code="not_found", param="response_id")
        return stored

    def delete(self, name: str) -> dict[str, Any]:
        """Delete a response. Conversations that continue it still contain its items. Raises Refused (404)."""
        self.get(name)
        del self._responses[name]
        return {"id": name, "object": "response.deleted", "deleted": True}

    def keep_newest(self, count: int) -> None:
        """Delete all responses except the newest and their predecessors, for an endless session."""
        newest = list(self._responses.items())[-count:]
        links: dict[int, StoredResponse] = {}
        for _, stored in newest:
            link: StoredResponse | None = stored
            while link is not None and id(link) not in links:
                links[id(link)] = link
                link = link.previous
        self._responses = dict(newest)
        items = [item for link in links.values() for item in (*link.input, *link.response["output"])]
        self._items_by_id = {item["id"]: item for item in items if isinstance(item.get("id"), str)}
        self._value_by_digest = {}
        self._replies = dict(list(self._replies.items())[-CALLS * count :])

    def item(self, name: str) -> Item | None:
        """Return a stored item by its id."""
        return self._items_by_id.get(name)

    def _intern_value(self, value: Any) -> Any:
        """Return the stored value that equals `value`: items repeated by many requests are stored once."""
        json_bytes = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
        return self._value_by_digest.setdefault(hashlib.blake2b(json_bytes, digest_size=16).digest(), value)


def find_stored_responses(dialect_state: dict[str, Any]) -> StoredResponses:
    """Return the stored responses of a session from the dialects' state."""
    return dialect_state.setdefault("responses", StoredResponses())


def item_list(stored: StoredResponse, *, order: str, limit: int, after: str | None) -> dict[str, Any]:
    """Return one page of a response's input: items of earlier responses, then its own.

    Args:
        order: "asc" or "desc" (newest first).
        limit: Number of items on a page.
        after: Id of the last item of the preceding page. None: the first page.

    Raises:
        Refused: The item `after` does not exist.
    """
    items = [_build_listed(item, index) for index, item in enumerate(stored.conversation())]
    if order == "desc":
        items.reverse()
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise Refused(f"Item with id '{after}' not found.", status=404, code="not_found", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }


def _build_listed(item: Item, at: int) -> Item:
    """Return an item as listed for clients: with id, status and type, and its text as a content part.

    Args:
        at: The item's position, which names it if it has no id.
    """
    kind = item.get("type") or "message"
    listed_item: Item = {"id": item.get("id") or f"item_{at}", "status": "completed", **item, "type": kind}
    listed_item["id"] = listed_item["id"] or f"item_{at}"
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        listed_item["content"] = [{"type": part, "text": item["content"]}]
        if part == "output_text":
            listed_item["content"][0]["annotations"] = []
    return listed_item
