"""How long texts are for the model, and whether it sees images: asked of the gateway, which has the tokenizer.

Invariant: nothing is sampled, and nothing is recorded of it. Where the model is a server that only chats, a token is
taken to be three bytes.
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
    """Facts about the model that are the same for all attempts of a run."""

    frame: int | None = None
    """Tokens of a message around its text; -1 where nobody counts; None: not asked yet."""
    sees_images: bool | None = None


_known: dict[str, _Known] = {}


def forget(run: str) -> None:
    """A run begins: its first attempt will ask."""
    _known.pop(run, None)


class TokenCounts:
    """Counts tokens as the run's model does, through an attempt's client."""

    def __init__(self, client: AsyncOpenAI, run: str) -> None:
        self._client, self._of = client, _known.setdefault(run, _Known())

    async def __call__(self, text: str) -> int:
        """Tokens of a text."""
        if self._of.frame is None:
            one = await self._count_prompt("a")
            self._of.frame = one - 1 if one is not None else -1
        if self._of.frame < 0:
            return len(text.encode("utf-8", "replace")) // BYTES_A_TOKEN + 1
        whole = await self._count_prompt(text)
        return max(0, (whole or 0) - self._of.frame)

    async def sees_images(self) -> bool:
        """Whether the model takes a request with an image; asked once a run."""
        if self._of.sees_images is None:
            source = {"type": "base64", "media_type": "image/png", "data": _PIXEL}
            self._of.sees_images = await self._count_prompt([{"type": "image", "source": source}]) is not None
        return self._of.sees_images

    async def _count_prompt(self, content: Any) -> int | None:
        """Tokens of a prompt with this content; None where it is refused. Raises EngineFailure."""
        import openai

        body = {"model": "ajet", "messages": [{"role": "user", "content": content}]}
        try:
            answer: Any = await self._client.post("/messages/count_tokens", cast_to=dict[str, Any], body=body)
        except openai.BadRequestError:
            return None
        except openai.OpenAIError as error:
            raise EngineFailure(f"tokens could not be counted: {error}") from error
        return int(answer["input_tokens"])
