"""Stored responses: what the protocol's server remembers from one request to the next.

Invariant: a stored response is found by its id until it is deleted or its episode's session ends; the items of a
conversation are stored once each, however many responses contain them. Everything runs on the gateway's loop.
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
"""About how many function calls a response has, if only the newest are stored."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A stored response: the one before it, its own input items, and the response as it was sent."""

    previous: StoredResponse | None
    input: Sequence[Item]
    response: dict[str, Any]

    def conversation(self) -> list[Item]:
        """Return every item up to its input: of earlier responses, then its own."""
        items: list[Item] = []
        chain: list[StoredResponse] = [self]
        while chain[-1].previous is not None:
            chain.append(chain[-1].previous)
        for link in reversed(chain):
            items += link.input
            if link is not self:
                items += link.response["output"]
        return items


class KeptResponses:
    """The stored responses of one session."""

    def __init__(self) -> None:
        self._responses: dict[str, StoredResponse] = {}
        self._items: dict[str, Item] = {}
        self._same: dict[bytes, Any] = {}
        self._replies: dict[str, str] = {}
        """Id of a function call -> the response that made it."""

    def keep(self, previous: StoredResponse | None, items: Sequence[Item], response: dict[str, Any]) -> None:
        """Store a response that has ended."""
        own = tuple([self._intern_value(item) for item in items])
        response = {**response, "tools": self._intern_value(response["tools"])}
        self._responses[response["id"]] = StoredResponse(previous, own, response)
        for item in (*own, *response["output"]):
            if isinstance(item.get("id"), str):
                self._items[item["id"]] = item

    def called(self, call: str, response: str) -> None:
        """Store that a response, stored or not, made a function call."""
        self._replies[call] = response

    def reply_of(self, call: str) -> str | None:
        """Return the response that made a function call; None if it was not of this session."""
        return self._replies.get(call)

    def find(self, name: str) -> StoredResponse | None:
        """Return the response of an id; None if it is not stored."""
        return self._responses.get(name)

    def get(self, name: str) -> StoredResponse:
        """Return the response of an id. Raises Refused: 404."""
        kept = self._responses.get(name)
        if kept is None:
            raise Refused(f"Response with id '{name}' not found.", status=404, code="not_found", param="response_id")
        return kept

    def delete(self, name: str) -> dict[str, Any]:
        """Delete a response; conversations that continue it keep their items. Raises Refused: 404."""
        self.get(name)
        del self._responses[name]
        return {"id": name, "object": "response.deleted", "deleted": True}

    def keep_newest(self, count: int) -> None:
        """Delete all responses except the newest and those that they continue; for a session that does not end."""
        newest = list(self._responses.items())[-count:]
        links: dict[int, StoredResponse] = {}
        for _, kept in newest:
            link: StoredResponse | None = kept
            while link is not None and id(link) not in links:
                links[id(link)] = link
                link = link.previous
        self._responses = dict(newest)
        items = [item for link in links.values() for item in (*link.input, *link.response["output"])]
        self._items = {item["id"]: item for item in items if isinstance(item.get("id"), str)}
        self._same = {}
        self._replies = dict(list(self._replies.items())[-CALLS * count :])

    def item(self, name: str) -> Item | None:
        """Return an item by its id."""
        return self._items.get(name)

    def _intern_value(self, value: Any) -> Any:
        spelled = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
        return self._same.setdefault(hashlib.blake2b(spelled, digest_size=16).digest(), value)


def kept_responses(kept: dict[str, Any]) -> KeptResponses:
    """Return the stored responses of a session, from its memory for dialects."""
    return kept.setdefault("responses", KeptResponses())


def item_list(kept: StoredResponse, *, order: str, limit: int, after: str | None) -> dict[str, Any]:
    """Return a page of the items that a response is based on.

    Args:
        order: "asc", or newest first.
        after: Id of the last item of the page before.

    Raises:
        Refused: There is no such item.
    """
    listed = [_build_listed(item, at) for at, item in enumerate(kept.conversation())]
    if order == "desc":
        listed.reverse()
    if after is not None:
        ids = [item["id"] for item in listed]
        if after not in ids:
            raise Refused(f"Item with id '{after}' not found.", status=404, code="not_found", param="after")
        listed = listed[ids.index(after) + 1 :]
    page = listed[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(listed) > len(page),
    }


def _build_listed(item: Item, at: int) -> Item:
    kind = item.get("type") or "message"
    listed: Item = {"id": item.get("id") or f"item_{at}", "status": "completed", **item, "type": kind}
    listed["id"] = listed["id"] or f"item_{at}"
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        listed["content"] = [{"type": part, "text": item["content"]}]
        if part == "output_text":
            listed["content"][0]["annotations"] = []
    return listed
