"""An agent of AWorld as `_target_` of plain verl: what verl's agent-loop workers call, without verl's cluster.

Stood in for: verl's client for its servers (a scripted model) and the actor that writes the record (an object of the
same class). The loop is made by hydra as verl makes it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ajet.context_tracker import timelines
from ajet.record.episodes import read_recorded
from ajet.schema.errors import RunFailed, UserError
from tests.support.aworld_fixtures import NOTES, call, words
from tests.support.chat_templates import tokenizer
from tests.support.verl_fixtures import without_verl

pytest.importorskip("aworld")
pytestmark = [pytest.mark.extra_slow, without_verl]

AGENTS = f"""
import sys
from aworld.agents.llm_agent import Agent
from aworld.config import AgentConfig
from aworld.core.agent.swarm import Swarm
from train.adapter.verl.aworld_agent_loop import AworldAgentLoop

class Printed(AworldAgentLoop):
    def build_agents(self):
        conf = AgentConfig(
            llm_base_url=self.get_llm_server_address(), llm_model_name=self.get_llm_server_model_name(),
            llm_api_key="dummy",
        )
        tools = {{"mcpServers": {{"here": {{"command": {sys.executable!r}, "args": ["-I", {str(NOTES)!r}]}}}}}}
        return Agent(name="a", conf=conf, system_prompt=self.prompt, mcp_config=tools, mcp_servers=["here"])

class Two(AworldAgentLoop):
    def build_agents(self):
        made = [
            Agent(name=name, system_prompt=f"You are {{name}}.", conf=AgentConfig(
                llm_base_url=self.get_llm_server_address(), llm_model_name="m", llm_api_key="dummy"))
            for name in ("first", "second")
        ]
        return Swarm(*made)

class Fails(AworldAgentLoop):
    def build_agents(self):
        raise ValueError("no agent today")
"""


class Client:
    """verl's, in front of a script: texts in, whole replies out, a logprob a token."""

    def __init__(self, script: Any) -> None:
        self._script, self.asked = script, []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.asked.append(sampling_params)
        ids = [*words().encode(self._script(words().decode(np.array(prompt_ids)))), words().end_ids[0]]
        steps = {"global_steps": 3, "min_global_steps": 3, "max_global_steps": 3}
        logprobs = [-0.5] * len(ids)
        return SimpleNamespace(token_ids=ids, log_probs=logprobs, stop_reason="completed", extra_fields=steps)


@contextmanager
def worker(folder: Any, monkeypatch: pytest.MonkeyPatch, script: Any, target: str, **own: Any) -> Iterator[Any]:
    """What verl's worker does for one session: `await ask(session, …)`."""
    import hydra
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap

    from ajet_verl.agent import plain
    from ajet_verl.agent.plain import PlainRecord

    class Here:
        def __init__(self, experiment: Any) -> None:
            self._record = PlainRecord(experiment.dump_resolved(), experiment.yaml_path, experiment.root)

        def run_id(self) -> str:
            return self._record.run_id()

        async def place(self, uid: str) -> int:
            return self._record.place(uid)

        async def keep(self, group: Any) -> None:
            self._record.keep(group)

    monkeypatch.setattr(plain, "open_record", Here)
    monkeypatch.setattr(plain, "_sessions", {})
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    (folder / "plain_agents.py").write_text(AGENTS)
    sys.modules.pop("plain_agents", None)
    rollout: dict[str, Any] = {
        "name": "vllm",
        "n": 2,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_model_len": None,
    }
    rollout["val_kwargs"] = {"temperature": 0.6, "top_p": 0.95, "top_k": -1, "n": 1}
    lengths = {"prompt_length": 6000, "response_length": 2000}
    trainer = {"project_name": "p", "experiment_name": "e", "default_local_dir": str(folder / "checkpoint")}
    tree = {
        "actor_rollout_ref": {"rollout": rollout | lengths, "model": {"path": "some/model"}},
        "trainer": trainer,
        "data": {"train_batch_size": 2},
    }
    config, client = OmegaConf.create(tree), Client(script)
    written = OmegaConf.create({"name": "an_agent", "_target_": f"plain_agents.{target}", **own})

    async def ask(session: int, *, uid: str = "u1", temperature: float = 1.0, **row: Any) -> Any:
        loop = hydra.utils.instantiate(
            config=written,
            trainer_config=DictConfigWrap(config=config),
            server_manager=client,
            tokenizer=tokenizer("qwen25"),
            processor=None,
            hf_model_type="qwen3",
            dataset_cls=object,
            data_config=DictConfigWrap(config.data),
            tools=ToolListWrap([]),
        )
        drawn = {"temperature": temperature, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
        told: dict[str, Any] = {
            "raw_prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is it?"}],
            "extra_info": {"task_id": "t7", "split": "train"},
            "reward_model": {"ground_truth": "42"},
            "data_source": "gaia",
            "index": 0,
        }
        told |= {"uid": uid, "global_steps": 4, "session_id": session, **row}
        return await loop.run(drawn, **{key: value for key, value in told.items() if value is not None})

    ask.client = client
    try:
        yield ask
    finally:
        for each in plain._sessions.values():
            each.close()


