"""What of an error of Ray reaches a person, and an episode's record."""

from __future__ import annotations

import pytest

from ajet.backbone.verl.cluster.ray_errors import last_line


def test_an_error_of_another_process_is_its_last_line():
    ray = pytest.importorskip("ray")
    trace = "Traceback (most recent call last):\n  File 'x.py', line 1, in f\n    raise ValueError('no')\n"
    problem = ray.exceptions.RayTaskError("f", f"{trace}ValueError: no such token\n\n", ValueError("no such token"))
    assert last_line(problem) == "ValueError: no such token"
    assert last_line(ray.exceptions.RayActorError(error_msg="The actor died.")) == "The actor died."
    low = "4 worker(s) were killed due to the node running low on memory. Memory was 22.30GB used / 23.54GB limit"
    problem = ray.exceptions.OutOfMemoryError(f"{low}\nOOM kill reason: 95.0%\nRefer to the documentation on …")
    assert last_line(problem) == low


def test_one_that_says_nothing_is_its_kind():
    assert last_line(TimeoutError()) == "TimeoutError" and last_line(OSError(" \n")) == "OSError"
