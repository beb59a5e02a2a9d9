"""Call: a model request and its reply as exact tokens.

Invariant: the engine's token ids are authoritative and never re-encoded. A call stores only the difference to its
parent: `prefix` shared tokens, then `suffix_ids`, then `response_ids`. Messages and tools are indices into the
episode's tables. An episode therefore grows with its distinct tokens, not with the square of its calls. The gateway
writes calls; all other packages only read calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

ToolChoice = Literal["auto", "none", "required", "named"]
FinishReason = Literal["stop", "length", "tool_calls", "aborted", "error"]
UNDELIVERED: tuple[FinishReason, ...] = ("aborted", "error")
"""Finish reasons of calls without a delivered reply."""
ForkReason = Literal["template", "stop", "client_edit", "tools", "compaction", "unknown"]
"""Why a request could not extend an earlier call of the same agent verbatim.

- template: the chat template renders history differently from the sampled tokens (e.g. thinking stripped)
- stop: a stop string cut the reply, so the client quotes less than was sampled
- client_edit: the client changed or dropped messages
- tools: the tool list changed
- compaction: a long history was replaced by a shorter history
- unknown: any other reason
"""


_READ_LAST = 8


class VersionRun(NamedTuple):
    """Policy steps `low`..`high` sampled the tokens from response token `first` on.

    `low` and `high` differ only if an engine resumed a call across an update.
    """

    first: int
    low: int
    high: int


class RoutedExperts(NamedTuple):
    """The experts that the engine's mixture-of-experts layers chose for the tokens of a call."""

    first: int
    """Position of the first token with a row here; rows of earlier tokens are the parent call's."""
    experts: npt.NDArray[np.integer[Any]]
    """[N, layers, experts per token], for the tokens from `first` to the last but one of prompt and reply."""


class PolicySpan(NamedTuple):
    """The oldest and the newest policy step of some sampled tokens."""

    low: int
    high: int

    @classmethod
    def of(cls, runs: Iterable[tuple[int, int, int]]) -> PolicySpan | None:
        """Return the oldest and newest policy step over `VersionRun`s (first, low, high), or None without any."""
        run_list = list(runs)
        return cls(min(low for _, low, _ in run_list), max(high for _, _, high in run_list)) if run_list else None


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A prompt that the client sent as text instead of messages, and where it follows the ids of an earlier call."""

    text: str
    after: int
    """Number of ids of an earlier call before the text."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Sampling settings of a request besides temperature, messages and tools, stored to repeat the call."""

    constrained: bool = False
    """True if the reply was sampled under a JSON schema, without a free choice of the policy."""
    top_p: float = 1.0
    top_k: int = -1
    """Number of candidate tokens. -1: all tokens."""
    tool_choice: ToolChoice = "auto"
    named_tool: str | None = None
    """The tool required by a `named` choice."""
    parallel_tool_calls: bool = True
    raw_prompt: RawPrompt | None = None
    written: bool = False
    """True for a given reply (`ajet sft`), not sampled by any policy of the run. Versions and logprobs do not exist."""
    adapter: str | None = None
    """The sampling adapter of a model with several adapters (`lora.adapters`). None: the model with its only adapter,
    if any.
    """


