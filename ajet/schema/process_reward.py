"""ProcessReward: the reward of a part of an attempt, in addition to the attempt's reward.

Invariant: a ProcessReward names exactly a single part: a step, an agent, a use of a tool, or a piece of text. The
reward is finite. Only ajet sets `tokens`, the part's sampled tokens, after the attempt's end, so credit needs no
tokenizer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class ReplySpan(NamedTuple):
    """The tokens [start, stop) in the reply of the call with index `call`."""

    call: int
    start: int
    stop: int


class ProcessReward(BaseModel):
    """A reward of a part: `ProcessReward(reward=1.0, step=2)`.

    Raises pydantic's ValidationError, a ValueError, for zero or several parts, and for a reward that is not finite.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reward: float = Field(allow_inf_nan=False)
    step: int | None = Field(
        default=None,
        description="Index of a model call of the trained agents; 0 is the first call. With `text`: the call that "
        "contains the text.",
    )
    agent: str = Field(default="", description="Target tag: the reward is for all calls under this tag.")
    tool_use: int | None = Field(
        default=None,
        description="Index of a tool use; 0 is the episode's first. The reward is for the call that requested it.",
    )
    text: str = Field(default="", description="A text: the reward is for its tokens, where it first occurs in a reply.")
    name: str = Field(
        default="",
        description='Name of the parts in the other attempts of the group with which this part is compared. "": the '
        "number of the step, the agent, the tool's name, or all texts.",
    )
    tokens: tuple[ReplySpan, ...] = Field(default=(), description="Only ajet sets it.")

    @field_validator("reward", mode="before")
    @classmethod
    def _require_number(cls, value: Any) -> Any:
        """Refuse booleans and texts, which pydantic would convert to a number."""
        if isinstance(value, (bool, str, bytes)):
            raise ValueError(f"{value!r:.200} is not a finite number")
        return value

    @model_validator(mode="after")
    def _require_one_part(self) -> ProcessReward:
        """Raise ValueError unless exactly one part is named; a step with a text only says where the text is."""
        set_parts = [
            self.agent != "",
            self.tool_use is not None,
            self.text != "",
            self.step is not None and not self.text,
        ]
        if sum(set_parts) != 1:
            raise ValueError("expected one of step, agent, tool_use and text (text may have a step)")
        return self

    @property
    def compared(self) -> tuple[str, str]:
        """Key (kind, name) of the part: parts of a group's attempts with equal keys are compared with each other."""
        if self.text:
            return "text", self.name
        if self.agent:
            return "agent", self.name or self.agent
        if self.tool_use is not None:
            return "tool_use", self.name or str(self.tool_use)
        return "step", self.name or str(self.step)
