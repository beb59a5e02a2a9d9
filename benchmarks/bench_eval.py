"""Evaluation: what `ajet eval` adds to the rollout that it is made of.

Episodes of 5 calls against an OpenAI-compatible server of fixed latency, in a process of its own: once by the rollout
alone, whose groups are kept in memory, and once by `ajet eval`, which puts every attempt on the disk as it ends, shows
and scores it. Both play the same tasks with the same workflow; they take turns, and the best of each counts. The ratio
is the rollout's time over the evaluation's, from the first task to the result; the limit 0.95.

    python benchmarks/bench_eval.py [--episodes N] [--latency S] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from loguru import logger
from ratios import kept

CALLS = 5
LIMIT = 0.95
SYSTEM = "You solve sums step by step and give the answer in a box. " * 3
WORKFLOW = f"""
from ajet import Workflow, WorkflowOutput

class Talks(Workflow):
    async def execute(self, workflow_task, tuner):
        client = tuner.as_raw_openai_sdk_client()
        messages = [{{"role": "system", "content": {SYSTEM!r}}}]
        for turn in range({CALLS}):
            asked = f"Go on with step {{turn}}: {{workflow_task.task.main_query}}"
            messages.append({{"role": "user", "content": asked}})
            reply = await client.chat.completions.create(messages=messages)
            messages.append({{"role": "assistant", "content": reply.choices[0].message.content}})
        return WorkflowOutput(reward=1.0, is_success=True)
"""


def serve(latency: float, port: Any) -> None:
    """A server that answers every chat completion after `latency` seconds; puts its port into `port`."""
    import socket

    import uvicorn

    message = {"role": "assistant", "content": "The next step is to add the two numbers and to carry one."}
    answer = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        await asyncio.sleep(latency)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port.put(listener.getsockname()[1])
    uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off")).run(sockets=[listener])


def a_project(folder: Path, episodes: int) -> Path:
    """A folder with tasks, workflow and YAML; answers the YAML."""
    (folder / "workflow.py").write_text(WORKFLOW)
    rows = (json.dumps({"question": f"{n} + {n}", "id": str(n), "tag": f"of {n % 10}"}) for n in range(episodes))
    (folder / "tasks.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "bench.yaml").write_text(
        "ajet:\n"
        "  task_reader:\n"
        "    type: jsonl_dataset_file\n"
        "    jsonl_dataset_file: {training: {file_path: tasks.jsonl}, validation: {file_path: tasks.jsonl}}\n"
        "  rollout:\n"
        "    {user_workflow: workflow.py->Talks, engine: endpoint, isolation: loop, episode_timeout: null,\n"
        f"     max_env_worker: {episodes}, endpoint: {{base_url: 'http://set/v1', model: bench}}}}\n"
    )
    return folder / "bench.yaml"


def rollout_alone(yaml: Path, url: str) -> float:
    """Seconds of the rollout over the validation tasks, without a record."""
    from ajet.commands.evaluation.models import open_target
    from ajet.commands.evaluation.play import EvaluationOptions, prepare_experiment
    from ajet.train.parts import assemble

    experiment, (model,) = open_target(str(yaml), None, [f"bench@{url}"])
    with assemble(
        model.apply_to(prepare_experiment(experiment, EvaluationOptions())), run_id="bench", split="validation"
    ) as parts:
        tasks = list(enumerate(parts.tasks("validation")))
        began = time.monotonic()
        groups = list(parts.rollout.play(tasks, step=0, split="validation"))
        seconds = time.monotonic() - began
    assert len(groups) == len(tasks) and all(group.scored for group in groups)
    return seconds


def evaluation(yaml: Path, url: str) -> float:
    """Seconds of the whole command after its imports: opening, playing, recording, scoring."""
    from ajet.commands.evaluation.models import open_target
    from ajet.commands.evaluation.play import EvaluationOptions, evaluate_models
    from ajet.commands.evaluation.report import to_json

    began = time.monotonic()
    experiment, models = open_target(str(yaml), None, [f"bench@{url}"])
    told = to_json(evaluate_models(experiment, models, EvaluationOptions(fresh=True)))
    seconds = time.monotonic() - began
    assert told["models"][0]["pass@1"]["value"] == 1.0
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the limit is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--latency", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=2)
    chosen = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logger.remove()
    context = multiprocessing.get_context("spawn")
    port = context.Queue()
    server = context.Process(target=serve, args=(chosen.latency, port), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{port.get(timeout=60)}/v1"
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            yaml = a_project(Path(folder), chosen.episodes)
            evaluation(a_project(Path(folder), 20), url)  # imports and compiled templates
            yaml = a_project(Path(folder), chosen.episodes)
            both = [(rollout_alone(yaml, url), evaluation(yaml, url)) for _ in range(chosen.rounds)]
            os.chdir("/")
    finally:
        server.terminate()
        server.join()
    alone, whole = (min(each) for each in zip(*both, strict=True))
    print(f"eval: {chosen.episodes} episodes of {CALLS} calls, {chosen.latency:g} s a call, best of {chosen.rounds}")
    print(f"  rollout alone {alone:.1f} s, ajet eval {whole:.1f} s (ideal {CALLS * chosen.latency:g} s)")
    print(f"  throughput of the rollout's own: {alone / whole:.3f} (limit {LIMIT})")
    return 0 if kept("throughput against the rollout alone", alone / whole, at_least=LIMIT) else 1


if __name__ == "__main__":
    sys.exit(main())
