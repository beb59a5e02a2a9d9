"""What AgentJet's tutorials import and call, by their names, over real parts."""

from __future__ import annotations

import asyncio
import importlib
import pickle
from contextlib import suppress

import openai
import pytest

import ajet
from ajet import AgentJetJob, Task, Workflow, WorkflowOutput, WorkflowTask, bp
from ajet.cli import launcher
from ajet.cli.launcher import FLAG_ALIASES, MISSING_FLAGS, UNNEEDED_FLAGS
from ajet.config import load_experiment
from ajet.config.references import resolve_reference
from ajet.schema.errors import ConfigError, JudgeFailure, UnresolvedReferenceError, UserError
from ajet.train.runner import LaunchOptions
from ajet.workflow.breakpoint import TAGS_VARIABLE, activate
from ajet.workflow.function import as_workflow
from ajet_ray.on_ray import find_address
from tests.support.rollouts import stage
from tests.support.workflow_fixtures import scene

ASKED = [{"role": "user", "content": "Is it right?"}]


@pytest.fixture
def nothing_named(monkeypatch):
    for name in ("DASHSCOPE_API_KEY", "DASHSCOPE_API_KEY_BACKUP", "DASHSCOPE_BASE_URL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return monkeypatch


@pytest.mark.parametrize("brand", ["OPENAI", "DASHSCOPE"])
def test_a_judges_model_at_any_server(nothing_named, brand):
    from ajet.task_rollout.dashscope_llm_bridge import create_external_llm_fn

    ask = create_external_llm_fn(alien_llm_model="qwen", alien_llm_response_length=32)
    with pytest.raises(UserError, match="gives the server's address"):
        ask(messages=ASKED)
    with scene("<Correct>", "again") as played:
        at = played.tuner.as_oai_baseurl_apikey()
        nothing_named.setenv(f"{brand}_BASE_URL", at.base_url)
        nothing_named.setenv(f"{brand}_API_KEY", f"wrong|{at.api_key}")
        assert ask(messages=ASKED) == {"role": "assistant", "content": "<Correct>"}
        assert ask(ASKED, {"temperature": 1.0}, request_id="x")["content"] == "again"
        nothing_named.setenv(f"{brand}_API_KEY", "wrong")
        with pytest.raises(JudgeFailure, match="does not answer"):
            ask(ASKED)


@pytest.mark.slow
def test_an_agentscope_model_at_any_server(nothing_named):
    pytest.importorskip("agentscope")
    from ajet.utils.robust_dashscope import RobustDashScopeChatModel

    other = RobustDashScopeChatModel("qwen-plus", stream=False)
    with scene("the opponent") as played:
        at = played.tuner.as_oai_baseurl_apikey()
        nothing_named.setenv("OPENAI_BASE_URL", at.base_url)
        nothing_named.setenv("OPENAI_API_KEY", f"wrong|{at.api_key}")
        reply = asyncio.run(other([{"role": "user", "content": [{"text": "play"}]}]))
    assert "".join(part["text"] for part in reply.content) == "the opponent"


def test_messages_by_position_and_as_agentscope_has_them():
    class Msg:
        role, content, name = "user", "one", "env"

    with scene("a", "b", "c") as played:
        create = played.tuner.as_raw_openai_sdk_client().chat.completions.create

        async def ask():
            return [(await create(each)).choices[0].message.content for each in (ASKED, [Msg()], Msg())]

        assert asyncio.run(ask()) == ["a", "b", "c"]


def test_roles_that_are_registered_by_its_earlier_names():
    pytest.importorskip("agentscope")
    own = object()
    with scene("hello", trainable=["werewolf"]) as played:
        tuner = played.tuner
        assert tuner.register_model("villager", default_model=own) is own is tuner.get_model("villager")
        model = tuner.register_model("werewolf", default_model=own)
        assert tuner.get_model("werewolf") is model is not own
        reply = asyncio.run(model(ASKED))
        assert reply.content[0]["text"] == "hello" and played.session.calls == 1


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("ajet.tuner_lib.experimental.swarm_client", "ajet.client"),
        ("ajet.task_reader.task_reader_base", "reader.py->MyReader"),
        ("ajet.default_config.ajet_default", "AgentJetJob.set_data"),
        ("ajet.utils.thread_executors", "ajet does not replace"),
        ("astuner", "its name is ajet"),
    ],
)
def test_reference_that_imports_agentjets_module_is_answered(tmp_path, module, words):
    (tmp_path / "w.py").write_text(f"import {module}\nclass W: ...\n")
    with pytest.raises(UnresolvedReferenceError, match="belongs to AgentJet") as refused:
        resolve_reference("w.py->W", base=tmp_path)
    assert words in refused.value.do and refused.value.where.endswith("w.py:1")


