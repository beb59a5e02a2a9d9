"""Rehearsal: an agent's turns played through a renderer without a model.

Invariant: what is played is what runs do (render, parse, extend), on replies as the chat template itself spells them,
so that a fork here is a fork there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ajet.schema.call import Ids
from ajet.tokens.end_tokens import MARK
from ajet.tokens.renderer import Rendered, Renderer
from ajet.tokens.template import Message, TemplateRefused

Outcome = Literal["extends", "forks", "refused", "misread"]
"""`refused`: the template raises; `misread`: the reply does not parse to the message it spells."""

TOOL: Message = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string", "description": "The word."},
                "page": {"type": "integer", "description": "Which page of results."},
            },
            "required": ["word"],
        },
    },
}


def call(word: str, page: int, index: int = 0) -> Message:
    """A call of TOOL, as a client sends it back."""
    function = {"name": "look_up", "arguments": json.dumps({"word": word, "page": page}, ensure_ascii=False)}
    return {"id": f"call_{word}_{index}", "type": "function", "function": function}


def result(of: Message, text: str) -> Message:
    """The message with which a tool answers call `of`."""
    return {"role": "tool", "tool_call_id": of["id"], "content": text}


def own_reply(
    renderer: Renderer,
    messages: Sequence[Message],
    reply: Message,
    follow: Message,
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    respell: bool = False,
) -> Ids:
    """The reply to `messages` as the template spells it when it is the last message, ended as it is before `follow`;
    `respell`: JSON without blanks and with escapes, as a model might. Raises TemplateRefused."""
    text = renderer.template.text
    head, full = text(messages, tools), text([*messages, reply], tools, prompt=False)
    if full.startswith(head):
        said = full[len(head) :]
    else:  # what came before is rendered otherwise by now: the reply is what follows the same opening
        opening = head.removeprefix(text(messages, tools, prompt=False))
        marked = text([*messages[:-1], {**messages[-1], "content": MARK}, reply], tools, prompt=False)
        _, found, said = marked.rpartition(MARK)[2].partition(opening) if opening else ("", "", "")
        said = said if found else reply.get("content") or ""
    ends = {renderer.decode([token]): token for token in renderer.end_ids}
    cuts = [at for spelled in ends if (at := said.find(spelled)) >= 0]
    if cuts:
        end = next(spelled for spelled in ends if said.startswith(spelled, min(cuts)))
        said = said[: min(cuts)]
    else:
        later = text([*messages, reply, follow], tools)
        before = later.rfind(follow["content"])
        end = max(ends, key=lambda spelled: later.rfind(spelled, 0, before))
    if respell:
        for each in reply.get("tool_calls") or ():
            spelled = each["function"]["arguments"]
            tight = json.dumps(dict(reversed(json.loads(spelled).items())), separators=(",", ":"))
            said = said.replace(spelled, tight)
    return np.append(renderer.encode(said), np.int32(ends[end]))


@dataclass
class Rehearsal:
    """One conversation as it grows, and the timelines that training on it would take."""

    renderer: Renderer
    messages: list[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    prompt: Rendered | None = None
    forks: int = 0
    replies: int = 0
    lengths: list[int] = field(default_factory=list)
    """Tokens of each timeline so far."""

    def play(
        self,
        reply: Message,
        *then: Message,
        cut: bool = False,
        respell: bool = False,
    ) -> Outcome:
        """The model gives `reply`, the client goes on with `then`. `cut`: the length limit took the end token."""
        try:
            if self.prompt is None:
                self.prompt = self.renderer.render(self.messages, self.tools)
                self.lengths.append(len(self.prompt.ids))
            ids = own_reply(self.renderer, self.messages, reply, then[0], self.tools, respell=respell)
            ids = ids[:-1] if cut else ids
            read = self.renderer.parse(ids, tools=self.tools, before=self.prompt)
            if not _same(read, reply):
                return "misread"
            told = {**reply, **read}
            for ours, theirs in zip(told.get("tool_calls") or (), reply.get("tool_calls") or (), strict=True):
                ours["id"] = theirs["id"]
            self.messages = [*self.messages, told, *then]
            extended = self.renderer.extend(self.prompt, ids, "length" if cut else "stop", self.messages, self.tools)
            self.replies += 1
            self.lengths[-1] = len(self.prompt.ids) + len(ids)
            self.prompt = extended or self.renderer.render(self.messages, self.tools)
        except TemplateRefused:
            return "refused"
        if extended is None:
            self.forks += 1
            self.lengths.append(len(self.prompt.ids))
        return "extends" if extended is not None else "forks"

    @property
    def cost(self) -> float:
        """Tokens of all timelines over those of the longest: 1 without forks."""
        return sum(self.lengths) / max(self.lengths)


def _same(read: Message, meant: Message) -> bool:
    def calls(message: Message) -> list[Any]:
        listed = message.get("tool_calls") or ()
        return [(each["function"]["name"], json.loads(each["function"]["arguments"])) for each in listed]

    return (
        (read.get("content") or "") == (meant.get("content") or "")
        and (read.get("reasoning_content") or "") == (meant.get("reasoning_content") or "")
        and calls(read) == calls(meant)
    )
