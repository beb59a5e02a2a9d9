"""The token ids of a reply written by a person or program instead of sampled.

Invariant: the ids are the chat template's text behind the prompt, from the first token of the reply to its end token,
and they parse to the written message. Otherwise `InexactReplyError` is raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ajet.context_tracker.matching import message_key
from ajet.schema.call import Ids
from ajet.schema.errors import UserError
from ajet.tokens.content_format import Message
from ajet.tokens.renderer import Rendered, Renderer


class InexactReplyError(UserError):
    """The template and tokenizer do not determine the tokens of a reply."""


def written_reply(
    words: Renderer,
    earlier_prompt: Rendered,
    history: Sequence[Message],
    reply: Message,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[Ids, Message]:
    """Return the ids [R] of `reply`, end token included, and their parsed message.

    Args:
        words: The renderer.
        earlier_prompt: The prompt of `history`.
    Raises:
        InexactReplyError: The ids cannot be determined.
        TemplateRefused: The template refuses the conversation.
    """
    prompt = words.template.text(history, tools)
    full_text = words.template.text([*history, reply], tools, prompt=False)
    if not full_text.startswith(prompt):
        raise InexactReplyError(
            "the chat template changes the conversation's earlier text once the reply is added, so the reply's "
            "own text cannot be found",
            expected="a template that appends the reply to the prompt and leaves the prompt unchanged",
        )
    encoded = words.encode(full_text[len(prompt) :])
    end_positions = np.flatnonzero(np.isin(encoded, words.end_ids))
    ids = encoded[: int(end_positions[0]) + 1] if end_positions.size else np.append(encoded, np.int32(words.end_ids[0]))
    if end_positions.size and words.decode(encoded[ids.size :]).strip():
        raise InexactReplyError("the reply contains the text of an end token, or the template continues after one")
    if not words.decode(ids, after=earlier_prompt.ids).startswith(full_text[len(prompt) :][:1]):
        raise InexactReplyError("the tokenizer encodes the reply differently after the prompt than alone")
    parsed = words.parse(ids, tools=tools, earlier_prompt=earlier_prompt)
    if (difference := _find_difference(reply, parsed)) is not None:
        raise InexactReplyError(f"the chat template writes {difference} in a way that cannot be read back")
    return ids, parsed


def _find_difference(written_message: Message, parsed: Message) -> str | None:
    """Return the part in which a parsed message differs from the written one, or None.

    Blanks around texts are ignored.
    """
    for name in ("content", "reasoning_content"):
        written_text, parsed_text = _join_text(written_message.get(name)), _join_text(parsed.get(name))
        if written_text != parsed_text and (name == "content" or written_text):
            return "its content" if name == "content" else "its reasoning"
    calls = [{"role": "assistant", "tool_calls": message.get("tool_calls")} for message in (written_message, parsed)]
    return None if message_key(calls[0]) == message_key(calls[1]) else "its tool calls"


def _join_text(content: Any) -> str:
    """Return a message's content, a string or a list of blocks, as one text without blanks around it."""
    if isinstance(content, list):
        content = "".join(str(block.get("text") or "") for block in content)
    return (content or "").strip()
