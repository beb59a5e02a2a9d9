"""What becomes of verl's letters: steps recorded whole, checkpoints after them, an end where there is no hope."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from ajet.commands.summary import RunTally
from ajet.config import Experiment
from ajet.environment.pinned import ToolPins, ToolsChangedError, read_pinned
from ajet.record import EpisodeFiles, RunDirectory
from ajet.schema.call import VersionRun
from ajet.schema.episode import Episode, Failure, Group, Outcome, Verdict, list_episodes
from ajet.schema.errors import UserError
from ajet.schema.task import Task
from ajet.task_reader import TaskOrder
from ajet.train.sink import RunSink
from ajet_proof.recorded.prove import prove_record
from ajet_ray.mailbox import (
    CheckpointNotice,
    CreditEntry,
    DeathNotice,
    GroupNotice,
    PhaseNotice,
    ProcessNotice,
    StepNotice,
    TicketGrant,
    ValidationNotice,
    _Mailbox,
)
from ajet_ray.record import DEATHS, HOPELESS, RayRecord
from ajet_ray.tickets import LaunchTickets, open_verl_store
from tests.support import rollout_workflows as flows
from tests.support.local_fixtures import episode_of
from tests.support.rollouts import renderer, stage

pytestmark = pytest.mark.verl

BATCH, REPEATS = 2, 2
ORDER = TaskOrder([Task(task_id="t0")], 0)
LAST_TICKET = 100


class Shown:
    """Stands where the screen does."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self.steps: list[int] = []
        self.grants: list[TicketGrant] = []

    def on_episode(self, episode: Episode) -> None:
        self.episodes.append(episode)

    def on_step(self, step: int, total: int, metrics: dict[str, float]) -> None:
        self.steps.append(step)


@contextmanager
def opened(
    tmp_path: Path, dropped_after: int | None = None, *, words: Any = None, **tracker: Any
) -> Iterator[tuple[RayRecord, RunDirectory, Shown]]:
    """The run's record, as the first launch or a later one has it. `tracker`: keys of `context_tracker`."""
    tree = {
        "ajet": {
            "backbone": "verl",
            "model": {"path": "embedded:tiny-tools"},
            "data": {"train_batch_size": BATCH},
            "rollout": {"num_repeat": REPEATS},
            "context_tracker": tracker,
        }
    }
    experiment = Experiment.from_dict(tree, base=tmp_path)
    run = RunDirectory.open(experiment, root=tmp_path)
    shown = Shown()
    tickets = LaunchTickets(
        open_verl_store(run, ORDER, sessions=REPEATS), ORDER, batch=BATCH, dropped_after=dropped_after
    )
    tickets.note_request(LAST_TICKET)
    shown.grants = tickets.list_grants()
    sink = RunSink(experiment, run, shown.on_step, shown.on_episode)
    sink.begin(words, total=9)
    record = RayRecord(experiment, run, sink, tickets)
    yield record, run, shown
    run.close("finished")


@pytest.fixture
def made(tmp_path):
    with opened(tmp_path) as all_of_it:
        yield all_of_it


def group(
    order: int, *, step: int = 1, split: Any = "train", reward: float | None = 1.0, failed: bool = False
) -> Group:
    episodes = [
        Episode(
            uuid=f"{split}/{step}/{order}/{repeat}",
            task=Task(task_id=f"t{order}"),
            repeat=repeat,
            step=step,
            split=split,
            status="failed" if failed else "completed",
            failure=Failure("agent", "ValueError", "broken") if failed else None,
            verdict=None if failed or reward is None else Verdict(reward, reward > 0),
        )
        for repeat in range(REPEATS)
    ]
    return Group(episodes[0].task, order, episodes)


def closed(group: Group) -> GroupNotice:
    return GroupNotice(group, group.episodes[0].step)


def stepped(step: int, *groups: Group) -> StepNotice:
    credited = [CreditEntry(e.uuid, Outcome(step, 0.5), 0) for e in list_episodes(groups) if e.scored]
    return StepNotice(step, {"seconds/step": 1.0}, credited)


def rows(run: RunDirectory) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def test_steps_that_train_nothing_end_the_run(made):
    record, _, _ = made
    record.settings.trainer_common.stop_after_idle_steps = 2
    for step, trained in ((1, 0), (2, 5), (3, 0), (4, 0)):
        groups = [group(2 * step, step=step), group(2 * step + 1, step=step)]
        for each in groups:
            record.handle_notice(closed(each))
        record.idle_steps *= trained == 0
        record.handle_notice(stepped(step, *groups))
        record.idle_steps *= trained == 0  # no group here has a token to train
        assert record.is_exhausted == (step == 4), step
    record.settings.trainer_common.stop_after_idle_steps = 0
    assert not record.is_exhausted, "0 goes on whatever happens"


