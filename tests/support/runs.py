"""Run commands of `ajet`, in processes of their own or here, and read what they record.

Tests of runs assert exit codes, printed lines and what `ajet.record`, `ajet audit` and `ajet prove` say. Invariant: of
the tests that are gates, only this module names what lies inside `ajet.cli`, `ajet.run`, `ajet.backbone` and
`ajet.record`. A fault that no workflow, signal, disk or setting can cause is a context manager here, named by the
fault.
"""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from ajet.cli.launcher import main
from ajet.config import Experiment
from ajet.context_tracker import timelines
from ajet.record.chain import Chain
from ajet.record.episode_codec import decode as decode_episode
from ajet.record.episode_codec import encode as encode_episode
from ajet.record.logs import main_log
from ajet.record.metrics import Metrics
from ajet.record.process_identity import ProcessIdentity
from ajet.record.run_directory import RunDirectory
from ajet.schema.errors import UserError
from tests.ajet_command import Forked, ajet, command, environment, metric_rows, start

__all__ = [
    "LOCK_HOLDER",
    "Forked",
    "Ran",
    "ajet",
    "audit",
    "begin_record",
    "command",
    "count_tasks",
    "decode_episode",
    "encode_episode",
    "environment",
    "interrupted_twice",
    "killed_before_commit",
    "killed_before_row",
    "launch_breaks",
    "main_log",
    "metric_rows",
    "prove",
    "prove_store",
    "run_here",
    "start",
    "status_of_process",
    "timelines",
    "validation_is_interrupted",
]


LOCK_HOLDER = """
import os, sys
from pathlib import Path
from ajet.record.lock import RunLock
found = RunLock(Path(sys.argv[1])).take()
if len(sys.argv) > 2 and os.fork() == 0:
    sys.stdin.readline()
    os._exit(0)
print("got" if found is None else "held", flush=True)
sys.stdin.readline()
"""
"""A program that takes the folder of a run, prints "got" or "held", and ends at a line of input. With a second argument
it leaves a forked child behind."""


@dataclass(frozen=True)
class Ran:
    """How a command ended: its exit code, and what it printed on both streams."""

    code: int
    printed: str


def run_here(*arguments: str | Path) -> Ran:
    """Run `ajet ARGUMENTS` in this process, which costs no start and which a fault of this module reaches."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed), pytest.raises(SystemExit) as end:
        main([str(each) for each in arguments])
    return Ran(int(end.value.code or 0), printed.getvalue())


def begin_record(settings: dict[str, Any], folder: Path) -> None:
    """Begin the record of a debug run with these keys of `ajet` below this folder, and end it at once."""
    from ajet.run import launch

    experiment = Experiment.from_dict({"ajet": settings}, base=folder)
    with launch.recorded(experiment, RunDirectory.open(experiment, root=folder, kind="debug")):
        pass


def audit(run: Path) -> dict[str, Any]:
    """What `ajet audit --json` says of the run in this folder."""
    return _json_of("audit", run)


def prove(run: Path, *options: str) -> dict[str, Any]:
    """What `ajet prove --json` says of the run in this folder. Raises UserError with what it prints where its exit code
    is 2."""
    return _json_of("prove", run, *options)


def prove_store(address: str, *, run: str) -> dict[str, Any]:
    """What `ajet prove --store --json` says of a run's episodes in this store."""
    return _json_of("prove", None, "--store", address, "--run", run)


def _json_of(name: str, run: Path | None, *options: str) -> dict[str, Any]:
    printed, refusal = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(refusal), pytest.raises(SystemExit) as end:
        main([name, *([str(run)] if run else []), "--json", *options])
    if end.value.code == 2:
        raise UserError(refusal.getvalue())
    said: dict[str, Any] = json.loads(printed.getvalue())
    assert end.value.code == (0 if said["ok"] else 1), said
    return said


def count_tasks(rows: list[dict[str, Any]]) -> tuple[int, int]:
    """(skipped, doubled) tasks by the rows of metrics.jsonl, as a run says at its end."""
    from ajet.run.summary import Tally

    tally = Tally.of(rows)
    return tally.skipped, tally.doubled


