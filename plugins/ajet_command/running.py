"""Runs one command under a supervisor process (the keeper), which ends the command's process tree.

Invariants: `wait` returns only after the keeper has reported that all processes ended. Output beyond the limit is never
stored. `stop` may be called from any thread at any time.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ajet.record.remove_folder import remove_folder
from ajet.schema.errors import AgentFailure
from ajet.workflow import keeper
from ajet_command.settings import HOME

KEEPER = Path(keeper.__file__)
LAST_WORDS = 5.0
"""Seconds that output pipes may stay open after the keeper's report, held by another process."""
RECORDED = 8_000
"""Maximum characters of each recorded output, from its end."""
SHOWN = 1_500
"""Maximum characters of output in an error."""
HIDDEN = "[redacted key]"
EndedBy = Literal["", "timeout", "memory", "cpu", "processes", "output", "stopped"]


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command to run, with its folder, variables and resource limits."""

    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    timeout: float | None = None  # seconds
    limits: Mapping[str, float] = field(default_factory=dict)
    """memory (bytes), cpu (seconds), processes, file (bytes); a missing limit is unbounded."""
    output: int = 4 << 20
    """Maximum bytes of standard output, and of standard error."""
    input: str | None = None
    """Text for its standard input."""


@dataclass(slots=True)
class Ended:
    """How a command ended: exit code, resource use of its process tree, and output."""

    code: int | None
    """Exit code, -N for signal N; None if the command was never started."""
    ended_by: EndedBy
    """Reason of a forced end; empty after a normal end."""
    stdout: str
    stderr: str
    seconds: float = 0.0
    cpu: float = 0.0  # seconds of CPU time
    memory: int = 0
    """Peak bytes seen; pages shared by processes count for each."""
    processes: int = 0
    left: int = 0
    """Processes that the kernel did not release."""
    problem: str = ""
    """Why the command could not be started."""

    def redact(self, secret: str) -> None:
        """Hide the secret in the output."""
        self.stdout, self.stderr = self.stdout.replace(secret, HIDDEN), self.stderr.replace(secret, HIDDEN)
        self.problem = self.problem.replace(secret, HIDDEN)

    def to_record(self) -> dict[str, Any]:
        """Return the exit and the end of the output, for the record of the episode."""
        return {
            "exit_code": self.code,
            "ended_by": self.ended_by,
            "stdout": self.stdout[-RECORDED:],
            "stderr": self.stderr[-RECORDED:],
        }

    def format_last_output(self) -> str:
        """Return the end of the output, for an error."""
        last = (self.stderr.strip() or self.stdout.strip())[-SHOWN:]
        return f"; last output:\n{last}" if last else ""


class RunningCommand:
    """A started command. Raises OSError if its supervisor process cannot be started."""

    def __init__(self, order: CommandSpec) -> None:
        """Start the supervisor process. The command itself starts when `wait` sends its specification."""
        self._spec = order
        self.report, keeper_end = os.pipe()
        self._over = False
        self._lock = threading.Lock()
        try:
            self.keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), str(keeper_end)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(keeper_end,),
                start_new_session=True,
                env=dict(order.environment),
            )
        except BaseException:
            os.close(self.report)
            raise
        finally:
            os.close(keeper_end)

    def stop(self) -> None:
        """End the process tree. Idempotent; does not wait."""
        with self._lock:
            if self.keeper.stdin is not None and not self.keeper.stdin.closed:
                with suppress(BrokenPipeError):  # a killed keeper has not read the complete buffer
                    self.keeper.stdin.close()

    def wait(self) -> Ended:
        """Start the command, read its output until all its processes have ended, and return how it ended."""
        try:
            self._send_spec()
            return self._read_output()
        finally:
            self.stop()
            for pipe in (self.keeper.stdout, self.keeper.stderr):
                if pipe is not None:
                    pipe.close()
            os.close(self.report)
            self.keeper.wait()

    def _send_spec(self) -> None:
        """Send the command's specification to the supervisor as one JSON line, unless `stop` was called before."""
        spec = self._spec
        message = {
            "command": list(spec.command),
            "folder": str(spec.folder),
            "timeout": spec.timeout,
            "limits": dict(spec.limits),
            "input": spec.input,
        }
        with self._lock:
            assert self.keeper.stdin is not None
            if not self.keeper.stdin.closed:
                try:
                    self.keeper.stdin.write(json.dumps(message).encode() + b"\n")
                    self.keeper.stdin.flush()
                except BrokenPipeError:
                    # The supervisor was killed; its missing report says so.
                    return

    def _read_output(self) -> Ended:
        """Read output and report until all pipes are closed, or until LAST_WORDS seconds after the report."""
        assert self.keeper.stdout is not None and self.keeper.stderr is not None
        buffers: dict[int, bytearray] = {}
        stdout_fd, stderr_fd = self.keeper.stdout.fileno(), self.keeper.stderr.fileno()
        with selectors.DefaultSelector() as selector:
            for descriptor in (stdout_fd, stderr_fd, self.report):
                buffers[descriptor] = bytearray()
                selector.register(descriptor, selectors.EVENT_READ)
            deadline: float | None = None
            while selector.get_map() and (deadline is None or time.monotonic() < deadline):
                for key, _ in selector.select(None if deadline is None else 0.1):
                    chunk = os.read(key.fd, 1 << 16)
                    if not chunk:
                        selector.unregister(key.fd)
                        if key.fd == self.report:
                            deadline = time.monotonic() + LAST_WORDS
                    elif key.fd == self.report:
                        buffers[key.fd] += chunk
                    else:
                        self._append_output(buffers[key.fd], chunk)
        return self._parse_report(
            bytes(buffers[self.report]), _decode_output(buffers[stdout_fd]), _decode_output(buffers[stderr_fd])
        )

    def _append_output(self, buffer: bytearray, chunk: bytes) -> None:
        """Append output up to the limit. Output beyond the limit is dropped and ends the command."""
        free_bytes = self._spec.output - len(buffer)
        buffer += chunk[:free_bytes]
        if len(chunk) > free_bytes and not self._over:
            self._over = True
            self.stop()

    def _parse_report(self, report: bytes, stdout: str, stderr: str) -> Ended:
        """Return how a command ended, from the supervisor's JSON report. An empty report means that the supervisor was
        killed."""
        if not report:
            return Ended(
                None, "stopped", stdout, stderr, problem="another process ended the process that supervises the command"
            )
        content = json.loads(report)
        # The supervisor reports a stop by this process; its cause was the output.
        ended_by: EndedBy = "output" if self._over else content.pop("ended_by")
        content.pop("ended_by", None)
        return Ended(content.pop("code"), ended_by, stdout, stderr, **content)