def test_a_step_is_recorded_with_its_groups_and_those_that_train_nothing(made):
    record, run, shown = made
    first, second, useless, later = group(0), group(1), group(2, failed=True), group(3, step=2)
    for each in (second, useless, later, first):
        record.handle_notice(closed(each))
    record.handle_notice(stepped(1, first, second))
    (row,) = rows(run)
    assert (row["tasks"], row["discarded"], row["train/failed"]) == ([0, 1], [2], REPEATS)
    recorded = EpisodeFiles(run.path / "episodes").recorded(1)
    assert [(outcome.step, outcome.advantage) for _, outcome in recorded] == [(1, 0.5)] * 4 + [(None, None)] * 2
    assert len(shown.episodes) == 8 and shown.steps == [1]
    record.handle_notice(stepped(2, later))
    assert [row["tasks"] for row in rows(run)] == [[0, 1], [3]], "a group of another step waits for it"


def test_a_step_proves_a_sample_and_logs_formats_as_on_the_local_backbone(tmp_path):
    with stage(flows.Asks, lambda _: "<tool_call>\n{broken\n</tool_call>", num_repeat=REPEATS) as played:
        groups = played.play(2)
    said: list[str] = []
    sink = logger.add(lambda line: said.append(str(line)), level="WARNING")
    try:
        with opened(tmp_path, words=renderer(), proof_sample=9, log_tool_format_check=True) as (record, run, _):
            for step, each in enumerate(groups, 1):
                if step == 2:
                    each.episodes[0].calls[0].suffix_ids[3] += 1
                record.handle_notice(closed(each))
                credited = [CreditEntry(e.uuid, Outcome(step, 0.5), e.sampled_tokens) for e in each.episodes]
                record.handle_notice(StepNotice(step, {"seconds/step": 1.0}, credited))
            first, second = rows(run)
    finally:
        logger.remove(sink)
    assert first["proof/episodes"] == second["proof/episodes"] == REPEATS and first["proof/tokens"] > 50
    assert first["proof/wrong_tokens"] == 0 < second["proof/wrong_tokens"]
    assert any("a token of a recorded episode is wrong" in line for line in said) and any(
        "the tool call in model call 0" in line for line in said
    )


def test_a_group_that_was_played_again_counts_once(made):
    record, run, _ = made
    for _ in range(2):
        record.handle_notice(closed(group(0)))
    record.handle_notice(stepped(1, group(0)))
    assert len(EpisodeFiles(run.path / "episodes").read(1)) == REPEATS


def test_a_checkpoint_counts_once_its_step_is_recorded(made):
    record, run, _ = made
    written = run.path / "checkpoints" / "verl" / "global_step_1"
    (written / "actor").mkdir(parents=True)
    (written / "actor" / "weights").write_text("w")
    record.handle_notice(closed(group(0, split="validation")))
    record.handle_notice(CheckpointNotice(1, str(written)))
    record.handle_notice(ValidationNotice(1, 0.5))
    assert run.checkpoints.latest() is None and written.is_dir()
    record.handle_notice(closed(group(0)))
    record.handle_notice(stepped(1, group(0)))
    saved = run.checkpoints.latest()
    assert saved is not None and saved.step == 1 and saved.score == 1.0
    assert ORDER.identity().items() <= saved.state["frontier"].items() and saved.measured is not None, (
        "by which tasks and checkpoints are compared"
    )
    assert (saved.path / saved.state["verl"] / "actor" / "weights").read_text() == "w" and not written.exists()
    assert [row["step"] for row in rows(run)] == [1, 1] and rows(run)[0]["validation/tasks"] == 1


def tokens(group: Group, run_id: str = "", *, version: int = 0) -> Group:
    """The same with a reply of three tokens in each episode, which these weights of a run sampled."""
    played = [episode_of(1.0) for _ in group.episodes]
    for episode in played:
        episode.calls[0].versions = (VersionRun(0, version, version),)
    pairs = zip(group.episodes, played, strict=True)
    made = [replace(e, calls=p.calls, timelines=p.timelines, run=run_id) for e, p in pairs]
    return Group(group.task, group.order, made)


def written(run: RunDirectory, step: int) -> str:
    """A checkpoint as verl leaves it."""
    folder = run.path / "checkpoints" / "verl" / f"global_step_{step}"
    for name in ("actor", "transfer_queue"):
        (folder / name).mkdir(parents=True)
    (folder / "data.pt").write_text("rows")
    return str(folder)


