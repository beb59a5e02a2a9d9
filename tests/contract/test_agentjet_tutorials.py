"""AgentJet's tutorials, form by form: agents of our own that use the interface as each of them does, with a YAML of the
same keys, from the file to the reward. Only the model, the data and token caps are given on the command line.

All parts are real; the model is a script.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ajet.backbone.contract import Backbone
from ajet.config import load_experiment
from ajet.engine.adapters import Adapters
from ajet.engine.scripted import ScriptedEngine
from ajet.schema.episode import Episode
from ajet.schema.errors import ConfigError
from ajet.tokens import Renderer
from ajet.train.parts import assemble
from ajet_environments.services.serving import LocalWorldService
from ajet_environments.services.sources import open_world
from tests.support import world_fixtures
from tests.support.chat_templates import tokenizer
from tests.support.workflow_fixtures import scene
from tests.support.world_fixtures import on_a_loop

pytestmark = pytest.mark.slow
TAIL = """
hydra:
  searchpath:
    - file://ajet/default_config
    - file://ajet/default_config/verl         # verl only
    - file://external/verl/verl/trainer/config  # verl only
    - file://ajet/default_config/trinity      # trinity only
defaults:
  - ppo_trainer # verl inherit 1/2
  - verl_default # verl inherit 2/2
  - trinity_default # trinity inherit 1/1
  - ajet_default
  - _self_
"""
MATH = """
ajet:
  project_name: example_math_agent
  task_reader:
    type: huggingface_dat_repo
    huggingface_dat_repo: {dataset_path: /mnt/data/gsm8k/main, training_split: train, validation_split: test}
  task_judge: {judge_protocol: tests.support.agentjet_agents->BoxedJudge}
  model: {path: /mnt/data/Qwen2___5-7B-Instruct}
  rollout:
    user_workflow: tests.support.agentjet_agents->AGENT
    temperature: 1.0
    max_env_worker: 64
    num_repeat: 6
    agent_madness_reward: 0.0
    tensor_model_parallel_size: 1
    max_num_seqs: 40
    multi_turn: {max_sample_per_task: 2}
    compute_madness_checklist: [nonsense, wrong_toolcall]
    max_response_length_in_one_turn: 1024
    max_model_len: 10000
    n_vllm_engine: 2
  data: {train_batch_size: 100, max_prompt_length: 3000, max_response_length: 7000}
  debug: {debug_max_parallel: 1, debug_first_n_tasks: 1}
  trainer_common: {save_freq: 100, test_freq: 100, total_epochs: 100, logger: swanlab, val_before_train: true}
actor_rollout_ref:
  model: {lora_rank: 32, lora_alpha: 32, target_modules: all-linear}
  rollout: {load_format: safetensors}
trinity: {synchronizer: {sync_offset: 1, sync_method: nccl}}
"""
COUNTDOWN = """
ajet:
  project_name: example_countdown
  model: {path: /mnt/data/Qwen2.5-7B-Instruct}
  rollout: {user_workflow: tests.support.agentjet_agents->Countdown, agentscope_disable_toolcalls: True, num_repeat: 4,
            val_kwargs: {temperature: 0.0, top_k: -1, top_p: 1.0, do_sample: False, num_repeat: 1}}
  task_reader: {type: huggingface_dat_repo, huggingface_dat_repo: {dataset_path: dataset/Countdown-Tasks-3to4}}
  task_judge: {judge_type: customized_protocol, judge_protocol: tests.support.agentjet_agents->CountdownJudge}
  execute_test: False
  execute_testing_lambda: ""
"""
LAKE = """
ajet:
  project_name: example_frozenlake
  task_reader: {type: random_dummy}
  task_judge: {judge_protocol: null}
  model: {path: /mnt/data/Qwen2___5-3B-Instruct}
  rollout: {agentscope_workflow: tests.support.agentjet_agents->Lake, agentscope_disable_toolcalls: True, mode: async,
            compute_madness_checklist: [], multi_turn: {max_sample_per_task: 20, max_steps: 20, expected_steps: 1}}
  trainer_common: {total_training_steps: 25, nnodes: 1, n_gpus_per_node: 8, logger: swanlab}
