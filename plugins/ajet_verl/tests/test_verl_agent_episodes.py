"""The same experiment gives the same episodes on verl as on the local backbone, for the same engine outputs.

verl's client is stood in for by one that asks the local backbone's own engine with the same draws; everything else is
what runs in verl's agent-loop processes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ajet.config import Experiment, load_experiment
from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.schema.episode import Episode, Group
from ajet.train.parts import RunParts, assemble
from tests.support.ajet_process import ajet
from tests.support.judge_fixtures import judge_server
from tests.support.verl_fixtures import without_verl

pytestmark = [pytest.mark.verl, pytest.mark.slow, without_verl]
TASKS, REPEATS = 6, 4


class Servers:
    """verl's client as far as we call it: whole replies of `engine`, drawn with the keys that a rollout would use."""

    def __init__(self, engine: Any, seed: int) -> None:
        self._engine, self._seed = engine, seed
        self._calls = Counter[str]()

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        order, repeat = map(int, request_id.split("-"))
        key = DrawKey(self._seed, order, repeat, self._calls[request_id])
        self._calls[request_id] += 1
        names = ("max_tokens", "temperature", "top_p", "top_k")
        sampling = Sampling(
            **{name: sampling_params[name] for name in names}, stop_ids=tuple(sampling_params["stop_token_ids"])
        )
        ids: list[int] = []
        logprobs: list[float] = []
        async for chunk in self._engine.generate(TokenRequest(np.array(prompt_ids, np.int32), sampling, key)):
            ids += chunk.ids
            logprobs += chunk.logprobs
        versions = {"global_steps": 0, "min_global_steps": 0, "max_global_steps": 0}
        return SimpleNamespace(token_ids=ids, log_probs=logprobs, stop_reason="completed", extra_fields=versions)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("same")
    assert ajet("init", "tool", "--template", "tool", cwd=folder).returncode == 0
    (yaml,) = (folder / "tool").glob("*.yaml")
    overrides = [f"rollout.num_repeat={REPEATS}", "model.dtype=float32", "trainer_common.device=cpu"]
    experiment = load_experiment(yaml, backbone="local", overrides=overrides, exp_dir=folder)
    with assemble(experiment, run_id="same") as made:
        yield made


def host(parts: RunParts, experiment: Experiment, posted: list[Group]) -> Any:
    """Ticket k is for task k."""
    from ajet_ray.host import Host
    from ajet_ray.mailbox import GroupNotice, TicketGrant
    from ajet_verl.agent.engine import ServerEngine

    tokenizer = parts.backbone.tokenizer
    client = Servers(parts.backbone.engine, experiment.ajet.seed)
    longest = experiment.ajet.rollout.max_model_len
    engine = ServerEngine(client, max_model_len=longest, vocabulary=len(tokenizer), server="vllm")

    async def post(letter: GroupNotice) -> None:
        posted.append(letter.group)

    async def grant(ticket: int) -> TicketGrant:
        return TicketGrant(ticket, parts.tasks("train")[ticket])

    return Host(experiment, "same", engine, tokenizer, post, grant)


def content(episode: Episode) -> dict[str, Any]:
    """All of an episode but its clock; which replies are computed together changes the last digits of logprobs."""
    return {
        "uuid": episode.uuid,
        "where": (episode.task.task_id, episode.repeat, episode.step, episode.split, episode.run),
        "status": episode.status,
        "verdict": episode.verdict,
        "calls": [
            (call.parent, call.prefix, call.suffix_ids.tolist(), call.response_ids.tolist(), call.finish, call.versions)
            for call in episode.calls
        ],
        "messages": [{key: value for key, value in message.items() if key != "id"} for message in episode.messages],
        "timelines": [(line.ids.tolist(), line.mask.tolist(), line.spans) for line in episode.timelines],
        "untrained": dict(episode.untrained),
        "metrics": episode.metrics,
    }


