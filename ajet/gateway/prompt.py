"""RenderedPrompt: the token ids of a request's messages or raw prompt, and the earlier call that they continue.

Invariants: a request that extends an earlier call reuses that call's exact ids, otherwise it forks with a reason;
sampled tokens are never encoded again. A long prompt delays its own session only: rendering and encoding run on a
thread without access to the state of the gateway's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ajet.context_tracker.matching import Match
from ajet.gateway.recorder import Recorder
from ajet.gateway.request import ParsedRequest, RawPromptInput, Refused, refuse_images
from ajet.schema.call import ForkReason, Ids, RawPrompt
from ajet.tokens import Rendered, Renderer, TemplateRefused
from ajet.tokens.image_tokens import image_urls

T = TypeVar("T")

LONG_PROMPT = 20_000
"""Characters whose rendering and encoding takes about 5 ms. A shorter prompt stays on the loop: switching to a
thread and back would cost more."""
_MESSAGE_COST, _TOOL_COST = 40, 500
"""Characters whose encoding takes as long as a template takes for one message or tool."""
_THREADS = 2
"""Templates are rendered in Python: more threads would only compete for the interpreter's lock."""


@dataclass(slots=True)
class RenderedPrompt:
    """The tokens of one reply's prompt, and how they relate to earlier calls."""

    rendered: Rendered
    match: Match
    """The earlier calls that the messages continue or resemble."""
    parent: int | None = None
    """The extended call. For a raw prompt, also a call with merely a common beginning."""
    before: Rendered | None = None
    """The parent's prompt if the parent is extended verbatim."""
    fork: ForkReason | None = None
    raw_prompt: RawPrompt | None = None
    """The text of a raw prompt and the start of its encoding. `None` for messages, and for ids chosen by the client."""
    images: tuple[str, ...] = ()
    """The images of the image tokens, in order, as data: URLs."""


class RenderThreadPool:
    """The threads on which one gateway renders long prompts."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ajet-gateway-render")

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`. The work runs to its end even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Reject further work and drop waiting work."""
        self._threads.shutdown(wait=False, cancel_futures=True)


async def render_prompt(
    request: ParsedRequest, recorder: Recorder, renderer: Renderer, threads: RenderThreadPool
) -> RenderedPrompt:
    """Return the prompt of a request: the ids of an earlier call plus a suffix, or all ids rendered anew.

    Raises Refused. Other tasks run meanwhile only if the prompt is long.
    """
    images: tuple[str, ...] = ()
    if request.images:
        images = _list_images(request, renderer)
    match = recorder.conversations.match(request.agent, request.messages)
    if request.prompts:
        return await _render_raw(request.prompts[0], request.agent, match, recorder, renderer, threads)
    messages: Sequence[dict[str, Any]] = request.messages
    if match.extends is not None:
        messages = recorder.restore_replies(messages, match.extends)
    tools, fork = request.tools, match.reason
    earlier_prompt: Rendered | None = None
    rendered: Rendered | None = None
    try:
        if match.extends is not None:
            call, stored = recorder.capture.calls[match.extends], recorder.stored[match.extends]
            earlier_prompt = recorder.build_prompt(match.extends)
            extend = partial(renderer.extend, earlier_prompt, call.response_ids, call.finish, messages, tools)
            # If a stop string cut the reply, the text of its ids goes on behind the message.
            extend = partial(extend, verbatim=stored.stopped is None)
            is_long = measure_prompt(messages, tools, stored.messages + 1) > LONG_PROMPT
            rendered = await threads.run(extend) if is_long else extend()
            if rendered is None:
                earlier_prompt, fork = None, _find_fork_reason(recorder, match.extends, request)
        if rendered is None:
            render = partial(renderer.render, messages, tools)
            is_long = measure_prompt(messages, tools) > LONG_PROMPT
            rendered = await threads.run(render) if is_long else render()
    except TemplateRefused as refusal:
        raise Refused(str(refusal), param="messages", code="template_refused") from refusal
    if request.tool_choice in ("required", "named"):
        rendered = _force_call(rendered, request, renderer)
    return RenderedPrompt(
        rendered, match, match.extends if earlier_prompt is not None else None, earlier_prompt, fork, images=images
    )


def measure_prompt(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, encoded: int = 0) -> int:
    """Return the cost of rendering and encoding messages, in characters.

    Args:
        encoded: Number of first messages whose tokens are known, so that they are only rendered.
    """
    size = _MESSAGE_COST * len(messages) + _TOOL_COST * len(tools or ())
    for message in messages[encoded:] if encoded else messages:
        content = message.get("content") or ""
        if isinstance(content, str):
            size += len(content)
        else:
            size += sum(len(block.get("text") or (block.get("image_url") or {}).get("url") or "") for block in content)
        for call in message.get("tool_calls") or ():
            size += len(call["function"].get("arguments") or "")
    return size


def _force_call(rendered: Rendered, request: ParsedRequest, renderer: Renderer) -> Rendered:
    """Return the prompt, followed by the beginning of the tool call that the request demands. Raises Refused."""
    forced = renderer.force_call(rendered, request.named_tool)
    if forced is None:
        raise Refused(
            "Unsupported value for 'tool_choice': send 'auto' or 'none'. ajet cannot force a tool call of this "
            "model, because it does not know how the model's chat template begins one.",
            param="tool_choice",
            code="unsupported_value",
        )
    return forced


