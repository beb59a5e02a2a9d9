"""The scorer `code`: which program a reply holds, and tests in the shapes of published data sets."""

from __future__ import annotations

import base64
import json
import pickle
import textwrap
import time
import zlib
from functools import lru_cache
from typing import Any

import pytest

from ajet.schema.episode import Verdict
from ajet.schema.errors import JudgeFailure
from ajet.task_judge import Judge
from tests.support.scorer_calls import ask_scorer, open_scorer

pytestmark = pytest.mark.slow

FENCE = "```"
GOOD = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return 'certainly wrong'\n"
READS, READS_WRONG = "print(sum(map(int, input().split())))", "print(0)"
METHOD = "class Solution:\n    def add(self, a: List[int], b: int) -> int:\n        return sum(a) + b\n"
METHOD_WRONG = METHOD.replace("sum(a) + b", "-1")
PAST_LIMIT = "1" + "0" * 5000
"""An integer beyond the 4,300 digits that Python reads by default."""


@lru_cache(maxsize=1)
def code_judge() -> Judge:
    return open_scorer("code", timeout=30)


def score(reply: str, **row: Any) -> Verdict:
    return ask_scorer(code_judge(), reply, row)


def block(program: str = GOOD, language: str = "python") -> str:
    return f"{FENCE}{language}\n{program}{FENCE}\n"


REPLIES = {
    "bash before": f"Install it:\n{block('pip install numpy', 'bash')}\nThen:\n{block()}".replace(
        "numpy```", "numpy\n```"
    ),
    "json before": f"{block('{}' + chr(10), 'json')}So:\n{block()}",
    "text before": f"Sample:\n{block('1 2' + chr(10), 'text')}My solution:\n{block()}",
    "C++ before": f"{block('int x;' + chr(10), 'c++')}In Python:\n{block()}",
    "java before": f"{block('class A {}' + chr(10), 'java')}{block()}",
    "console after": f"{block()}{block('$ python a.py' + chr(10), 'console')}",
    "attributes": block(language='python title="a.py"'),
    "braces": block(language="{.python .numberLines}"),
    "R markdown": block(language="{python}"),
    "file name": block(language="python:add.py"),
    "version": block(language="Python3.11"),
    "py": block(language="py"),
    "blank before language": block(language=" python"),
    "no language": block(language=""),
    "unknown language": block(language="solution"),
    "CRLF": block().replace("\n", "\r\n"),
    "CR": block().replace("\n", "\r"),
    "tildes": f"~~~python\n{GOOD}~~~\n",
    "long tildes": f"~~~~ python\n{GOOD}~~~~\n",
    "in a list": "1. Code:\n" + textwrap.indent(block(), "   "),
    "four columns": "Do:\n" + textwrap.indent(block(), "    "),
    "tab": textwrap.indent(block(), "\t"),
    "quoted": textwrap.indent(block(), "> "),
    "fence in docstring": block(f'doc = """\n{FENCE}\nx\n{FENCE}\n"""\n{GOOD}'),
    "language in docstring": block(f'doc = """\n{FENCE}python\nx\n{FENCE}\n"""\n{GOOD}') + "Done.\n",
    "unclosed": f"{FENCE}python\n{GOOD}",
    "closed after code": f"{FENCE}python\n{GOOD.rstrip()}{FENCE}\nThis adds.",
    "unclosed bare before": f"{FENCE}\nsome text here\n\n{block()}ok",
    "unclosed bash before": f"{FENCE}bash\npip install x\n\nThen\n{block()}ok",
    "unclosed json before": f"{FENCE}json\n{{}}\n\nThen\n{block()}ok",
    "in tags": f"<answer>\n{block()}</answer>",
    "glued to tags": f"<solution>{block().rstrip()}</solution>",
    "after a colon": f"Here: {block()}",
    "in a Markdown block": f"````markdown\n# x\n{block()}````\n",
    "bare output after": f"{block()}Output:\n{block('3' + chr(10), '')}",
    "example of use after": f"{block()}Example:\n{block('print(add(1, 2))' + chr(10))}",
    "session after": f"{block()}So:\n{block('>>> add(1, 2)' + chr(10) + '3' + chr(10))}",
    "comment after": f"{block()}{block('# add(1, 2) is 3' + chr(10))}",
    "empty block after": f"{block()}{block('')}",
    "correction": f"{block(WRONG)}No:\n{block()}",
    "in two parts": block("def plus(a, b):\n    return a + b\n") + block("def add(a, b):\n    return plus(a, b)\n"),
    "no fence": GOOD,
    "thoughts": f"<think>{block(WRONG)}</think>{block()}",
}


