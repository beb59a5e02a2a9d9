"""The conversation of one attempt, shortened when the context would overflow.

Invariants: system prompt and task always stay. One message tells the model about the omitted part. A message is kept or
dropped as a unit. Each change adds one entry to `changes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ajet.schema.errors import EngineFailure
from ajet.schema.task import extract_text
from ajet_mcp.results import CountTokens

if TYPE_CHECKING:
    from openai import AsyncOpenAI


Overflow = Literal["disabled", "discard_all_tools", "discard_all", "summarize"]
FRAME = 16
"""Upper bound of the tokens that the chat template adds to a message."""
SUMMARIZE = (
    "The context is nearly full. Write down, in short, all that you have found out and what is still to be done."
)
_NOTES = {
    "discard_all_tools": "[The context was full. Your earlier tool calls and their results are left out.]",
    "discard_all": "[The context was full. All that you did before is left out; begin again.]",
    "summarize": "[The context was full. This is your own summary of what you did before:]\n{}",
}
_LEFT_OUT = "[left out: the context is full]"


class Conversation:
    """Holds the messages of the next request, counts their tokens, and shortens them."""

    def __init__(self, opening: Sequence[Mapping[str, Any]], room: int, reply_room: int) -> None:
        """Start a conversation from its first messages.

        Args:
            opening: system prompt and task; never dropped.
            room: largest number of tokens of prompt and reply together.
            reply_room: part of `room` reserved for the next reply, in tokens.
        """
        self.messages: list[dict[str, Any]] = [dict(message) for message in opening]
        self.changes: list[dict[str, Any]] = []
        self._opening_count, self._context_room, self._reply_room = len(self.messages), room, reply_room
        self._counted_tokens = 0
        """Tokens of the messages before index `_first_uncounted`, from the usage of the last reply."""
        self._first_uncounted = 0

    def replied(self, message: Mapping[str, Any], tokens: int) -> None:
        """Append a reply of the model.

        Args:
            message: the reply as a chat message.
            tokens: tokens of the request's prompt and this reply, from the response's usage.
        """
        self.messages.append(dict(message))
        self._counted_tokens, self._first_uncounted = tokens, len(self.messages)

    def add(self, message: Mapping[str, Any]) -> None:
        """Append a message that is no reply of the model: a tool result or a user message."""
        self.messages.append(dict(message))

    @property
    def is_at_its_shortest(self) -> bool:
        """True if only the first messages and at most one more remain, so shortening would not help."""
        return len(self.messages) <= self._opening_count + 1

    async def would_overflow(self, count: CountTokens) -> bool:
        """Return True if the next prompt would leave less than `reply_room` tokens for a reply.

        Without a reply since the last change there is no token count yet, and the result is False.

        Args:
            count: returns the number of tokens of a text.
        """
        if not self._counted_tokens:
            return False
        new_messages = self.messages[self._first_uncounted :]
        texts = [extract_text(message) for message in new_messages]
        free_tokens = self._context_room - self._reply_room - self._counted_tokens - FRAME * len(new_messages)
        # The byte count is an upper bound, which saves a token count in nearly all steps.
        if sum(len(text.encode("utf-8", "replace")) for text in texts) <= free_tokens:  # a token has at least one byte
            return False
        return sum([await count(text) for text in texts]) > free_tokens

    def for_summary(self) -> list[dict[str, Any]]:
        """Return the messages of a request for a summary, with tool results since the last reply left out."""
        shortened = [{**message, "content": _LEFT_OUT} if message.get("role") == "tool" else message
                     for message in self.messages[self._first_uncounted :]]  # fmt: skip
        return [*self.messages[: self._first_uncounted], *shortened, {"role": "user", "content": SUMMARIZE}]

    def shorten(self, how: Overflow, step: int, summary: str = "") -> None:
        """Drop messages and append a note about them for the model.

        Args:
            how: "discard_all_tools" keeps only texts of the model. "discard_all" and "summarize" drop all but the first
                messages.
            step: index of the agent's step, for the record.
            summary: the model's own summary, for "summarize".
        """
        count_before = len(self.messages)
        remaining = self.messages[: self._opening_count]
        if how == "discard_all_tools":
            remaining += [
                {"role": "assistant", "content": message["content"]}
                for message in self.messages[self._opening_count :]
                if message.get("role") == "assistant" and message.get("content")
            ]
        self.messages = [*remaining, {"role": "user", "content": _NOTES[how].format(summary)}]
        self._counted_tokens = self._first_uncounted = 0
        self.changes.append({"how": how, "step": step, "messages": count_before, "left": len(self.messages)})


# Token counts and image support of the model, measured through the gateway and its tokenizer.
# Invariant: counting samples no reply and records no call. For a server with chat completions alone, a token counts
# as three bytes.
BYTES_A_TOKEN = 3
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@dataclass(slots=True)
class _Known:
    """Facts about the model that are measured once per run and are equal for all attempts."""

    frame: int | None = None
    """Tokens of the chat template around a text; -1 if the server cannot count, None before the first request."""
    sees_images: bool | None = None


_known: dict[str, _Known] = {}


def forget(run: str) -> None:
    """Drop the cached facts about the model at the start of a run.

    Args:
        run: key of the run within this process.
    """
    _known.pop(run, None)


class TokenCounts:
    """Counts tokens of texts by requests to the gateway, which has the model's tokenizer."""

    def __init__(self, client: AsyncOpenAI, run: str) -> None:
        self._client, self._known_counts = client, _known.setdefault(run, _Known())

    async def __call__(self, text: str) -> int:
        """Return the number of tokens of a text, without the tokens of the chat template.

        If the server cannot count, three bytes count as one token.
        """
        if self._known_counts.frame is None:
            count_of_one = await self._count_prompt("a")  # the text "a" is one token
            self._known_counts.frame = count_of_one - 1 if count_of_one is not None else -1
        if self._known_counts.frame < 0:
            return len(text.encode("utf-8", "replace")) // BYTES_A_TOKEN + 1
        total = await self._count_prompt(text)
        return max(0, (total or 0) - self._known_counts.frame)

    async def sees_images(self) -> bool:
        """Return True if the model accepts a request with an image; measured once per run."""
        if self._known_counts.sees_images is None:
            source = {"type": "base64", "media_type": "image/png", "data": _PIXEL}
            self._known_counts.sees_images = await self._count_prompt([{"type": "image", "source": source}]) is not None
        return self._known_counts.sees_images

    async def _count_prompt(self, content: Any) -> int | None:
        """Return the prompt tokens of one user message with this content.

        None: the server refuses the content, for example an image.

        Raises:
            EngineFailure: the request failed.
        """
        import openai

        body = {"model": "ajet", "messages": [{"role": "user", "content": content}]}
        try:
            answer: Any = await self._client.post("/messages/count_tokens", cast_to=dict[str, Any], body=body)
        except openai.BadRequestError:
            return None
        except openai.OpenAIError as error:
            raise EngineFailure(f"tokens cannot be counted: {error}") from error
        return int(answer["input_tokens"])