def _list_images(request: ParsedRequest, renderer: Renderer) -> tuple[str, ...]:
    """Return the request's images as data: URLs. Raises Refused."""
    if renderer.images is None:
        refuse_images(request)
    urls = image_urls(request.messages)
    for location, url in zip(request.images, urls, strict=False):
        if not url.startswith("data:"):
            raise Refused(
                f"Unsupported value for '{location}': this server downloads no images; send the image as a data: URL.",
                param=location,
                code="unsupported_value",
            )
    return urls


def _find_fork_reason(recorder: Recorder, extends: int, request: ParsedRequest) -> ForkReason:
    """Return why a request forks (is rendered anew), although its messages continue those of a call.

    Args:
        extends: Index of the call.
    """
    call = recorder.capture.calls[extends]
    if not len(call.response_ids):
        return "unknown"
    if call.tools != recorder.find_tools(request.tools):
        return "tools"
    return "template" if recorder.stored[extends].stopped is None else "stop"


async def _render_raw(
    prompt: RawPromptInput, agent: str, match: Match, recorder: Recorder, renderer: Renderer, threads: RenderThreadPool
) -> RenderedPrompt:
    """Return a raw prompt. Raises Refused.

    A prompt that begins with an earlier call's prompt and reply reuses the ids of that call, then encodes its own new
    text. Ids chosen by the client are used unchanged.
    """

    async def run(size: int, work: Callable[[], T]) -> T:
        return await threads.run(work) if size > LONG_PROMPT else work()

    raw_prompt: str | Rendered
    try:
        if isinstance(prompt, str):
            raw_prompt = text = prompt
        else:
            raw_prompt = await run(len(prompt), partial(renderer.raw, prompt))
            text = raw_prompt.text
        parent, begins_like = recorder.texts.match(agent, text)
        if parent is None:
            result = await run(len(text), partial(_begin_raw, raw_prompt, match, begins_like, renderer))
        else:
            earlier_prompt, reply = recorder.build_prompt(parent), recorder.capture.calls[parent].response_ids
            extend = partial(_extend_raw, raw_prompt, match, parent, earlier_prompt, reply, renderer)
            result = await run(len(text) - len(earlier_prompt.text), extend)
    except TemplateRefused as refusal:
        raise Refused(str(refusal), param="prompt", code="invalid_value") from refusal
    if not len(result.rendered.ids):
        raise Refused("the prompt is empty: it must have at least one token", param="prompt", code="invalid_value")
    return result


def _begin_raw(raw_prompt: str | Rendered, match: Match, begins_like: int | None, renderer: Renderer) -> RenderedPrompt:
    """Return a raw prompt that extends no earlier call.

    Args:
        raw_prompt: A text to encode, or the client's ids with their text.
        begins_like: The call with the longest common beginning.
    """
    if isinstance(raw_prompt, str):
        # A text is recorded, so that its encoding can be checked later. It follows 0 ids of an earlier call.
        return RenderedPrompt(renderer.raw(raw_prompt), match, begins_like, raw_prompt=RawPrompt(raw_prompt, 0))
    return RenderedPrompt(raw_prompt, match, begins_like)


def _extend_raw(
    raw_prompt: str | Rendered, match: Match, parent: int, earlier_prompt: Rendered, reply: Ids, renderer: Renderer
) -> RenderedPrompt:
    """Return a raw prompt whose text begins with the prompt and the reply of an earlier call.

    The ids of that call are reused. If the client's own ids differ from them, the prompt forks.

    Args:
        raw_prompt: A text to encode, or the client's ids with their text.
        parent: Index of the earlier call.
        earlier_prompt: Its prompt.
        reply: Its sampled ids [R].
    """
    if not isinstance(raw_prompt, str):
        known_ids = np.concatenate([earlier_prompt.ids, reply])
        extends = np.array_equal(raw_prompt.ids[: len(known_ids)], known_ids)
        return RenderedPrompt(
            raw_prompt, match, parent, earlier_prompt if extends else None, None if extends else "client_edit"
        )
    has_end_token = len(reply) and int(reply[-1]) in renderer.end_ids
    for visible_ids in (reply, reply[:-1] if has_end_token else reply):  # clients do not see the end token of the reply
        known_text = earlier_prompt.text + renderer.decode(visible_ids, after=earlier_prompt.ids)
        if raw_prompt.startswith(known_text):
            new_text = raw_prompt[len(known_text) :]
            ids = np.concatenate([earlier_prompt.ids, visible_ids, renderer.encode_without_images(new_text)]).astype(
                np.int32, copy=False
            )
            is_complete = len(visible_ids) == len(reply)
            return RenderedPrompt(
                Rendered(raw_prompt, ids),
                match,
                parent,
                earlier_prompt if is_complete else None,
                None if is_complete else "client_edit",
                RawPrompt(new_text, len(earlier_prompt.ids) + len(visible_ids)),
            )
    return RenderedPrompt(renderer.raw(raw_prompt), match, parent, None, "client_edit", RawPrompt(raw_prompt, 0))
