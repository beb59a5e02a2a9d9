"""The token ledger, the tally over metric rows, and interrupts that wait for the end of a step."""

import json
import os
import signal
import threading
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace as Made

import numpy as np
import pytest

from ajet.commands.summary import RunTally
from ajet.config import Experiment
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Call, VersionRun, full_ids, prompt_ids
from ajet.schema.episode import Episode, Failure, Group, Outcome, SampledSpan, Timeline, Verdict
from ajet.schema.task import Task
from ajet.train.accounting import check_tokens, episode_metrics, pass_metrics
from ajet.train.interrupts import Interrupts, Preempted
from ajet.train.sink import RunSink
from ajet.train.step import TrainedStep
from ajet_proof.recorded.steps import StepChecker


def a_call(index=0, parent=None, prefix=0, suffix=(1, 2), reply=(3, 4, 5), **more):
    reply_ids = np.array(reply, np.int32)
    zeros = np.zeros(len(reply), np.float32)
    return Call(
        index=index, agent="agent", target="agent", trained=True, parent=parent, prefix=prefix,
        suffix_ids=np.array(suffix, np.int32), response_ids=reply_ids, logprobs=zeros, logprobs_unit=zeros,
        versions=(VersionRun(0, 0, 0),), finish="stop", messages=(0,), tools=None, reply=1, **more,
    )  # fmt: skip


def an_episode(reward=1.0, success=None, calls=(), **more):
    verdict = None if reward is None else Verdict(reward, success)
    task = Task(task_id="t")
    return Episode(uuid="e", task=task, repeat=0, step=1, split="train", verdict=verdict, calls=list(calls), **more)


def a_timeline():
    ids = np.array([1, 2, 3, 4, 5], np.int32)
    mask = np.array([False, False, True, True, True])
    zeros = np.zeros(5, np.float32)
    return Timeline(0, "agent", "agent", ids, mask, zeros, zeros, np.zeros(5, np.int32), (SampledSpan(0, 2, 5),))


def test_prompts_are_rebuilt_through_partial_prefixes():
    calls = [
        a_call(0, suffix=(1, 2), reply=(3, 4)),
        a_call(1, parent=0, prefix=4, suffix=(5,), reply=(6,)),
        a_call(2, parent=1, prefix=3, suffix=(9,), reply=(7,)),  # forks inside call 0's reply
    ]
    assert prompt_ids(calls, 1).tolist() == [1, 2, 3, 4, 5]
    assert full_ids(calls, 1).tolist() == [1, 2, 3, 4, 5, 6]
    assert prompt_ids(calls, 2).tolist() == [1, 2, 3, 9]


def test_every_sampled_token_is_trained_or_counted():
    episode = an_episode(calls=[a_call()])
    sample = Sample(a_timeline(), "e", 0, np.ones(5, np.float32), 1.0)
    trained = TrainingBatch(1, [sample]).trained_by_episode
    check_tokens([episode], {}, trained)
    with pytest.raises(AssertionError, match="episode e: sampled 3 tokens, trained 0"):
        check_tokens([episode], {}, {})
    for one, outcomes in (
        (episode, {"e": Outcome(untrained={"zero_variance": 3})}),
        (an_episode(calls=[a_call()], untrained=Counter(over_length=2)), {"e": Outcome(untrained={"stale": 1})}),
    ):
        check_tokens([one], outcomes, {})
        with pytest.raises(AssertionError):
            check_tokens([one], outcomes, trained)


def test_rewards_are_of_scored_episodes_and_success_is_over_all():
    failed = an_episode(None, status="failed", failure=Failure("agent", "ValueError", "boom"), calls=[a_call()])
    forked = an_episode(0.0, False, calls=[a_call(), a_call(1, fork="tools")], metrics={"depth": 2.0})
    metrics = episode_metrics([failed, an_episode(1.0, True, calls=[a_call()]), forked], "train")
    assert metrics["train/reward"] == 0.5 and metrics["train/success_rate"] == 1 / 3
    assert metrics["train/failed"] == 1 and metrics["train/failed/agent"] == 1
    assert metrics["train/fork_rate/tools"] == 0.25
    assert metrics["train/workflow/depth"] == 2.0