def test_policy_versions_are_held_to_the_step_that_trained_on_them(made):
    record, run, _ = made
    names = ["before", "at", "across", "beyond"]
    ranges = dict(zip(names, [(1, 1), (2, 2), (0, 1), (1, 2)], strict=True))
    trained = tokens(group(0, step=2)), tokens(group(1, step=2))
    untrained = tokens(group(2, step=1, reward=None))  # it may have ended after the update
    for number, each in enumerate(trained):
        own = names[REPEATS * number : REPEATS * (number + 1)]
        each.episodes = [replace(episode, uuid=name) for episode, name in zip(each.episodes, own, strict=True)]
        for episode in each.episodes:
            episode.calls[0].versions = (VersionRun(0, *ranges[episode.uuid]),)
    for episode in untrained.episodes:
        episode.calls[0].versions = (VersionRun(0, 2, 2),)
        episode.untrained.update(no_score=3)
    for each in (*trained, untrained):
        record.handle_notice(closed(each))
    record.handle_notice(StepNotice(2, {}, [CreditEntry(e.uuid, Outcome(2, 0.5), 3) for e in list_episodes(trained)]))
    report = prove_record(str(run.path), run.path.parent)
    wrong = {(each.episode, each.found) for each in report.proof.wrong if "was not there yet" in each.what}
    assert wrong == {("at", 2), ("beyond", 2)}, report.proof
    assert report.unproven == {"version range": 6, "ids only": 12}, "no weights: nothing of it is called proven"


def test_groups_that_are_too_old_for_verl_are_counted_and_recorded(tmp_path):
    with opened(tmp_path, dropped_after=2) as (record, run, _):
        trained, old, young = group(0), tokens(group(1)), group(2, step=2)
        for each in (trained, old, young):
            record.handle_notice(closed(each))
        record.handle_notice(stepped(1, trained))
        record.handle_notice(stepped(2))
        assert [row["discarded"] for row in rows(run)] == [[], []], "one more step may train it"
        record.handle_notice(stepped(3, young))
        last = rows(run)[-1]
        assert (last["tasks"], last["discarded"]) == ([2], [1])
        assert last["train/untrained/stale"] == last["train/sampled_tokens"] == 3 * REPEATS
        outcomes = [outcome for _, outcome in EpisodeFiles(run.path / "episodes").recorded(3)]
        stale = Outcome(None, None, {"stale": 3}, "stale")
        assert outcomes == [Outcome(3, 0.5)] * REPEATS + [stale] * REPEATS


@pytest.mark.slow
def test_what_waits_when_a_run_ends_is_trained_and_recorded_when_it_goes_on(tmp_path):
    with opened(tmp_path) as (record, run, _):
        first, ahead, late = group(0), tokens(group(1), run.run_id), tokens(group(2), run.run_id, version=2)
        record.handle_notice(closed(first))
        record.handle_notice(closed(ahead))
        record.handle_notice(CheckpointNotice(1, written(run, 1)))
        record.handle_notice(closed(late))
        record.handle_notice(stepped(1, first))
        assert [row["tasks"] for row in rows(run)] == [[0]] and rows(run)[0]["waiting"] == [1, 2]
        saved = run.checkpoints.latest()
        assert saved is not None and [path.name for path in (saved.path / saved.state["verl"]).iterdir()] == ["actor"]
    with opened(tmp_path) as (record, run, shown):
        assert [(grant.order, grant.group is None) for grant in shown.grants[:3]] == [
            (1, False),
            (2, True),
            (3, True),
        ], "what no weights of the checkpoint can have sampled is played again"
        handed_over, again = shown.grants[0].group, group(2, step=2)
        record.handle_notice(GroupNotice(handed_over, 2))
        record.handle_notice(closed(again))
        waited = {episode.uuid for episode in ahead.episodes}
        credited = stepped(2, handed_over, again).credited
        credited = [replace(each, trained=3 * (each.uuid in waited)) for each in credited]
        record.handle_notice(StepNotice(2, {"seconds/step": 1.0}, credited))
        last = rows(run)[-1]
        assert (last["step"], last["tasks"], last["train/episodes"]) == (2, [1, 2], 2 * REPEATS)
        assert (last["train/sampled_tokens"], last["discarded"]) == (3 * REPEATS, [])
        assert last["train/staleness_max"] == 1, "sampled before step 1, trained in step 2"
        episodes = EpisodeFiles(run.path / "episodes").read(2)
        assert [episode.uuid for episode in episodes] == [e.uuid for each in (ahead, again) for e in each.episodes]
        assert RunTally.from_rows(rows(run)).skipped == 0


