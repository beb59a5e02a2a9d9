"""The scorer `code`: runs the row's unit tests on the model's program, in a sandbox.

Invariants: no part of the answer runs outside the sandbox of `environment.sandbox`. A missing or lost sandbox is a
sandbox failure, never a 0. A test passes only if it ran to its end: it then prints a random word, which it reads only
after the answer's code ran, so an answer that exits early passes no test. Outputs, results of calls and comparisons
with constants are checked outside the answer's interpreter. Other statements run inside: a program written to find the
word can pass them.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from ajet.schema.episode import Verdict
from ajet.schema.errors import JudgeFailure, SandboxFailure
from ajet.schema.fenced import read_program
from ajet.schema.sandbox import Limits, Result, Sandbox
from ajet.workflow.resources import find_sandbox_maker
from ajet_sandbox.scorers.code_assertions import DEFINE_REPORT, REPORT, find_failed, split_assertions
from ajet_sandbox.scorers.code_tests import (
    CallTest,
    CodeTest,
    InputOutputTest,
    StatementTest,
    load_json,
    read_imports,
    read_tests,
)

_ANY_LENGTH = """\
import sys
getattr(sys, "set_int_max_str_digits", lambda digits: None)(0)
"""
_RUN_PROGRAM = (
    _ANY_LENGTH
    + """\
_answer = type(sys)("answer")
_space = _answer.__dict__
sys.modules["answer"] = sys.modules["solution"] = _answer
_take = sys.stdin.readline
_say, _flush, _json = sys.stdout.write, sys.stdout.flush, __import__("json")
_exec, _compile = exec, compile
_read, _write = _json.loads, _json.dumps
_imports, _ready = _read(_take())
_exec(_imports, {})
_say(_ready + "\\n")
_flush()
_before, _program = _read(_take())
_exec(_before, _space)
_given = dict(_space)
_exec(_compile(_program, "answer.py", "exec"), _space)
"""
)
_STATEMENTS = (
    DEFINE_REPORT
    + _RUN_PROGRAM
    + f"""\
_test, _word = _read(_take())
_space["{REPORT}"] = lambda number, value: _say("\\n" + _word + _write([number, _plain(value)]) + "\\n")
_exec(_compile(_test, "test.py", "exec"), _space)
_say("\\n" + _word + "\\n")
_flush()
"""
)
_CALL = (
    _RUN_PROGRAM
    + """\
_name, _arguments, _word = _read(_take(), object_hook=lambda each: int(each["\\0int"]) if "\\0int" in each else each)
_solution = _space.get("Solution")
_function = getattr(_solution(), _name) if hasattr(_solution, _name) else _space.get(_name)
if _function is None or _function is _given.get(_name):
    raise NameError("the program defines no " + _name)
