"""The project in which each mistake of a first day is made: an agent, a reward, twelve rows, one YAML."""

from __future__ import annotations

import json
from pathlib import Path

AGENT = """\
async def agent(task, tuner):
    client = tuner.as_raw_openai_sdk_client()
    messages = [{"role": "user", "content": task.main_query}]
    reply = await client.chat.completions.create(messages=messages, max_tokens=8)
    return reply.choices[0].message.content or ""


def reward(task, output):
    return float(task.metadata["answer"] in output.metadata["final_answer"])
"""
YAML = """\
ajet:
  model: {path: "embedded:tiny-tools"}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: train.jsonl}}
  task_judge: {judge_protocol: agent.py->reward}
  rollout: {user_workflow: agent.py->agent, num_repeat: 2, max_response_length_in_one_turn: 8}
  data: {train_batch_size: 2}
  trainer_common: {total_training_steps: 2, save_freq: 1}
  debug: {debug_first_n_tasks: 1}
"""
SCRIPT = """\
import ajet
from agent import agent, reward

TASKS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(4)]
SMALL = {"data.train_batch_size": 2, "rollout.num_repeat": 2, "rollout.max_response_length_in_one_turn": 8}

if __name__ == "__main__":
    ajet.tune(agent=agent, reward=reward, tasks=TASKS, model="embedded:tiny-tools", steps=1, settings=SMALL)
"""
ROWS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(12)]


def json_lines(rows: list[dict[str, object]]) -> str:
    """Return the rows as JSON Lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def table(header: str, separator: str = ",") -> str:
    """Return the rows as CSV with CRLF, as a spreadsheet writes it, with this header of two columns."""
    lines = [header, *(f"{row['question']}{separator}{row['answer']}" for row in ROWS)]
    return "".join(line + "\r\n" for line in lines)


def write_project(folder: Path, files: dict[str, str | bytes]) -> None:
    """Write the project into `folder`; `files` replace or add to its own."""
    own: dict[str, str | bytes] = {
        "agent.py": AGENT, "m.yaml": YAML, "train.jsonl": json_lines(ROWS), "tune.py": SCRIPT
    }  # fmt: skip
    for name, content in {**own, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