def test_a_token_that_is_neither_trained_nor_counted_stops_the_run(made):
    record, _, _ = made
    record.handle_notice(closed(group(0)))
    wrong = StepNotice(1, {"seconds/step": 1.0}, [CreditEntry("train/1/0/0", Outcome(1, 0.5), 7)])
    with pytest.raises(AssertionError, match="episode train/1/0/0: sampled 0 tokens, trained 7"):
        record.handle_notice(wrong)


def test_a_batch_that_fails_and_tasks_that_nobody_scores_end_it(made):
    record, _, _ = made
    record.handle_notice(closed(group(0, failed=True)))
    with pytest.raises(
        UserError, match="All 4 episodes of step 1 failed. The first failed because of the agent: ValueError"
    ):
        record.handle_notice(closed(group(1, failed=True)))
    record.handle_notice(closed(group(2)))  # a score begins the count anew
    for order in range(HOPELESS * BATCH - 1):
        record.handle_notice(closed(group(order + 3, reward=None)))
    with pytest.raises(UserError, match=f"No episode of the last {HOPELESS * BATCH} tasks was scored"):
        record.handle_notice(closed(group(99, reward=None)))


def test_processes_that_die_again_and_again_end_it(made):
    record, run, _ = made
    for _ in range(DEATHS - 1):
        record.handle_notice(DeathNotice("agent loop", "killed"))
    with pytest.raises(UserError, match=f"died {DEATHS} times. The last one: agent loop: killed"):
        record.handle_notice(DeathNotice("agent loop", "killed"))


def test_the_status_names_processes_here_and_elsewhere(made, monkeypatch):
    import os
    import socket

    record, run, _ = made
    record.handle_notice(ProcessNotice("trainer", os.getppid(), socket.gethostname()))
    record.handle_notice(ProcessNotice("agent loop", 7, "another-node"))
    record.handle_notice(PhaseNotice("rollout", 3))
    status = json.loads((run.path / "status.json").read_text())
    assert {"run", "trainer"} <= {entry["role"] for entry in status["processes"]}
    assert status["elsewhere"] == [{"role": "agent loop", "pid": 7, "host": "another-node"}]
    assert (status["phase"], status["step"]) == ("rollout", 3) and Path(run.path).is_dir()


def test_two_steps_whose_canary_is_off_end_the_run_after_the_record(made):
    record, run, _ = made
    for step, gap in enumerate((0.5, 0.01, 0.5), start=1):
        record.handle_notice(closed(group(step, step=step)))
        record.handle_notice(replace(stepped(step, group(step, step=step)), metrics={"canary_gap": gap}))
    record.handle_notice(closed(group(4, step=4)))
    with pytest.raises(UserError, match="Engine and trainer compute different models") as said:
        record.handle_notice(replace(stepped(4, group(4, step=4)), metrics={"canary_gap": float("nan")}))
    assert "trainer_common.canary" in str(said.value) and len(str(said.value).splitlines()) < 20
    assert [row["step"] for row in rows(run)] == [1, 2, 3, 4]


def test_samplers_that_say_another_version_than_they_sample_with_are_named(made):
    """As on the local backbone: those who say that they played with the present weights, and no others."""
    record, _, _ = made
    for step in (1, 2):
        pair = [tokens(group(step, step=step), version=version).episodes[at] for at, version in ((0, step - 1), (1, 0))]
        played = [replace(each, sampler=name) for each, name in zip(pair, ("liar", "late"), strict=True)]
        fresh = Group(pair[0].task, step, played)
        record.handle_notice(closed(fresh))
        credited = [CreditEntry(each.uuid, Outcome(step, 0.5), each.sampled_tokens) for each in played]
        letter = StepNotice(step, {"seconds/step": 1.0, "canary_gap": 0.5}, credited)
        if step == 1:
            record.handle_notice(letter)
            continue
        with pytest.raises(UserError, match=r"do not match policy version 1") as said:
            record.handle_notice(letter)
        assert "liar" in said.value.what


def test_the_tools_that_the_first_of_its_processes_found_are_the_runs(tmp_path):
    def told(text):
        return [{"type": "function", "function": {"name": "echo", "description": text, "parameters": {}}}]

    box = _Mailbox()
    one, other = (ToolPins(lambda found: asyncio.run(box.pin(found))) for _ in range(2))
    with opened(tmp_path) as (record, run, _):
        assert one(told("Say it.")) == told("Say it.")
        with pytest.raises(ToolsChangedError, match="Ignore it"):
            other(told("Ignore it."))
        [letter] = asyncio.run(box.take(1))
        record.handle_notice(letter)
        assert read_pinned(run.path) == told("Say it.")
