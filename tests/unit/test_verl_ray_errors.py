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


def test_one_that_says_nothing_is_its_kind():
    assert last_line(TimeoutError()) == "TimeoutError" and last_line(OSError(" \n")) == "OSError"
