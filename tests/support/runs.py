"""Run commands of `ajet`, in processes of their own or here, and read what they record.

Tests of runs assert exit codes, printed lines and what `ajet.record`, `ajet audit` and `ajet prove` say. Invariant: of
the tests that are gates, only this module names what lies inside `ajet.cli`, `ajet.commands`, `ajet.backbone` and
`ajet.record`. A fault that no workflow, signal, disk or setting can cause is a context manager here, named by the
fault.
"""

from __future__ import annotations

import gc
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
from ajet.record.checkpoint import digest_file, digest_state
from ajet.record.episode_codec import decode as decode_episode
from ajet.record.episode_codec import encode as encode_episode
from ajet.record.held_out import Measurement
from ajet.record.logs import main_log
from ajet.schema.errors import UserError
from tests.support.ajet_process import Forked, ajet, command, environment, metric_rows, start

__all__ = [
    "LOCK_HOLDER",
    "Forked",
    "Measurement",
    "Ran",
    "ajet",
    "audit_run",
    "begin_record",
    "command",
    "count_tasks",
    "decode_episode",
    "digest_file",
    "encode_episode",
    "environment",
    "interrupted_twice",
    "killed_before_commit",
    "killed_before_row",
    "launch_breaks",
    "main_log",
    "metric_rows",
    "digest_state",
    "prove_run",
    "prove_store",
    "run_here",
    "start",
    "status_of_process",
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
    gc.freeze()  # a training collects several times a step: the tests' half a million objects cost 0.3 s each time
    try:
        with redirect_stdout(printed), redirect_stderr(printed), pytest.raises(SystemExit) as end:
            main([str(each) for each in arguments])
    finally:
        gc.unfreeze()
    return Ran(int(end.value.code or 0), printed.getvalue())


def begin_record(settings: dict[str, Any], folder: Path) -> None:
    """Begin the record of a debug run with these keys of `ajet` below this folder, and end it at once."""
    from ajet.commands import launch
    from ajet.config import Experiment
    from ajet.record.run_directory import RunDirectory

    experiment = Experiment.from_dict({"ajet": settings}, base=folder)
    with launch.record_run(experiment, RunDirectory.open(experiment, root=folder, kind="debug")):
        pass


def audit_run(run: Path) -> dict[str, Any]:
    """Return what `ajet audit --json` prints for the run in this folder."""
    return _print_json("audit", run)


def prove_run(run: Path, *options: str) -> dict[str, Any]:
    """Return what `ajet prove --json` prints for the run in this folder.

    Raises:
        UserError: The command ended with exit code 2; the text is what it printed.
    """
    return _print_json("prove", run, *options)


def prove_store(address: str, *, run: str) -> dict[str, Any]:
    """Return what `ajet prove --store --json` prints for a run's episodes in this store."""
    return _print_json("prove", None, "--store", address, "--run", run)


def _print_json(name: str, run: Path | None, *options: str) -> dict[str, Any]:
    printed, refusal = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(refusal), pytest.raises(SystemExit) as end:
        main([name, *([str(run)] if run else []), "--json", *options])
    if end.value.code == 2:
        raise UserError(refusal.getvalue())
    said: dict[str, Any] = json.loads(printed.getvalue())
    assert end.value.code == (0 if said["ok"] else 1), said
    return said


def count_tasks(rows: list[dict[str, Any]]) -> tuple[int, int, tuple[Any, ...]]:
    """Return (skipped, doubled, given up) tasks of the rows of metrics.jsonl; of the last each with its reasons."""
    from ajet.commands.summary import RunTally

    tally = RunTally.from_rows(rows)
    return tally.skipped, tally.doubled, tally.given_up


@contextmanager
def launch_breaks(problem: Exception) -> Iterator[None]:
    """Within the block a launch raises this exception before it begins."""
    from ajet.commands import launch

    def broken(*_: object) -> int:
        raise problem

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "launch", broken)
        yield


