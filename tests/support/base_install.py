"""What the base install without torch must do: commands that run, and a local model that names its extra."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ajet.engine.contract import Sampling
from ajet.engine.scripted import ScriptedChat
from ajet.gateway import Gateway

MODEL_PACKAGES = ("torch", "transformers", "jinja2", "datasets", "tokenizers", "safetensors", "huggingface_hub",
                  "accelerate", "peft", "gguf", "matplotlib", "pandas", "pyarrow", "verl", "vllm", "ray")  # fmt: skip
"""Packages that only extras bring."""


def check_base_install(ajet: Sequence[str], folder: Path) -> None:
    """Run the base install's commands in `folder`, an empty one.

    Args:
        ajet: the command line that starts ajet.
    """
    assert "KEY=VALUE" in run(ajet, folder, "--help").stdout
    run(ajet, folder, "init", "agent", "--template", "tool")
    assert "is valid" in run(ajet, folder, "config", "validate", "agent/tool.yaml").stdout
    assert "total_training_steps: 40" in run(ajet, folder, "config", "show", "agent/tool.yaml").stdout
    with chat_endpoint() as (settings, key):
        debug = run(ajet, folder, "agent/tool.yaml", "--backbone", "debug", *settings, OPENAI_API_KEY=key)
    assert "16 episodes: 16 scored" in debug.stdout and "assistant: The fig costs 4." in debug.stdout
    run(ajet, folder, "view", "tool", "--html", "run.html")
    assert "The fig costs 4." in (folder / "run.html").read_text()
    for backbone in ("debug", "local"):
        refused = run(ajet, folder, "agent/tool.yaml", "--backbone", backbone, code=2)
        assert "needs the package torch, which is not installed" in refused.stderr
        assert "[local]" in refused.stderr and "Traceback" not in refused.stderr


def run(
    ajet: Sequence[str], folder: Path, *arguments: str, code: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ajet in `folder`; the exit code must be `code`."""
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "160", "TERM": "dumb", **variables}
    done = subprocess.run([*ajet, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, (arguments, done.stdout[-2000:], done.stderr[-4000:])
    return done


@contextmanager
def chat_endpoint() -> Iterator[tuple[list[str], str]]:
    """Serve an OpenAI-compatible endpoint. Yield the settings of `rollout.engine: endpoint`, and its key."""
    script = ScriptedChat(lambda request: "The fig costs 4.")
    gateway = Gateway(script, None, max_model_len=1000, max_response_tokens=10).start()
    try:
        session = gateway.open("stand-in", key=(0, 0, 0), sampling=Sampling(10), trainable=None)
        served = session("stand-in", "stand-in", None)
        settings = {"engine": "endpoint", "endpoint.base_url": served.base_url, "endpoint.model": "stand-in"}
        yield [f"rollout.{key}={value}" for key, value in settings.items()], served.api_key
        session.close()
    finally:
        gateway.close()
