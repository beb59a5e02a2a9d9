"""Equality by value, from any thread, with an end to every comparison."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.task_judge import math_equality
from ajet.task_judge.math_equality import equal


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("42", "42.0"),
        ("1,234", "1234"),
        ("$1,234.50", "1234.5"),
        (r"\$12", "12"),
        ("+7", "7"),
        ("42.", "42"),
        ("0.5", "1/2"),
        (r"\frac{1}{2}", "0.5"),
        (r"\frac12", "1/2"),
        (r"2\sqrt{2}", r"\sqrt{8}"),
        ("x^2+2x+1", "(x+1)^2"),
        ("x=5", "5"),
        (r"\{1, 2\}", r"\{2, 1\}"),
        ("(1,2)", "(1, 2)"),
        (r"72 \text{ dollars}", "72"),
        (r"90^\circ", "90"),
        ("$42$", "42"),
        (r"\text{even}", "even"),
    ],
)
def test_equal(one, other):
    assert equal(one, other, timeout=60)
    assert equal(other, one, timeout=60)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("42", "43"),
        ("-3", "3"),
        ("1,23", "123,4"),
        ("", "42"),
        ("", ""),
        ("0.33", "1/3"),
        (r"\frac{1}{3}", "0.5"),
        ("41 or 42", "43"),
        ("x+1", "x+2"),
        ("(1,2)", "(2,1)"),
        (r"\frac{", "1"),
        ("1/0", "1"),
        ("nan", "1"),
        ("7" * 20_000, "7"),
    ],
)
def test_not_equal(one, other):
    assert not equal(one, other)


@settings(max_examples=100, deadline=None)
@given(st.integers(-(10**30), 10**30), st.integers(1, 6))
def test_whole_numbers_are_compared_exactly(number, places):
    assert equal(str(number), f"{number:,}")
    assert equal(f"{number}.{'0' * places}", str(number))
    assert not equal(str(number), str(number + 1))


@pytest.mark.slow
def test_a_comparison_that_hangs_ends_in_any_thread_and_the_next_one_works():
    found = []
    hanging = threading.Thread(target=lambda: found.append(equal("9^{9^{9}}", r"\sqrt{5}", timeout=1.0)))
    hanging.start()
    hanging.join(60)
    assert found == [False]
    assert equal(r"\frac{1}{2}", r"\frac{2}{4}", timeout=60)


def test_many_threads_ask_at_once():
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(lambda number: equal(rf"\frac{{{number}}}{{2}}", f"{number}/{2}", timeout=60), range(40))
        )
    assert all(answers)


@pytest.mark.slow
def test_workers_end_with_their_process():
    script = (
        "from ajet.task_judge import math_equality as m\n"
        "assert m.equal('x+x', '2x', timeout=60)\n"
        "print(m.get_pool()._idle[0]._process.pid, flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


@pytest.mark.slow
def test_a_worker_that_died_idle_is_replaced():
    assert equal("x+x", "2x", timeout=60)
    for worker in math_equality.get_pool()._idle:
        worker._process.kill()
        worker._process.wait()
    assert equal("y+y", "2y", timeout=60)