@pytest.mark.parametrize("name", REPLIES)
def test_program_is_found_in_reply(name):
    found = score(REPLIES[name], tests=["assert add(1, 2) == 3"])
    assert found.reward == 1.0, found.reason


def test_wrong_program_scores_zero_in_each_reply():
    """With the sum replaced, no way of finding a program passes."""
    for name in ("bash before", "unclosed bare before", "fence in docstring", "example of use after", "quoted"):
        reply = REPLIES[name].replace("return a + b", "return 7")
        assert score(reply, tests=["assert add(1, 2) == 3"]).reward == 0.0, name


def test_hostile_fences_are_read_in_time():
    hostile = ["`" * 100_000, "```a" * 30_000, "```python\n" + "a ```\n" * 30_000, "```python\n" + "(" * 50_000]
    began = time.process_time()
    for reply in hostile:
        assert score(reply, tests=["assert add(1, 2) == 3"]).reward == 0.0
    assert time.process_time() - began < 20


def compress(value: Any) -> str:
    """LiveCodeBench's form of private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(value)))).decode()


ASSERTS = ["assert add(1, 2) == 3"]
STDIN = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
FUNCTIONAL = [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}]
CHECK = "def check(candidate):\n    assert candidate(%s) == %d\n"
UNITTEST = """\
import unittest
class TestCases(unittest.TestCase):
    def setUp(self):
        self.one = 1
    def test_one(self):
        self.assertEqual(add(self.one, 2), 3)
"""
FUNCTION, PROGRAM, SOLUTION = (GOOD, WRONG), (READS, READS_WRONG), (METHOD, METHOD_WRONG)
SHAPES: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {
    "list": (FUNCTION, {"tests": ASSERTS}),
    "text": (FUNCTION, {"tests": ASSERTS[0]}),
    "JSON text of a list": (FUNCTION, {"tests": json.dumps(ASSERTS)}),
    "Python text of a list": (FUNCTION, {"tests": str(ASSERTS)}),
    "JSON text twice": (FUNCTION, {"tests": json.dumps(json.dumps(ASSERTS))}),
    "JSON text of cases": (PROGRAM, {"tests": json.dumps(STDIN)}),
    "list of JSON texts": (PROGRAM, {"tests": [json.dumps(STDIN[0])]}),
    "MBPP": (FUNCTION, {"test_list": ["assert math.floor(add(1, 2)) == 3"], "test_setup_code": "import math"}),
    "MBPP+": (FUNCTION, {"test_list": str(ASSERTS), "test_imports": str(["import math"]), "test": "x"}),
    "AceCode": (FUNCTION, {"test_cases": ASSERTS}),
    "APPS": (PROGRAM, {"input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})}),
    "APPS by lines": (PROGRAM, {"input_output": {"inputs": [["1 2"]], "outputs": [["3"]]}}),
    "APPS method": (SOLUTION, {"input_output": json.dumps(
        {"fn_name": "add", "inputs": [[[1, 2], 3]], "outputs": [[6]]})}),
    "TACO function": (FUNCTION, {"input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]})}),
    "LiveCodeBench": (PROGRAM, {"public_test_cases": json.dumps(STDIN), "private_test_cases": compress(STDIN)}),
    "LiveCodeBench private": (PROGRAM, {"public_test_cases": "[]", "private_test_cases": compress(STDIN)}),
    "LiveCodeBench method": (SOLUTION, {"public_test_cases": json.dumps(FUNCTIONAL),
                                        "metadata": '{"func_name": "add"}'}),
    "CodeContests": (PROGRAM, {"public_tests": {"input": ["1 2"], "output": ["3"]},
                               "private_tests": {"input": [], "output": []}}),
    "SYNTHETIC-1": (PROGRAM, {"verification_info": json.dumps({"language": "python", "test_cases": [
        {"type": "stdin_stdout", "input": "1 2", "output": "3", "fn_name": None}]})}),
    "SYNTHETIC-1 in Python": (PROGRAM, {"verification_info": str({"test_cases": [
        {"type": "stdin_stdout", "input": "1 2", "output": "3", "fn_name": None}]})}),
    "PrimeIntellect call": (FUNCTION, {"tests": json.dumps([
        {"type": "function_call", "fn_name": "add", "input": [1, 2], "output": [3]}])}),
    "DeepCoder": (SOLUTION, {"tests": json.dumps([{**FUNCTIONAL[0], "metadata": {"func_name": "add"}}])}),
    "verl": (PROGRAM, {"reward_model": {"ground_truth": json.dumps({"inputs": ["1 2"], "outputs": ["3"]})}}),
    "verl asserts": (FUNCTION, {"reward_model": {"ground_truth": json.dumps({"assert_case": ASSERTS})}}),
    "HumanEval": (FUNCTION, {"test": CHECK % ("1, 2", 3), "entry_point": "add"}),
    "LeetCodeDataset": (SOLUTION, {"test": CHECK % ("a=[1, 2], b=3", 6), "entry_point": "Solution().add"}),
    "KodCode": (FUNCTION, {"test": "from solution import add\n\ndef test_one():\n    assert add(1, 2) == 3\n"}),
    "BigCodeBench": (FUNCTION, {"test": UNITTEST, "entry_point": "add"}),
    "pytest class": (FUNCTION, {"test": "class TestAdd:\n    def test_one(self):\n        assert add(1, 2) == 3\n"}),
    "unittest of any name": (FUNCTION, {"test": UNITTEST.replace("TestCases", "Adding"), "entry_point": "add"}),
    "unittest of errors": (("def add(a, b):\n    return len(a) + b\n", WRONG), {"test": """\
