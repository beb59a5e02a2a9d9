"""The tutorial of images: a conversation is shown and scored. test_verl_workers_vision.py trains it on verl."""

from __future__ import annotations

import asyncio

import pytest

from ajet.config import resolve_reference
from ajet.engine.contract import Sampling
from ajet.engine.scripted import ScriptedChat
from ajet.gateway import Gateway
from ajet.schema.task import WorkflowTask
from ajet.workflow.tuner import ModelTuner
from tests.support.tutorial_runs import TUTORIALS

FOLDER = TUTORIALS / "example_vision"


@pytest.mark.parametrize(("said", "reward"), [(("red", "blue"), 1.0), (("red", "red"), 0.5), (("a", "b"), 0.0)])
def test_an_attempt_is_shown_two_squares_and_scored(said: tuple[str, str], reward: float) -> None:
    tasks = resolve_reference("agent.py->Squares", base=FOLDER)(None).tasks("validation")
    [task] = [each for each in tasks if each.metadata["colours"] == ["red", "blue"]]
    workflow, engine = resolve_reference("agent.py->Namer", base=FOLDER)(), ScriptedChat(list(said))
    gateway = Gateway(engine, None, max_model_len=400, max_response_tokens=10).start()
    try:
        session = gateway.open("episode", key=(0, 0, 0), sampling=Sampling(10), trainable=None)
        output = asyncio.run(workflow.execute(WorkflowTask(task=task), ModelTuner(None, session, trainable=None)))
        shown = [str(request["messages"]).count("data:image/png") for request in engine.requests]
    finally:
        gateway.close()
    assert (output.reward, output.is_success, shown) == (reward, reward == 1, [1, 2])
