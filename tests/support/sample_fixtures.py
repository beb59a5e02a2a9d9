"""A project whose agent can be held up, for tests of samplers, and a look into their store past ajet."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ajet.store import Address

HELD_FROM = 4
"""The position from which on, while the file `hold` is there, an attempt that is not the first does not end."""
YAML = """
ajet:
  model: {path: "embedded:tiny-tools"}
  task_reader: {type: agent.py->Numbers}
  rollout:
    user_workflow: agent.py->Agent
    max_response_length_in_one_turn: 8
    max_model_len: 256
  data: {max_prompt_length: 200, max_response_length: 50, shuffle: false}
  trainer_common: {threads: 1, use_kl_loss: false, optim: {lr: 1.0e-3}}
"""
AGENT = f"""
import asyncio
from pathlib import Path
from ajet import Task, Workflow, WorkflowOutput

HOLD = Path(__file__).parent / "hold"

class Numbers:
    def __init__(self, config):
        pass

    def tasks(self, split):
        return [Task(main_query=f"{{split}} {{n}}", task_id=f"{{split}}-{{n}}") for n in range(32)]

class Agent(Workflow):
    async def execute(self, workflow_task, tuner):
        client = tuner.as_raw_openai_sdk_client()
        number = int(workflow_task.task_id.rpartition("-")[2])
        words = [{{"role": "user", "content": f"hello {{number}}"}}]
        await client.chat.completions.create(model="policy", messages=words)
        while workflow_task.task_thread_index and number >= {HELD_FROM} and HOLD.exists():
            await asyncio.sleep(0.05)
        return WorkflowOutput(reward=float(workflow_task.task_thread_index))  # attempts differ, so each step learns
"""


def project_in(folder: Path) -> Path:
    """Its files, in the folder."""
    (folder / "sums.yaml").write_text(YAML)
    (folder / "agent.py").write_text(AGENT)
    return folder


def kept_of(store: Address, position: int) -> list[str]:
    """Who put the attempts at a position, by the file itself."""
    assert store.path is not None
    if not store.path.exists():
        return []
    with closing(sqlite3.connect(store.path)) as base:
        try:
            return [row[0] for row in base.execute("SELECT ended_by FROM ends WHERE place = ?", (position,))]
        except sqlite3.OperationalError:  # its tables are being made
            return []