_result = _function(*_arguments)
_plain = lambda value: value.item() if hasattr(value, "item") else list(value)
_say("\\n" + _word + _write(_result, default=_plain) + "\\n")
_flush()
"""
)
_LEETCODE_MODULES = [
    "bisect", "collections", "copy", "functools", "heapq", "itertools", "math", "operator", "random", "re", "string",
    "sys", "typing",
]  # fmt: skip
_LEETCODE_IMPORTS = "".join(
    [f"from {module} import *\n" for module in _LEETCODE_MODULES if module not in ("random", "sys")]
    + [f"import {module}\n" for module in _LEETCODE_MODULES]
)
"""Names available to LeetCode's solutions without an import, as in LiveCodeBench's runner."""
_DECIMAL = re.compile(r"[+-]?\d{0,400}\.\d{1,400}")
_NUMBER = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,4})?")
SECONDS = 10.0
"""Default wall time of a test."""


class CodeScorer:
    """Scores a program 1 if all tests pass, else 0.

    Args:
        partial: True to score the share of passing tests.
        timeout: seconds per test.
    """

    def __init__(self, config: Any, partial: bool = False, timeout: float = SECONDS) -> None:
        self._maker = find_sandbox_maker(config)
        self._gives_partial_score, self._timeout = partial, timeout

    def __call__(self, reply: str, metadata: dict[str, Any]) -> Verdict:
        """Score a reply by the tests of its row. A row without tests gives no score.

        Args:
            reply: the model's text, with the program in it.
            metadata: the row of the data set.

        Raises:
            JudgeFailure: the tests have an unknown format.
            SandboxFailure: the sandbox is missing or lost.
        """
        tests = read_tests(metadata)
        if not tests:
            return Verdict(None, None, "no score: the row contains no tests")
        program = read_program(reply)
        limits = replace(self._maker.limits, wall=self._timeout)
        sandbox = self._maker.open()
        try:
            failed = self._find_failed_tests(sandbox, tests, program, limits)
        finally:
            sandbox.close()
        passed = len(tests) - len(failed)
        explanation = (
            f"{passed} of {len(tests)} tests passed" if self._gives_partial_score or not failed else "a test failed"
        )
        explanation += f": {failed[0]}" if failed else ""
        if self._maker.mechanism == "none":
            explanation += " (run without a sandbox)"
        return Verdict(passed / len(tests) if self._gives_partial_score else float(not failed), not failed, explanation)

    def _find_failed_tests(
        self, sandbox: Sandbox, tests: Sequence[CodeTest], program: str, limits: Limits
    ) -> list[str]:
        """Return one reason per failed test, or only the first without partial scores."""
        failed: list[str] = []
        for test in tests:
            if reason := run_test(test, sandbox, program, limits):
                failed.append(reason)
                if not self._gives_partial_score:
                    break
        return failed


def run_test(test: CodeTest, sandbox: Sandbox, program: str, limits: Limits) -> str:
    """Run one test against a program in the sandbox. Return why the program fails, or "" on success.

    The driver program inside prints `ready_marker` once the test's imports work, and lines with the secret `end_marker`
    for each result. The answer's code runs before `end_marker` is read, so it cannot print the lines itself.

    Raises:
        SandboxFailure: the sandbox was lost.
        JudgeFailure: the test imports a module missing from the sandbox.
    """
    if isinstance(test, InputOutputTest):
        return _run_program(test, sandbox, program, limits)
    end_marker = secrets.token_hex(16)
    preset_imports = _LEETCODE_IMPORTS if isinstance(test, CallTest) or "Solution()" in test.code else ""
    code, assertions = split_assertions(test.code) if isinstance(test, StatementTest) else ("", [])
    call_line: list[Any] = (
        [code, end_marker] if isinstance(test, StatementTest) else [test.function, test.arguments, end_marker]
    )
    ready_marker = secrets.token_hex(16)
    imports = read_imports(test.code) if isinstance(test, StatementTest) else ""
    lines = [[imports, ready_marker], [preset_imports, program], call_line]
    stdin = "".join(f"{json.dumps(line, default=_write_integer)}\n" for line in lines)
    driver = _STATEMENTS if isinstance(test, StatementTest) else _CALL
    run = _run_code(sandbox, driver, stdin, limits)
    if ready_marker.encode() not in run.stdout:
        raise JudgeFailure(
            f"the imports of the row's tests fail in the sandbox: {_explain_failure(run) or run.ended}. Set "
            "environment.sandbox_python to a Python that has the packages"
        )
    reports = [line[len(end_marker) :] for line in run.stdout.splitlines() if line.startswith(end_marker.encode())]
    if not run.good or not reports:
        return _explain_failure(run) or "the program ended before its test did"
    if isinstance(test, StatementTest) and reports.pop():  # the last line of a complete run is the bare marker
        return "the program ended before its test did"
    try:
        results = [load_json(report.decode()) for report in reports]
    except ValueError:
        return "it returns a value that JSON cannot represent"
    if isinstance(test, StatementTest):
        return find_failed(assertions, results)
    result = results[-1]
    accepted_results = [test.wanted]  # APPS wraps a single result in a list
    if test.is_wrapped and isinstance(test.wanted, (list, tuple)) and len(test.wanted) == 1:
        accepted_results.append(test.wanted[0])
    return "" if any(is_same_value(result, accepted) for accepted in accepted_results) else "it returns something else"


def is_same_value(given: Any, wanted: Any) -> bool:
    """Return True if two JSON values are equal. Decimal fractions may differ by a millionth of their size.

    Args:
        given: value of the model's program.
        wanted: value of the data set.
    """
    if isinstance(given, (list, tuple)) and isinstance(wanted, (list, tuple)):
        return len(given) == len(wanted) and all(map(is_same_value, given, wanted))
    if isinstance(given, Mapping) and isinstance(wanted, Mapping):
        keys = {str(key): value for key, value in wanted.items()}
        return given.keys() == keys.keys() and all(is_same_value(given[key], keys[key]) for key in keys)
    if isinstance(given, float) or isinstance(wanted, float):
        numbers = isinstance(given, (int, float)) and isinstance(wanted, (int, float))
        return numbers and math.isclose(given, wanted, rel_tol=1e-6, abs_tol=1e-9)
    return bool(given == wanted)


def _run_program(test: InputOutputTest, sandbox: Sandbox, program: str, limits: Limits) -> str:
    """Run a complete program on the test's input. Return "" if it prints the expected output, else the reason."""
    code = f"{_ANY_LENGTH}del sys\nexec(compile({program!r}, 'answer.py', 'exec'), globals())\n"
    result = _run_code(sandbox, code, test.given, limits)
    if not result.good:
        return _explain_failure(result) or "it failed"
    return "" if is_same_output(result.stdout.decode(errors="replace"), test.wanted) else "it prints something else"