import unittest
class TestAdd(unittest.TestCase):
    def test_error(self):
        with self.assertRaises(TypeError):
            add(1, 2)
"""}),
    "decimals printed": (("print(0.1 + 0.2)", "print(0.31)"), {"tests": [{"input": "", "output": "0.3"}]}),
    "decimals in a line": (("print('x', 2, 1/3)", "print('x', 3, 1/3)"),
                           {"tests": [{"input": "", "output": "x 2 0.33333333"}]}),
    "long integer returned": (("def add(a, b):\n    return 10 ** 5000", WRONG),
                              {"tests": f"assert add(1, 2) == {PAST_LIMIT}"}),
    "long integer printed": (("print(10 ** 5000)", READS_WRONG), {"tests": [{"input": "", "output": PAST_LIMIT}]}),
    "long integer given": (FUNCTION, {"input_output":
        f'{{"fn_name": "add", "inputs": [[{PAST_LIMIT}, 1]], "outputs": [{PAST_LIMIT[:-1]}1]}}'}),
    "long integer as input": (PROGRAM, {"input_output": f'{{"inputs": [{PAST_LIMIT}], "outputs": [{PAST_LIMIT}]}}'}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_published_shape_tells_right_from_wrong(name):
    (good, wrong), row = SHAPES[name]
    passed, failed = score(good, **row), score(wrong, **row)
    assert (passed.reward, failed.reward) == (1.0, 0.0), (passed.reason, failed.reason)


UNKNOWN: dict[str, dict[str, Any]] = {
    "an expression": {"tests": ["add(1, 2) == 3"]},
    "a printed comparison": {"tests": "print(add(1, 2) == 3)"},
    "prose": {"tests": "add must add"},
    "numbers": {"tests": [1]},
    "a number as text": {"tests": "5"},
    "true": {"tests": True},
    "pairs": {"tests": [["1 2", "3"]]},
    "broken JSON": {"tests": "{no"},
    "broken list": {"tests": "[assert add(1, 2) == 3]"},
    "JSON text of prose": {"tests": json.dumps("1 2")},
    "other keys": {"tests": {"a": ASSERTS[0]}},
    "nothing in it": {"tests": [None]},
    "an empty test": {"tests": [""]},
    "a comment": {"tests": "# nothing"},
    "a docstring": {"tests": '"""assert"""'},
    "a constant": {"tests": ["assert True"]},
    "a pair that is always true": {"tests": ["assert (add(1, 2) == 3, 'sum')"]},
    "a function that nothing calls": {"tests": "def verify():\n    assert add(1, 2) == 3"},
    "under a main guard": {"tests": "if __name__ == '__main__':\n    assert add(1, 2) == 3"},
    "a caught assertion": {"tests": "try:\n    assert add(1, 2) == 3\nexcept AssertionError:\n    print('no')"},
    "a fixture": {"test": "def test_one(tmp_path):\n    assert add(1, 2) == 3"},
    "a coroutine": {"test": "async def test_one():\n    assert add(1, 2) == 3"},
    "more inputs than outputs": {"input_output": {"inputs": ["1"], "outputs": []}},
    "check without entry point": {"test": CHECK % ("1, 2", 3)},
    "a pickled function": {"private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(time.sleep))).decode()},
    "calls without a name": {"public_test_cases": json.dumps(FUNCTIONAL)},
    "another language": {"verification_info": {"language": "java", "test_cases": []}},
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_shape_is_refused_and_pays_nobody(name):
    with pytest.raises(JudgeFailure, match=next(iter(UNKNOWN[name]))):
        score(GOOD, **UNKNOWN[name])


@pytest.mark.parametrize("row", [{}, {"tests": ""}, {"tests": "[]"}, {"tests": "null"}, {"input_output": ""},
                                 {"input_output": '{"inputs": [], "outputs": []}'}])  # fmt: skip
def test_row_without_tests_has_no_score(row):
    assert score(GOOD, **row).reward is None


def test_results_are_compared_outside_the_program():
    """An object that equals everything is no right answer, nor is a function that only the runner imports."""
    row = {"input_output": {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}}
    equal = "class Equal(int):\n    def __eq__(self, other):\n        return True\ndef add(a, b):\n    return Equal(9)"
    for program in (equal, "print(3)", "import os\nprint(3)\nos._exit(0)", "def add(a, b):\n    return {3}.__class__"):
        assert score(program, **row).reward == 0.0, program
    close = {"input_output": {"fn_name": "add", "inputs": [[0.1, 0.2]], "outputs": [0.3]}}
    assert score(GOOD, **close).reward == 1.0
    assert score("def add(a, b):\n    return 0.31", **close).reward == 0.0


EQUAL = (
    "class Equal(%s):\n    __eq__ = lambda *a: True\n    __hash__ = lambda *a: 3\ndef add(a, b):\n    return Equal()"
)
DECEIVING = {
    "an object that equals": EQUAL % "object",
    "a number that equals": EQUAL % "int",
    "a list that equals": EQUAL % "list",
    "mock": "from unittest.mock import ANY\ndef add(a, b):\n    return ANY",
    "reads the objects": "import gc, re\ndef add(a, b):\n    found = [re.search(r'add\\(1, 2\\) == (.*)', repr(each))"
    " for each in gc.get_objects() if type(each) in (list, dict)]\n    return eval(next(filter(None, found))[1])",
    "reads the frames": """\
