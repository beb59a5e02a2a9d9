"""Whether two mathematical answers are equal, by value and not by spelling.

Invariant: an answer comes back within about `timeout` seconds whatever the expression, from any thread. `math_rules`
decides, and takes numbers, units, words, lists and dates itself. Single expressions go to math-verify in a worker
process that is killed when it does not answer, because nothing else stops a computation like 9**9**9 (math-verify's own
limit is a signal, which works in the main thread only and not inside one long operation).
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
"""Worker processes at most, each started when needed; one holds about 100 MB."""
START_LIMIT = 120.0
"""Seconds a worker may take to import math-verify."""
LONGEST = 10_000
"""Characters; what is longer is no answer."""


def require_math_verify() -> None:
    """Raises MissingExtraError when math-verify is not installed: judges ask when they are made, not in mid-run."""
    if find_spec("math_verify") is None:
        raise MissingExtraError("math-verify", "local", needed_for="Comparing mathematical answers")


def equal(candidate: str, reference: str, *, timeout: float = 5.0) -> bool:
    """Whether `candidate` equals the answer `reference`: 1/2 = 0.5 = \\frac{1}{2}, 1,234 = 1234, (x+1)^2 expanded.

    False also where the comparison takes longer than `timeout` seconds: an answer that cannot be checked is not
    accepted. Raises MissingExtraError when it takes math-verify and that is not installed, JudgeFailure when no worker
    starts.
    """
    if max(len(candidate), len(reference)) > LONGEST:
        return False
    left, right = normalize_math(candidate), normalize_math(reference)
    deadline = time.monotonic() + timeout

    def ask(one: str, other: str) -> bool:
        require_math_verify()
        rest = deadline - time.monotonic()
        return rest > 0 and _get_pool().ask(_spell_exactly(one), _spell_exactly(other), rest)

    return bool(left and right) and AnswerComparer(ask).decide(left, right)


def _spell_exactly(text: str) -> str:
    """Return an expression with fractions for decimals, which math-verify rounds, and `x_1` for `x1`."""
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))|(?<=\d) (?=[A-Za-z])", "", text)
    text = re.sub(r"(?<![\d.])(\d{0,50})\.(\d{1,50})(?![\d.]|\\overline)", _spell_fraction, text)
    return re.sub(r"(?<![A-Za-z\\{}\d_])([A-Za-z])(\d+)", r"\1_{\2}", text)


def _spell_fraction(decimal: re.Match[str]) -> str:
    return rf"\frac{{{int(decimal[1] + decimal[2])}}}{{{10 ** len(decimal[2])}}}"


class _MathWorker:
    """A process that compares one pair at a time."""

    def __init__(self) -> None:
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
        """The worker's answer; None when it gave none, and then it is dead."""
        self._input_pipe.write(json.dumps([left, right, timeout]) + "\n")
        self._input_pipe.flush()
        answer = self._read_line(timeout)
        if answer not in ("true", "false"):
            self.close()
            return None
        return answer == "true"

    def close(self) -> None:
        """End the process."""
        self.alive = False
        self._process.kill()
        self._process.wait()
        for pipe in (self._input_pipe, self._output_pipe):
            with suppress(OSError):
                pipe.close()

    def _read_line(self, timeout: float) -> str:
        """The line that the process says within `timeout` seconds; it is killed then, and says nothing."""
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
    """Hands each comparison to an idle worker."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._slots = threading.BoundedSemaphore(WORKERS)
        self._idle: list[_MathWorker] = []

    def ask(self, left: str, right: str, timeout: float) -> bool:
        with self._slots:
            while True:
                try:
                    worker = self._idle.pop()
                except IndexError:
                    worker = _MathWorker()
                try:
                    answer = worker.ask(left, right, timeout)
                except OSError:  # it died while it was idle: not this pair's doing
                    worker.close()
                    continue
                if worker.alive:
                    self._idle.append(worker)
                return bool(answer)

    def close(self) -> None:
        """End all idle workers."""
        while self._idle:
            self._idle.pop().close()


_pools: list[_WorkerPool] = []
_lock = threading.Lock()


def _get_pool() -> _WorkerPool:
    """The pool of this process; a forked child must not talk to its parent's workers."""
    with _lock:
        if not _pools or _pools[-1].process != os.getpid():
            _pools[:] = [_WorkerPool()]
        return _pools[-1]


@atexit.register
def _close_pools() -> None:
    for pool in _pools:
        if pool.process == os.getpid():
            pool.close()
