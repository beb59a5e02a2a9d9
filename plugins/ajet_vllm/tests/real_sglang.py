"""A real SGLang server on the CPU, with tiny-tools in it: what `tests/support/sglang_server.py` stands in for.

SGLang's wheel asks for CUDA's torch and for kernels that exist for CUDA alone. On a CPU it needs neither: its files and
what this environment lacks of what they import lie in a folder of the cache, ahead of this environment on the path.
Attention is torch's own. Of the kernels for CPUs, which are nowhere to be had but by a build, it names some as it is
imported; none of them is called here, and says so if it is.

Invariant: a test installs nothing: `make test-slow` does. Where it could not, the tests that need it are skipped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.environments import find_environment_folder
from tests.support.ports import free_port
from tests.support.vllm_fixtures import tiny_folder

KERNELS = '''"""Stands where SGLang's kernels for CPUs would be: each name is one that must not be called."""


def __getattr__(name: str) -> object:
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def missing(*given: object, **named: object) -> None:
        raise NotImplementedError(f"SGLang's kernels for CPUs are not installed: {name}")

    return missing
'''
ROOT = Path(__file__).resolve().parents[3]
CONTEXT = 512
"""Tokens: as many as the stand-in has."""
LOADS = "/dev/shm/sglang_loads_"
WITHIN = 500.0
"""Seconds in which it must answer."""


@contextmanager
def real_sglang() -> Iterator[str]:
    """Its URL, `http://HOST:PORT`, of a process group of its own; skips where it is not there."""
    packages, images = find_environment_folder("sglang"), Path(sys.prefix, "share", "torchvision")
    if not images.is_dir():
        pytest.skip("torchvision is not there: `make setup` fetches it, if a registry answers")
    port = free_port()
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(tiny_folder())]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    command += ["--attention-backend", "torch_native", "--context-length", str(CONTEXT), "--max-total-tokens", "16384"]
    command += ["--max-running-requests", "16", "--served-model-name", "tiny", "--log-level", "warning"]
    with tempfile.TemporaryDirectory(prefix="s") as theirs, Path(theirs, "log").open("w+") as log:
        Path(theirs, "sgl_kernel.py").write_text(KERNELS)
        path = os.pathsep.join(
            map(str, (ROOT / "tests" / "vision", theirs, packages, images))
        )  # the first: for the last
        own = {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": path, "TMPDIR": theirs, "OMP_NUM_THREADS": "1"}
        server = subprocess.Popen(
            command, env={**os.environ, **own}, start_new_session=True, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            url, until = f"http://127.0.0.1:{port}", time.monotonic() + WITHIN
            while not _answers(url):
                assert server.poll() is None and time.monotonic() < until, Path(log.name).read_text()[-4000:]
                time.sleep(0.25)
            yield url
        finally:
            end(server)


def _answers(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url}/health", timeout=60).status_code == 200
    return False


def end(server: subprocess.Popen[bytes]) -> None:
    """The whole group, and a file in shared memory that it never removes. It gives back the rest of it if it is asked
    to end, for which it looks every five seconds."""
    left: set[str] = set()
    with suppress(psutil.Error):
        process = psutil.Process(server.pid)
        for each in (process, *process.children(recursive=True)):
            left |= {part.path for part in each.memory_maps() if part.path.startswith(LOADS)}
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(60)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    for path in left:
        Path(path).unlink(missing_ok=True)
