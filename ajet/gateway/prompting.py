"""Prompting: a request as the ids to go on from, and how to draw what follows.

Invariant: a request that extends an earlier call does so with that call's exact ids, otherwise it forks with a reason;
the policy's own sampling rules over a client's wishes wherever a call trains. The recorder is read on the loop; what is
long is rendered and encoded aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from ajet.context_tracker.matching import Match
from ajet.engine.contract import Sampling
from ajet.gateway.capture import Entry, Recorder
from ajet.gateway.raw_prompt import place
from ajet.gateway.turn import Refused, TurnRequest
from ajet.gateway.worker_threads import Aside, size_of
from ajet.schema.call import ForkReason, RawPrompt, Terms
from ajet.tokens import Rendered, Renderer, TemplateRefused


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids to go on from, and how they hang together with earlier calls."""

    rendered: Rendered
    match: Match
    parent: int | None
    """See `Recorder.enter`."""
    before: Rendered | None
    """The parent's prompt, where this one extends it verbatim."""
    fork: ForkReason | None
    encoded: RawPrompt | None = None
    """Of a raw prompt; see `raw_prompt.Placed`."""
    images: tuple[str, ...] = ()
    """Those that its image tokens stand for, in order, as data: URLs."""


async def prompt_of(request: TurnRequest, recorder: Recorder, renderer: Renderer, aside: Aside) -> Prompt:
    """The prompt of a request: an earlier call's ids with a suffix, or the whole rendered anew. Other tasks run
    meanwhile only where it is long. Raises Refused."""
    match = recorder.conversations.match(request.agent, request.messages)
    if request.prompt is not None:
        return await _raw(request.prompt, request.agent, match, recorder, renderer, aside)
    fork = match.reason
    before: Rendered | None = None
    prompt: Rendered | None = None
    try:
        told = recorder.spoken(request.messages, match.extends)
        if match.extends is not None:
            earlier = recorder.entries[match.extends]
            before = recorder.prompt(match.extends)
            size = size_of(told, request.tools, earlier.count + 1)
            prompt = await aside.run(size, partial(_extend, renderer, before, earlier, told, request.tools))
            if prompt is None:
                before, fork = None, _why_forked(recorder, earlier, request)
        if prompt is None:
            prompt = await aside.run(size_of(told, request.tools), partial(renderer.render, told, request.tools))
    except TemplateRefused as refusal:
        raise Refused(str(refusal), param="messages", code="template_refused") from refusal
    if request.tool_choice in ("required", "named"):
        forced = renderer.force_call(prompt, request.named_tool)
        if forced is None:
            raise Refused(
                "tool_choice can be 'auto' or 'none' with this model: its tool calls have no form that a prompt "
                "could begin",
                param="tool_choice",
                code="unsupported_value",
            )
        prompt = forced
    return Prompt(prompt, match, match.extends if before is not None else None, before, fork)


def _extend(
    renderer: Renderer, before: Rendered, earlier: Entry, told: list[dict[str, Any]], tools: Sequence[Any] | None
) -> Rendered | None:
    call = earlier.call
    return renderer.extend(before, call.response_ids, call.finish, told, tools, verbatim=earlier.stopped is None)


async def _raw(
    asked: str | Sequence[int], agent: str, match: Match, recorder: Recorder, renderer: Renderer, aside: Aside
) -> Prompt:
    try:
        placed = await place(asked, agent, recorder, renderer, aside)
    except TemplateRefused as refusal:
        raise Refused(str(refusal), param="prompt", code="invalid_value") from refusal
    if not len(placed.prompt.ids):
        raise Refused(
            "the prompt is empty: this model needs a token to begin with", param="prompt", code="invalid_value"
        )
    return Prompt(placed.prompt, match, placed.parent, placed.before, placed.fork, placed.encoded)


def sampling_of(
    request: TurnRequest, run: Sampling, *, trained: bool, prompt_tokens: int, room: int, end_ids: tuple[int, ...]
) -> tuple[Sampling, dict[str, Any]]:
    """The run's sampling for what trains, else the client's; and the client's fields that it replaces. `room` bounds
    prompt + reply. Raises Refused when the prompt leaves none."""
    if prompt_tokens >= room:
        raise Refused(
            f"This model's maximum context length is {room} tokens. However, your messages resulted in {prompt_tokens} "
            "tokens. Please reduce the length of the messages. (ajet: rollout.max_model_len bounds it, and the model.)",
            code="context_length_exceeded",
            param="messages",
        )
    bound = min(run.max_tokens, room - prompt_tokens)
    if request.max_tokens is not None:
        bound = min(bound, request.max_tokens)
    asked = {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k}
    asked["seed"] = request.passed.get("seed")
    asked = {name: value for name, value in asked.items() if value is not None and value != getattr(run, name)}
    sampling = replace(
        run,
        max_tokens=bound,
        stop_ids=tuple(dict.fromkeys((*end_ids, *run.stop_ids))),
        top_logprobs=request.top_logprobs,
        **({} if trained else cast(dict[str, Any], asked)),
    )
    return sampling, (asked if trained else {}) | lowered_max_tokens(request, run)


def lowered_max_tokens(request: TurnRequest, run: Sampling) -> dict[str, Any]:
    """Return the request's `max_tokens` by its name if it is above the run's; {} otherwise."""
    above = request.max_tokens is not None and request.max_tokens > run.max_tokens
    return {"max_tokens": request.max_tokens} if above else {}


def terms_of(request: TurnRequest, sampling: Sampling, encoded: RawPrompt | None, adapter: str | None = None) -> Terms:
    """The terms under which a call is drawn."""
    truncates = sampling.temperature > 0
    return Terms(
        constrained=sampling.json_schema is not None,
        top_p=sampling.top_p if truncates else 1.0,
        top_k=sampling.top_k if truncates and sampling.top_k > 0 else -1,
        tool_choice=request.tool_choice,
        named_tool=request.named_tool,
        parallel_tool_calls=request.parallel_tool_calls,
        raw_prompt=encoded,
        adapter=adapter,
    )


def _why_forked(recorder: Recorder, earlier: Entry, request: TurnRequest) -> ForkReason:
    if not len(earlier.call.response_ids):
        return "unknown"
    if earlier.call.tools != recorder.tool_index(request.tools):
        return "tools"
    return "template" if earlier.stopped is None else "stop"
