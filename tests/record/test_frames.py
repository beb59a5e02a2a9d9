"""A recorded run as data frames says what the record says, number by number."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import ajet.record
from ajet.record import EpisodeFiles
from ajet.record.files import read_rows
from ajet.schema.episode import Episode, Outcome
from ajet.schema.errors import UserError
from ajet.schema.tool_use import ToolUse, compute_digest
from tests.support.record_fixtures import episode, failed
from tests.support.viewer_fixtures import add_validation, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "launcher_record" / "sums")
    add_validation(folder, 3, True, False)
    return folder


def test_a_run_is_opened_by_name_or_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parents[1])
    assert ajet.record.open("sums").path.resolve() == ajet.record.open(run).path == run
    with pytest.raises(UserError, match="no run named products") as refusal:
        ajet.record.open("products")
    assert "ajet runs" in str(refusal.value.do)


def test_metrics_are_the_lines(run: Path) -> None:
    frame = ajet.record.open(run).metrics()
    rows = list(read_rows(run / "metrics.jsonl"))
    assert frame["step"].tolist() == [row["step"] for row in rows]
    trained = frame.dropna(subset="train/reward")
    assert trained["train/reward"].tolist() == [row["train/reward"] for row in rows if "train/reward" in row]


def test_episodes_are_those_of_the_record(run: Path) -> None:
    files, opened = EpisodeFiles(run / "episodes"), ajet.record.open(run)
    recorded = [each for step in files.steps() for each in files.recorded(step)]
    frame = opened.episodes("train")
    assert frame["uuid"].tolist() == [one.uuid for one, _ in recorded]
    assert frame["sampled_tokens"].tolist() == [one.sampled_tokens for one, _ in recorded]
    scored = [one.reward for one, _ in recorded if one.reward is not None]
    assert frame["reward"].dropna().tolist() == scored
    assert len(opened.episodes()) == len(frame) + len(opened.episodes("validation"))
    calls = opened.calls("train")
    assert Counter(calls["episode"]) == Counter({one.uuid: len(one.calls) for one, _ in recorded if one.calls})
    assert calls["reply_tokens"].sum() == frame["sampled_tokens"].sum()


def test_tokens_are_those_of_the_timelines(tmp_path: Path) -> None:
    one, use = episode("abc"), ToolUse("add", {"a": 1}, "2", compute_digest("2"), 5.0, 6.5)
    with_tool = Episode("d", one.task, 1, 1, "train", tool_uses=[use], status="aborted", ending="interrupted")
    EpisodeFiles(tmp_path / "episodes").write(1, "train", [one, with_tool, failed("e")], {"abc": Outcome(1, 0.5)})
    opened = ajet.record.open(tmp_path)
    tokens = opened.tokens("ab")
    assert tokens["id"].tolist() == [int(token) for line in one.timelines for token in line.ids]
    assert tokens["trained"].sum() == sum(line.sampled for line in one.timelines)
    told = tokens[tokens["trained"]]["logprob"].tolist()
    assert told == [float(value) for line in one.timelines for value in line.logprobs[line.mask]]
    assert tokens[~tokens["trained"]]["logprob"].isna().all()
    uses = opened.tool_uses().set_index("episode")[["tool", "result", "seconds"]]
    assert uses.loc[["d"]].values.tolist() == [["add", "2", 1.5]]
    assert len(uses) == len(one.tool_uses) + 1 + len(failed("e").tool_uses)
    rows = opened.episodes().set_index("uuid")
    assert (rows.loc["abc", "advantage"], rows.loc["abc", "trained_in"]) == (0.5, 1.0)
    assert rows.loc["e", "failed_at"] == failed("e").failure.boundary  # type: ignore[union-attr]
    with pytest.raises(UserError, match="no episode zzz"):
        opened.tokens("zzz")


def test_a_run_that_has_played_nothing_is_empty(tmp_path: Path) -> None:
    (tmp_path / "episodes").mkdir()
    opened = ajet.record.open(tmp_path)
    assert opened.episodes().empty and opened.metrics().empty
