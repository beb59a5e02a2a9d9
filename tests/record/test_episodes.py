"""Episodes on disk: exact round trip, and what a killed writer leaves behind."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.record import EpisodeFiles
from ajet.record.episode_codec import decode, encode
from ajet.record.plain_json import dumps
from ajet.record.secrets import Redactor
from ajet.schema.call import PolicySpan, VersionRun
from ajet.schema.episode import NO_OUTCOME, SCHEMA, Episode, Outcome
from ajet.schema.errors import UserError
from tests.support.record_fixtures import assert_equal, call, episode, failed


def through_json(original: Episode) -> Episode:
    row, blob = encode(original)
    return decode(json.loads(dumps(row)), blob)


def test_an_episode_comes_back_bit_for_bit(tmp_path: Path) -> None:
    files = EpisodeFiles(tmp_path)
    written = [episode("a"), failed("b"), episode("c", seed=5)]
    files.write(3, "train", written)
    assert_equal(files.read(3), written)


def test_timelines_are_rebuilt_from_calls_and_cost_nothing() -> None:
    row, blob = encode(episode())
    assert all("ids" not in timeline for timeline in row["timelines"])
    calls = episode().calls
    assert len(blob) == 4 * sum(len(c.suffix_ids) + 3 * len(c.response_ids) for c in calls)


def test_a_timeline_that_its_calls_do_not_give_keeps_its_own_arrays() -> None:
    odd = episode()
    odd.timelines[0].mask[12] = False
    odd.timelines[1].logprobs[13] = np.float32("nan")
    row, _ = encode(odd)
    assert all("ids" in timeline for timeline in row["timelines"])
    assert_equal(through_json(odd), odd)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 40)), min_size=1, max_size=6))
def test_any_chain_of_calls_comes_back(lengths: list[tuple[int, int, int]]) -> None:
    calls, total = [], 0
    for index, (shared, suffix, reply) in enumerate(lengths):
        prefix = min(shared, total)
        parent = index - 1 if prefix else None
        calls.append(call(index, parent, prefix, suffix, reply, seed=index))
        total = prefix + suffix + reply
    chain = episode(calls=calls, timelines=[])
    assert_equal(through_json(chain), chain)


def test_metadata_of_any_kind_is_written_as_plain_json() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    metadata = {"nan": float("nan"), "array": np.arange(2), "scalar": np.float32(0.5), "set": {2, 1}, 3: Odd()}
    back = through_json(episode(metadata=metadata)).metadata
    assert back == {"nan": "NaN", "array": [0, 1], "scalar": 0.5, "set": [1, 2], "3": "<odd>"}


def test_metadata_that_contains_itself_is_written() -> None:
    loop: dict[str, object] = {}
    loop["self"] = loop
    assert "nested too deeply" in dumps(loop)


def test_a_half_written_line_is_not_read_and_the_next_writer_cuts_it(tmp_path: Path) -> None:
    files = EpisodeFiles(tmp_path)
    files.write(1, "train", [episode("a")])
    with files.path(1).open("ab") as lines, files.path(1).with_suffix(".bin").open("ab") as blob:
        lines.write(b'{"schema": 1, "uuid": "half')
        blob.write(b"half a blob")
    assert [e.uuid for e in files.read(1)] == ["a"]
    files.write(1, "train", [episode("b", seed=2)])
    assert_equal(files.read(1), [episode("a"), episode("b", seed=2)])


@pytest.mark.parametrize("name", ["step-1.jsonl", "step-1.bin"])
def test_a_file_cut_at_any_byte_never_gives_a_wrong_episode(tmp_path: Path, name: str) -> None:
    files = EpisodeFiles(tmp_path)
    written = [episode("a"), episode("b", seed=3)]
    files.write(1, "train", written)
    path = tmp_path / name
    whole = path.read_bytes()
    for size in range(0, len(whole), max(1, len(whole) // 97)):
        path.write_bytes(whole[:size])
        try:
            read = files.read(1)
        except UserError as error:
            assert name.endswith(".bin") and "checksum" in error.what
            continue
        assert_equal(read, written[: len(read)])


def test_damage_in_the_middle_is_named_by_line(tmp_path: Path) -> None:
    files = EpisodeFiles(tmp_path)
    files.write(1, "train", [episode("a"), episode("b")])
    path = files.path(1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"{broken\n" + lines[1])
    with pytest.raises(UserError) as error:
        files.read(1)
    assert f"{path}:1" in str(error.value)


def test_what_became_of_an_episode_is_read_with_it(tmp_path: Path) -> None:
    files = EpisodeFiles(tmp_path)
    outcomes = {"a": Outcome(9, -0.25, {"stale": 4}), "b": Outcome(None, None, {"oversampled": 11}, "oversampled")}
    files.write(8, "train", [episode(uuid) for uuid in "abc"], outcomes)
    found = files.recorded(8)
    assert [outcome for _, outcome in found] == [outcomes["a"], outcomes["b"], NO_OUTCOME]
    assert_equal([one for one, _ in found], files.read(8))
    assert found[0][0].untrained_with(found[0][1]) == {"over_length": 3, "stale": 4}


@pytest.mark.parametrize("schema", [1, SCHEMA + 1])
def test_line_of_another_schema_is_refused(schema: int) -> None:
    row, blob = encode(episode())
    with pytest.raises(UserError, match=f"schema version {schema}"):
        decode(row | {"schema": schema}, blob)


def test_the_policy_versions_of_an_episode_are_on_its_line_and_those_of_its_calls() -> None:
    original = episode()
    last = replace(original.calls[-1], versions=(VersionRun(0, 3, 3), VersionRun(1, 3, 5)))
    original = replace(original, calls=[*original.calls[:-1], last])
    row, blob = encode(original)
    low = min(run.low for each in original.calls for run in each.versions)
    assert original.policy == (low, 5) and row["policy"] == [low, 5]
    assert decode(row, blob).policy == PolicySpan(low, 5)
    for other in ({**row, "policy": [low, 4]}, {name: value for name, value in row.items() if name != "policy"}):
        with pytest.raises(ValueError, match="but its calls have others"):
            decode(other, blob)
    nothing = replace(original, calls=[], timelines=[])
    assert nothing.policy is None and "policy" not in encode(nothing)[0]


def test_splits_and_steps_are_kept_apart(tmp_path: Path) -> None:
    files = EpisodeFiles(tmp_path)
    files.write(2, "train", [episode("a")])
    files.write(2, "validation", [episode("v")])
    files.write(10, "train", [episode("b")])
    assert files.steps() == [2, 10] and files.steps("validation") == [2]
    assert [e.uuid for e in files.read(2, "validation")] == ["v"]
    files.truncate(after_step=2)
    assert files.steps() == [2] and files.read(10) == []
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["step-2.jsonl", "step-2.bin", "step-2.validation.jsonl", "step-2.validation.bin"]
    )


def test_secrets_in_messages_are_blotted_out(tmp_path: Path) -> None:
    files = EpisodeFiles(tmp_path, Redactor({"MY_API_KEY": 'sk-"quoted"-1234'}))
    files.write(1, "train", [episode("a", messages=[{"role": "user", "content": 'key sk-"quoted"-1234'}] * 4)])
    assert "quoted" not in files.path(1).read_text()
    assert files.read(1)[0].messages[0]["content"] == "key [redacted MY_API_KEY]"
