"""Compares two mathematical answers by value, not by spelling.

Invariant: a comparison ends within about `timeout` seconds for any expression and from any thread. `math_rules` decides
numbers, units, words, lists and dates itself. Single expressions go to math-verify in a worker process; a worker
without an answer is killed, the only way to stop a computation such as 9**9**9 (math-verify's own limit is a signal,
effective only in the main thread and between operations).
"""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from typing import IO

from ajet.config.programs import build_command
from ajet.schema.errors import JudgeFailure, MissingExtraError
from ajet.task_judge.math_rules import AnswerComparer
from ajet.task_judge.math_text import normalize_math

WORKERS = 2
"""Maximum number of worker processes, started on demand; each uses about 100 MB."""
START_LIMIT = 120.0
"""Seconds a worker may take to import math-verify."""
LONGEST = 10_000
"""Maximum characters of an answer."""


def require_math_verify() -> None:
    """Raise MissingExtraError if math-verify is not installed; a judge calls this before the run begins."""
    if find_spec("math_verify") is None:
        raise MissingExtraError("math-verify", "local", needed_for="Comparing mathematical answers")


def equal(candidate: str, reference: str, *, timeout: float = 5.0) -> bool:
    r"""Return True if two answers have equal values: 1/2 = 0.5 = \frac{1}{2}, 1,234 = 1234, (x+1)^2 expanded.

    A comparison that takes longer than `timeout` seconds gives False: an answer that cannot be checked is not accepted.

    Args:
        candidate: the model's answer.
        reference: the right answer.

    Raises:
        MissingExtraError: the comparison needs math-verify, which is not installed.
        JudgeFailure: no worker process starts.
    """
    if max(len(candidate), len(reference)) > LONGEST:
        return False
    candidate_math, reference_math = normalize_math(candidate), normalize_math(reference)
    deadline = time.monotonic() + timeout

    def ask(one: str, other: str) -> bool:
        """Return True if math-verify finds two expressions equal in the remaining time."""
        require_math_verify()
        remaining = deadline - time.monotonic()
        return remaining > 0 and get_pool().ask(_spell_exactly(one), _spell_exactly(other), remaining)

    return bool(candidate_math and reference_math) and AnswerComparer(ask).decide(candidate_math, reference_math)


def _spell_exactly(text: str) -> str:
    """Return an expression with fractions for decimals, which math-verify rounds, and `x_1` for `x1`."""
    # Commas between thousands, and spaces between a number and a letter.
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))|(?<=\d) (?=[A-Za-z])", "", text)
    text = re.sub(r"(?<![\d.])(\d{0,50})\.(\d{1,50})(?![\d.]|\\overline)", _spell_fraction, text)
    return re.sub(r"(?<![A-Za-z\\{}\d_])([A-Za-z])(\d+)", r"\1_{\2}", text)


def _spell_fraction(decimal: re.Match[str]) -> str:
    """Return a matched decimal (digits before and after the point) as a TeX fraction: 1.25 as 125/100."""
    return rf"\frac{{{int(decimal[1] + decimal[2])}}}{{{10 ** len(decimal[2])}}}"


class _MathWorker:
    """A process that compares one pair at a time."""

    def __init__(self) -> None:
        """Start the process and wait until it has imported math-verify. Raises JudgeFailure if it does not start."""
        self._process = subprocess.Popen(
            build_command("ajet.task_judge.math_worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        self.alive = self._read_line(START_LIMIT) == "ready"
        if not self.alive:
            self.close()
            raise JudgeFailure("the process that compares mathematical answers did not start", retryable=True, own=True)

    def ask(self, left: str, right: str, timeout: float) -> bool | None:
        """Return True if the process finds two expressions equal; None without a result in `timeout` seconds.

        Without a result the worker is closed.
        """
        self._input_pipe.write(json.dumps([left, right, timeout]) + "\n")
        self._input_pipe.flush()
        answer = self._read_line(timeout)
        if answer not in ("true", "false"):
            self.close()
            return None
        return answer == "true"

    def close(self) -> None:
        """Kill the process and close its pipes."""
        self.alive = False
        self._process.kill()
        self._process.wait()
        for pipe in (self._input_pipe, self._output_pipe):
            with suppress(OSError):
                pipe.close()

    def _read_line(self, timeout: float) -> str:
        """Return the next line of the process; kill the process and return "" after `timeout` seconds."""
        killer = threading.Timer(timeout, self._process.kill)
        killer.daemon = True
        killer.start()
        try:
            return self._output_pipe.readline().strip()
        finally:
            killer.cancel()

    @property
    def _input_pipe(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _output_pipe(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout


class _WorkerPool:
    """Assigns each comparison to an idle worker process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._slots = threading.BoundedSemaphore(WORKERS)
        self._idle: list[_MathWorker] = []

    def ask(self, left: str, right: str, timeout: float) -> bool:
        """Return True if an idle or new worker finds two expressions equal within `timeout` seconds.

        The call first waits for one of WORKERS slots.
        """
        with self._slots:
            while True:
                try:
                    worker = self._idle.pop()
                except IndexError:
                    worker = _MathWorker()
                try:
                    answer = worker.ask(left, right, timeout)
                except OSError:  # the worker ended while it was idle, so try the next one
                    worker.close()
                    continue
                if worker.alive:
                    self._idle.append(worker)
                return bool(answer)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


_pools: list[_WorkerPool] = []
_lock = threading.Lock()


def get_pool() -> _WorkerPool:
    """Return the worker pool of this process, a new one after a fork: a child must not use the parent's workers."""
    with _lock:
        if not _pools or _pools[-1].process != os.getpid():
            _pools[:] = [_WorkerPool()]
        return _pools[-1]


@atexit.register
def _close_pools() -> None:
    """End the worker processes at exit, but not those of a parent process after a fork."""
    for pool in _pools:
        if pool.process == os.getpid():
            pool.close()