@pytest.mark.parametrize("name", ["tokenizer", "llm_inference_fn", "observation_window"])
def test_a_way_past_the_tuner_is_told_of_it(name):
    task = WorkflowTask(task=Task())
    with pytest.raises(AttributeError, match=f"has no attribute {name}: use the tuner"):
        getattr(task, name)
    with pytest.raises(AttributeError, match="no_such"):
        _ = task.no_such
    assert not hasattr(pickle.loads(pickle.dumps(task)), name)


def test_a_cluster_of_master_addr_is_told_what_starts_one(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    with pytest.raises(ConfigError, match="joins a Ray cluster, but RAY_ADDRESS names none") as caught:
        find_address(LaunchOptions(flags=("ray-cluster",)))
    assert "`ajet cluster render`" in caught.value.do and "MASTER_ADDR" in caught.value.do


def test_classes_by_the_modules_that_its_pages_import_them_from():
    from ajet.copilot.job import AgentJetJob as Job
    from ajet.tuner import AjetTuner, ModelTuner

    assert Job is AgentJetJob and AjetTuner is ModelTuner is ajet.ModelTuner
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'ajet.no_such'$"):
        importlib.import_module("ajet.no_such")


@pytest.mark.parametrize(("method", "do"), [("agentscope_execute", "rename its method agentscope_execute to `execute`"),
                                            ("play", "write `async def execute")])  # fmt: skip
def test_a_workflow_without_execute_says_so(method, do):
    async def other(self, workflow_task, tuner): ...

    with pytest.raises(ConfigError, match="has no method `execute`") as caught:
        as_workflow(type("Older", (Workflow,), {method: other}), "w.py->Older")
    assert do in caught.value.do


class Fills:
    """Asks until its context is full, as AgentJet's tutorials do."""

    trainable_targets = None

    async def execute(self, task, tuner):
        tracker, before = tuner.get_context_tracker(), tuner.get_context_tracker().context_overflow
        client = tuner.as_raw_openai_sdk_client()
        await client.chat.completions.create(ASKED)
        try:
            await client.chat.completions.create([{"role": "user", "content": "x" * 20_000}])
        except openai.OpenAIError as error:
            said = str(error)
        return WorkflowOutput(reward=1.0, metadata={"before": before, "after": tracker.context_overflow, "said": said})


def test_the_context_tracker_says_when_the_context_is_full():
    with stage(Fills) as made:
        said = made.episode().metadata
    assert (said["before"], said["after"]) == (False, True)
    assert "maximum context length is 18000 tokens. However, your messages resulted in 20" in said["said"]
    assert "Please reduce the length of the messages" in said["said"] and "rollout.max_model_len" in said["said"]


class Swallows:
    trainable_targets = None

    async def execute(self, task, tuner):
        client = tuner.as_raw_openai_sdk_client()
        for body in ([{"role": "user", "content": "x" * 20_000}], [{"role": "human", "content": "x"}]):
            with suppress(openai.OpenAIError):
                await client.chat.completions.create(body)
        return WorkflowOutput(reward=0.0)


def test_calls_that_were_refused_are_named():
    with stage(Swallows) as made:
        failure = made.episode().failure
    assert failure.kind == "calls_refused"
    assert "context_length_exceeded" in failure.message and "role" in failure.message


class Measures:
    trainable_targets = None

    async def execute(self, task, tuner):
        await tuner.as_raw_openai_sdk_client().chat.completions.create(ASKED)
        nested = {"calls": 2, "tool_stats": {"search": {"n": 3, "names": ["a"]}, "ok": True}, "log": [1, "x"]}
        return WorkflowOutput(reward=1.0, log_metrics=nested, metadata={"a": 1}, own_field="kept")


def test_nested_metrics_and_fields_of_ones_own_are_kept():
    with stage(Measures) as made:
        episode = made.episode()
    assert episode.metrics == {"calls": 2.0, "tool_stats/search/n": 3.0, "tool_stats/ok": 1.0}
    rest = {"tool_stats/search/names": ["a"], "log": [1, "x"]}
    assert episode.metadata == {"own_field": "kept", "log_metrics": rest, "a": 1}
    task = Task(main_query="q", ground_truth=5)
    assert pickle.loads(pickle.dumps(task)).ground_truth == 5 and task.model_dump()["ground_truth"] == 5


def test_bp_without_a_tag_and_more_than_once(monkeypatch):
    stops = []
    monkeypatch.setattr("sys.breakpointhook", lambda: stops.append(1))
    monkeypatch.delenv(TAGS_VARIABLE, raising=False)
    bp()
    assert stops == []
    activate("ANY")
    for _ in range(2):
        bp()
    assert len(stops) == 1
    for _ in range(2):
        bp("ANY", once=False)
    assert len(stops) == 3
    activate([])


def test_the_jobs_arguments(tmp_path):
    job = AgentJetJob(model="embedded:tiny-tools", backbone="debug", name="mine")
    job.set_judge("judge.py->J").set_workflow("w.py->W", ensure_reward_in_workflow=True)
    job.set_data(type="huggingface", dataset_path="gsm8k/main").set(rollout__num_repeat=3)
    assert job.config.ajet.rollout.num_repeat == 3 and job.config.ajet.trainer_common.n_gpus_per_node == 8
    loaded = load_experiment(job.dump_job_as_yaml(tmp_path / "new" / "folder" / "job.yaml")).ajet
    assert (loaded.task_reader.type, loaded.task_judge.judge_protocol) == ("huggingface_dat_repo", None)
    assert job.set_data("dummy").config.ajet.task_reader.type == "random_dummy"


@pytest.mark.parametrize("flag", [*FLAG_ALIASES, *UNNEEDED_FLAGS, *MISSING_FLAGS])
def test_every_flag_is_understood_or_answered(flag, tmp_path, monkeypatch, capsys):
    import ajet.commands.launch

    (tmp_path / "x.yaml").write_text(
        "ajet: {model: {path: 'embedded:tiny-tools'}, task_reader: {type: random_dummy}, "
        "rollout: {user_workflow: w.py->W}}"
    )
    seen = []
    monkeypatch.setattr(ajet.commands.launch, "launch", lambda experiment, options: seen.append(options) or 0)
    value = ["TAG"] if flag in FLAG_ALIASES else ["http://x"] if flag == "--swarm-overwatch" else []
    with pytest.raises(SystemExit) as caught:
        launcher.main(["--conf", str(tmp_path / "x.yaml"), flag, *value])
    told = capsys.readouterr().err
    if flag in MISSING_FLAGS:
        assert caught.value.code == 2 and MISSING_FLAGS[flag] in told
    else:
        assert not caught.value.code and len(seen) == 1
        assert seen[0].debug_tags == "TAG" if flag in FLAG_ALIASES else UNNEEDED_FLAGS[flag] in told
