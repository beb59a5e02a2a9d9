"""The SWE benchmark counts what an agent did, and the tutorial's table is that of the recorded runs."""

from pathlib import Path

import pytest

from ajet.schema.episode import Episode, Verdict
from ajet.schema.task import Task

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def play(reward: float | None, *texts: str) -> Episode:
    """Return an attempt with the program, then replies and results by turns."""
    messages = [{"role": "user", "content": "1 def f(n):"}]
    messages += [{"role": ("assistant", "user")[at % 2], "content": text} for at, text in enumerate(texts)]
    verdict = None if reward is None else Verdict(reward)
    return Episode("a", Task(main_query="", task_id="hotel"), 0, 0, "train", verdict=verdict, messages=messages)


def test_attempts_are_counted_by_what_they_did() -> None:
    from bench_swe import Attempts, count_attempts

    episodes = [
        play(1.0, "run tests", "line 3: f(10) is 8, not 20", "line 2: return n * 2"),
        play(1.0, "line 2: return n * 2"),
        play(0.0, "rum tests", "no such line", "run tests", "line 3: f(10) is 8, not 20", "line 2: return n"),
        play(None, "run tests"),
    ]
    counted = Attempts(
        played=3, solved=2, ran_tests=2, solved_after_tests=1, failed=1, solved_by_task={"hotel": pytest.approx(2 / 3)}
    )
    assert count_attempts(episodes) == counted


def test_the_table_shows_the_recorded_runs() -> None:
    from bench_swe import SEEDS, format_table, read_rows

    rows = read_rows(ROOT / "benchmarks" / "results" / "swe.jsonl")
    assert [row["seed"] for row in rows] == [*SEEDS]
    page = ROOT / "tutorial" / "example_swe" / "README.md"
    assert format_table(rows) in page.read_text(encoding="utf-8")
