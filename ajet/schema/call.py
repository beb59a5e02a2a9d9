"""Call: one model request and reply as exact tokens.

Invariant: the engine's ids are the truth and are never re-encoded. A call stores only what is new against its
parent (`prefix` tokens shared, then its own `suffix_ids`, then `response_ids`), and refers to messages and tools by
index into its episode's tables, so an episode grows with its distinct tokens, not with the square of its calls.
The gateway writes calls; everyone else reads them.
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
"""How calls finish whose reply the client did not receive."""
ForkReason = Literal["template", "stop", "client_edit", "tools", "compaction", "unknown"]
"""Why a request could not extend an earlier call verbatim although one of the same agent preceded it:
template: the chat template renders history differently from what was sampled (e.g. thinking stripped); stop: a stop
string cut the reply, so that its client quotes less than was sampled;
client_edit: the client changed or dropped messages; tools: the tool list changed; compaction: a long history was
replaced by a shorter one; unknown: none of these."""


_READ_LAST = 8


class VersionRun(NamedTuple):
    """The tokens from response token `first` on were sampled by policy steps `low`..`high` (equal but where an engine
    resumed a call across an update)."""

    first: int
    low: int
    high: int


class PolicySpan(NamedTuple):
    """The oldest and the newest policy step that sampled something."""

    low: int
    high: int

    @classmethod
    def of(cls, runs: Iterable[tuple[int, int, int]]) -> PolicySpan | None:
        """Over all `VersionRun`s; None without one."""
        found = list(runs)
        return cls(min(low for _, low, _ in found), max(high for _, _, high in found)) if found else None


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """The part of a prompt sent as text that had to be encoded."""

    text: str
    after: int
    """The ids of an earlier call that stand before it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a call was asked for and drawn besides its messages, tools and temperature: what whoever derives it again
    must know."""

    constrained: bool = False
    """Drawn under a JSON schema, which left the policy no free choice."""
    top_p: float = 1.0
    top_k: int = -1
    """-1: all."""
    tool_choice: ToolChoice = "auto"
    named_tool: str | None = None
    """The one tool that it had to call, where the choice is `named`."""
    parallel_tool_calls: bool = True
    raw_prompt: RawPrompt | None = None
    written: bool = False
    """Its reply was given to be learned from (`ajet sft`), and no policy of the run sampled it: it has neither versions
    nor log-probabilities."""
    adapter: str | None = None
    """The adapter that it was sampled by, where a model has several (`lora.adapters`); None: the model as it is, with
    the only adapter where there is one."""


@dataclass(slots=True)
class Call:
    """One request and its reply. Shapes: P prompt tokens, of which `prefix` are the parent's; R reply tokens."""

    index: int
    """Position within the episode, in order of arrival."""
    agent: str
    target: str
    trained: bool
    """False where the target tag is not in the workflow's `trainable_targets`, or the reply came from a chat engine."""
    parent: int | None
    """The call whose prompt + response this one's prompt shares its first `prefix` tokens with; None shares none."""
    prefix: int
    suffix_ids: Ids
    response_ids: Ids
    logprobs: Floats
    """[R] log-probability under the distribution that was sampled from (temperature, top-p, top-k applied)."""
    logprobs_unit: Floats
    """[R] log-probability at temperature 1 without truncation: what the trainer's forward pass recomputes."""
    versions: tuple[VersionRun, ...]
    finish: FinishReason
    messages: tuple[int, ...]
    """The request's messages, as indices into `Episode.messages`."""
    tools: int | None
    """Index into `Episode.tools`; None without tools."""
    reply: int | None
    """The parsed reply, index into `Episode.messages`; None if sampling did not come to its end."""
    fork: ForkReason | None = None
    """None: extends `parent` verbatim, or opens a conversation."""
    temperature: float = 1.0
    started: float = 0.0
    """Seconds since the epoch."""
    ended: float = 0.0
    error: str | None = None
    terms: Terms = Terms()
    stop: str | None = None
    """The stop string that cut the reply."""
    rejected: str | None = None
    """What its client had asked for and it did not keep to: it was drawn again."""
    resumed: int = 0
    """How often its client left and came back for it."""
    checks: tuple[str, ...] = ()
    """Abnormal-output checks that fired on it."""
    turned_down: bool = False
    """By the user's `train_turn`: it could have been trained, and is not."""
    teacher: Floats | None = None
    """[R] the teacher's log-probability at temperature 1, nan where it was not asked; None: there is no teacher."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Shown to people, never used by training: the model name of the request, `ignored` (fields of the request that
    the run replaced), `cut_by` (the limit that a reply with finish `length` reached)."""

    @property
    def is_delivered(self) -> bool:
        """True if the client received the reply: neither it nor its request failed or was cut off, and it was not drawn
        again."""
        return self.finish not in UNDELIVERED

    @property
    def is_cut(self) -> bool:
        """True if a limit on tokens ended the reply before the model did."""
        return self.finish == "length"

    @property
    def is_step(self) -> bool:
        """True if the policy is trained on the reply: this is what rewards of steps count."""
        return self.trained and self.is_delivered and self.response_ids.size > 0


def prompt_ids(calls: Sequence[Call], index: int) -> Ids:
    """[P] the whole prompt of call `index`, rebuilt from its ancestors."""
    parts: list[Ids] = []
    call = calls[index]
    need = call.prefix
    parts.append(call.suffix_ids)
    while need > 0:
        assert call.parent is not None, f"call {call.index} shares {need} tokens with nobody"
        call = calls[call.parent]
        if (shared := need - call.prefix) > 0:
            parts += [call.response_ids[: max(0, shared - len(call.suffix_ids))], call.suffix_ids[:shared]]
            need = call.prefix
    return np.concatenate(parts[::-1]).astype(np.int32, copy=False)


class PromptReader:
    """Prompts of an episode's calls. One that goes on from a call read just before is built of that alone."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._read: OrderedDict[int, Ids] = OrderedDict()
        """Prompt and response of the calls read last."""

    def prompt_ids(self, index: int) -> Ids:
        """[P] the prompt of a call."""
        call = self._calls[index]
        before = None if call.parent is None else self._read.get(call.parent)
        if before is None or call.prefix > len(before):
            prompt = prompt_ids(self._calls, index)
        else:
            prompt = np.concatenate([before[: call.prefix], call.suffix_ids]).astype(np.int32, copy=False)
        self._read[index] = np.concatenate([prompt, call.response_ids])
        self._read.move_to_end(index)
        if len(self._read) > _READ_LAST:
            self._read.popitem(last=False)
        return prompt

    def full_ids(self, index: int) -> Ids:
        """[P + R] prompt and response of a call."""
        if index not in self._read:
            self.prompt_ids(index)
        return self._read[index]


def full_ids(calls: Sequence[Call], index: int) -> Ids:
    """[P + R] prompt and response of call `index`."""
    return np.concatenate([prompt_ids(calls, index), calls[index].response_ids])
