"""Rewards of parts from workflows and judges to tokens, and `train_turn`: through the gateway, under two isolations."""

from __future__ import annotations

from typing import Any

import pytest

from ajet import ProcessReward, Workflow, WorkflowOutput, WorkflowTask
from ajet.schema.episode import Episode, Verdict
from ajet.schema.errors import ConfigError
from tests.support.rollouts import Judge, count_length, flows, metrics_of, renderer, stage

FIRST, SECOND = "think of it", "the answer is 4"


async def two_turns(tuner: Any) -> None:
    await flows.ask(tuner, "first?")
    await flows.ask(tuner, "second?")


class ListOfRewards(Workflow):
    """One reward a call."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await two_turns(tuner)
        return WorkflowOutput(reward=[0.25, 1.0])


class ListOfThree(Workflow):
    """For two calls."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await two_turns(tuner)
        return WorkflowOutput(reward=[0.25, 1.0, 1.0])


class OwnParts(Workflow):
    """A text of its second reply."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await two_turns(tuner)
        return WorkflowOutput(reward=1.0, process=[ProcessReward(reward=-1, text="answer", name="says so")])


class NoSuchStep(Workflow):
    """Scores a third call."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await two_turns(tuner)
        return WorkflowOutput(reward=1.0, process=[ProcessReward(reward=1, step=2)])


def played(workflow: type[Any], judge: Any = None, **rollout: Any) -> Episode:
    texts = iter([FIRST, SECOND] * 8)
    with stage(workflow, lambda _: next(texts), judge=judge or Judge(None), **rollout) as made:
        return made.episode()


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_list_is_one_reward_a_call(isolation):
    episode = played(ListOfRewards, isolation=isolation)
    assert episode.reward == 1.25 and episode.verdict is not None
    assert [(part.step, part.reward, part.tokens) for part in episode.verdict.process] == [
        (at, reward, ((at, 0, len(episode.calls[at].response_ids)),)) for at, reward in enumerate((0.25, 1.0))
    ]


def test_a_list_of_another_length_is_a_sum_alone():
    episode = played(ListOfThree)
    assert episode.reward == 2.25 and episode.verdict is not None and episode.verdict.process == ()


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_text_is_its_tokens(isolation):
    episode = played(OwnParts, isolation=isolation)
    assert episode.verdict is not None
    (part,) = episode.verdict.process
    ((call, start, stop),) = part.tokens
    assert call == 1 and part.compared == ("text", "says so")
    assert renderer().decode(episode.calls[1].response_ids[start:stop]) == "answer"


def test_a_part_that_is_not_there_fails_the_attempt_and_trains_nothing():
    episode = played(NoSuchStep)
    assert episode.failure is not None and "call number 2" in episode.failure.message
    assert episode.failure.boundary == "agent" and not episode.scored


class PartJudge:
    """Of the agent, and of what it said."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Verdict:
        return Verdict(1.0, True, process=(ProcessReward(reward=0.5, agent="default"), ProcessReward(reward=1, step=0)))


class NoTuple:
    """Fills in anything."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Verdict:
        return Verdict(1.0, True, process=(0.5,))  # type: ignore[arg-type]


class AsksTwice(Workflow):
    """Leaves the reward to the judge."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await two_turns(tuner)
        return WorkflowOutput()


def test_a_judge_scores_parts():
    episode = played(AsksTwice, Judge(PartJudge()))
    assert episode.verdict is not None, episode.failure
    agent, step = episode.verdict.process
    assert [span.call for span in agent.tokens] == [0, 1] and [span.call for span in step.tokens] == [0]
    assert played(AsksTwice, Judge(NoTuple())).failure.boundary == "judge"


CHOICE = """
def last(call, episode):
    return call.index == len(episode.calls) - 1 and episode.reward is not None

def maybe(call, episode):
    return 1

async def waits(call, episode):
    return True
"""


def test_train_turn_chooses_the_calls_that_train(tmp_path):
    (tmp_path / "own.py").write_text(CHOICE)
    with stage(ListOfRewards, judge=Judge(None), folder=tmp_path, train_turn="own.py->last") as made:
        episode = made.episode()
    assert [call.trained for call in episode.calls] == [False, True] and episode.scored
    assert [call.turned_down for call in episode.calls] == [True, False]
    assert episode.untrained == {"not_trainable": len(episode.calls[0].response_ids)}
    assert sum(line.sampled for line in episode.timelines) == len(episode.calls[1].response_ids)
    with stage(ListOfRewards, judge=Judge(None), folder=tmp_path, train_turn="own.py->maybe") as made:
        episode = made.episode()
    assert episode.failure is not None and episode.failure.boundary == "judge" and not episode.timelines
    assert "returned 1; expected True or False" in episode.failure.message
    with pytest.raises(ConfigError, match="without `async`"):
        stage(ListOfRewards, judge=Judge(None), folder=tmp_path, train_turn="own.py->waits").__enter__()


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "number", "strict": True, "schema": NUMBER}}


class StrictReplies(Workflow):
    """Asks twice for JSON and scores its second reply, in the three ways to say so."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()
        for question in ("first?", "second?"):
            asked = [{"role": "user", "content": question}]
            await client.chat.completions.create(model="m", messages=asked, response_format=SCHEMA)
        parts = [ProcessReward(reward=1.0, step=1), ProcessReward(reward=1.0, text='{"n": 1')]
        return WorkflowOutput(reward=[0.0, 1.0], process=parts)


class StrictAnswers(StrictReplies):
    """Leaves the reward to the judge."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await super().execute(task, tuner)
        return WorkflowOutput(reward=1.0)


def test_rejected_draws_are_no_steps():
    texts = iter(['{"n": 1', '{"n": 12}', '{"n": "two"}', '{"n": 13}'] * 2)
    with stage(StrictReplies, lambda _: next(texts), judge=Judge(None)) as made:
        episode = made.episode()
    assert episode.verdict is not None, episode.failure
    assert [call.is_delivered for call in episode.calls] == [False, True, False, True]
    listed, step, text = episode.verdict.process[0:2], episode.verdict.process[2], episode.verdict.process[3]
    assert [(part.reward, part.tokens[0].call) for part in listed] == [(0.0, 1), (1.0, 3)]
    assert step.tokens[0].call == 3
    assert text.tokens[0].call == 1, "not the rejected draw, whose text it is, too"


def test_turns_and_lengths_leave_rejected_draws_out():
    texts = iter(['{"n": 1', '{"n": 12}', '{"n": 13}'] * 2)
    with stage(StrictAnswers, lambda _: next(texts), judge=Judge(None)) as made:
        episode = made.episode()
    assert metrics_of(episode)["train/turns"] == 2
    assert metrics_of(episode)["train/calls"] == 3
    delivered = sum(call.response_ids.size for call in episode.calls[1:])
    assert count_length(episode) == delivered < episode.sampled_tokens


def test_train_turn_is_asked_for_delivered_replies(tmp_path):
    (tmp_path / "choice.py").write_text("def no(call, episode):\n    return False\n")
    texts = iter(['{"n": 1', '{"n": 12}', '{"n": 13}'] * 2)
    with stage(StrictAnswers, lambda _: next(texts), judge=Judge(None), train_turn=f"{tmp_path}/choice.py->no") as made:
        episode = made.episode()
    assert set(episode.untrained) == {"aborted_call", "not_trainable"}
    assert episode.untrained["aborted_call"] == episode.calls[0].response_ids.size