def test_pass_at_n():
    task = Task(task_id="t")
    groups = [
        Group(task, 0, [an_episode(1.0, True), an_episode(0.0, False)]),
        Group(task, 1, [an_episode(1.0, True), an_episode(1.0, True)]),
        Group(task, 2, [an_episode(0.0, False), an_episode(0.0, False)]),
    ]
    assert pass_metrics(groups, "validation") == {"validation/pass@2": 2 / 3, "validation/all@2": 1 / 3}


def test_tally_counts_gaps_and_repeats_from_the_record():
    rows = [{"tasks": [0, 1], "train/failed": 1}, {"tasks": [3, 1], "train/forks": 2}, {"validation/reward": 1.0}]
    tally = RunTally.from_rows(rows)
    assert (tally.trained, tally.skipped, tally.doubled, tally.failed, tally.forked) == (3, 1, 1, 1, 2)
    assert "1 skipped, 1 doubled" in tally.describe_counts()


def test_what_was_played_ahead_and_still_waits_is_not_skipped():
    rows = [{"tasks": [0, 2], "waiting": [1, 3]}, {"tasks": [3, 5], "waiting": [4]}, {"validation/reward": 1.0}]
    assert RunTally.from_rows(rows).skipped == 1, "task 1 left without a step"


def test_what_is_given_up_is_not_skipped_and_is_said_with_its_reasons():
    rows = [
        {"step": 1, "tasks": [0, 2], "given_up": {"1": ["no tool", "no tool", "its lease ended"]}},
        {"step": 2, "tasks": [3, 4], "given_up": {"5": ["no"]}},
    ]
    tally = RunTally.from_rows(rows)
    assert (tally.trained, tally.skipped, tally.doubled) == (4, 0, 0)
    assert tally.given_up == ((1, ("no tool", "no tool", "its lease ended")), (5, ("no",)))
    assert "0 skipped, 0 doubled, 2 given up; " in tally.describe_counts()
    revived = [*rows, {"step": 3, "tasks": [1, 6]}]
    assert [order for order, _ in RunTally.from_rows(revived).given_up] == [5] and RunTally.from_rows(
        revived
    ).skipped == 0


def test_an_interrupt_waits_for_the_end_of_the_step():
    interrupts, reached = Interrupts(), []
    with interrupts.install(), pytest.raises(KeyboardInterrupt), interrupts.defer():
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("end of step")
    assert reached == ["end of step"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_a_finalizer_swallows_ends_the_run_at_the_next_step():
    class Swallows:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)

    interrupts, reached = Interrupts(), []
    with interrupts.install():
        Swallows()
        with pytest.raises(KeyboardInterrupt), interrupts.defer():
            reached.append("a step")
        assert not reached
        with interrupts.defer():
            reached.append("what is saved then")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        interrupts.forget_raised()
        with interrupts.defer():
            reached.append("what goes on")
    assert reached == ["what is saved then", "what goes on"]


def test_sigterm_lets_what_is_played_end_within_its_grace_and_asks_for_another_start():
    interrupts, reached = Interrupts(), []
    with interrupts.install():
        with pytest.raises(Preempted), interrupts.grace_period(60):
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("the rest of the play")
            with interrupts.defer():
                reached.append("the update")
            reached.append("never")
        with pytest.raises(Preempted), interrupts.grace_period(60):
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("a whole block")
        with pytest.raises(Preempted):
            os.kill(os.getpid(), signal.SIGTERM)
        interrupts.forget_raised()
        with interrupts.defer():
            reached.append("what is saved then")
    assert reached == ["the rest of the play", "the update", "a whole block", "what is saved then"]