@contextmanager
def launch_breaks(problem: Exception) -> Iterator[None]:
    """A launch meets a bug of ajet before it has begun."""

    from ajet.run import launch

    def broken(*_: object) -> int:
        raise problem

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "launch", broken)
        yield


def status_of_process(pid: int) -> str:
    """The status.json of a run that is this process."""
    identity = {**asdict(ProcessIdentity.of(pid)), "role": "run"}
    return json.dumps({**identity, "processes": [identity]})


def _interrupt_twice() -> None:
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)


def _at_call(
    patch: pytest.MonkeyPatch, of: Any, name: str, call: int, before: Callable[[], Any] | None = None, *,
    after: Callable[[], Any] | None = None,
) -> None:  # fmt: skip
    """Do something before, or after, the `call`th call of this function."""
    plain, left = getattr(of, name), [call]

    def counted(*args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and before is not None:
            before()
        done = plain(*args, **more)
        if left[0] == 0 and after is not None:
            after()
        return done

    patch.setattr(of, name, counted)


def _in_second_slice(patch: pytest.MonkeyPatch, step: int) -> None:
    """Of an optimizer's step: some weights are moved, others not."""
    from ajet.backbone.local.optimizer import FlatAdamW

    plain, left = FlatAdamW.step, [step]

    def counted(optimizer: FlatAdamW, *args: Any, **more: Any) -> float:
        left[0] -= 1
        if left[0] == 0:
            _at_call(patch, optimizer, "_move", 2, _interrupt_twice)
        return plain(optimizer, *args, **more)

    patch.setattr(FlatAdamW, "step", counted)


@contextmanager
def interrupted_twice(moment: str, *, step: int) -> Iterator[None]:
    """A person presses Ctrl-C twice in the `step`th step: after its "gradients", in the middle of the "optimizer",
    "before the store" knows of it, "after the store" does and nothing else, or "after the record"."""
    from ajet.backbone.local.trainer import Trainer
    from ajet.run import learn
    from ajet.store import RunStore

    with pytest.MonkeyPatch.context() as patch:
        if moment == "optimizer":
            _in_second_slice(patch, step)
        elif moment == "gradients":
            _at_call(patch, Trainer, "_gradients", step, after=_interrupt_twice)
        elif moment == "before the store":
            _at_call(patch, RunStore, "use", step, _interrupt_twice)
        elif moment == "after the store":
            _at_call(patch, learn, "conclude", step, _interrupt_twice)
        else:
            assert moment == "after the record"
            _at_call(patch, learn, "conclude", step, after=_interrupt_twice)
        yield


@contextmanager
def record_refuses(step: int, reason: str) -> Iterator[None]:
    """The record takes nothing of the `step`th step, whose update has moved the weights."""
    from ajet.run import learn
    from ajet.schema.errors import UserError

    def refuse() -> None:
        raise UserError(reason)

    with pytest.MonkeyPatch.context() as patch:
        _at_call(patch, learn, "conclude", step, refuse)
        yield


@contextmanager
def validation_is_interrupted() -> Iterator[None]:
    """Ctrl-C arrives as the first validation is about to begin."""
    from ajet.run import train

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "evaluate", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
        yield


class _Killed(Exception):
    """Stands for a kill: nothing is saved after it."""


def _kill() -> None:
    raise _Killed


@contextmanager
def killed_before_row() -> Iterator[None]:
    """The run ends as by a kill, between the episodes that are recorded next and their row of metrics.jsonl."""
    with pytest.MonkeyPatch.context() as patch:
        _at_call(patch, Metrics, "log", 1, _kill)
        patch.setattr(Chain, "commit_noted", lambda chain, step: None)  # who is killed links nothing more
        yield


@contextmanager
def killed_before_commit() -> Iterator[None]:
    """The run ends as by a kill once its first step is trained, before anything is saved of it."""
    from ajet.run import learn

    with pytest.MonkeyPatch.context() as patch:
        _at_call(patch, learn, "conclude", 1, _kill)
        yield
