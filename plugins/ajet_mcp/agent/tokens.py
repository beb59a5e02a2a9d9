"""Token counts and image support of the model, measured through the gateway and its tokenizer.

Invariant: counting samples no reply and records no call. For a server with chat completions alone, a token counts as
three bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet.schema.errors import EngineFailure

if TYPE_CHECKING:
    from openai import AsyncOpenAI

BYTES_A_TOKEN = 3
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@dataclass(slots=True)
class _Known:
    """Caches facts about the model, equal for all attempts of a run."""

    frame: int | None = None
    """Tokens of the chat template around a text; -1 if the server cannot count, None before the first request."""
    sees_images: bool | None = None


_known: dict[str, _Known] = {}


def forget(run: str) -> None:
    """Drop the cached facts at the start of a run, so the first attempt measures again."""
    _known.pop(run, None)


class TokenCounts:
    """Counts tokens with the tokenizer of the run's model, through the client of an attempt."""

    def __init__(self, client: AsyncOpenAI, run: str) -> None:
        self._client, self._of = client, _known.setdefault(run, _Known())

    async def __call__(self, text: str) -> int:
        """Return the number of tokens of a text."""
        if self._of.frame is None:
            one = await self._count_prompt("a")
            self._of.frame = one - 1 if one is not None else -1
        if self._of.frame < 0:
            return len(text.encode("utf-8", "replace")) // BYTES_A_TOKEN + 1
        total = await self._count_prompt(text)
        return max(0, (total or 0) - self._of.frame)

    async def sees_images(self) -> bool:
        """Return True if the model accepts a request with an image; measured once per run."""
        if self._of.sees_images is None:
            source = {"type": "base64", "media_type": "image/png", "data": _PIXEL}
            self._of.sees_images = await self._count_prompt([{"type": "image", "source": source}]) is not None
        return self._of.sees_images

    async def _count_prompt(self, content: Any) -> int | None:
        """Return the tokens of a prompt with this content, or None if the server refuses the content.

        Raises:
            EngineFailure: the tokens cannot be counted.
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
