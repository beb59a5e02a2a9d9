"""A process that has imported what `ajet` imports from others, and forks a copy of itself for each command: a launch
costs seconds of imports less, and is a process of its own as before (environment, working folder, output, exit code,
signals).

Invariant: the zygote runs one thread and nothing of ajet's but its configuration's types, so that a copy is what a
fresh interpreter is after its first imports. One zygote a pytest process, made at the first command; it ends when its
socket closes. Commands whose environment decides how Python or a library is imported get a fresh interpreter
(ajet_process.py).
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from typing import Any

IMPORTS = (
    "torch", "transformers", "transformers.modeling_gguf_pytorch_utils", "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama", "transformers.models.qwen3.modeling_qwen3",
    "transformers.generation.utils",
    "safetensors.torch", "tokenizers", "gguf", "accelerate", "openai", "openai.resources.chat.completions", "httpx",
    "uvicorn", "uvicorn.protocols.http.httptools_impl", "starlette.applications", "typer", "rich.console", "rich.table",
    "rich.panel", "rich.live", "rich.progress", "loguru", "pydantic", "hydra", "omegaconf", "numpy", "jsonschema",
    "psutil",
    "jinja2.sandbox", "regex", "yaml", "dotenv", "asyncio", "matplotlib.pyplot", "matplotlib.backends.backend_agg",
    "ajet.config", "ajet.schema",
)  # fmt: skip
HEADER = 8


def serve(channel: socket.socket) -> None:
    """Fork a copy for each request and say how it ended, until the other end closes. Returns in a copy only."""
    importlib.invalidate_caches()
    gc.disable()  # the imports leave little garbage, and looking for it is a sixth of what they cost
    for name in IMPORTS:
        importlib.import_module(name)
    gc.freeze()  # a copy's collections leave alone, and so share, what was imported
    gc.enable()
    running: set[int] = set()
    while True:
        ready, _, _ = select.select([channel], [], [], 0.01 if running else None)
        for pid in list(running):
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                running.discard(pid)
                cpu = usage.ru_utime + usage.ru_stime
                send(channel, {"pid": pid, "code": os.waitstatus_to_exitcode(status), "cpu": cpu})
        if not ready:
            continue
        request, files = receive(channel)
        if request is None:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            channel.close()
            become(request, files)
            return
        running.add(pid)
        for file in files:
            os.close(file)
        send(channel, {"started": pid})


def become(request: dict[str, Any], files: list[int]) -> None:
    """Be the process that was asked for: its session, folder, environment, arguments and standard streams."""
    if request["session"]:
        os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for target, file in enumerate(files):
        os.dup2(file, target)
        if file > 2:
            os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["ajet", *request["arguments"]]
    sys.path[0] = request["cwd"]


def send(channel: socket.socket, message: dict[str, Any], files: tuple[int, ...] = ()) -> None:
    """One message with a length before it; file descriptors travel with its first byte."""
    content = json.dumps(message).encode()
    head = len(content).to_bytes(HEADER, "big")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    channel.sendmsg([head], rights)
    channel.sendall(content)


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and the descriptors that came with it; None once the other end is closed."""
    head, rights, _, _ = channel.recvmsg(HEADER, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    if not head:
        return None, []
    files = array.array("i")
    for _, _, content in rights:
        files.frombytes(content)
    while len(head) < HEADER:
        head += channel.recv(HEADER - len(head))
    size, content = int.from_bytes(head, "big"), b""
    while len(content) < size:
        content += channel.recv(size - len(content))
    return json.loads(content), list(files)


def run() -> int:
    """`ajet`, in a copy. Its exit code."""
    from ajet.cli.launcher import main

    try:
        main()
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except BaseException:  # noqa: BLE001 as the interpreter itself does
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    code = run()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # not by way of the interpreter's end, which would touch, and so copy, all that was imported
