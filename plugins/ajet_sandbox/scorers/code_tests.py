"""Parses unit tests in the formats of published data sets.

Invariant: tests of an unknown format are refused with their field's name, and never run: an expression, for example a
list of texts, would pass for every program. Statements that cannot fail, or that call nothing, are refused for the same
reason.
"""

from __future__ import annotations

import ast
import base64
import binascii
import io
import json
import pickle
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

from ajet.schema.errors import JudgeFailure
from ajet.schema.fenced import parse_python

SHAPES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("tests",), "lists of statements or cases; DeepCoder, TACO-verified"),
    (("test_list",), "MBPP, MBPP+, with test_imports and test_setup_code"),
    (("test_cases",), "AceCode, DeepMind and Codeforces derivatives"),
    (("input_output",), "APPS, TACO"),
    (("public_test_cases", "private_test_cases"), "LiveCodeBench; private ones may be compressed"),
    (("public_tests", "private_tests", "generated_tests"), "CodeContests"),
    (("verification_info",), "SYNTHETIC-1 and PrimeIntellect's verifiable-coding-problems"),
    (("test",), "HumanEval, LeetCodeDataset (entry_point), KodCode (pytest), BigCodeBench (unittest)"),
)
"""Fields of a row with tests, and their publishers. The first non-empty field counts."""
LARGEST = 1 << 29
"""Limit on the characters of a row's decompressed tests."""
_ENTRY = re.compile(r"[A-Za-z_]\w*(?:\(\))?(?:\.[A-Za-z_]\w*)*")
_CHECK_NAME = re.compile("assert|check|test|expect|raises", re.IGNORECASE)
_CATCH_ALL = ("AssertionError", "Exception", "BaseException")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True)
class StatementTest:
    """Python statements that raise for a wrong program, run after the program in the same interpreter."""

    code: str


@dataclass(frozen=True, slots=True)
class InputOutputTest:
    """Standard input for a program, and the output it must print."""

    given: str
    wanted: str


@dataclass(frozen=True, slots=True)
class CallTest:
    """A call of a function, or of a method of the class Solution, and the expected result."""

    function: str
    arguments: list[Any]
    wanted: Any
    is_wrapped: bool
    """True if `wanted` may be a list with the single result (APPS)."""


CodeTest = StatementTest | InputOutputTest | CallTest


def read_tests(row: Mapping[str, Any]) -> list[CodeTest]:
    """Return the tests of a data row, or an empty list if no known field holds any.

    Raises:
        JudgeFailure: the tests have no known format, or cannot fail.
    """
    for fields, _ in SHAPES:
        tests = [test for field in fields for test in _read_field(row, field, row.get(field))]
        if tests:
            return tests
    reward_model = row.get("reward_model")  # verl's rows
    ground_truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    return list(_read_field(row, "reward_model.ground_truth", ground_truth))


