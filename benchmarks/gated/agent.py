"""Agent of the runs that benchmarks/workloads.py measures turn by turn.

The run is an ordinary `ajet` command. Before each turn (a fixed number of episodes) its agent reports over a Unix
socket and waits for one byte, so that two versions can take turns. The time between that byte and the next report is
what the turn took.
"""

from __future__ import annotations

import os
import socket
import threading

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask

EPISODES = int(os.environ.get("GATE_EPISODES", "1"))
SYSTEM = {"role": "system", "content": "You solve sums step by step and give the answer in a box."}


class Gate:
    """Holds the episodes of a turn until the other side of the socket lets them begin."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._started = 0
        self._opened = threading.Event()
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(path)

    def enter(self) -> None:
        """Return when the turn of this episode has begun."""
        with self._lock:
            is_first = self._started % EPISODES == 0
            self._started += 1
            if is_first:
                self._opened = threading.Event()
            opened = self._opened
        if is_first:
            self._connection.sendall(b"r")
            self._connection.recv(1)
            opened.set()
        opened.wait()


GATE = Gate(os.environ["GATE_SOCKET"]) if "GATE_SOCKET" in os.environ else None


class Sums:
    """Reader of sums, more of them than any measurement plays."""

    def __init__(self, config: object) -> None:
        del config

    def tasks(self, split: str) -> list[Task]:
        """Return the tasks of a split."""
        numbers = range(4000) if split == "train" else range(4000, 4004)
        return [Task(task_id=f"{split}-{n}", main_query=f"What is {n} + {n}?") for n in numbers]


class Adder(Workflow):
    """Three calls of one conversation; the reward differs between the attempts at a task."""

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        if GATE is not None:
            GATE.enter()
        client = tuner.as_raw_openai_sdk_client()
        messages = [SYSTEM, {"role": "user", "content": workflow_task.task.main_query}]
        letters = 0
        for turn in range(3):
            reply = await client.chat.completions.create(model="tuned", messages=messages)
            text = reply.choices[0].message.content or ""
            letters += len(text)
            messages.append({"role": "assistant", "content": text})
            messages.append({"role": "user", "content": f"Go on with step {turn + 1}."})
        return WorkflowOutput(reward=letters % 7 / 7)