async def run_command(spec: CommandSpec) -> Ended:
    """Run the command in a thread. A cancellation ends the command and is raised after its end. Raises OSError."""
    running = RunningCommand(spec)
    wait_task = asyncio.ensure_future(asyncio.to_thread(running.wait))
    try:
        return await asyncio.shield(wait_task)
    except asyncio.CancelledError:
        running.stop()
        await asyncio.wait([wait_task])
        raise


def _decode_output(raw: bytearray) -> str:
    """Decode output as UTF-8, with marks for invalid bytes."""
    return raw.decode(errors="replace")


ANSWER_BYTES = 4 << 20


class EpisodeFolder:
    """The temporary folder of an episode.

    The command runs in its subfolder `work`. `home` and `task_file` are next to it.
    """

    def __init__(self, parent: str | None, name: str) -> None:
        """Create the folder. Raises OSError."""
        if parent is not None:
            Path(parent).expanduser().mkdir(parents=True, exist_ok=True)
            parent = str(Path(parent).expanduser().absolute())
        self.root = Path(tempfile.mkdtemp(prefix=f"ajet-{name[:12]}-", dir=parent))
        self.work, self.home, self.task_file = self.root / "work", self.root / "home", self.root / "task.json"

    def fill(self, template: Path | None, files: Mapping[str, str], task: Mapping[str, Any]) -> None:
        """Prepare the folder: copy the template, write files over it, and write the task file.

        Args:
            template: folder to copy into `work`, or None.
            files: contents by path below `work`, or below `home` after `~/`.
            task: the task as JSON values.
        """
        if template is not None:
            shutil.copytree(template, self.work, symlinks=True)
        self.work.mkdir(exist_ok=True)
        self.home.mkdir(exist_ok=True)
        self.task_file.write_text(json.dumps(task, ensure_ascii=False, default=str), encoding="utf-8")
        for name, text in files.items():
            path = self._resolve_inside(name, "the file")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")

    def read_answer(self, name: str) -> str:
        """Return the content of an answer file; "" without the file. Raises AgentFailure for a path outside."""
        path = self._resolve_inside(name, "the answer")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer must not hold us
        except OSError:
            return ""
        try:
            return os.read(descriptor, ANSWER_BYTES).decode(errors="replace")
        except (IsADirectoryError, BlockingIOError):
            return ""
        finally:
            os.close(descriptor)

    def bring_in(self, template: Path | None, files: Mapping[str, str]) -> None:
        """Write files over whatever the agent left at their paths; no link of the agent is followed. Raises OSError.

        Args:
            template: folder to copy over `work`, or None.
            files: contents by path below `work`.
        """
        for folder, _, names in os.walk(template) if template is not None else ():
            for name in names:
                source = Path(folder, name)
                shutil.copy2(source, self._clear_path(source.relative_to(template or folder)))
        for name, text in files.items():
            self._clear_path(Path(name)).write_text(text, encoding="utf-8")

    def _clear_path(self, name: Path) -> Path:
        """Remove whatever the agent left at a path below `work`, and return the path.

        Links and files in place of the folders above it are replaced by real folders.
        """
        path = self.root
        for folder_name in ("work", *name.parent.parts):
            path = path / folder_name
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
                path.mkdir()
            # The agent may have removed the permission to write.
            path.chmod(path.stat().st_mode | stat.S_IRWXU)
        path = path / name.name
        if path.is_dir() and not path.is_symlink():
            remove_folder(path)
        path.unlink(missing_ok=True)
        return path

    def _resolve_inside(self, name: str, what: str) -> Path:
        """Return the real path of `name`, below `home` after `~/`. Raises AgentFailure for a path outside."""
        folder = self.home if name.startswith(HOME) else self.work
        path = Path(os.path.realpath(folder / name.removeprefix(HOME)))
        if not path.is_relative_to(os.path.realpath(folder)):
            raise AgentFailure(f"{what} {name} is outside the episode's folder")
        return path

    def remove(self) -> None:
        """Remove the folder, also unreadable and deeply nested files."""
        remove_folder(self.root)