def recorded(folder: Any) -> list[Any]:
    (run,) = (folder / "checkpoint" / "launcher_record" / "e" / "debug").iterdir()
    return [episode for path in sorted((run / "episodes").glob("*.jsonl")) for episode, _ in read_recorded(path)]


def notes(text: str) -> str:
    return "It is <answer>42</answer>" if "<tool_response>" in text else call("note", '{"text":  "x"}')


def test_verls_sessions_get_exact_tokens_and_are_recorded(tmp_path, monkeypatch):
    async def both(ask: Any) -> Any:
        return await asyncio.gather(ask(0), ask(1, temperature=0.0))

    with worker(tmp_path, monkeypatch, notes, "Printed", prompt="You use tools.") as ask:
        outputs = asyncio.run(both(ask))
        drawn = [(each["temperature"], each["top_p"]) for each in ask.client.asked]
    assert sorted(drawn) == [(0.0, 1.0)] * 2 + [(1.0, 1.0)] * 2  # as verl says, not as AWorld asks
    episodes = recorded(tmp_path)
    assert {(each.step, each.split, each.task.task_id) for each in episodes} == {(4, "train", "t7")}
    assert {each.repeat for each in episodes} == {0, 1}
    assert len({each.uuid for each in episodes}) == 2 and len({each.group for each in episodes}) == 1
    for (row,), session in zip(outputs, (0, 1), strict=True):
        episode = next(each for each in episodes if each.repeat == session)
        (line,), _ = timelines(episode.calls)
        start = int(np.flatnonzero(line.mask)[0])
        assert row.prompt_ids + row.response_ids == line.ids[: len(row.prompt_ids + row.response_ids)].tolist()
        assert len(row.prompt_ids) == start and sum(row.response_mask) == episode.sampled_tokens
        assert row.reward_score is None and len(row.response_logprobs) == len(row.response_ids)
        assert set(np.array(row.response_logprobs)[np.array(row.response_mask) == 1]) == {(-0.5, 0.0)[session]}
        assert (row.extra_fields["min_global_steps"], row.extra_fields["max_global_steps"]) == (3, 3)
        text = words().decode(np.array(row.prompt_ids))
        assert "You use tools." in text and "Be brief.\n\nWhat is it?" in text
        assert '"text":  "x"' in words().decode(np.array(row.response_ids))  # as sampled, not as AWorld spells it
        assert episode.status == "completed" and episode.reward is None
        assert json.loads(json.dumps(episode.task.metadata))["answer"] == "42"


def test_a_swarms_agents_are_outputs_of_their_own_and_the_answers_is_the_last(tmp_path, monkeypatch):
    def script(text: str) -> str:
        return "one" if "You are first." in text else "two"

    with worker(tmp_path, monkeypatch, script, "Two") as ask:
        made = asyncio.run(ask(0))
    said = [words().decode(np.array(row.response_ids)) for row in made]
    assert [text.startswith(word) for text, word in zip(said, ("one", "two"), strict=True)] == [True, True]


def test_a_failed_episode_is_recorded_and_raises_or_is_an_empty_answer_where_it_is_held_out(tmp_path, monkeypatch):
    with worker(tmp_path, monkeypatch, notes, "Fails") as ask:
        with pytest.raises(RunFailed, match="task t7, attempt 1: .*no agent today"):
            asyncio.run(ask(1))
        (held_out,) = asyncio.run(ask(0, uid="u2", extra_info={"task_id": "t8", "split": "test"}))
    trained, other = sorted(recorded(tmp_path), key=lambda episode: episode.task.task_id)
    assert trained.failure is not None and trained.failure.boundary == other.failure.boundary == "agent"
    assert (trained.order, other.order, other.split) == (0, 1, "validation")
    assert held_out.response_mask == [0] and held_out.reward_score is None  # verl judges it, and trains nothing of it


def test_another_trainer_of_verls_is_refused(tmp_path, monkeypatch):
    with worker(tmp_path, monkeypatch, notes, "Fails") as ask:
        without = ask(0, session_id=None)
        with pytest.raises(UserError, match="agent-loop workers") as caught:
            asyncio.run(without)
    assert "V1 trainer" in caught.value.expected