import re, sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        if found := re.search(r"add\\(1, 2\\) == (\\d+)", repr((frame.f_locals, frame.f_globals))):
            return int(found[1])
        frame = frame.f_back
""",
    "patches exec": "import builtins\nbuiltins.exec = builtins.compile = id\ndef add(a, b):\n    return 0",
    "patches unittest": "import unittest\nunittest.TestCase.assertEqual = print\ndef add(a, b):\n    return 0",
    "ends": "import os\ndef add(a, b):\n    os._exit(0)",
    "ends politely": "def add(a, b):\n    raise SystemExit(0)",
    "ends at its exit": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b):\n    return 0",
    "renames the error": "import builtins\nbuiltins.AssertionError = KeyError\ndef add(a, b):\n    return 0",
    "no report": "import sys\ndef add(a, b):\n    for name in list(sys._getframe(1).f_globals):\n"
    "        if name.startswith('__ajet'):\n            sys._getframe(1).f_globals[name] = print\n    return 0",
    "reports": "def add(a, b):\n    __ajet_report__(0, 0)\n    return 0",
    "nests": "def add(a, b):\n    x = []\n    for _ in range(100_000):\n        x = [x]\n    return x",
    "divides by zero": "class Ratio:\n    as_integer_ratio = lambda self: (1, 0)\nadd = lambda a, b: Ratio()",
    "skips one": "import unittest\ndef add(a, b):\n    raise unittest.SkipTest('later')",
    "surrogate": "def add(a, b):\n    return chr(0xD800)",
    "long integer": "def add(a, b):\n    return 10 ** 9000",
    "prints marks": "print('PASSED', 'OK', '{\"passed\": true}')\ndef add(a, b):\n    print('1 of 1 tests passed')",
}


@pytest.mark.parametrize("name", DECEIVING)
def test_deceiving_program_passes_no_constant(name):
    for row in (
        {"tests": ["assert add(1, 2) == 3"]},
        {"tests": ["assert set([add(1, 2)]) == set([3])"]},
        {"test": CHECK % ("1, 2", 3), "entry_point": "add"},
        {"test": UNITTEST, "entry_point": "add"},
    ):
        assert score(DECEIVING[name], **row).reward == 0.0, row


EQUAL_VALUES = {
    "{1, 2}": "frozenset([1, 2])", "(1, 2)": "__import__('collections').namedtuple('P', 'a b')(1, 2)",
    "{'a': 2}": "__import__('collections').Counter('aa')", "0.5": "__import__('fractions').Fraction(1, 2)",
    "0.25": "__import__('decimal').Decimal('0.25')", "{1}": "{1: 2}.keys()", "1": "True", "1.0": "1",
    "b'a'": "bytearray(b'a')",
    "1j": "1j", "'\\ud800'": "chr(0xD800)", "1e999": "float('inf')",
    "[(1, [2])]": "list({1: [2]}.items())", "None": "None",
    "'a\\n'": "'a' + chr(10)", "set([1])": "{1}", "sorted([2, 1])": "[1, 2]",
}  # fmt: skip


def test_values_equal_constants_as_in_python():
    tests = [f"assert (lambda: value({number}))() == {wanted}" for number, wanted in enumerate(EQUAL_VALUES)]
    good = f"value = lambda number: [{', '.join(EQUAL_VALUES.values())}][number]"
    assert score(good, tests=["\n".join(tests)]).reward == 1.0
    for value, wanted in [
        ("(1, 2)", "[1, 2]"),
        ("1", "True"),
        ("iter([1])", "[1]"),
        ("[object()]", "[None]"),
        ("0", "None"),
    ]:
        sign = "is" if wanted in ("True", "None") else "=="
        assert score(f"value = lambda: {value}", tests=[f"assert value() {sign} {wanted}"]).reward == 0.0, value


def test_assertions_in_loops_and_branches_count():
    check = """\