frozen_lake: {frozen_lake_size: 2, is_slippery: False}
"""
ASKS = """
ajet:
  project_name: example_learn2ask
  task_reader:
    type: dataset_file
    dataset_file: {training: {file_path: your_file_path}, validation: {file_path: your_file_path}}
  model: {path: Qwen/Qwen2.5-7B-Instruct}
  rollout: {agentscope_workflow: tests.support.agentjet_agents->Asks, agentscope_disable_toolcalls: True}
trinity: {synchronizer: {sync_offset: 1, sync_method: nccl}}
"""
WOLVES = """
ajet:
  project_name: example_werewolves
  task_reader: {type: random_dummy}
  task_judge: {judge_protocol: null}
  model: {path: /mnt/data/Qwen2___5-7B-Instruct}
  rollout: {agentscope_learn_protocol: tests.support.agentjet_agents->Wolves, multi_turn: {expected_steps: 3}}
  trainer_common: {save_freq: 5, nnodes: 2, n_gpus_per_node: 8, trinity_only__n_vllm_engine: 2}
trinity: {trainer: {max_token_len_per_gpu: 13000}}
"""
WORLD = """
ajet:
  project_name: example_appworld
  experiment_name: "read_yaml_name"
  task_judge: {judge_protocol: ajet.task_judge.env_service_as_judge->EnvServiceJudge}
  task_reader:
    type: env_service
    env_service: {env_type: count, env_url: "http://127.0.0.1:8080", env_action_preference: code,
                  training_split: train, validation_split: dev}
  model: {path: /mnt/data/Qwen2___5-14B-Instruct}
  rollout: {agentscope_disable_toolcalls: True, user_workflow: tests.support.agentjet_agents->AGENT,
            multi_turn: {max_sample_per_task: 25, max_steps: 25}}
"""
REPORTS = """
ajet:
  project_name: ajet
  task_judge: {judge_type: customized_protocol, judge_protocol: null}
  rollout:
    {user_workflow: tests.support.agentjet_agents->Reports, force_disable_toolcalls: True, enable_oversample: False}
  interchange_server: {interchange_method: tcp}
  task_reader: {type: env_service}
  trainer_common: {save_trajectory_as_json_file: True}
trainer: {default_local_dir: /mnt/data/checkpoints}
actor_rollout_ref: {rollout: {tensor_model_parallel_size: 8, gpu_memory_utilization: 0.8}}
judge: {openjudge_llm: qwen-flash, concurrency: 10}
"""
RIGHT = "It is \\boxed{3}."


def must(name: str, **arguments: Any) -> str:
    """A call where one is required: what the model adds to how it has to begin."""
    return f'{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def tool(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{must(name, **arguments)}'


@dataclass
class Form:
    """A tutorial's use of the interface."""

    yaml: str
    script: list[str] = field(default_factory=lambda: [RIGHT])
    """What the trained model says, call by call."""
    row: dict[str, Any] | None = field(default_factory=lambda: {"question": "1 + 2?", "answer": "so #### 3"})
    """The data on the command line; None: the reader's own."""
    other: list[str] = field(default_factory=list)
    """What the model of another server says."""
    agent: str = ""
    more: list[str] = field(default_factory=list)
    """Of the command line."""
    reward: float = 1.0


