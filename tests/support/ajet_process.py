"""Run the `ajet` command as a person would: in its own process.

That process is a copy of one that has done the imports (ajet_zygote.py), unless a test wants a fresh interpreter or
sets a variable that counts while something is imported.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from ajet_testing import costs
from tests.support.ajet_zygote import receive, send

AT_IMPORT = re.compile(r"PYTHON|LD_|OMP_|MKL_|HF_|TRANSFORMERS_|TOKENIZERS_|CUDA_|TORCH_|MPL|XDG_|HOME$|TZ$|LANG$|LC_")
"""Variables that libraries read when they are imported."""


def environment(**more: str) -> dict[str, str]:
    """This environment with one thread and a wide, colourless terminal."""
    fixed = {"OMP_NUM_THREADS": "1", "COLUMNS": "140", "NO_COLOR": "1", "TERM": "dumb"}
    return {**os.environ, **fixed, **more}


def command(*arguments: str) -> list[str]:
    """The command line of `ajet ARGUMENTS`, for a fresh interpreter."""
    return [sys.executable, "-m", "ajet.cli.launcher", *arguments]


def ajet(
    *arguments: str, cwd: Path, timeout: float = 300, fresh: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run to its end; stdout and stderr together in `.stdout`. `fresh`: in an interpreter of its own from the start."""
    if fresh or any(AT_IMPORT.match(name) for name in env):
        return subprocess.run(
            command(*arguments), cwd=cwd, env=environment(**env), timeout=timeout, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    reading, writing = os.pipe()
    with os.fdopen(reading, errors="replace") as output:
        try:
            process = Zygote.current().start(arguments, cwd, environment(**env), writing, session=False)
        finally:
            os.close(writing)
        parts: list[str] = []
        reader = threading.Thread(target=lambda: parts.append(output.read()), daemon=True)
        reader.start()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        reader.join()
    return subprocess.CompletedProcess(["ajet", *arguments], code, "".join(parts))


def start(*arguments: str, cwd: Path, log: Path, fresh: bool = False, **env: str) -> subprocess.Popen[str]:
    """Start it in a session of its own, output into `log`."""
    with log.open("a") as out:
        if fresh or any(AT_IMPORT.match(name) for name in env):
            return subprocess.Popen(
                command(*arguments), cwd=cwd, env=environment(**env), stdout=out, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True, text=True,
            )  # fmt: skip
        return Zygote.current().start(arguments, cwd, environment(**env), out.fileno(), session=True)  # type: ignore[return-value]


class Forked:
    """A command that a zygote forked, with the part of subprocess.Popen that tests use."""

    stdin: IO[str] | None = None
    stdout: IO[str] | None = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended = threading.Event()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode if self.ended.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired("ajet", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Zygote:
    """The process that commands are forked from, and the thread that hears how they ended."""

    _current: Zygote | None = None

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            line = [sys.executable, "-m", "tests.support.ajet_zygote", str(theirs.fileno())]
            root = Path(__file__).parents[2]
            path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(root)]))
            self.process = subprocess.Popen(
                line, pass_fds=[theirs.fileno()], cwd=root, env=environment(PYTHONPATH=path), stdin=subprocess.DEVNULL
            )
        self.channel, self.lock = ours, threading.Lock()
        self.started: list[Forked] = []
        self.answered = threading.Condition()
        self.running: dict[int, Forked] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    @classmethod
    def current(cls) -> Zygote:
        """This process's own."""
        if cls._current is None:
            cls._current = cls()
            atexit.register(cls._current.close)
        return cls._current

    def start(self, arguments: Sequence[str], cwd: Path, env: dict[str, str], output: int, session: bool) -> Forked:
        request: dict[str, Any] = {"arguments": arguments, "cwd": str(cwd), "environment": env, "session": session}
        costs.count_command()
        with self.lock, open(os.devnull) as nothing, self.answered:
            send(self.channel, request, (nothing.fileno(), output, output))
            if not self.answered.wait_for(lambda: self.started, timeout=120):
                raise TimeoutError("the zygote does not answer")
            return self.started.pop()

    def close(self) -> None:
        self.channel.shutdown(socket.SHUT_RDWR)
        self.process.wait()

    def _listen(self) -> None:
        while True:
            try:
                message, _ = receive(self.channel)
            except OSError:
                return
            if message is None:
                return
            with self.answered:
                if "started" in message:
                    process = self.running[message["started"]] = Forked(message["started"])
                    self.started.append(process)
                    self.answered.notify_all()
                else:
                    process = self.running.pop(message["pid"])
                    costs.add_cpu(message["cpu"])
                    process.returncode = message["code"]
                    process.ended.set()


def metric_rows(run: Path) -> list[dict]:
    """The run's metrics.jsonl."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