def check(f):
    for i in range(3):
        assert f(i) == 1
    if f(9) == 9:
        assert f(0) == 5
    assert f(1) == 1, f"{f(1)}"
"""
    row = {"test": check, "entry_point": "one"}
    assert score("def one(x):\n    return 1", **row).reward == 1.0
    assert score("def one(x):\n    return int(x < 2)", **row).reward == 0.0


EXPECTED_FAILURES = {
    "early return": "def check(f):\n    if f(1) == 1:\n        return\n    assert f(1) == 7",
    "skipped": "import unittest\nclass A(unittest.TestCase):\n    @unittest.skip('later')\n    def test_a(self):\n"
    "        self.assertEqual(one(1), 7)\n    def test_b(self):\n        self.assertEqual(one(1), 1)",
    "expected": "import unittest\nclass A(unittest.TestCase):\n    @unittest.expectedFailure\n    def test_a(self):\n"
    "        self.assertEqual(one(1), 7)\n    def test_b(self):\n        self.assertEqual(one(1), 1)",
    "raised": "import unittest\nclass A(unittest.TestCase):\n    def test_a(self):\n"
    "        with self.assertRaises(AssertionError):\n            assert one(1) == 7\n        assert one(1) == 1",
    "caught": "def check(f):\n    try:\n        assert f(1) == 7\n    except AssertionError:\n        assert f(1) == 1",
}


@pytest.mark.parametrize("name", EXPECTED_FAILURES)
def test_expected_failure_of_assertion_passes(name):
    row = {"test": EXPECTED_FAILURES[name], "entry_point": "one"}
    assert score("def one(x):\n    return 1", **row).reward == 1.0
    assert score("def one(x):\n    return 0", **row).reward == 0.0


def test_missing_package_of_tests_pays_nobody():
    row = {"tests": "import no_such_package\nassert add(1, 2) == 3"}
    with pytest.raises(JudgeFailure, match="no_such_package"):
        score(GOOD, **row)
    assert score("import no_such_package", tests=["assert add(1, 2) == 3"]).reward == 0.0
