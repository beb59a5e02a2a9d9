"""Who is asked to write tasks where a model does not answer, what it cost, and what is shown meanwhile."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ajet.environment.chat_model import NoAnswerError
from ajet.record.progress import Progress
from ajet.schema.errors import TaskError
from ajet_datagen.generation import patience, reader
from ajet_datagen.generation.cost import GenerationCost, TokenPrice
from ajet_datagen.generation.failover import REST_S, ModelFailover
from ajet_datagen.generation.refusals import HARMLESS, IN_A_ROW, STATUSES
from ajet_datagen.tests.generation_fixtures import counted, examples, log_lines, prompts, read, writing_server
from tests.support.judge_fixtures import JudgeServer, judge_server

pytestmark = pytest.mark.slow

Say = Callable[[dict[str, Any]], Any]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[JudgeServer]:
    monkeypatch.setattr(patience, "WAIT_S", 0.01)
    with writing_server(monkeypatch, tmp_path) as running:
        yield running


# who is asked


def hangs(asked: dict[str, Any]) -> Any:
    """Until the test is over: the client is gone by then."""
    threading.Event().wait(2)
    return 500, "too late"


@pytest.mark.parametrize(
    ("say", "requests"),
    [
        (lambda asked: (503, "overloaded"), patience.AGAIN + 1),
        (lambda asked: (500, "down"), patience.AGAIN + 1),
        (lambda asked: (200, {"no": "completion"}), patience.AGAIN + 1),
        (lambda asked: (401, "who are you"), 1),
        (hangs, 1),
    ],
    ids=["overloaded", "down", "nonsense", "refuses", "hangs"],
)
def test_a_dead_model_costs_one_prompt_its_waits_and_the_next_ones_nothing(
    server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Say, requests: int
) -> None:
    if say is hangs:
        monkeypatch.setattr(patience, "TIMEOUT_S", 0.3)
    with judge_server(say) as dead, log_lines("WARNING") as logged:
        tasks = read(tmp_path, dead, server, num_workers=1, **examples(tmp_path))
    assert tasks and len(server.seen) > 6
    assert len(dead.seen) == requests, "held-out tasks and trained ones share what is known of it"
    [moved] = [line for line in logged if "is used first" in line]
    assert moved.startswith("writer0 at 127.0.0.1") and "writer1 at 127.0.0.1" in moved
    assert any("hangs" in line for line in logged) == (say is hangs)


def test_prompts_on_their_way_learn_of_it_from_each_other(server: JudgeServer, tmp_path: Path) -> None:
    with judge_server(lambda asked: (503, "overloaded")) as dead:
        read(tmp_path, dead, server, num_workers=6, document_reader={"document_path": []}, **examples(tmp_path))
    assert len(dead.seen) <= 6 * (patience.AGAIN + 1) and len(server.seen) >= 6


def test_a_prompt_that_one_model_cannot_take_gives_it_no_rest(server: JudgeServer, tmp_path: Path) -> None:
    """Too long for it, or filtered: that says nothing of the next prompt."""
    short = {"document_reader": {"document_path": []}, "num_workers": 1}
    refused: list[Any] = []

    def once(asked: dict[str, Any]) -> Any:
        if not refused:
            refused.append(asked)
            return 400, "too long"
        return counted(asked)

    with judge_server(once) as narrow:
        assert read(tmp_path, narrow, server, **short, **examples(tmp_path))
        assert len(server.seen) == 1 and len(narrow.seen) >= 6


def numbered(refused: Callable[[int], bool], status: int = 400) -> Say:
    """Says another task at each request, and refuses those whose numbers are given."""
    asked_before: list[Any] = []

    def say(asked: dict[str, Any]) -> Any:
        asked_before.append(asked)
        number = len(asked_before)
        if refused(number):
            return status, f"filtered: {number}"
        return json.dumps({"tasks": [{"query": f"How old is stone {number}?", "answer": str(number)}]})

    return say


ALONE: dict[str, Any] = {
    "document_reader": {"document_path": []}, "num_workers": 1, "deduplication_filter": {"enabled": False},
}  # fmt: skip


@pytest.mark.parametrize("status", STATUSES)
def test_a_prompt_that_every_model_refuses_is_left_out_for_good(
    server: JudgeServer, tmp_path: Path, status: int
) -> None:
    """It used to end the reading, and each that followed, at the same place."""
    server.say = numbered(lambda number: number in (2, 5), status)
    with log_lines("WARNING") as logged:
        tasks = read(tmp_path, server, **ALONE, **examples(tmp_path))
    assert len(tasks) == 6, "what is missing is asked for by other prompts"
    [told] = [line for line in logged if "refused" in line]
    assert told.startswith(
        "left out some prompts for train tasks: 2 prompts refused: train 0 1, train 0 4; the last: writer0 at 127."
    )
    assert f"status {status}: " in told and "filtered: 5" in told
    server.seen.clear()
    with log_lines("WARNING") as logged:
        assert read(tmp_path, server, **ALONE, **examples(tmp_path)) == tasks
    assert not server.seen and any("2 prompts refused: train 0 1" in line for line in logged)


@pytest.mark.parametrize(("at_once", "answered"), [(1, 2), (8, 0)])
def test_prompts_refused_in_a_row_end_it_and_are_asked_again(
    server: JudgeServer, tmp_path: Path, at_once: int, answered: int
) -> None:
    """An account may be refused by such a status, too: nothing is lost by it. An answer among eight at once may come
    after refusals, which then are no row."""
    given = {**ALONE, "num_workers": at_once, "task_num": 40, **examples(tmp_path)}
    server.say = numbered(lambda number: number > answered)
    with pytest.raises(
        TaskError, match=r"writes tasks: 1\d prompts in a row and a harmless one were refused; the last: w"
    ):
        read(tmp_path, server, **given)
    assert 0 <= len(server.seen) - 1 - answered - IN_A_ROW <= at_once - 1, "and the harmless one"
    server.say = numbered(lambda number: False)
    server.seen.clear()
    assert len(read(tmp_path, server, **given)) == 40 and len(prompts(server)) == 40 - answered


@pytest.mark.parametrize("at_once", [1, 8])
def test_a_filter_that_takes_many_prompts_in_a_row_ends_nothing(
    server: JudgeServer, tmp_path: Path, at_once: int
) -> None:
    """Which prompts there are is drawn from the seed: the same ones would end each further start, too."""
    given = {**ALONE, "num_workers": at_once, "task_num": 40, **examples(tmp_path)}
    said = numbered(lambda number: 2 < number <= 2 + 3 * IN_A_ROW)
    harmless: list[Any] = []

    def filtered(asked: dict[str, Any]) -> Any:
        if asked["messages"][0]["content"] == HARMLESS:
            harmless.append(asked)
            return "yes"
        return said(asked)

    server.say = filtered
    with log_lines("WARNING") as logged:
        assert len(read(tmp_path, server, **given)) == 40
    assert 1 <= len(harmless) <= 3
    assert any(f"{3 * IN_A_ROW} prompts refused" in line for line in logged)


def test_refusals_that_come_fast_wait_for_an_answer_that_is_on_its_way(server: JudgeServer, tmp_path: Path) -> None:
    """The first of the prompts is answered last."""
    said = numbered(lambda number: 1 < number <= 1 + IN_A_ROW)
    first, refused = [True], threading.Event()

    def slow(asked: dict[str, Any]) -> Any:
        began = bool(first) and first.pop()
        told = said(asked)
        if began:
            assert refused.wait(30)
        elif len(server.seen) > IN_A_ROW:
            refused.set()
        return told

    server.say = slow
    given = {**ALONE, "num_workers": 1 + IN_A_ROW, "task_num": 20, **examples(tmp_path)}
    assert len(read(tmp_path, server, **given)) == 20


def test_a_prompt_that_one_refuses_and_another_does_not_hear_is_asked_again(
    server: JudgeServer, tmp_path: Path
) -> None:
    server.say = numbered(lambda number: number == 2)
    with judge_server(lambda asked: (401, "who are you")) as dead:
        tasks = read(tmp_path, dead, server, **ALONE, **examples(tmp_path))
        assert len(tasks) == 6
        server.say = lambda asked: json.dumps({"tasks": [{"query": "How old is stone 2?"}]})
        server.seen.clear()
        read(tmp_path, dead, server, **ALONE, **examples(tmp_path))
    assert len(prompts(server)) == 1


def test_a_reading_of_refusals_alone_says_what_was_refused(server: JudgeServer, tmp_path: Path) -> None:
    server.say = lambda asked: (422, "too long for me")
    with pytest.raises(TaskError, match=r"1 prompt refused: validation 0 0 \(sea.txt\); the last.*too long for me"):
        read(tmp_path, server, split="validation")
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [401, 402, 403, 404, 429])
def test_a_refusal_of_whoever_asks_ends_it_at_once(server: JudgeServer, tmp_path: Path, status: int) -> None:
    """Or once its waits are over."""
    server.say = numbered(lambda number: number > 1, status)
    with pytest.raises(TaskError, match="No model writes tasks: writer0"):
        read(tmp_path, server, **ALONE, **examples(tmp_path))
    assert len(server.seen) == 2 + (patience.AGAIN if status == 429 else 0)


def test_one_that_rests_is_asked_before_all_is_given_up(server: JudgeServer, tmp_path: Path) -> None:
    """The first was away for a moment; the second goes for good."""
    away, kept = [True] * (patience.AGAIN + 1), 2

    def first(asked: dict[str, Any]) -> Any:
        return (503, "restarting") if away and away.pop() else counted(asked)

    def second(asked: dict[str, Any]) -> Any:
        return counted(asked) if len(server.seen) <= kept else (500, "gone")

    server.say = second
    with judge_server(first) as back:
        given = {"document_reader": {"document_path": []}, "num_workers": 1}
        assert read(tmp_path, back, server, **given, **examples(tmp_path))
        asked = prompts(back)
    assert len(asked) > patience.AGAIN + 1 and prompts(server)[kept] in asked, "what the second lost the first answered"


def test_a_model_alone_is_asked_again_also_where_it_hangs(
    server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "TIMEOUT_S", 0.3)
    slow = [True]
    server.say = lambda asked: hangs(asked) if slow and slow.pop() else counted(asked)
    assert len(read(tmp_path, server, split="validation", num_workers=1)) == 6 and len(server.seen) == 2


def test_a_rest_ends() -> None:
    now = [0.0]
    models = ModelFailover(3, clock=lambda: now[0])
    down, narrow = (
        NoAnswerError("down", is_retryable=True, status=503),
        NoAnswerError("too long", is_retryable=False, status=400),
    )
    assert models.note_failure(0, down) and models.rank_models() == [1, 2, 0]
    assert not models.note_failure(1, narrow) and models.rank_models() == [1, 2, 0]
    assert models.note_failure(1, NoAnswerError("no key", is_retryable=False, status=401)) and models.rank_models() == [
        2,
        0,
        1,
    ]
    assert not models.note_failure(1, down), "it rests already"
    now[0] = REST_S - 1
    assert models.is_resting(0)
    models.note_answer(1)
    assert models.rank_models() == [1, 2, 0]
    now[0] = REST_S
    assert models.rank_models() == [0, 1, 2]


# what it cost


def test_money_is_counted_by_each_models_own_price() -> None:
    cost = GenerationCost()
    assert cost.describe_cost() == ""
    cost.calls = 3
    cost.count_reply(1_000, 100, TokenPrice())
    assert cost.describe_cost() == "3 requests, 1,000 + 100 tokens"
    cost.count_reply(2_000_000, 500_000, TokenPrice(prompt=0.5, reply=2.0))
    assert cost.money == pytest.approx(2 * 0.5 + 0.5 * 2.0)
    assert cost.describe_cost().startswith("3 requests, 2,001,000 + 500,100 tokens, 2 ")


def priced(*servers: JudgeServer) -> dict[str, Any]:
    """Each ten times as dear as the one before."""
    return {
        "models": [
            {"model": f"writer{at}", "base_url": each.url, "price_in": 10.0**at, "price_out": 4 * 10.0**at}
            for at, each in enumerate(servers)
        ]
    }


def test_what_it_cost_is_said_in_money(server: JudgeServer, tmp_path: Path) -> None:
    """A reply of the scripted server has 1,000 + 100 tokens; one that cannot be read is paid for, too."""
    with judge_server(lambda asked: "I would rather not.") as cheap, log_lines("INFO") as logged:
        read(tmp_path, split="validation", **priced(cheap, server))
    assert (
        "writing validation tasks took 2 requests, 2,000 + 200 tokens, 0.0154 in the currency of the models' prices"
        in logged
    )
    with log_lines("INFO") as logged:
        read(tmp_path, split="validation", **priced(cheap, server))
    assert [line for line in logged if "took" in line] == [], "what is kept costs nothing"


def test_what_it_cost_is_said_when_a_dead_server_ends_it(server: JudgeServer, tmp_path: Path) -> None:
    server.say = lambda asked: counted(asked) if len(server.seen) <= 3 else (402, "no more money")
    given = {"document_reader": {"document_path": []}, "num_workers": 1}
    with log_lines("INFO") as logged, pytest.raises(TaskError, match="no more money"):
        read(tmp_path, **priced(server), **given, **examples(tmp_path))
    assert logged[-1].startswith("writing train tasks took 4 requests, 3,000 + 300 tokens, 0.0042 ")


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (None, (0, 0)),
        ("many", (0, 0)),
        ([3, 4], (0, 0)),
        ({"prompt_tokens": "7", "completion_tokens": [1]}, (0, 0)),
        ({"prompt_tokens": True, "completion_tokens": -4}, (0, 0)),
        ({"prompt_tokens": 10**399, "completion_tokens": 12.0}, (0, 12)),
        ({"prompt_tokens": float("inf"), "completion_tokens": float("nan")}, (0, 0)),
    ],
)
def test_a_reply_is_one_whatever_its_server_counts(
    server: JudgeServer, tmp_path: Path, usage: Any, counts: tuple[int, int]
) -> None:
    said = json.dumps({"tasks": [{"query": f"How old is stone {number}?"} for number in range(6)]})
    server.say = lambda asked: (200, {"choices": [{"message": {"content": said}}], "usage": usage})
    with log_lines("INFO") as logged:
        assert read(tmp_path, server, split="validation")
    assert len(server.seen) == 1
    assert any(f"took 1 request, {counts[0]} + {counts[1]} tokens" in line for line in logged)


# what is shown


def test_progress_moves_with_every_prompt_that_is_answered(
    server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(reader, "Progress", lambda: Progress(screen, line_every_s=0.0))
    given = {"document_reader": {"document_path": []}, "num_workers": 1, "deduplication_filter": {"enabled": False}}
    server.say = lambda asked: json.dumps({"tasks": [{"query": f"How old is stone {len(server.seen)}?"}]})
    read(tmp_path, server, **given, **examples(tmp_path))
    shown = screen.file.getvalue()
    for number in range(1, 7):
        told = rf"writing train tasks: {number}/6 prompts .*, {number},000 \+ {number}00 tokens\n"
        assert re.search(told, shown), (number, shown)