FORMS = {
    "math_agent": Form(
        MATH, [must("execute_python_code", code="print(3)"), must("generate_response", result="\\boxed{3}"), "Done."],
        agent="MathWithTools",
    ),
    "math_agent, the tuner as the model": Form(MATH, agent="MathTunerIsTheModel"),
    "math_agent_simplify": Form(MATH, ["\\boxed{4}"], agent="MathRewardsItself", reward=0.0),
    "math_agentscope_urlkey": Form(MATH, agent="MathByUrlAndKey"),
    "math_agent_oai_sdk": Form(MATH, [tool("execute_python_code", code="print(3)"), RIGHT], agent="MathByOpenAI"),
    "math_agent_raw_http": Form(MATH, agent="MathByHttp"),
    "math_agent_langchain": Form(MATH, agent="MathByLangChain"),
    "math_answer_as_judge, by a model": Form(
        MATH, other=["<Correct>"], agent="MathByHttp",
        more=["task_judge.judge_protocol=tests.support.agentjet_agents->AskingJudge"],
    ),
    "countdown": Form(
        COUNTDOWN, ["\\boxed{1+2}"], {"target": 3, "nums": [1, 2]}, more=["task_reader.require_question=false"]
    ),
    "frozenlake": Form(LAKE, ["```Right```", "```Right```"], None),
    "learn2ask": Form(
        ASKS, ["Since when?"], {"messages": [], "init_messages": [{"role": "user", "content": "It hurts."}],
                                "decision_truth": "continue", "info_truth": "since monday"}, ["0.5"], reward=0.5,
    ),
    "werewolves": Form(
        WOLVES, ["I am no wolf.", must("generate_response", vote="Player1"), "Player1."], None,
        ["I do not believe it.", must("generate_response", vote="Player0"), "Player0."],
    ),
    "appworld": Form(WORLD, ["It is 1"], None, agent="World"),
    "appworld_oai_sdk": Form(WORLD, ["It is 7", "It is 1"], None, agent="WorldByOpenAI"),
    "ma_deepresearch": Form(WORLD, ["It is 1"], None, agent="Elsewhere"),
    "deep_finance, its own keys moved": Form(REPORTS, ["I search.", "It is 42."]),
}  # fmt: skip


class Scripted:
    """A backbone that plays: its model says the texts of a script, one after the other."""

    trains, adapters = False, Adapters([])

    def __init__(self, script: list[str]) -> None:
        words = Renderer(tokenizer("qwen25"))
        self.tokenizer = words.tokenizer
        self.engine = ScriptedEngine(script, encode=words.encode, end_id=words.end_ids[0])

    def close(self) -> None: ...