def test_the_episodes_are_those_of_the_local_backbone(parts):
    tasks = list(enumerate(parts.tasks("train")[:TASKS]))
    local = sorted(parts.rollout.play(tasks, step=1, split="train"), key=lambda group: group.order)
    posted: list[Group] = []
    made = host(parts, parts.experiment, posted)

    async def play() -> list[Group]:
        one = {"step": 1, "sessions": REPEATS}
        asked = [made.join_group(f"u{order}", order, None, **one) for order, _ in tasks for _ in range(REPEATS)]
        return await asyncio.gather(*asked)

    answered = asyncio.run(play())
    made.close()
    assert [group.order for group in answered] == [order for order, _ in tasks for _ in range(REPEATS)]
    assert sorted(group.order for group in posted) == [group.order for group in local], "each is posted once"
    verl = sorted(posted, key=lambda group: group.order)
    for ours, theirs in zip(local, verl, strict=True):
        for left, right in zip(ours.episodes, theirs.episodes, strict=True):
            assert content(left) == content(right)
            for one, other in zip(left.calls, right.calls, strict=True):
                np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-3)
    assert sum(len(episode.calls) > 1 for group in verl for episode in group.episodes) > 0, "some used the tool"


RANKED = """
from workflow import PriceAgent

class Open(PriceAgent):
    async def execute(self, workflow_task, tuner):
        return (await super().execute(workflow_task, tuner)).model_copy(update={"reward": None})
"""


def test_attempts_are_ranked_in_a_process_of_verls(parts):
    """By place: the judge says nothing, and the first that it is shown is the best."""
    folder = parts.experiment.yaml_path.parent
    (folder / "ranked.py").write_text(RANKED)

    def by_place(asked: dict[str, Any]) -> str:
        labels = re.findall(r"Attempt (\w+):", asked["messages"][1]["content"])
        return json.dumps({"reason": "", "tiers": [[label] for label in labels], "undecided": []})

    with judge_server(by_place) as server:
        settings = [f"task_judge.judges=[{{model: m, base_url: '{server.url}'}}]", f"rollout.num_repeat={REPEATS}",
                    "rollout.user_workflow=ranked.py->Open", "task_judge.model_judge.cache=false"]  # fmt: skip
        chosen = load_experiment(
            parts.experiment.yaml_path, backbone="local", overrides=settings, exp_dir=parts.experiment.root
        )
        made = host(parts, chosen, posted := [])

        async def play() -> None:
            asked = [made.join_group("u", 0, None, step=1, sessions=REPEATS) for _ in range(REPEATS)]
            await asyncio.gather(*asked)

        asyncio.run(play())
        made.close()
        assert len(server.seen) == 1
    (group,) = posted
    assert sorted(episode.reward for episode in group.episodes) == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert all(episode.timelines for episode in group.episodes)


def test_verls_agent_loop_hands_over_what_is_scored_and_raises_only_for_a_group_without(parts, monkeypatch):
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from ajet_ray.rows import FIELDS
    from ajet_verl.agent import loop as agent_loop
    from ajet_verl.agent import process as host_module

    made = host(parts, parts.experiment, [])
    monkeypatch.setattr(host_module, "_host", made)
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"n": REPEATS, "val_kwargs": {"n": 1}}}, "data": {}})
    loop = agent_loop.WorkflowLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=None,
        tokenizer=parts.backbone.tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
    )

    async def group(uid: str, split: str = "train") -> list[Any]:
        task = parts.tasks("train")[0]
        row = {"index": 0, "task": task.model_dump(), "split": split, "uid": uid, "global_steps": 1}
        sessions = [
            loop.run({}, session_id=session, **row) for session in range(1 if split == "validation" else REPEATS)
        ]
        return await asyncio.gather(*sessions, return_exceptions=True)

    whole = asyncio.run(group("a"))
    assert all(len(outputs) >= 1 for outputs in whole)
    for outputs in whole:
        for output in outputs:
            fields = output.as_dict()
            assert set(FIELDS) <= set(fields) and len(fields["responses"]) == len(fields["rollout_log_probs"])
            assert fields["rm_scores"].sum() in (0.0, 1.0) and set(fields["extra_fields"]) >= {"ajet"}
    assert asyncio.run(group("b", "validation")) == [[]], "validation is recorded, not trained"

    async def fails(self: Any, workflow_task: Any, tuner: Any) -> Any:
        if workflow_task.task_thread_index in broken:
            raise ValueError("a broken agent")
        return await inner(self, workflow_task, tuner)

    inner, broken = parts.workflow.execute, {1}
    monkeypatch.setattr(made._rollout.attempts._workflow_class, "execute", fails)
    some = asyncio.run(group("c"))
    assert some[1] == [] and all(some[session] for session in (0, 2, 3)), "the others are trained"
    broken |= set(range(REPEATS))
    none = asyncio.run(group("d"))
    assert none[:-1] == [[]] * (REPEATS - 1) and isinstance(none[-1], agent_loop.NothingToTrainError)
    made.close()
