"""Tool server that lets a second model reason about a question."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .intelligence import ask_model
from .tool_server import ToolServer

Style = Literal["detailed", "concise", "step-by-step"]


class Thinker(ToolServer):
    """Answers hard questions with a second model."""

    def complex_problem_reasoning(
        self,
        question: str,
        original_task: str = "",
        temperature: Annotated[float, Field(ge=0, le=2)] = 0.3,
        reasoning_style: Style = "detailed",
    ) -> str:
        """Have a model reason about a hard question: mathematics, logic, riddles, planning."""
        role = f"Reason about the question ({reasoning_style}), check the reasoning, then answer."
        return ask_model("THINK", self.settings, role, {"Task": original_task, "Question": question}, temperature)

    def get_reasoning_capabilities(self) -> dict[str, Any]:
        """Available styles of the reasoning."""
        return {"reasoning_style": ["detailed", "concise", "step-by-step"]}


tools = Thinker.tools
