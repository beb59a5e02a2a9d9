"""Real runs whose reads are recorded: each backbone, and `ajet serve`, as small as they come, in this process.

Invariant: they go through the code that a launch goes through. On verl Ray and verl's own processes are left out: the
configuration is composed for them, and what of ours would run in them (tasks, gateway, workflow, judge) and beside them
(the record) runs here, with a stand-in for verl's servers.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ajet.commands.launch import launch
from ajet.config import Experiment, load_experiment
from ajet.train.runner import LaunchOptions

KEY = "0123456789abcdef0123456789abcdef"
AGENT = '''
from ajet import Workflow, WorkflowOutput
from ajet.task_judge import scorer


class Asks(Workflow):
    async def execute(self, workflow_task, tuner):
        for turn in range(min(1, tuner.config.ajet.rollout.multi_turn.max_steps)):
            client = tuner.as_raw_openai_sdk_client()
            question = {"role": "user", "content": workflow_task.task.main_query}
            await client.chat.completions.create(model="ajet", messages=[question])
        if workflow_task.task_thread_index == 2:
            raise ValueError("one attempt fails")
        return WorkflowOutput(metadata={"final_answer": "4"})


@scorer("by_repeat")
class ByRepeat:
    """A model that it could ask is named; it asks none."""

    def __init__(self, config, plus=0.0):
        self.asked = config.ajet.task_judge.alien_llm_model, config.ajet.task_judge.alien_llm_response_length
        self.plus = plus

    def __call__(self, workflow_task):
        return workflow_task.task_thread_index + self.plus
'''
TREE: dict[str, Any] = {
    "model": {"path": "embedded:tiny-tools", "dtype": "float32"},
    "task_reader": {
        "type": "jsonl_dataset_file",
        "jsonl_dataset_file": {
            "training": {"file_path": "tasks.jsonl"},
            "validation": {"file_path": "tasks.jsonl"},
        },
        "random_dummy": {"size": 1, "validation_size": 1},
        "reasoning_gym": {"dataset": "basic_arithmetic", "size": 1, "validation_size": 1},
    },
    "task_judge": {
        "scorers": [{"name": "by_repeat", "arguments": {"plus": 0.5}}, {"name": "exact", "weight": 0}],
        "stages": [{"from_step": 99, "scorer": "exact"}],
    },
    "rollout": {
        "user_workflow": "agent.py->Asks",
        "num_repeat": 3,
        "temperature": 1.0,
        "max_response_length_in_one_turn": 4,
        "max_model_len": 128,
        "max_num_seqs": 4,
        "val_kwargs": {"do_sample": True, "temperature": 1.0},
        "compute_madness_checklist": [],
    },
    "data": {"train_batch_size": 1, "max_prompt_length": 96, "max_response_length": 32},
    "trainer_common": {
        "total_epochs": 1,
        "test_freq": 1,
        "val_before_train": True,
        "val_pass_n": 1,
        "device": "cpu",
        "threads": 1,
        "n_gpus_per_node": 1,
        "lora": {"rank": 1},
        "algorithm": {"use_kl_in_reward": True},
    },
}
"""Chosen so that what is read on a condition is read."""


def project(folder: Path) -> Path:
    """A project in `folder`; answers its YAML."""
    (folder / "agent.py").write_text(AGENT)
    tasks = [{"question": "What is 1 + 2?", "answer": "3"}, {"question": "too long " * 99, "answer": "3"}]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (folder / "x.yaml").write_text(json.dumps({"ajet": TREE}))
    return folder / "x.yaml"


def loaded(folder: Path, backbone: str, *overrides: str) -> Experiment:
    """Its experiment."""
    return load_experiment(project(folder), backbone=backbone, overrides=overrides, exp_dir=folder / "runs")


def launched(folder: Path, backbone: str, *overrides: str) -> Experiment:
    """`ajet --conf x.yaml --backbone …`."""
    experiment = loaded(folder, backbone, *overrides)
    launch(experiment, LaunchOptions())
    return experiment


def scorers_recorded(folder: Path) -> bool:
    """Whether each scored episode of the runs says which scorers were chosen and what each gave, and so do the
    metrics."""
    lines = [json.loads(line) for path in folder.glob("runs/**/episodes/*.jsonl") for line in path.open()]
    verdicts = [(line["repeat"], line["verdict"]) for line in lines if line["verdict"]]
    said = [json.loads(line) for path in folder.glob("runs/**/metrics.jsonl") for line in path.open()]
    return (
        bool(verdicts)
        and all(
            (verdict["scorer"], verdict["parts"], verdict["reward"])
            == ("by_repeat+exact", {"by_repeat": repeat + 0.5, "exact": 0.0}, repeat + 0.5)
            for repeat, verdict in verdicts
        )
        and any(row.get(f"{split}/scored_by/by_repeat+exact") for split in ("train", "debug") for row in said)
    )


def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """`ajet serve` with a trainer, until its first step is done; a client plays what it needs."""
    from ajet.commands.serve import serve

    monkeypatch.setenv("AJET_ADMIN_KEY", KEY)
    experiment = loaded(folder, "local", "trainer_common.total_training_steps=1", "rollout.num_repeat=2")
    client = threading.Thread(target=_client, args=(folder / "runs" / "x" / "status.json",), daemon=True)
    client.start()
    serve(experiment)
    client.join(30)
    return experiment


def _client(status: Path) -> None:
    while not (status.exists() and (url := json.loads(status.read_text()).get("url"))):
        time.sleep(0.02)
    admin = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=url, timeout=60) as client:
        for repeat, body in ((1, {"task": "What is 2 + 2?", "held_out": True}), (0, {}), (1, {})):
            opened = client.post("/episodes", json=body, headers=admin).raise_for_status().json()
            body = {"model": opened["model"], "messages": [{"role": "user", "content": opened["task"]["main_query"]}]}
            own = {"authorization": f"Bearer {opened['api_key']}"}
            client.post(f"{opened['base_url']}/chat/completions", json=body, headers=own).raise_for_status()
            url = f"/episodes/{opened['episode']}/finish"
            client.post(url, json={"reward": float(repeat)}, headers=admin).raise_for_status()


def on_verl(folder: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> Experiment:
    """A launch on verl that trains one step; see the module."""
    monkeypatch.setattr("ajet_verl.train.train_on_verl", _without_ray)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return launched(folder, "verl", "trainer_common.device=cuda", *overrides)


def _without_ray(experiment: Experiment, run: Any, options: LaunchOptions, interrupts: Any, sink: Any) -> None:
    from ajet.schema.episode import Outcome
    from ajet.schema.task import Task
    from ajet_ray.host import Host
    from ajet_ray.mailbox import CreditEntry, GroupNotice, StepNotice, TicketGrant, ValidationNotice
    from ajet_ray.record import RayRecord
    from ajet_ray.shipped_experiment import KEY as CARRIED
    from ajet_ray.shipped_experiment import restore_experiment
    from ajet_verl.agent.engine import ServerEngine
    from ajet_verl.dataset import TaskRows
    from ajet_verl.train import _prepare_config, open_tickets

    config, order, words, tokenizer = _prepare_config(experiment, run, sink, own=True)
    tickets = open_tickets(experiment, run, config, order)
    sink.begin(words, total=1)
    record = RayRecord(experiment, run, sink, tickets)
    grants = tickets.list_grants()
    rollout = config["actor_rollout_ref"]["rollout"]
    engine = ServerEngine(
        _Servers(tokenizer), max_model_len=rollout["max_model_len"], vocabulary=len(tokenizer), server=rollout["name"]
    )
    closed: list[GroupNotice] = []

    async def post(letter: GroupNotice) -> None:
        closed.append(letter)

    async def grant(ticket: int) -> TicketGrant:
        return grants[ticket]

    host = Host(restore_experiment(config["data"][CARRIED]), run.run_id, engine, tokenizer, post, grant)

    async def play(split: Any) -> None:
        row = TaskRows(split, tokenizer, None, config["data"])[0]
        sessions = rollout["n"] if split == "train" else rollout["val_kwargs"]["n"]
        task = Task.model_validate(row["task"]) if row["task"] else None
        asked = {"step": 1, "sessions": sessions}
        await asyncio.gather(*(host.join_group(split, row["index"], task, **asked) for _ in range(sessions)))

    try:
        for split in ("train", "validation"):
            asyncio.run(play(split))
    finally:
        host.close()
    for letter in closed:
        record.handle_notice(letter)
    trained = closed[0].group
    credited = [CreditEntry(each.uuid, Outcome(1, 0.5), each.sampled_tokens) for each in trained.scored]
    record.handle_notice(StepNotice(1, {"seconds/step": 1.0, "seconds/rollout": 0.5, "seconds/update": 0.5}, credited))
    record.handle_notice(ValidationNotice(1, 1.0))


class _Servers:
    """verl's client as far as we call it: one token, then the end."""

    def __init__(self, tokenizer: Any) -> None:
        self._ids = [tokenizer.encode("3")[0], tokenizer.eos_token_id]

    async def generate(self, request_id: str, **asked: Any) -> Any:
        versions = {"global_steps": 0, "min_global_steps": 0, "max_global_steps": 0}
        return SimpleNamespace(
            token_ids=self._ids, log_probs=[-1.0, -1.0], stop_reason="completed", extra_fields=versions
        )
