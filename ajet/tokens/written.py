"""A written reply as the ids that would have been sampled.

Invariant: what is answered is a beginning of what the chat template puts after the prompt, from the first token of the
reply to its end token, and reads as the message that was written. Where that cannot be had, no ids are made up.
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


class NotExact(UserError):
    """The template and tokenizer do not say which tokens the reply has."""


def written_reply(
    words: Renderer,
    before: Rendered,
    history: Sequence[Message],
    reply: Message,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[Ids, Message]:
    """[R] the ids of `reply` after the prompt `before`, which shows `history`, its end token included, and the message
    that they say. Raises NotExact, TemplateRefused."""
    prompt = words.template.text(history, tools)
    whole = words.template.text([*history, reply], tools, prompt=False)
    if not whole.startswith(prompt):
        raise NotExact(
            "the chat template shows this history otherwise once it is answered: no text is the reply's alone",
            expected="a template that puts a reply after the prompt as the model was shown it",
        )
    encoded = words.encode(whole[len(prompt) :])
    ends = np.flatnonzero(np.isin(encoded, words.end_ids))
    ids = encoded[: int(ends[0]) + 1] if ends.size else np.append(encoded, np.int32(words.end_ids[0]))
    if ends.size and words.decode(encoded[ids.size :]).strip():
        raise NotExact("the reply holds the text of an end token, or the template goes on after one")
    if not words.decode(ids, after=before.ids).startswith(whole[len(prompt) :][:1]):
        raise NotExact("the tokenizer encodes a reply otherwise where it follows a prompt")
    said = words.parse(ids, tools=tools, before=before)
    if (wrong := _difference(reply, said)) is not None:
        raise NotExact(f"the chat template writes {wrong} so that it does not read as the same")
    return ids, said


def _difference(written: Message, said: Message) -> str | None:
    """Which part of a message its tokens do not say; blanks around texts are the template's to keep."""
    for name in ("content", "reasoning_content"):
        given, read = _text(written.get(name)), _text(said.get(name))
        if given != read and (name == "content" or given):
            return "its content" if name == "content" else "its reasoning"
    calls = [{"role": "assistant", "tool_calls": message.get("tool_calls")} for message in (written, said)]
    return None if message_key(calls[0]) == message_key(calls[1]) else "its tool calls"


def _text(content: Any) -> str:
    if isinstance(content, list):
        content = "".join(str(block.get("text") or "") for block in content)
    return (content or "").strip()
