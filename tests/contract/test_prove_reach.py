"""What `ajet prove` can contradict: each field of a record is changed, and found, or is one of the few named here."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ajet.record import EpisodeFiles
from ajet.schema.errors import UserError
from tests.support.runs import decode_episode, encode_episode, metric_rows, prove_run

pytestmark = pytest.mark.slow

OUTSIDE = {
    "attempts", "printed", "metadata", "reason", "message", "extra", "started", "ended", "utc_offset", "agent",
    "target",
}  # fmt: skip
"""On none of these reward, ids, mask, log-probability, version, weight or task depends. (The agent and the target of
the last call of a timeline are held.)"""


@pytest.fixture
def run(tool_project: Path, tmp_path: Path) -> Path:
    """A run folder to spoil, with its first step alone."""
    folder = tmp_path / "plain"
    shutil.copytree(tool_project / "launcher_record" / "plain", folder, ignore=shutil.ignore_patterns("logs"))
    for path in (folder / "episodes").glob("step-*"):
        if path.name not in ("step-1.jsonl", "step-1.bin"):
            path.unlink()
    rows = [row for row in metric_rows(folder) if row["step"] == 1 and "tasks" in row]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def proven(run: Path) -> dict[str, Any]:
    return prove_run(run, "--ids-only")


def found(run: Path) -> bool:
    """Whether a changed record is contradicted, or can no longer be read at all."""
    try:
        return not proven(run)["ok"]
    except UserError:
        return True


def test_the_record_as_it_was_written_is_proven(run: Path) -> None:
    report = proven(run)
    assert report["ok"], (report["wrong_steps"], report["wrong"][:3])
    assert report["held_steps"] == 1 and not report["unheld_steps"]


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    if value is None:
        return 1
    if isinstance(value, list):
        return value[:-1] if value else ["x"]
    return {**value, "x": 1}


def fields(row: dict[str, Any], before: str = "") -> Iterator[tuple[str, dict[str, Any], str]]:
    """Every field of a line: its name, the mapping that holds it, the key there."""
    for key, value in row.items():
        name = f"{before}{key}"
        if isinstance(value, dict) and value and key not in ("metadata", "metrics", "untrained", "extra"):
            yield from fields(value, f"{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict) and key in (
            "calls", "timelines", "tool_uses",
        ):  # fmt: skip
            yield from fields(value[0], f"{name}.")
        elif key not in ("schema", "blob", "arrays", "run_id") and not name.startswith(("blob.", "arrays.")):
            yield name, row, key


def test_each_field_of_an_episode_is_held_or_outside(run: Path) -> None:
    path = run / "episodes" / "step-1.jsonl"
    lines = path.read_text().splitlines()
    sizes = [(len(row.get("tool_uses", [])), len(row["calls"])) for row in map(json.loads, lines)]
    at = sizes.index(max(sizes))
    row = json.loads(lines[at])
    names = [name for name, _, _ in fields(row)]
    missed = []
    for index, name in enumerate(names):
        changed = copy.deepcopy(row)
        _, holder, key = list(fields(changed))[index]
        holder[key] = other(holder[key])
        path.write_text("\n".join([*lines[:at], json.dumps(changed), *lines[at + 1 :]]) + "\n")
        if not found(run):
            missed.append(name)
    assert [name for name in missed if name.rpartition(".")[2] not in OUTSIDE or name == "task.metadata"] == []
    assert len(OUTSIDE) <= 11 and len(names) > 40
    assert {"tool_uses.name", "tool_uses.result", "tool_uses.digest", "tool_uses.chain"} <= {*names} - {*missed}


@pytest.mark.parametrize("array", ["suffix_ids", "response_ids", "logprobs"])
def test_each_array_is_held(run: Path, array: str) -> None:
    """Log-probabilities against each other here; where weights are at hand by them (test_prove.py)."""
    files = EpisodeFiles(run / "episodes")
    recorded = files.recorded(1)
    episode = max((each for each, _ in recorded), key=lambda each: len(each.calls))
    setattr(episode.calls[-1], array, getattr(episode.calls[-1], array) + 1)
    outcomes = {each.uuid: outcome for each, outcome in recorded}
    for path in (files.path(1), files.path(1).with_suffix(".bin")):
        path.unlink()
    files.write(1, "train", [each for each, _ in recorded], outcomes)
    assert found(run)


def rewrite(run: Path, change: Any) -> None:
    path = run / "episodes" / "step-1.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in change(rows)))


def doubled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*rows, rows[0]]


def dropped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return rows[1:]


def group_dropped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["group"] != rows[0]["group"]]


def exchanged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two attempts change their places in the group."""
    rows[0]["repeat"], rows[1]["repeat"] = rows[1]["repeat"], rows[0]["repeat"]
    return rows


