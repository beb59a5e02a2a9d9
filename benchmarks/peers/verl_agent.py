"""The price task for verl's ToolAgentLoop: its tool, its reward and its rows. verl's processes load it by name.

Invariant: nothing else of this project runs in verl's processes, but for the platform plug-in that verl needs on a CPU.
"""

from __future__ import annotations

import json
from typing import Any

from prices import TOOL, look_up, read_rows, score_reply
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse


class PriceTool(BaseTool):
    """Looks an item up in the prices of its episode's task."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self._prices: dict[str, dict[str, int]] = {}

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        created, response = await super().create(instance_id)
        self._prices[created] = json.loads(kwargs["create_kwargs"]["prices"])
        return created, response

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        return ToolResponse(text=look_up(self._prices[instance_id], json.dumps(parameters))), 0.0, {}

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        del self._prices[instance_id]


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any, **ignored: Any) -> float:
    """Score the last reply: verl decodes the replies and tool results of an episode as one text."""
    return score_reply(solution_str.rpartition("assistant\n")[2], int(ground_truth))


def build_row(row: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a task as a row of verl's data set."""
    tools = {"price": {"create_kwargs": {"prices": row["prices"]}}}
    return {
        "prompt": row["prompt"],
        "data_source": "prices",
        "reward_model": {"style": "rule", "ground_truth": str(row["answer"])},
        "extra_info": {"index": number, "need_tools_kwargs": True, "tools_kwargs": tools},
    }


def write_data(path: Any, seed: int) -> None:
    """Write the training tasks as verl's data set."""
    import pandas

    pandas.DataFrame([build_row(row, number) for number, row in enumerate(read_rows("train", seed))]).to_parquet(path)


def tool_config() -> dict[str, Any]:
    """Return the content of verl's `tool_config_path`."""
    return {"tools": [{"class_name": "verl_agent.PriceTool", "config": {"type": "native"}, "tool_schema": TOOL}]}
