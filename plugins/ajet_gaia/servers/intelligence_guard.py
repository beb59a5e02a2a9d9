"""Tool server that lets a second model check a line of reasoning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .intelligence import ask_model
from .tool_server import ToolServer

Style = Literal["detailed", "concise", "step-by-step"]


class Guard(ToolServer):
    """Finds faults in reasoning and suggests remedies."""

    def guarding_reasoning_process(
        self,
        question: Annotated[str, Field(description="the reasoning so far, and what is unclear")],
        original_task: str = "",
        temperature: Annotated[float, Field(ge=0, le=2)] = 0.1,
        guarding_style: Style = "detailed",
    ) -> str:
        """Have a model look for faults in the reasoning so far."""
        role = f"Find what is wrong, missing or unproven in the reasoning ({guarding_style}), and say how to go on."
        return ask_model("GUARD", self.settings, role, {"Task": original_task, "Reasoning": question}, temperature)

    def get_guarding_capabilities(self) -> dict[str, Any]:
        """Available styles of the check."""
        return {"guarding_style": ["detailed", "concise", "step-by-step"]}


tools = Guard.tools