@dataclass(slots=True)
class Call:
    """A request and its reply. Shapes: P prompt tokens, the first `prefix` shared with the parent; R reply tokens."""

    index: int
    """Position within the episode, in order of arrival."""
    agent: str
    target: str
    trained: bool
    """False if the target tag is not in the workflow's `trainable_targets`, or if a chat engine sent the reply."""
    parent: int | None
    """The call sharing `prefix` tokens (of its prompt + response) with the start of this prompt. None: no shared
    tokens.
    """
    prefix: int
    suffix_ids: Ids
    response_ids: Ids
    logprobs: Floats
    """[R] log-probability under the sampling distribution (temperature, top-p, top-k applied)."""
    logprobs_unit: Floats
    """[R] log-probability at temperature 1 without truncation, as recomputed by the trainer's forward pass."""
    versions: tuple[VersionRun, ...]
    finish: FinishReason
    messages: tuple[int, ...]
    """The request's messages, as indices into `Episode.messages`."""
    tools: int | None
    """Index into `Episode.tools`, or None without tools."""
    reply: int | None
    """Index of the parsed reply in `Episode.messages`, or None if sampling did not finish."""
    fork: ForkReason | None = None
    """None: the call extends `parent` verbatim, or opens a conversation."""
    temperature: float = 1.0
    started: float = 0.0
    """Start time in seconds since the epoch."""
    ended: float = 0.0
    error: str | None = None
    terms: Terms = Terms()
    stop: str | None = None
    """Stop string of the request that ended the reply, or None."""
    rejected: str | None = None
    """The violated requirement of the client. The reply was sampled a second time."""
    resumed: int = 0
    """Number of times the client disconnected and reconnected."""
    checks: tuple[str, ...] = ()
    """Abnormal-output checks fired by the reply."""
    turned_down: bool = False
    """True if the user's `train_turn` excluded a trainable call from training."""
    teacher: Floats | None = None
    """[R] the teacher's log-probability at temperature 1, NaN if not queried. None: no teacher."""
    routed_experts: RoutedExperts | None = None
    """None: not reported by the engine. Lives in the process that played the call: records have no experts."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Data for display, never used by training.

    Keys: the model name of the request, `ignored` (fields of the request replaced by the run), `cut_by` (the limit
    reached by a reply with finish `length`).
    """

    @property
    def is_delivered(self) -> bool:
        """True if the client received the reply: no failure, no abort, and no second sampling."""
        return self.finish not in UNDELIVERED

    @property
    def is_cut(self) -> bool:
        """True if a token limit ended the reply before the model did."""
        return self.finish == "length"

    @property
    def is_step(self) -> bool:
        """True if the policy is trained on the reply; step rewards are given to exactly these calls."""
        return self.trained and self.is_delivered and self.response_ids.size > 0


def prompt_ids(calls: Sequence[Call], index: int) -> Ids:
    """Return the complete prompt of call `index`, of shape [P], rebuilt from the call and its ancestors.

    A call stores only the tokens that its parent (prompt and response) does not begin with.
    """
    parts: list[Ids] = []
    call = calls[index]
    missing_tokens = call.prefix
    parts.append(call.suffix_ids)
    while missing_tokens > 0:
        assert call.parent is not None, f"call {call.index} shares {missing_tokens} tokens with no parent"
        call = calls[call.parent]
        # The missing tokens beyond the parent's own prefix are the parent's suffix, then its response.
        if (shared := missing_tokens - call.prefix) > 0:
            parts += [call.response_ids[: max(0, shared - len(call.suffix_ids))], call.suffix_ids[:shared]]
            missing_tokens = call.prefix
    return np.concatenate(parts[::-1]).astype(np.int32, copy=False)


class PromptReader:
    """Rebuilds prompts of an episode's calls. A call that extends a recently read one is built from a cache."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._recent_ids: OrderedDict[int, Ids] = OrderedDict()
        """Prompt and response of recently read calls."""

    def prompt_ids(self, index: int) -> Ids:
        """Return the complete prompt of call `index`, of shape [P], and cache its tokens for calls that extend it."""
        call = self._calls[index]
        parent_ids = None if call.parent is None else self._recent_ids.get(call.parent)
        if parent_ids is None or call.prefix > len(parent_ids):
            prompt = prompt_ids(self._calls, index)
        else:
            prompt = np.concatenate([parent_ids[: call.prefix], call.suffix_ids]).astype(np.int32, copy=False)
        self._recent_ids[index] = np.concatenate([prompt, call.response_ids])
        self._recent_ids.move_to_end(index)
        if len(self._recent_ids) > _READ_LAST:
            self._recent_ids.popitem(last=False)
        return prompt

    def full_ids(self, index: int) -> Ids:
        """Return prompt and response of call `index`, of shape [P + R]."""
        if index not in self._recent_ids:
            self.prompt_ids(index)
        return self._recent_ids[index]


def full_ids(calls: Sequence[Call], index: int) -> Ids:
    """Return prompt and response of call `index`, of shape [P + R]."""
    return np.concatenate([prompt_ids(calls, index), calls[index].response_ids])
