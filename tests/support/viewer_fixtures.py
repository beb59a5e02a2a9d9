"""Runs as a viewer finds them: written by the record's own writers, with what a hostile model might say in them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ajet.record.episodes import EpisodeFiles
from ajet.record.files import append_lines
from ajet.schema.call import Call, VersionRun
from ajet.schema.episode import Episode, Outcome, SampledSpan, Timeline, Verdict
from ajet.schema.task import Task
from ajet.schema.tool_use import ToolUse, compute_digest
from tests.support.record_fixtures import episode, failed

HOSTILE = (
    "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"
    '<a href="javascript:window.pwned=3">x</a></script><!-- \u202egnp.exe\u202c \x1b[31mred\x1b[0m \u200b'
)


HELD_OUT = 8
"""Held-out tasks of `write_seed_run`."""


def write_run(folder: Path, *, steps: int = 3, outcome: str | None = "finished", said: str = "4 = 2 + 2") -> Path:
    """A run of `steps` steps with two groups of two episodes each, and a failed one."""
    folder.mkdir(parents=True)
    status = {"run_id": "r", "name": folder.name, "kind": "train", "phase": "rollout", "step": steps, "steps": 9}
    status |= {"host": "h", "started": time.time() - 60, "updated": time.time(), "processes": []}
    (folder / "status.json").write_text(json.dumps(status | ({"outcome": outcome} if outcome else {})))
    (folder / "resolved.yaml").write_text("ajet:\n  seed: 3\n  rollout: {num_repeat: 8, temperature: 1.0}\n")
    (folder / "given.yaml").write_text("ajet:\n  rollout: {num_repeat: 8}\n")
    (folder / "command").write_text("ajet --conf x.yaml seed=3\n")
    for step in range(1, steps + 1):
        add_step(folder, step, said=said)
    return folder


def add_step(folder: Path, step: int, *, said: str = "4 = 2 + 2") -> None:
    """One more step: metrics and episodes."""
    row = {"step": step, "time": time.time(), "train/reward": step / 10, "kl": 0.01 * step, "seconds/rollout": 1.5}
    row |= {f"train/scored_by/{scorers_of(step)}": 4, f"train/scorer/{scorers_of(step)}": 0.5}
    append_lines(folder / "metrics.jsonl", [json.dumps(row)])
    episodes = [played(step, task, repeat, said) for task in range(2) for repeat in range(2)]
    outcomes = {each.uuid: Outcome(step, (each.reward or 0.0) - 0.5) for each in episodes}
    EpisodeFiles(folder / "episodes").write(step, "train", [*episodes, lost(step)], outcomes)


def write_seed_run(folder: Path, seed: int, solved: int, *, question: str = "What is", judge: str = "j") -> Path:
    """Record two steps and two validations; in the last one the first `solved` tasks are solved."""
    folder.mkdir(parents=True)
    (folder / "resolved.yaml").write_text(f"ajet:\n  seed: {seed}\n")
    times = {"seconds/step": 30.0, "seconds/processor": 40.0, "judge": judge}
    for step, right in ((1, 0), (2, solved)):
        row = {"step": step, "time": time.time(), "train/reward": right / HELD_OUT, **times}
        measured = {"step": step, "validation/tasks": HELD_OUT, "validation/success_rate": right / HELD_OUT}
        measured |= {"validation/reward": right / HELD_OUT, "seconds/validation": 30.0, "judge": judge}
        append_lines(folder / "metrics.jsonl", [json.dumps(row), json.dumps(measured)])
        episodes = [
            replace(
                played(step, task, 0, "4"), uuid=f"v{step}{task}", split="validation",
                task=Task(task_id=f"t{task}", main_query=f"{question} {task}?"),
                verdict=Verdict(float(task < right), task < right, "counted"),
            )
            for task in range(HELD_OUT)
        ]  # fmt: skip
        EpisodeFiles(folder / "episodes").write(step, "validation", episodes)
    return folder


def busy(folder: Path) -> None:
    """What a run says of itself between two steps, on top of `write_run` with three."""
    status = json.loads((folder / "status.json").read_text()) | {"depths": {"leased": 5, "closed": 2}}
    status.pop("outcome", None)
    (folder / "status.json").write_text(json.dumps(status))
    times = {"seconds/step": 10.0, "seconds/rollout": 8.0, "seconds/update": 2.0}
    append_lines(folder / "metrics.jsonl", [json.dumps({"step": 3, **times, "train/episodes": 4, "tasks": [0, 1]})])


def scorers_of(step: int) -> str:
    """Another one from the third step on."""
    return "exact" if step < 3 else "f1"


def add_validation(folder: Path, step: int, *successes: bool) -> None:
    """One of as many tasks."""
    made = [played(step, task, 0, f"step {step} says {task}") for task in range(len(successes))]
    found = [
        replace(each, uuid=f"v{step}{task}", split="validation", verdict=Verdict(float(success), success, "counted"))
        for task, (each, success) in enumerate(zip(made, successes, strict=True))
    ]
    EpisodeFiles(folder / "episodes").write(step, "validation", found)


def played(step: int, task: int, repeat: int, said: str) -> Episode:
    """An episode with a reward of its own."""
    reward = (task + repeat) / 2
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": f"What is {task} + 2?"},
        {"role": "system", "content": "Think."},
        {
            "role": "assistant",
            "content": said,
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c"},
    ]
    began = 1000.42 + step
    use = ToolUse("add", {"a": 1}, "3", compute_digest("3"), began, began + 0.02, "transport", call_id="c")
    uses = [use] if repeat else []  # those of earlier versions have none
    made = episode(
        f"e{step:03}{task}{repeat}",
        seed=100 * step + 10 * task + repeat,
        step=step,
        repeat=repeat,
        task=Task(main_query=f"What is {task} + 2?", task_id=f"t{task}"),
        verdict=Verdict(
            reward, reward >= 0.5, "counted", scorer=scorers_of(step), parts={scorers_of(step): reward, "style": None}
        ),
        messages=messages,
        tool_uses=uses,
        started=1000.0 + step,
        ended=1002.0 + step,
    )
    for call in made.calls:
        call.started = 1000.1 + step + 0.4 * call.index
        call.ended = call.started + 0.3
    return made


IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAYAAAAECAIAAAAiZtkUAAAAFklEQVR4nG"
    "P8zwAFjAxQJhMDBiBOCACMMwIHYBTs5wAAAABJRU5ErkJggg=="
)
MARK = 7
"""The id of the token that images are made of."""


def with_image() -> Episode:
    """An episode whose question shows an image (and names one of the web), in twelve tokens of its prompt."""
    task = Task(task_id="seen", metadata={"image": IMAGE})
    seen = replace(long_episode(40), uuid="seen", step=9, task=task)
    seen.messages[0]["content"] = [
        {"type": "image_url", "image_url": {"url": IMAGE}},
        {"type": "text", "text": "What colour is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]
    seen.calls[0].suffix_ids[2:14] = MARK
    seen.timelines[0].ids[2:14] = MARK
    return seen


def lost(step: int) -> Episode:
    """An episode that failed."""
    return replace(failed(f"f{step:03}"), step=step, task=Task(main_query="raises", task_id="t9"))


def long_episode(length: int) -> Episode:
    """One call whose reply has `length` tokens."""
    draw = np.random.default_rng(0)
    ids, logprobs = draw.integers(0, 49_000, length).astype(np.int32), -draw.random(length, dtype=np.float32)
    prompt = draw.integers(0, 49_000, 16).astype(np.int32)
    call = Call(
        0,
        "default",
        "default",
        True,
        None,
        0,
        prompt,
        ids,
        logprobs,
        logprobs,
        (VersionRun(0, 0, 0),),
        "stop",
        (0,),
        None,
        1,
    )
    zeros = np.zeros(16, np.float32)
    line = Timeline(
        0, "default", "default", np.concatenate([prompt, ids]), np.arange(length + 16) >= 16,
        np.concatenate([zeros, logprobs]), np.concatenate([zeros, logprobs]),
        np.where(np.arange(length + 16) >= 16, 0, -1).astype(np.int32), (SampledSpan(0, 16, length + 16),),
    )  # fmt: skip
    return Episode(
        "long", Task(main_query="long", task_id="long"), 0, 1, "train", verdict=Verdict(1.0), calls=[call],
        messages=[{"role": "user", "content": "go"}, {"role": "assistant", "content": "gone"}], timelines=[line],
    )  # fmt: skip
