"""Counts the modules that a plain local run imports, ours by package and others by top-level name.

    python scripts/loaded_modules.py [--run debug|training] [--list] [--out FILE]

Two runs of one agent on the embedded tiny model, each in a fresh interpreter through the command line:
`--backbone debug` plays one task, `--backbone local` trains one step. What is counted is `sys.modules` when the
command has ended. Invariant: `ours` are modules whose file lies in ajet/, plugins/, train/ or env/ of this checkout;
the run's own agent is not counted. The count of ours depends on the code alone, that of others on the versions of
packages. benchmarks/results/loaded_modules.json holds the figures; write it anew with `--out`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OURS = ("ajet", "plugins", "train", "env")
"""Folders of this checkout that hold modules of ours."""
RECORDED = ROOT / "benchmarks" / "results" / "loaded_modules.json"
AGENT = """
from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


class OneRequest(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        await client.chat.completions.create(model="m", messages=messages, max_tokens=4)
        return WorkflowOutput(reward=float(workflow_task.task_thread_index % 2))
"""
YAML = """
ajet:
  model: {path: "embedded:tiny-tools"}
  data: {train_batch_size: 1, max_prompt_length: 128, max_response_length: 64}
  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: tasks.jsonl}}}
  rollout: {user_workflow: "agent.py->OneRequest", num_repeat: 2, max_model_len: 256}
  debug: {debug_first_n_tasks: 1}
  trainer_common: {total_training_steps: 1, save_freq: 1, test_freq: -1, logger: console, threads: 1}
"""
CHILD = """
import json, sys
from ajet.cli.launcher import main
code = 0
try:
    main(sys.argv[2:])
except SystemExit as exit:
    code = exit.code or 0
modules = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if module is not None}
with open(sys.argv[1], "w") as file:
    json.dump({"code": code, "modules": modules}, file)
"""
RUNS = {"debug": "debug", "training": "local"}
"""Each run, and its backbone."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=RUNS, action="append", help="only this run")
    parser.add_argument("--list", action="store_true", help="name the modules of ours, too")
    parser.add_argument("--out", type=Path, help=f"write JSON here, e.g. {RECORDED.relative_to(ROOT)}")
    args = parser.parse_args()
    counts: dict[str, Any] = {}
    for run in args.run or RUNS:
        modules = import_modules(RUNS[run])
        counts[run] = count_modules(modules)
        if args.list:
            counts[run]["ours"]["modules"] = sorted(name for name, file in modules.items() if is_ours(file))
    text = json.dumps({"python": f"{sys.version_info.major}.{sys.version_info.minor}", **counts}, indent=1) + "\n"
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text, encoding="utf-8")
    print(text, end="")
    return 0


def import_modules(backbone: str) -> dict[str, str | None]:
    """Return the modules that a run on `backbone` imports, by name, each with its file. Raises RuntimeError."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {
            "agent.py": AGENT,
            "run.yaml": YAML,
            "tasks.jsonl": json.dumps({"question": "What is 2 + 2?", "answer": "4"}) + "\n",
        }.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        found = Path(folder) / "modules.json"
        command = [sys.executable, "-c", CHILD, str(found), "--conf", "run.yaml", "--backbone", backbone]
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True, check=False
        )
        result = json.loads(found.read_text(encoding="utf-8")) if found.exists() else {"code": done.returncode}
        if result["code"] != 0:
            raise RuntimeError(f"the run on {backbone} ended with exit code {result['code']}:\n{done.stdout[-2000:]}")
        own = str(Path(folder).resolve())
        modules: dict[str, str | None] = result["modules"]
        return {name: file for name, file in modules.items() if not (file or "").startswith((own, folder))}


def count_modules(modules: Mapping[str, str | None]) -> dict[str, dict[str, Any]]:
    """Return the totals and the counts by package of `modules` (name to file)."""
    ours = [_package_of(name) for name, file in modules.items() if is_ours(file)]
    others = [_distribution_of(name, file) for name, file in modules.items() if not is_ours(file)]
    return {"ours": _tally(ours), "others": _tally(others)}


def is_ours(file: str | None) -> bool:
    """True for a file in one of our folders of this checkout."""
    return (file or "").startswith(tuple(f"{ROOT / folder}{os.sep}" for folder in OURS))


def _package_of(name: str) -> str:
    """Return `ajet.gateway` for modules below it, `ajet` for those beside the packages, and a plug-in's own name."""
    first, _, rest = name.partition(".")
    second = rest.partition(".")[0]
    return f"{first}.{second}" if second and (ROOT / first / second).is_dir() else first


def _distribution_of(name: str, file: str | None) -> str:
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("__main__", "__mp_main__"):
        return "standard library"
    return top if file or "." in name else "made while running"


def _tally(packages: Iterable[str]) -> dict[str, Any]:
    counted = Counter(packages)
    ordered = sorted(counted.items(), key=lambda each: (-each[1], each[0]))
    return {"total": counted.total(), "packages": dict(ordered)}


if __name__ == "__main__":
    sys.exit(main())
