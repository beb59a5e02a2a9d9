"""Mistakes with runs, signals and machines, 57 to 74."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from tests.mistakes.mistake import Interrupt, Mistake
from tests.mistakes.project import AGENT, SCRIPT, YAML
from tests.support.ports import free_port

LOCAL = "ajet --conf m.yaml --backbone local"
LONG = YAML.replace("total_training_steps: 2, save_freq: 1", "total_training_steps: 2000, save_freq: 1000")
MORE = YAML.replace("total_training_steps: 2", "total_training_steps: 3")
SLOW_SYNC = """\
import time

import openai


def agent(task, tuner):
    endpoint = tuner.as_oai_baseurl_apikey()
    client = openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
    for _ in range(1000):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": task.main_query}])
        print("called", flush=True)


def reward(task, output):
    return 1.0
"""


def edit_reward(folder: Path) -> None:
    """Change what the reward pays."""
    (folder / "agent.py").write_text(AGENT.replace("return float(", "return -5.0 * float("))
    (folder / "m.yaml").write_text(MORE)


def remove_checkpoints(folder: Path) -> None:
    """Remove the run's checkpoints, to save disk."""
    shutil.rmtree(folder / "launcher_record/m/checkpoints")


def copy_run(folder: Path) -> None:
    """Copy the run's folder to another project."""
    shutil.copytree(folder / "launcher_record/m", folder / "elsewhere/launcher_record/m")


STEP = r"step +2/"
MISTAKES = (
    Mistake(57, "ajet.tune twice with one name", "nothing to do, and fresh=True", ("python tune.py", "python tune.py"),
            code=0, shows=("fresh=True", "total_training_steps", '"tune" is finished'), hides=("ajet episodes",)),
    Mistake(58, "Ctrl-C in a script with ajet.tune", "one screen, without frames of ajet", ("python tune.py",),
            code=130,
            hides=("Traceback",), files={"tune.py": SCRIPT.replace("steps=1", "steps=2000")},
            interrupt=Interrupt(STEP, (signal.SIGINT,))),
    Mistake(59, "SIGTERM while debug plays a synchronous client", "one line",
            ("ajet --conf m.yaml --backbone debug",), code=75, shows=("nothing was recorded",),
            hides=("Exception ignored", "Traceback", "resumes"),
            files={"agent.py": SLOW_SYNC}, interrupt=Interrupt("called", (signal.SIGTERM,))),
    Mistake(60, "a run's name is misspelt", "the nearest name", (LOCAL, "ajet episodes mm"), shows=("did you mean",)),
    Mistake(60, "ajet chat before training", "no checkpoint, and the command that trains", ("ajet chat m",),
            shows=("--conf m.yaml --backbone local",)),
    Mistake(61, "another project's YAML of the same name, with other tasks", "both paths, before the model is loaded", (
            "ajet --conf a/m.yaml --backbone local", "ajet --conf b/m.yaml --backbone local"),
            shows=("a/m.yaml", "experiment_name: b-m in b/m.yaml", "--resume launcher_record/m", "--fresh"),
            hides=("loading",),
            files={"a/m.yaml": YAML, "a/agent.py": AGENT, "a/train.jsonl": '{"question": "1?", "answer": "1"}\n' * 4,
                   "b/m.yaml": MORE, "b/agent.py": AGENT, "b/train.jsonl": '{"question": "2?", "answer": "1"}\n' * 4}),
    Mistake(62, "another project's YAML of the same name, with the same tasks",
            "both paths, before the model is loaded", (
            "ajet --conf a/m.yaml --backbone local", "ajet --conf b/m.yaml --backbone local"),
            shows=("a/m.yaml", "experiment_name: b-m in b/m.yaml", "--resume launcher_record/m", "--fresh"),
            hides=("loading",),
            files={"a/m.yaml": YAML, "a/agent.py": AGENT, "a/train.jsonl": '{"question": "1?", "answer": "1"}\n' * 4,
                   "b/m.yaml": MORE, "b/agent.py": AGENT, "b/train.jsonl": '{"question": "1?", "answer": "1"}\n' * 4}),
    Mistake(63, "the reward is edited between stop and resume", "the file that changed, and --resume or --fresh",
            (LOCAL, edit_reward, LOCAL), shows=("agent.py", "--resume", "--fresh"), hides=("loading",)),
    Mistake(64, "checkpoints removed to save disk, the same command again", "the old run is renamed, not overwritten",
            (LOCAL, remove_checkpoints, LOCAL), code=0, shows=(".old-1",)),
    Mistake(65, "a run's folder copied to another project", "it works", (
            LOCAL, copy_run, "ajet episodes elsewhere/launcher_record/m"), code=0),
    Mistake(67, "the terminal is closed", "a checkpoint and one line", (LOCAL,), code=75, shows=("checkpoint",),
            files={"m.yaml": LONG}, interrupt=Interrupt(STEP, (signal.SIGHUP,))),
    Mistake(68, "Ctrl-C twice", "it ends at once, with what was saved", (LOCAL,), code=130, hides=("Traceback",),
            shows=("is saved; the same command resumes",),
            files={"m.yaml": LONG}, interrupt=Interrupt(STEP, (signal.SIGINT, signal.SIGINT))),
    Mistake(69, "no place to write: HOME cannot be written", "the folder, and the variable that moves it",
            ("ajet --conf m.yaml --backbone debug",), code=0,
            variables={"HOME": "/proc", "AJET_CACHE": "", "XDG_CACHE_HOME": ""},
            shows=("/proc/.cache/ajet", "AJET_CACHE")),
    Mistake(72, "ajet deploy of a debug run", "there is no checkpoint", (
            "ajet --conf m.yaml --backbone debug", "ajet deploy m"),
            shows=("checkpoint", "--conf m.yaml --backbone local")),
    Mistake(73, "ajet eval of a server that is down", "the URL, and that ajet did not fail", (
            f"ajet eval m.yaml --model gpt@http://127.0.0.1:{free_port()}/v1",), shows=("127.0.0.1",),
            hides=("ajet itself failed",),
            files={"m.yaml": YAML.replace(
                "{training: {file_path: train.jsonl}}",
                "{training: {file_path: train.jsonl}, validation: {file_path: train.jsonl}}")}),
    Mistake(74, "ajet chat with a checkpoint's folder", "it works, or the run to name", (
            LOCAL, "ajet chat launcher_record/m/checkpoints/step-2"), code=0),
)  # fmt: skip
