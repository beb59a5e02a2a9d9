"""Tool uses: how they are said, and what of them is kept."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from ajet.record.tool_uses import (
    ARGUMENTS,
    IN_ALL,
    RESULT,
    bound_arguments,
    bound_tool_use,
    canonical_json,
    decode_uses,
    encode_uses,
)
from ajet.schema.errors import EnvironmentFailure, SandboxFailure
from ajet.schema.tool_use import ToolUse, compute_digest
from ajet.workflow.tools import RunningToolUse, record_calls
from ajet_ray.rows import pack_episode, unpack_episode
from tests.support.record_fixtures import episode
from tests.support.workflow_fixtures import scene


def use(**more: Any) -> ToolUse:
    values = {"name": "f", "arguments": {}, "result": "r", "digest": compute_digest("r"), "started": 1.0, "ended": 2.0}
    return ToolUse(**{**values, **more})


def test_a_wrapped_function_does_what_it_did_and_is_recorded() -> None:
    uses: list[ToolUse] = []

    def add(a: int, *rest: int, b: int = 2, **more: Any) -> dict[str, int]:
        """Sums."""
        if a < 0:
            raise ValueError("too small")
        return {"sum": a + b + sum(rest)}

    async def late(items: list[int]) -> str:
        items.append(9)
        return "done"

    wrapped = record_calls(add, uses.append)
    assert wrapped.__name__ == "add" and wrapped.__doc__ == "Sums."
    assert wrapped(1, 5, b=3, key="k") == {"sum": 9}
    with pytest.raises(ValueError, match="too small"):
        wrapped(-1)
    with pytest.raises(TypeError, match="missing"):
        wrapped()
    assert asyncio.run(record_calls(late, uses.append)([1])) == "done"
    assert record_calls(functools.partial(add, 4), uses.append)() == {"sum": 6}
    told = [(each.name, each.arguments, each.result, each.error) for each in uses]
    assert told[0] == ("add", {"a": 1, "rest": [5], "b": 3, "key": "k"}, '{"sum": 9}', "")
    assert told[1] == ("add", {"a": -1}, "ValueError: too small", "tool")
    assert told[2][3] == "tool" and told[3] == ("late", {"items": [1]}, "done", "")
    assert told[4][:2] == ("add", {"a": 4})
    assert all(each.digest == compute_digest(each.result) and each.started <= each.ended for each in uses)


@pytest.mark.parametrize(
    ("problem", "error"),
    [
        (ValueError("x"), "tool"), (TimeoutError(), "timeout"), (asyncio.CancelledError(), "timeout"),
        (BrokenPipeError(), "transport"), (EnvironmentFailure("gone"), "environment"), (SandboxFailure("x"), "sandbox"),
    ],
)  # fmt: skip
def test_what_a_tool_raises_goes_on_and_is_classified(problem: BaseException, error: str) -> None:
    uses: list[ToolUse] = []
    with pytest.raises(type(problem)), RunningToolUse("f", {}, uses.append):
        raise problem
    assert [each.error for each in uses] == [error]


def test_what_is_kept_is_bounded_and_the_digest_is_of_the_whole() -> None:
    long = "x" * (RESULT + 10)
    cut = bound_tool_use(use(result=long, digest=compute_digest(long)))
    assert len(cut.result) == RESULT and cut.cut == 10 and cut.shown_whole and cut.digest == compute_digest(long)
    assert bound_tool_use(cut) == cut
    many = bound_arguments({"text": '"' * (ARGUMENTS + 1)})
    assert set(many) == {"cut", "digest"} and bound_arguments(many) == many
    assert many != bound_arguments({"text": '"' * ARGUMENTS + "'"})
    assert canonical_json({"b": (1, 2), "a": {"d": 1, "c": 2}}) == canonical_json({"a": {"c": 2, "d": 1}, "b": [1, 2]})


def test_half_of_a_surrogate_pair_does_not_stop_the_record() -> None:
    odd = bound_tool_use(use(result="a\udcff", arguments={"\udcff": "\udcff"}, digest=compute_digest("a\udcff")))
    assert odd.result == "a\ufffd" and odd.arguments == {"\ufffd": "\ufffd"}
    assert unpack_episode(pack_episode(episode(tool_uses=[odd]))).tool_uses == [odd]


@pytest.mark.parametrize(
    "wrong", [{"error": "mine"}, {"started": float("nan")}, {"result": 3}], ids=["error", "time", "result"]
)
def test_what_is_no_use_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        bound_tool_use(use(**wrong))


def test_an_episode_keeps_so_much_in_all_and_nothing_after_its_end() -> None:
    with scene() as made:
        for _ in range(IN_ALL // RESULT + 3):
            made.tuner.tool_used(use(result="y" * RESULT, digest=compute_digest("y" * RESULT)))
        capture = made.session.close()
        made.tuner.tool_used(use())
    assert len(capture.tool_uses) == IN_ALL // RESULT + 3
    assert sum(len(each.result) for each in capture.tool_uses) <= IN_ALL
    last = capture.tool_uses[-1]
    assert (last.result, last.cut, last.digest) == ("", RESULT, compute_digest("y" * RESULT))


def test_rows_leave_out_what_is_default_and_damaged_ones_are_refused() -> None:
    uses = [use(), use(error="timeout", call_id="c", whole=7, cut=2)]
    rows = encode_uses(uses)
    assert "error" not in rows[0] and decode_uses(rows) == uses and decode_uses([]) == []
    for wrong in ({"name": 3}, {"arguments": []}, {"error": "mine"}, {"ended": "now"}, {"cut": "1"}):
        with pytest.raises((ValueError, TypeError)):
            decode_uses([rows[0] | wrong])
