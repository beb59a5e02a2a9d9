"""Raw prompts: a text or ids to go on from, without messages.

Invariant: what was sampled is never encoded anew. A prompt that begins with an earlier call's prompt and reply gets
that call's ids, then its own new text; ids that the client chose itself are taken as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ajet.gateway.capture import Recorder
from ajet.gateway.worker_threads import Aside
from ajet.schema.call import ForkReason, Ids, RawPrompt
from ajet.tokens import Rendered, Renderer


class Placed(NamedTuple):
    """A raw prompt and where it belongs: the call it shares its beginning with (one that it goes on from, or has the
    prompt of), and that call's own prompt where the ids extend it whole."""

    prompt: Rendered
    parent: int | None
    before: Rendered | None
    fork: ForkReason | None
    encoded: RawPrompt | None = None
    """None: the client chose the ids."""


async def place(
    prompt: str | Sequence[int], agent: str, recorder: Recorder, renderer: Renderer, aside: Aside
) -> Placed:
    """The ids of a raw prompt. Raises TemplateRefused."""
    asked: str | Rendered
    if isinstance(prompt, str):
        asked = text = prompt
    else:
        asked = await aside.run(len(prompt), partial(renderer.raw, prompt))
        text = asked.text
    parent, begun = recorder.texts.match(agent, text)
    if parent is None:
        return (await aside.run(len(text), partial(_alone, asked, renderer)))._replace(parent=begun)
    before, reply = recorder.prompt(parent), recorder.entries[parent].call.response_ids
    return await aside.run(len(text) - len(before.text), partial(_after, asked, parent, before, reply, renderer))


def _alone(asked: str | Rendered, renderer: Renderer) -> Placed:
    if isinstance(asked, str):
        return Placed(renderer.raw(asked), None, None, None, RawPrompt(asked, 0))
    return Placed(asked, None, None, None)


def _after(asked: str | Rendered, parent: int, before: Rendered, reply: Ids, renderer: Renderer) -> Placed:
    """A prompt whose text begins with that of call `parent`, its prompt `before` and its reply."""
    if not isinstance(asked, str):
        head = np.concatenate([before.ids, reply])
        extends = np.array_equal(asked.ids[: len(head)], head)
        return Placed(asked, parent, before if extends else None, None if extends else "client_edit")
    for kept in (reply, _without_end(reply, renderer.end_ids)):
        said = before.text + renderer.decode(kept, after=before.ids)
        if asked.startswith(said):
            new = asked[len(said) :]
            ids = np.concatenate([before.ids, kept, renderer.without_images(new)]).astype(np.int32, copy=False)
            whole = len(kept) == len(reply)
            encoded = RawPrompt(new, len(before.ids) + len(kept))
            fork: ForkReason | None = None if whole else "client_edit"
            return Placed(Rendered(asked, ids), parent, before if whole else None, fork, encoded)
    return Placed(renderer.raw(asked), parent, None, "client_edit", RawPrompt(asked, 0))


def _without_end(ids: Ids, end_ids: Sequence[int]) -> Ids:
    """A reply without the token that ended it, which its client never saw."""
    return ids[:-1] if len(ids) and int(ids[-1]) in end_ids else ids