@contextmanager
def agents_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where somebody's agent plays: it is sent the model's address and key, and asks there."""
    import httpx

    async def play(request: web.Request) -> web.Response:
        told = await request.json()
        assert told["env_service_url"].startswith("http") and told["task_id"] == "1" and told["max_steps"] == 25
        async with httpx.AsyncClient(base_url=told["base_url"]) as client:
            reply = await client.post(
                "/chat/completions", headers={"Authorization": f"Bearer {told['api_key']}"},
                json={"messages": told["init_messages"]},
            )  # fmt: skip
        said = reply.json()["choices"][0]["message"]["content"]
        return web.json_response({"reward": float("1" in said), "is_success": True, "metadata": {"said": said}})

    app = web.Application()
    app.router.add_post("/", play)
    with on_a_loop(app) as place:
        monkeypatch.setenv("AGENT_SERVER_URL", f"http://{place}")
        yield


def played(form: Form, folder: Path, given: list[str]) -> Episode:
    """From the YAML and the command line to the only episode."""
    (folder / "x.yaml").write_text(form.yaml.replace("AGENT", form.agent) + TAIL)
    caps = ["rollout.max_response_length_in_one_turn=64", "rollout.max_model_len=20000", "rollout.num_repeat=1"]
    experiment = load_experiment(
        folder / "x.yaml", backbone="debug", overrides=["model.path=embedded:tiny-tools", *caps, *given, *form.more]
    )
    experiment.require_ready()
    seen: list[Episode] = []

    def opens(_: Any) -> Backbone:
        return Scripted(form.script)  # type: ignore[return-value]

    with assemble(experiment, run_id="test", on_episode=seen.append, opens=opens) as parts:
        list(parts.rollout.play([*enumerate(parts.tasks("train"))][:1], step=0, split="debug"))
    (episode,) = seen
    return episode


@pytest.mark.parametrize("name", FORMS)
def test_it_runs_with_model_data_and_token_caps_given(name, tmp_path, monkeypatch):
    form, given = FORMS[name], []
    if form.row is not None:
        (tmp_path / "tasks.jsonl").write_text(json.dumps(form.row) + "\n")
        given = [
            "task_reader.type=jsonl_dataset_file",
            f"task_reader.jsonl_dataset_file.training.file_path={tmp_path / 'tasks.jsonl'}",
        ]
    with scene(*form.other) as other, agents_server(monkeypatch):
        at = other.tuner.as_oai_baseurl_apikey()
        for variable in ("OPENAI_BASE_URL", "OPPONENTS_URL"):
            monkeypatch.setenv(variable, at.base_url)
        for variable in ("OPENAI_API_KEY", "OPPONENTS_KEY"):
            monkeypatch.setenv(variable, at.api_key)
        if form.yaml is WORLD:
            beside = LocalWorldService(
                open_world("world_fixtures.py->Count", base=Path(world_fixtures.__file__).parent)
            )
            monkeypatch.setenv("ENV_SERVICE_TOKEN", str(beside.service.token))
            given.append(f"task_reader.env_service.env_url={beside.service.url}")
            try:
                episode = played(form, tmp_path, given)
            finally:
                beside.close()
        else:
            episode = played(form, tmp_path, given)
    assert episode.failure is None, episode.failure
    assert episode.reward == form.reward, episode.messages
    assert len([call for call in episode.calls if call.trained]) == len(form.script) and not episode.checks


SHAPES = {
    "older roots": (
        "astuner: {project_name: x, rollout: {num_repeat: 2}}\n",
        "The run still needs", "write `ajet:` instead of `astuner:`",
    ),
    "older defaults": (
        "ajet: {}\ndefaults: [ppo_trainer, astune_default, ajet_ts_default, _self_]\n",
        "`defaults` contains 'astune_default' and 'ajet_ts_default'", "delete them",
    ),
    "older search paths": (
        "ajet: {}\nhydra: {searchpath: ['file://astuner/default_config', 'file://astune/default_config/verl']}\n",
        "'file://astuner/default_config' and 'file://astune/default_config/verl'", "delete them",
    ),
    "templates": ("ajet:\n  model: {path: {{MODEL_PATH}}}\n", "is a placeholder", "replace the placeholder"),
    "None": ("ajet: {rollout: {compute_madness_checklist: None}}", "compute_madness_checklist", "[] for an empty list"),
    "keys of its own": (
        "ajet: {judge: {openjudge_llm: qwen-flash}, rm_weight: 0.4}",
        "ajet.rm_weight", "config.my_section.rm_weight",
    ),
    "a reader of its own": (
        "ajet: {task_reader: {type: deep_finance, env_service: {env_type: finworld}}}",
        "'deep_finance'", "a reference such as reader.py->MyReader",
    ),
    "no workflow, for a swarm": (
        "ajet: {model: {path: m}, task_reader: {type: random_dummy}, rollout: {user_workflow: null},"
        " enable_interchange_server: True, enable_swarm_mode: True}",
        "The run still needs: ajet.rollout.user_workflow", "ajet serve --conf FILE.yaml",
    ),
    "a section twice": (
        "ajet:\n  task_judge: {judge_protocol: null}\n  task_judge: {judge_type: rubrics_auto_grader}\n",
        "the key 'task_judge' occurs twice", "delete one of the two",
    ),
}  # fmt: skip
"""Of its YAMLs, older and newer ones, what is refused: what is said of it, and what to do."""


@pytest.mark.parametrize("name", SHAPES)
def test_what_a_yaml_of_its_asks_in_vain_says_what_to_do(name, tmp_path):
    text, what, do = SHAPES[name]
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_experiment(tmp_path / "x.yaml", backbone="debug").require_ready()
    said = " ".join((caught.value.what, caught.value.where, caught.value.expected, caught.value.do))
    assert what in said and do in said and "x.yaml" in said, said


def test_keys_of_another_backbone_are_likened_to_keys_that_a_yaml_has(tmp_path):
    (tmp_path / "x.yaml").write_text(MATH + TAIL)
    idle = load_experiment(tmp_path / "x.yaml", backbone="debug").list_idle_keys()
    said = {name: each.why for each in idle for name in each.keys}
    assert "`ajet.trainer_common.lora.rank: 32`" in said["actor_rollout_ref.model.lora_rank"]
    assert "a key of verl" in said["actor_rollout_ref"] and "a key of trinity" in said["trinity"]
    assert not {"actor_rollout_ref.rollout.load_format", "trinity.synchronizer.sync_method"} & {*said}
