"""The scorer `code`: the row's unit tests on the program that the model wrote, in a sandbox of its own.

Invariant: nothing of the answer runs outside of the sandbox that `environment.sandbox` names, and one that cannot be
made or is lost is the sandbox's failure, never a 0. A test passes only if it was run to its end: it says so with a word
that is made anew and read after the answer's code has run, so that an answer which merely ends the program passes
nothing. Statements run in the answer's own interpreter: one that is written to read that word can pass them; inputs and
outputs are compared outside of it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.schema.episode import Verdict
from ajet.schema.errors import JudgeFailure, SandboxFailure
from ajet.task_judge.extraction import text_of

if TYPE_CHECKING:
    from ajet.environment.sandbox.contract import Limits, Sandbox

_FENCED = re.compile(r"```(?:python3?|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_DRIVER = """\
import sys
_space = {"__name__": "answer"}
_take = sys.stdin.readline
_say, _read = sys.stdout.write, __import__("json").loads
exec(compile(_read(_take()), "answer.py", "exec"), _space)
_test, _word = _read(_take())
exec(compile(_test, "test.py", "exec"), _space)
_say("\\n" + _word + "\\n")
sys.stdout.flush()
"""
SECONDS = 10.0
"""For a test, by the clock, unless told otherwise."""


class CodeScorer:
    """1 where all tests pass, else 0; `partial`: the share that passes. timeout: seconds of each test."""

    def __init__(self, config: Any, partial: bool = False, timeout: float = SECONDS) -> None:
        from ajet.environment.sandbox.choose import Maker

        self._maker = Maker.of(config.ajet.environment, Path(config.ajet.base_dir or "."))
        self._partial, self._timeout = partial, timeout

    def __call__(self, reply: str, metadata: dict[str, Any]) -> Verdict:
        """No score for a row without tests. Raises JudgeFailure for tests in no known form, SandboxFailure."""
        tests = tests_of(metadata)
        if not tests:
            return Verdict(None, None, "no score: the row has no tests")
        program = program_of(reply)
        limits = replace(self._maker.limits, wall=self._timeout)
        sandbox = self._maker.open()
        try:
            failed = self._failed(sandbox, tests, program, limits)
        finally:
            sandbox.close()
        passed = len(tests) - len(failed)
        said = f"{passed} of {len(tests)} tests passed" if self._partial or not failed else "a test failed"
        said += f": {failed[0]}" if failed else ""
        if self._maker.mechanism == "none":
            said += " (run without a sandbox)"
        return Verdict(passed / len(tests) if self._partial else float(not failed), not failed, said)

    def _failed(self, sandbox: Sandbox, tests: Sequence[Statements | InOut], program: str, limits: Limits) -> list[str]:
        """Why each of those that failed did; without partial credit of the first alone."""
        failed: list[str] = []
        for each in tests:
            if why := each.problem(sandbox, program, limits):
                failed.append(why)
                if not self._partial:
                    break
        return failed


class Statements:
    """Statements that raise where the program is wrong, run after it in the same interpreter."""

    def __init__(self, code: str) -> None:
        self.code = code

    def problem(self, sandbox: Sandbox, program: str, limits: Limits) -> str:
        """Why it did not pass; "" where it did. Raises SandboxFailure."""
        word = secrets.token_hex(16)
        told = f"{json.dumps(program)}\n{json.dumps([self.code, word])}\n"
        done = sandbox.python(_DRIVER, stdin=told.encode(), limits=limits)
        _require_kept(sandbox, done.ended)
        if done.good and word.encode() in done.stdout.splitlines():
            return ""
        return _why(done.ended, done.stderr) or "the program ended before its test did"


class InOut:
    """A whole program that reads its input and prints."""

    def __init__(self, given: str, wanted: str) -> None:
        self.given, self.wanted = given, wanted

    def problem(self, sandbox: Sandbox, program: str, limits: Limits) -> str:
        """See `Statements.problem`. White space at the ends of lines does not count."""
        done = sandbox.python(program, stdin=self.given.encode(), limits=limits)
        _require_kept(sandbox, done.ended)
        if not done.good:
            return _why(done.ended, done.stderr) or "it failed"
        right = _lines(done.stdout.decode(errors="replace")) == _lines(self.wanted)
        return "" if right else "it prints something else"


def program_of(reply: str) -> str:
    """The program in a reply: its last fenced block, else all of it."""
    fenced = _FENCED.findall(reply)
    return str(fenced[-1]) if fenced else reply


def tests_of(metadata: Mapping[str, Any]) -> list[Statements | InOut]:
    """The tests of a row, as data sets have them: `tests` or `test_list` (a list of statements, each a test, or one
    text; `test_setup_code` before each, as in MBPP), `test` with `entry_point` (HumanEval), `input_output` with
    `inputs` and `outputs` (APPS), which `tests` may be, too. Raises JudgeFailure for another form."""
    setup = "\n".join([*map(text_of, metadata.get("test_imports") or ()), text_of(metadata.get("test_setup_code"))])
    told = next((metadata[name] for name in ("tests", "test_list", "input_output", "test") if metadata.get(name)), None)
    if isinstance(told, str) and told.lstrip().startswith("{"):
        try:
            told = json.loads(told)
        except (ValueError, RecursionError):
            raise JudgeFailure("the row's tests begin as JSON and are none") from None
    if told is None:
        return []
    if isinstance(told, Mapping) and isinstance(told.get("inputs"), list) and isinstance(told.get("outputs"), list):
        if len(told["inputs"]) != len(told["outputs"]) or told.get("fn_name"):
            raise JudgeFailure("the row's tests: as many inputs as outputs are needed, and no fn_name")
        return [InOut(text_of(one), text_of(other)) for one, other in zip(told["inputs"], told["outputs"], strict=True)]
    if isinstance(told, str):
        told = [told]
    if not isinstance(told, (list, tuple)) or not all(isinstance(each, str) for each in told):
        raise JudgeFailure("the row's tests are neither texts nor {inputs, outputs}")
    entry = metadata.get("entry_point")
    after = f"\ncheck({entry})" if isinstance(entry, str) and entry.isidentifier() else ""
    return [Statements(f"{setup}\n{each}{after if 'def check(' in each else ''}") for each in told]


def _require_kept(sandbox: Sandbox, ended: str) -> None:
    if ended == "killed" or sandbox.lost:
        raise SandboxFailure(f"the sandbox was lost in a test: {sandbox.lost or ended}")


def _why(ended: str, stderr: bytes) -> str:
    if ended not in ("exit", "signal"):
        return f"a test used up its {ended}"
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
