"""Extension: does the template show a longer history as what was sampled, then something new?

Invariant: yes only if its text is the earlier prompt's and the sampled text, then a suffix. Two things may differ: how
a tool call is spelled (key order, blanks, escapes, where harmony puts the recipient), if both spellings read as the
same message; and with `keep_thinking` thoughts that the template has stripped since. What is answered is text to put
after what was sampled, never text to put in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ajet.context_tracker.matching import message_key

_THOUGHTS = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
Respelled = tuple[int, int, str]
"""(start, end, the template's spelling): where a prompt's text is as sampled instead."""


@dataclass(frozen=True, slots=True)
class Said:
    """A reply's text: `thought`, then `rest`, then the end token's `end` (empty where none was sampled)."""

    thought: str
    rest: str
    end: str


@dataclass(frozen=True, slots=True)
class Extension:
    """What follows the reply, and the template's own spelling of `Said.rest` where that differs."""

    suffix: str
    spelled: str | None = None


Reads = Callable[[str], dict[str, Any]]
"""A reply's text (without its end token) as a message."""


def own_text(text: str, respelled: Sequence[Respelled]) -> str:
    """The text that the template itself gives for a prompt."""
    parts: list[str] = []
    at = 0
    for start, end, spelled in respelled:
        parts += [text[at:start], spelled]
        at = end
    return "".join(parts) + text[at:]


def extension(text: str, before: str, reply: str) -> Extension | None:
    """How `text`, the template's of the whole history, goes on after `before` (its own of the earlier prompt) and the
    reply as sampled."""
    if not text.startswith(before) or not text.startswith(reply, len(before)):
        return None
    return Extension(text[len(before) + len(reply) :])


def extension_respelled(text: str, before: str, said: Said, *, ends: Sequence[str], reads: Reads) -> Extension | None:
    """The extension where the reply's tool calls may be spelled otherwise. `ends`: the spellings of all end tokens."""
    start = len(before) + len(said.thought)
    if not text.startswith(before) or not text.startswith(said.thought, len(before)):
        return None
    found = [at for end in ([said.end] if said.end else ends) if (at := text.find(end, start)) >= 0]
    if not found:
        return None
    spelled = text[start : min(found)]
    if not _same(said, spelled, reads):
        return None
    return Extension(text[min(found) + len(said.end) :], spelled)


def extension_beyond_thoughts(
    text: str, before: str, said: Said, after: str, *, called: bool, reads: Reads
) -> Extension | None:
    """The extension where thoughts may have been stripped from `text`; `after` is what the template puts after the
    reply."""
    if not after.startswith(said.end):
        return None
    suffix = after[len(said.end) :]
    told, tail, head = (_THOUGHTS.sub("", each) for each in (text, after, before + said.thought))
    if not told.startswith(head) or not told.endswith(tail) or len(told) < len(head) + len(tail):
        return None
    spelled = told[len(head) : len(told) - len(tail)]
    if spelled == said.rest:
        return Extension(suffix)
    return Extension(suffix, spelled) if called and _same(said, spelled, reads) else None


def _same(said: Said, spelled: str, reads: Reads) -> bool:
    ours, theirs = (reads(said.thought + rest) for rest in (said.rest, spelled))
    thoughts = [message.get("reasoning_content") for message in (ours, theirs)]
    return message_key(ours) == message_key(theirs) and thoughts[0] == thoughts[1]