def is_same_output(given: str, wanted: str) -> bool:
    """Return True if two outputs are equal.

    White space at the ends of lines does not count. Decimal fractions may differ by a millionth of their size.
    """
    pairs = [_split_lines(given), _split_lines(wanted)]
    if pairs[0] == pairs[1]:
        return True
    given_words, wanted_words = ([text_line.split() for text_line in lines] for lines in pairs)
    return [len(given_line) for given_line in given_words] == [len(given_line) for given_line in wanted_words] and all(
        given_word == wanted_word or _is_same_decimal(given_word, wanted_word)
        for given_line, wanted_line in zip(given_words, wanted_words, strict=True)
        for given_word, wanted_word in zip(given_line, wanted_line, strict=True)
    )


def _is_same_decimal(given_text: str, wanted_text: str) -> bool:
    """Return True if `wanted_text` is a decimal fraction, and `given_text` a number that differs by at most a millionth
    of its size.
    """
    if not _DECIMAL.fullmatch(wanted_text) or not _NUMBER.fullmatch(given_text):
        return False
    given_number, wanted_number = float(given_text), float(wanted_text)
    return (
        math.isfinite(given_number)
        and math.isfinite(wanted_number)
        and math.isclose(given_number, wanted_number, rel_tol=1e-6, abs_tol=1e-9)
    )


def _run_code(sandbox: Sandbox, code: str, stdin: str, limits: Limits) -> Result:
    """Run Python code in the sandbox with a text as standard input. Raises SandboxFailure if the sandbox is lost."""
    result = sandbox.python(code, stdin=stdin.encode(errors="replace"), limits=limits)
    if result.ended == "killed" or sandbox.lost:
        raise SandboxFailure(f"the sandbox was lost during a test: {sandbox.lost or result.ended}")
    return result


def _write_integer(value: Any) -> dict[str, str]:
    """Encode an integer that exceeds the length limit of Python's JSON writer."""
    if isinstance(value, Decimal):
        return {"\0int": str(value)}
    raise TypeError(f"JSON cannot represent a {type(value).__name__}")


def _explain_failure(result: Result) -> str:
    """Return the limit that ended a run, or the last line of its errors, or ""."""
    if result.ended not in ("exit", "signal"):
        return f"a test reached the limit {result.ended}"
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""


def _split_lines(text: str) -> list[str]:
    """Return the lines of an output without trailing white space, and without empty lines at its end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
