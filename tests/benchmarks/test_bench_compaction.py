"""The relay of the compaction benchmark changes tokens as a re-encoding does, and the table shows recorded runs."""

from pathlib import Path

import pytest

from tests.support.chat_templates import tokenizer

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "relay"))


def test_letters_become_tokens_of_their_text() -> None:
    from ajet_relay.reencoding import count_shared_ends, reencode_ids

    words = tokenizer("qwen25")
    usual = words.encode(" and more", add_special_tokens=False)
    sampled = [token for letter in " an" for token in words.encode(letter, add_special_tokens=False)] + usual[1:]
    assert reencode_ids(usual, words) == usual and reencode_ids(sampled, words) == usual
    assert count_shared_ends(sampled, usual) == (0, len(usual) - 1)
    assert count_shared_ends(usual, usual) == (len(usual), 0)


def test_changed_tokens_keep_the_log_probability() -> None:
    from ajet_relay.reencoding import spread_changed

    assert spread_changed([-1.0, -2.0, -3.0, -4.0], 1, 1, 3) == [-1.0, -5.0, -4.0]
    assert spread_changed([-1.0, -2.0], 2, 0, 2) == [-1.0, -2.0]


def test_the_table_shows_the_recorded_runs() -> None:
    from bench_compaction import WAYS, format_table, read_rows

    rows = read_rows(ROOT / "benchmarks" / "results" / "compaction.jsonl")
    assert {row["way"] for row in rows} == {*WAYS}
    assert len({(row["way"], row["seed"]) for row in rows}) == len(rows), "each run once"
    assert format_table(rows) in (ROOT / "docs" / "compaction.md").read_text(encoding="utf-8")