def test_the_grace_ends_in_time_or_when_nothing_more_can_come():
    interrupts, waiting = Interrupts(), threading.Event()
    with interrupts.install():
        with pytest.raises(Preempted), interrupts.grace_period(0.05):
            os.kill(os.getpid(), signal.SIGTERM)
            waiting.wait()
        open_ = [True]
        with pytest.raises(Preempted), interrupts.grace_period(60, may_complete=lambda: bool(open_)):
            os.kill(os.getpid(), signal.SIGTERM)
            open_.clear()
            waiting.wait()
        with pytest.raises(KeyboardInterrupt) as raised, interrupts.grace_period(60):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
        assert raised.type is KeyboardInterrupt, "a person does not wait"


def test_looks_at_what_others_play_end_no_grace():
    interrupts, reached, over = Interrupts(), [], threading.Event()
    with interrupts.install():
        assert interrupts.remaining_grace(60) is None
        with pytest.raises(Preempted), interrupts.grace_period(60):
            for look in ("the one it comes in", "another"):
                with interrupts.defer(ends_step=False):
                    if not reached:
                        os.kill(os.getpid(), signal.SIGTERM)
                    reached.append(look)
            assert 59 < interrupts.remaining_grace(60) <= 60
            with interrupts.defer():
                reached.append("the update")
            reached.append("never")
        with (
            pytest.raises(Preempted),
            interrupts.grace_period(60, may_complete=lambda: False),
            interrupts.defer(ends_step=False),
        ):
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("a look without hope")
        with pytest.raises(Preempted), interrupts.grace_period(0.05):
            os.kill(os.getpid(), signal.SIGTERM)
            with interrupts.defer(ends_step=False):
                over.wait(0.5)
                reached.append("the look in which its time is over")
            reached.append("never")
    assert reached == [
        "the one it comes in", "another", "the update", "a look without hope", "the look in which its time is over",
    ]  # fmt: skip


def test_a_second_interrupt_does_not_wait():
    interrupts, reached = Interrupts(), []
    with interrupts.install(), pytest.raises(KeyboardInterrupt), interrupts.defer():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("end of step")
    assert reached == []


def test_given_replies_are_rows_in_the_last_line() -> None:
    given = {"step": 1, "tasks": [0, 1], "train/rows": 2}
    assert RunTally.from_rows([given]).describe_counts().startswith("2 rows trained, 0 skipped")
    assert RunTally.from_rows([{"step": 1, "tasks": [0]}]).describe_counts().startswith("1 task trained")


def test_a_group_of_two_steps_is_counted_once_and_held_to_the_settings_of_its_step(tmp_path):
    """`max_trained_count` 2 when it was trained a second time; the run went on with 1."""
    tree = {"trainer_common": {"mode": "async", "algorithm": {"max_trained_count": 2}}}
    experiment = Experiment.from_dict({"ajet": tree}, base=tmp_path)
    lost = replace(
        an_episode(None, status="failed", failure=Failure("agent", "E", "")), uuid="a" * 36, group="g", order=0
    )
    rows = []
    run = Made(
        resumed=None,
        episodes=Made(write=lambda *_: None, whole_steps=list),
        metrics=Made(log=lambda step, metrics, **more: rows.append({"step": step, **metrics, **more})),
    )
    for step, again in ((1, []), (2, [0])):
        tasks = [] if again else [0]
        sink = RunSink(experiment, run, lambda *_: None)
        sink.begin(None, total=2)
        sink.commit(TrainedStep(step, step - 1, [Group(lost.task, 0, [lost])], {}, {}, {}, tasks, again))
    assert (
        [row["train/failed"] for row in rows] == [1, 1]
        and RunTally.from_rows(rows).failed == 1
        and RunTally.from_rows(rows).trained == 1
    )
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree["trainer_common"]["algorithm"]["max_trained_count"] = 1
    held = StepChecker(Experiment.from_dict({"ajet": tree}, base=tmp_path), tmp_path)
    assert [*held.check_names(1, [(lost, Outcome())]), *held.check_names(2, [(lost, Outcome())])] == []
