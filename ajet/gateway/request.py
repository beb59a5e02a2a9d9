"""ParsedRequest: one request for replies, independent of the client's dialect.

Invariant: every option of a dialect is a field here. The session honours the field or raises `Refused` with its name;
no field is dropped without a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ajet.schema.call import ToolChoice
from ajet.schema.errors import AjetError

RawPromptInput = str | Sequence[int]
"""A text or token ids to continue, without messages and chat template."""


class Refused(AjetError):
    """A request that is answered with an error.

    Args:
        message: Text for people.
        status: HTTP status of the answer.
        code: Stable name of the error, for programs.
        param: The field at fault.
        retry_after: Seconds after which the client may try again; `None` if not stated.
        final: True if clients must not retry on their own.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
        final: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param
        self.retry_after, self.final = retry_after, final

    def within(self, part: str) -> Refused:
        """Return the same refusal, with the name of a part of the request before the message.

        Args:
            part: The part, such as "prompt 0 of 2".
        """
        return Refused(
            f"{part}: {self.message}",
            status=self.status,
            code=self.code,
            param=self.param,
            retry_after=self.retry_after,
            final=self.final,
        )


def build_ended_error() -> Refused:
    """Return the refusal of a request whose episode has ended."""
    return Refused("this episode has ended; it takes no further model calls", status=410, code="episode_finished")


@dataclass(slots=True)
class ParsedRequest:
    """A request as parsed by its dialect, never changed afterwards.

    `messages` and `tools` have OpenAI's shape and are checked. Contents are strings, or lists of parts for messages
    with images. `None` means that the client did not set the field.
    """

    agent: str
    messages: Sequence[dict[str, Any]]
    """Messages of the request; empty only for raw prompts."""
    images: tuple[str, ...] = ()
    """Places of the images in the client's request, as named by its dialect."""
    prompts: Sequence[RawPromptInput] = ()
    """Raw prompts instead of messages: no chat template is applied and the reply is not parsed."""
    target: str = ""
    """Target tag; empty: the agent's name."""
    debug_model: str | None = None
    tools: Sequence[dict[str, Any]] | None = None
    tool_choice: ToolChoice = "auto"
    named_tool: str | None = None
    parallel_tool_calls: bool = True
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    counts_tokens: bool = True
    """True if the answer states how many tokens were used."""
    json_schema: Mapping[str, Any] | None = None
    """JSON schema that constrains the reply; {} allows any JSON object."""
    engine_fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields that only a chat engine can honour, by their names on the wire."""
    inert_fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields without effect on the reply, by their names on the wire. No engine receives them."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Information for people; stored in the call's `extra`."""
    replies_per_prompt: int = 1
    """OpenAI's `n`: independent replies to each prompt."""
    is_streamed: bool = False
    options: Any = None
    """The dialect's own settings for its answer."""
    format_count: Callable[[int], dict[str, Any]] | None = None
    """Builds the answer from the number of prompt tokens. Set for requests that sample no reply."""

    def build_choice(self, index: int) -> ParsedRequest:
        """Return the request of reply `index`: one prompt, and the client's seed increased by the reply's number."""
        changes: dict[str, Any] = {"replies_per_prompt": 1}
        if len(self.prompts) > 1:
            changes["prompts"] = self.prompts[index // self.replies_per_prompt :][:1]
        seed = self.engine_fields.get("seed")
        if seed is not None:
            changes["engine_fields"] = {**self.engine_fields, "seed": seed + index % self.replies_per_prompt}
        return replace(self, **changes)

    def list_choices(self) -> list[ParsedRequest]:
        """Return one request for each reply."""
        count = max(1, len(self.prompts)) * self.replies_per_prompt
        return [self.build_choice(index) for index in range(count)]


def refuse_images(request: ParsedRequest) -> None:
    """Raise Refused for a request with images: a text model cannot take them."""
    if request.images:
        raise Refused(
            f"Unsupported value for '{request.images[0]}': this model takes text only, no images.",
            param=request.images[0],
            code="unsupported_value",
        )