def status_of_process(pid: int) -> str:
    """Return the status.json of a run that is this process."""
    from ajet.record.process_identity import ProcessIdentity

    identity = {**asdict(ProcessIdentity.of(pid)), "role": "run"}
    return json.dumps({**identity, "processes": [identity]})


def _interrupt_twice() -> None:
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)


def _run_at_call(
    patch: pytest.MonkeyPatch, of: Any, name: str, call: int, before: Callable[[], Any] | None = None, *,
    after: Callable[[], Any] | None = None,
) -> None:  # fmt: skip
    """Do something before, or after, the `call`th call of the function `name`."""
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


def _interrupt_second_slice(patch: pytest.MonkeyPatch, step: int) -> None:
    """Interrupt the optimizer in its `step`th step, after it has moved some of the weights."""
    from ajet.backbone.local.optimizer import FlatAdamW

    plain, left = FlatAdamW.step, [step]

    def counted(optimizer: FlatAdamW, *args: Any, **more: Any) -> float:
        left[0] -= 1
        if left[0] == 0:
            _run_at_call(patch, optimizer, "_move_slice", 2, _interrupt_twice)
        return plain(optimizer, *args, **more)

    patch.setattr(FlatAdamW, "step", counted)


@contextmanager
def interrupted_twice(moment: str, *, step: int) -> Iterator[None]:
    """Within the block Ctrl-C is pressed twice in the `step`th step.

    Args:
        moment: After its "gradients", in the middle of the "optimizer", "before the store" knows of the step, "after
            the store" does and nothing else, or "after the record".
    """
    from ajet.backbone.local.trainer import Trainer
    from ajet.store import RunStore
    from ajet.train.sink import RunSink

    with pytest.MonkeyPatch.context() as patch:
        if moment == "optimizer":
            _interrupt_second_slice(patch, step)
        elif moment == "gradients":
            _run_at_call(patch, Trainer, "_add_gradients", step, after=_interrupt_twice)
        elif moment == "before the store":
            _run_at_call(patch, RunStore, "use", step, _interrupt_twice)
        elif moment == "after the store":
            _run_at_call(patch, RunSink, "commit", step, _interrupt_twice)
        else:
            assert moment == "after the record"
            _run_at_call(patch, RunSink, "commit", step, after=_interrupt_twice)
        yield


@contextmanager
def record_refuses(step: int, reason: str) -> Iterator[None]:
    """The record takes nothing of the `step`th step, whose update has moved the weights."""
    from ajet.schema.errors import UserError
    from ajet.train.sink import RunSink

    def refuse() -> None:
        raise UserError(reason)

    with pytest.MonkeyPatch.context() as patch:
        _run_at_call(patch, RunSink, "commit", step, refuse)
        yield


@contextmanager
def validation_is_interrupted() -> Iterator[None]:
    """Within the block Ctrl-C is pressed as the first validation is about to begin."""
    from ajet.train.sources import source

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "play_validation", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
        yield


class KilledError(Exception):
    """The process was killed: nothing is saved after this is raised."""


def _kill() -> None:
    raise KilledError


@contextmanager
def killed_before_row() -> Iterator[None]:
    """Within the block a run is killed between its next episodes and their row of metrics.jsonl."""
    from ajet.record.chain import Chain
    from ajet.record.metrics import Metrics

    with pytest.MonkeyPatch.context() as patch:
        _run_at_call(patch, Metrics, "log", 1, _kill)
        patch.setattr(Chain, "commit_noted", lambda chain, step: None)  # who is killed links nothing more
        yield


@contextmanager
def killed_before_commit() -> Iterator[None]:
    """Within the block a run is killed after training its first step, before anything is saved of it."""
    from ajet.train.sink import RunSink

    with pytest.MonkeyPatch.context() as patch:
        _run_at_call(patch, RunSink, "commit", 1, _kill)
        yield