def task_replaced(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By one of the same data set, throughout a group."""
    group, task = rows[0]["group"], next(row["task"] for row in rows if row["group"] != rows[0]["group"])
    return [{**row, "task": task} if row["group"] == group else row for row in rows]


def rewards_shifted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a whole group, which leaves its advantages as they are."""
    for row in rows:
        if row["group"] == rows[0]["group"] and row["verdict"]:
            row["verdict"]["reward"] += 1
    return rows


@pytest.mark.parametrize("change", [doubled, dropped, group_dropped, exchanged, task_replaced, rewards_shifted])
def test_episodes_that_are_not_those_that_were_played_are_found(run: Path, change: Any) -> None:
    rewrite(run, change)
    report = proven(run)
    assert report["wrong_steps"] and not report["ok"]


@pytest.mark.parametrize("name", ["train/reward", "train/sampled_tokens", "train/trained_tokens", "tasks"])
def test_numbers_that_do_not_follow_from_the_episodes_are_found(run: Path, name: str) -> None:
    path = run / "metrics.jsonl"
    row = json.loads(path.read_text())
    row[name] = other(row[name])
    path.write_text(json.dumps(row) + "\n")
    (wrong,) = proven(run)["wrong_steps"][:1]
    assert wrong["step"] == 1 and ("metrics.jsonl" in wrong["what"] or "missing" in wrong["what"])


def test_a_step_whose_episodes_are_gone_is_found(run: Path) -> None:
    path = run / "metrics.jsonl"
    row = json.loads(path.read_text())
    path.write_text(path.read_text() + json.dumps({**row, "step": 2}) + "\n")
    assert [(wrong["step"], wrong["what"]) for wrong in proven(run)["wrong_steps"]] == [(2, "its episodes are missing")]


def test_the_codec_gives_back_what_it_is_changed_in(run: Path) -> None:
    """Else a change would be undone before it is looked for."""
    (first, _), *_ = EpisodeFiles(run / "episodes").recorded(1)
    row, arrays = encode_episode(first)
    row["repeat"] = 77
    assert decode_episode(row, arrays).repeat == 77


def test_a_group_may_stand_in_two_steps_where_its_row_and_the_settings_say_so(run: Path) -> None:
    """By a trainer beside samplers, with `max_trained_count` of 2."""
    resolved, metrics, second = run / "resolved.yaml", run / "metrics.jsonl", run / "episodes" / "step-2.jsonl"
    plain, row = resolved.read_text(), json.loads(metrics.read_text())
    again = {**row, "step": 2, "tasks": [], "again": row["tasks"]}
    rows = [*map(json.loads, (run / "episodes" / "step-1.jsonl").read_text().splitlines())]
    second.write_text("".join(json.dumps({**each, "outcome": {**each["outcome"], "step": 2}}) + "\n" for each in rows))
    shutil.copy(run / "episodes" / "step-1.bin", second.with_suffix(".bin"))

    def wrong(told: dict[str, Any], times: int = 2, rest: int = 1) -> set[str]:
        said = plain.replace("mode: sync", "mode: async").replace("max_trained_count: 1", f"max_trained_count: {times}")
        resolved.write_text(said.replace("retrained_interval: 1", f"retrained_interval: {rest}"))
        metrics.write_text("".join(json.dumps(each) + "\n" for each in (row, told)))
        return {each["what"].partition(rows[0]["uuid"])[2] or each["what"] for each in proven(run)["wrong_steps"]}

    assert not wrong(again)
    assert " was trained on more than 1 times" in wrong(again, times=1)
    assert " was trained on again after 1 steps" in wrong(again, rest=2)
    assert " is recorded twice" in wrong({**again, "tasks": row["tasks"], "again": []})