def load_json(text: str) -> Any:
    """Parse JSON text. Integers may have any length; those over 4,300 digits become Decimal.

    Raises:
        ValueError: the text is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= 4300 else Decimal(digits))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_imports(code: str) -> str:
    """Return the imports at the top level of a test, without those of the answer itself."""
    tree = parse_python(code)
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))] if tree else []
    modules = [
        {name.name for name in node.names} if isinstance(node, ast.Import) else {node.module} for node in imports
    ]
    answer_modules = {"answer", "solution"}
    return "".join(
        f"{ast.unparse(node)}\n"
        for node, imported in zip(imports, modules, strict=True)
        if not imported & answer_modules
    )


def _read_field(row: Mapping[str, Any], field: str, value: Any) -> Iterator[CodeTest]:
    """Yield the tests of one field of a data row."""
    reader = _FieldReader(row, field)
    yield from reader.read(value)


class _FieldReader:
    """Reads the tests in one field of a data row."""

    def __init__(self, row: Mapping[str, Any], field: str) -> None:
        self._row, self._field = row, field
        setup = [*self._read_texts("test_imports"), *self._read_texts("test_setup_code")]
        self._setup_code = "".join(f"{statement}\n" for statement in setup)

    def read(self, value: Any) -> Iterator[CodeTest]:
        """Yield the tests of a field's value: text (code, JSON or compressed), an object, or a list."""
        if isinstance(value, str):
            if (decoded := self._decode_text(value)) is not None:
                yield from self.read(decoded)
            elif value.strip() not in ("", "null", "None"):
                yield StatementTest(self._setup_code + self._add_calls(value))
        elif isinstance(value, Mapping):
            yield from self._read_mapping(value)
        elif isinstance(value, (list, tuple)):
            for item in value:
                if not isinstance(item, (str, Mapping)) or not item:
                    self._raise_failure(f"one of them is {item!r:.80}")
                yield from self.read(item)
        elif value is not None:
            self._raise_failure(f"they are {value!r:.80}")

    def _decode_text(self, text: str) -> Any:
        """Decode JSON text, Python text of a list, or LiveCodeBench's compressed form. Return None for statements."""
        start = text.lstrip()[:1]
        if start in "[{" and start:
            try:
                return load_json(text)
            except ValueError:
                pass
            try:
                return ast.literal_eval(text.strip())
            except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
                self._raise_failure("they begin as JSON or a Python list and are neither")
        if start == '"':
            try:
                return load_json(text)
            except ValueError:
                return None
        return self._decompress_text(text) if re.fullmatch(r"\s*eJ[A-Za-z0-9+/\s]{16,}=*\s*", text) else None

    def _decompress_text(self, text: str) -> Any:
        """Decode LiveCodeBench's format: base64 of zlib of a pickled JSON text.

        Only a plain text is unpickled, never an object.
        """
        try:
            decompressor = zlib.decompressobj()
            pickled = decompressor.decompress(base64.b64decode(text), LARGEST)
            text_or_number = _TextUnpickler(io.BytesIO(pickled)).load()
            return load_json(text_or_number if isinstance(text_or_number, str) else "")
        except (
            ValueError,
            binascii.Error,
            zlib.error,
            pickle.UnpicklingError,
            EOFError,
            IndexError,
            KeyError,
        ) as error:
            self._raise_failure(f"they are compressed, and cannot be read: {error}")

    def _read_mapping(self, value: Mapping[str, Any]) -> Iterator[CodeTest]:
        """Yield the tests of a JSON object: nested tests, one input with its output, or parallel lists of both."""
        if not value:
            return
        language = str(value.get("language") or "python").lower()
        if not language.startswith("py"):
            self._raise_failure(f"they are in {language}")
        if "assert_case" in value:
            yield from self.read(value["assert_case"])
            return
        for nested in ("test_cases", "tests"):
            if nested in value:
                yield from self.read(value[nested])
                return
        for input_key, output_key in (("inputs", "outputs"), ("input", "output"), ("input", "expected_output")):
            if input_key in value and output_key in value:
                test_input, expected = value[input_key], value[output_key]
                break
        else:
            self._raise_failure(f"a case has {', '.join(map(str, value))}")
        function = self._function_of(value)
        # `inputs` always has one entry per test. A list under `input` is ambiguous: in a table of nothing but the two
        # lists it has one entry per test, too; with a function's name or other keys the object is one test.
        is_parallel_lists = input_key == "inputs" or (
            not function and isinstance(test_input, (list, tuple)) and len(value) == 2
        )
        if not is_parallel_lists:
            yield self._build_case(test_input, expected, function)
            return
        if (
            not isinstance(test_input, (list, tuple))
            or not isinstance(expected, (list, tuple))
            or len(test_input) != len(expected)
        ):
            self._raise_failure("they need as many outputs as inputs")
        for pair in zip(test_input, expected, strict=True):
            yield self._build_case(*pair, function)

    def _build_case(self, test_input: Any, expected: Any, function: str) -> CodeTest:
        """Return the test of one input and its expected output: a call if `function` is given, else a program run.

        Arguments of a call are a list, or a text with one JSON value per line (LiveCodeBench). Raises JudgeFailure.
        """
        if not function:
            return InputOutputTest(self._join_lines(test_input), self._join_lines(expected))
        if isinstance(test_input, (list, tuple)):
            return CallTest(function, list(test_input), expected, is_wrapped=True)
        if not isinstance(test_input, str) or not isinstance(expected, str):
            self._raise_failure(f"the arguments of {function} are {test_input!r:.80}")
        try:
            arguments = [load_json(line) for line in test_input.split("\n") if line.strip()]
            return CallTest(function, arguments, load_json(expected), is_wrapped=False)
        except ValueError as error:
            self._raise_failure(f"arguments or result of {function} are not JSON: {error}")

    def _function_of(self, value: Mapping[str, Any]) -> str:
        """Return the name of the function that the cases call, or "" if they use standard input.

        Args:
            value: the JSON object of the tests; the name may also be in its metadata or in the row.

        Raises:
            JudgeFailure: the cases call a function without a usable name.
        """
        kind = str(value.get("testtype") or value.get("type") or "").lower()
        name = value.get("fn_name") or value.get("func_name") or ""
        if kind in ("stdin", "stdin_stdout") or not (name or kind in ("functional", "function_call")):
            return ""
        for metadata in (value.get("metadata"), self._row.get("metadata")):
            if isinstance(metadata, str) and metadata.lstrip().startswith("{"):
                try:
                    metadata = load_json(metadata)
                except ValueError:
                    continue
            if isinstance(metadata, Mapping):
                name = name or metadata.get("func_name") or ""
        name = str(name or self._row.get("fn_name") or "")
        if not name.isidentifier():
            self._raise_failure(f"they call a function whose name is {name!r:.80}")
        return name

    def _join_lines(self, value: Any) -> str:
        """Return standard input or output as one text. A list holds its lines."""
        if isinstance(value, (list, tuple)):
            return "\n".join(self._join_lines(item) for item in value)
        if isinstance(value, (str, int, float, Decimal)) and not isinstance(value, bool):
            return str(value)
        self._raise_failure(f"an input or output is {value!r:.80}")

    def _read_texts(self, field: str) -> Sequence[str]:
        """Return the texts of a field: one text, a list, or a list written as text. Raises JudgeFailure."""
        value = self._row.get(field)
        if isinstance(value, str) and value.lstrip().startswith("["):
            value = self._decode_text(value)
        texts = [value] if isinstance(value, str) else list(value or ())
        if not all(isinstance(text, str) for text in texts):
            self._raise_failure(f"{field} is {value!r:.80}")
        return texts

    def _add_calls(self, code: str) -> str:
        """Return the test code with calls of the test functions that it defines but does not call.

        Raises:
            JudgeFailure: the code is no Python, or contains no check that runs.
        """
        tree = parse_python(code)
        if tree is None:
            self._raise_failure(f"they are no Python: {code.strip()[:80]!r}")
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        statements = [node for node in tree.body if not isinstance(node, _DEFINITIONS) and not _is_main_guard(node)]
        called = {child.func.id for node in statements for child in ast.walk(node)
                  if isinstance(child, ast.Call) and isinstance(child.func, ast.Name)}  # fmt: skip
        calls: list[str] = []
        entry = self._row.get("entry_point")
        if "check" in functions and "check" not in called and isinstance(entry, str) and _ENTRY.fullmatch(entry):
            calls.append(f"check({entry})")
            called.add("check")
        for node in tree.body:
            calls += self._calls_of(node, called)
        can_fail = [name in called and _has_check(function) for name, function in functions.items()]
        if not (
            any(map(_has_check, statements)) or any(can_fail) or any(not call.startswith("check(") for call in calls)
        ):
            self._raise_failure(f"they check nothing that runs: {code.strip()[:80]!r}")
        return "\n".join([code, *calls])

    def _calls_of(self, node: ast.stmt, called: set[str]) -> list[str]:
        """Return calls that run each test of `node` that pytest or unittest would collect, but those in `called`."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
            if node.name in called:
                return []
            self._require_plain(node, 0)
            return [f"{node.name}()"]
        if not isinstance(node, ast.ClassDef):
            return []
        is_unittest = any("TestCase" in ast.unparse(base) for base in node.bases)
        if not is_unittest and not node.name.lower().startswith("test"):
            return []
        methods = [
            statement for statement in node.body if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        tests = [method for method in methods if method.name.startswith("test")]
        if is_unittest:
            for method in tests:
                self._require_plain(method, 1)
            if not tests:
                return []
            return [_RUN_UNITTEST.format(name=node.name)]
        if any(method.name.startswith(("setup", "teardown")) for method in methods):
            self._raise_failure(f"{node.name} needs pytest's setup")
        for method in tests:
            self._require_plain(method, 1)
        return [f"{node.name}().{method.name}()" for method in tests]

    def _require_plain(self, node: ast.FunctionDef | ast.AsyncFunctionDef, provided_count: int) -> None:
        """Raise JudgeFailure unless a test function can be called directly and checks something.

        Args:
            provided_count: number of arguments that the caller provides: 1 (`self`) for a method, else 0.
        """
        parameters = node.args.posonlyargs + node.args.args
        if len(parameters) - len(node.args.defaults) > provided_count or isinstance(node, ast.AsyncFunctionDef):
            self._raise_failure(f"{node.name} needs pytest (fixtures, parameters or async)")
        if not _has_check(node):
            self._raise_failure(f"{node.name} checks nothing")

    def _raise_failure(self, problem: str) -> NoReturn:
        """Raise JudgeFailure about the field, with the accepted formats."""
        raise JudgeFailure(
            f"the row's {self._field}: {problem}. Expected statements that raise, cases with input and output, or "
            "inputs and outputs (docs/scorers.md lists the data sets)"
        )


_RUN_UNITTEST = """\
import unittest
_result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromTestCase({name}).run(_result)
if not _result.wasSuccessful() or len(_result.skipped) >= _result.testsRun:
    raise AssertionError([text for _, text in _result.failures + _result.errors][:1])"""


class _TextUnpickler(pickle.Unpickler):
    """Unpickle texts and numbers, and refuse a pickle with a class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse to load a class: a pickle of a data set could otherwise run code."""
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _is_main_guard(node: ast.stmt) -> bool:
    """Return True for `if __name__ == …`, which is dropped since tests are not the main program."""
    return isinstance(node, ast.If) and any(
        isinstance(child, ast.Name) and child.id == "__name__" for child in ast.walk(node.test)
    )


def _has_check(node: ast.AST) -> bool:
    """Return True if the node can raise depending on the program's behaviour."""
    if isinstance(node, ast.Assert):
        is_always_true = isinstance(node.test, ast.Constant) and bool(node.test.value)
        # A nonempty tuple is always true: `assert (a == b, "message")`.
        return not is_always_true and not (isinstance(node.test, ast.Tuple) and node.test.elts)
    if isinstance(node, ast.Raise):
        return True
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if _CHECK_NAME.search(name):
            return True
    if isinstance(node, ast.Try) and _catches_failure(node):
        return any(map(_has_check, [*node.orelse, *node.finalbody]))
    return any(map(_has_check, ast.iter_child_nodes(node)))


def _catches_failure(node: ast.Try) -> bool:
    """True if the `try` statement catches a failed assertion in its body and does not raise it again."""
    for handler in node.handlers:
        caught = ast.unparse(handler.type) if handler.type is not None else "BaseException"
        if any(name in re.findall(r"\w+", caught) for name in _CATCH_ALL):
            return not any(
                isinstance(child, (ast.Raise, ast.Assert))
                for statement in handler.body
                for child in ast.walk(statement)
            )
    return False
