"""AWorld's AgentTrainer without AWorld: what it checks in which order, its registry, and the names of its pages."""

from __future__ import annotations

import csv
import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.config import load_experiment
from ajet.schema.errors import ConfigError, UserError
from ajet.task_judge.scorers.gaia import gaia_reward_func
from ajet.task_reader import open_reader
from ajet_aworld import packages
from ajet_aworld.agent_loop import build_question
from ajet_aworld.tool_environment import get_agent_tool_env_and_servers
from ajet_aworld.trainer.agents import fill_variables
from tests.support.plugin_packages import write_plugin
from train.trainer.agent_trainer import AgentTrainer
from train.trainer.trainer_processor import TrainerProcessor
from train.trainer.utils import TRAIN_PROCESSOR

REWARD = """
def normalize(text):
    return text.strip()

def gaia_reward_func(data_source, solution_str, ground_truth, extra_info=None):
    return float(normalize(solution_str) == ground_truth)
"""


class Noted(TrainerProcessor):
    """Notes what is asked of it."""

    def __init__(self, run_path: str) -> None:
        super().__init__(run_path)
        self.asked: list[Any] = []

    def train(self) -> None:
        self.asked.append("train")

    def check_agent(self, agent: Any) -> None:
        self.asked.append(("agent", agent))

    def check_dataset(self, dataset: Any = None, test_dataset: Any = None) -> None:
        self.asked.append(("dataset", dataset, test_dataset))

    def check_reward(self, reward_func: Any = None) -> None:
        self.asked.append(("reward", reward_func))

    def check_config(self, config: Any = None) -> Any:
        self.asked.append(("config", config))
        return config

    def mark_initialized(self) -> None:
        self.asked.append("initialized")
        super().mark_initialized()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gaia_reward_function.py").write_text(REWARD)
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump({"name": "a", "system_prompt": "Cost: ${x}"}))
    return tmp_path


@pytest.fixture
def noted():
    AgentTrainer.register_processor(train_engine_name="noted", train_type=Noted)
    yield
    AgentTrainer.unregister_processor(train_engine_name="noted")


def test_modules_are_checked_in_the_printed_order_and_then_trained(noted, folder):
    trainer = AgentTrainer(
        agent="a.yaml", train_dataset="a.csv", test_dataset="b.csv", reward_func=len, config={}, run_path="./outputs",
        train_engine_name="noted",
    )  # fmt: skip
    assert isinstance(trainer.train_processor, Noted) and (folder / "outputs").is_dir()
    assert trainer.train() is None
    order = [
        ("agent", "a.yaml"),
        ("dataset", "a.csv", "b.csv"),
        ("reward", len),
        ("config", {}),
        "initialized",
        "train",
    ]
    assert trainer.train_processor.asked == order


def test_what_cannot_be_used_is_a_value_error_and_says_what_would_do(noted, folder):
    with pytest.raises(ValueError, match="agent is required"):
        AgentTrainer(agent=None, train_engine_name="noted")
    with pytest.raises(ValueError, match="nope is not supported; there are: debug, local, noted, trinity, trl, verl"):
        AgentTrainer("a", train_engine_name="nope")
    with pytest.raises(ValueError, match="already registered"):
        AgentTrainer.register_processor("noted", Noted)
    with pytest.raises(ValueError, match="subclass of TrainerProcessor"):
        AgentTrainer.register_processor("other", dict)
    assert "other" not in TRAIN_PROCESSOR and set(TRAIN_PROCESSOR) >= {"verl", "local", "debug"}
    AgentTrainer.unregister_processor("never was")
    with pytest.raises(TypeError, match="abstract"):
        type("Half", (TrainerProcessor,), {"train": lambda self: None})("runs")
    early = AgentTrainer.__new__(AgentTrainer)
    early.train_processor, early.train_engine_name = Noted("runs"), "noted"
    with pytest.raises(ValueError, match="noted is not initialized"):
        early.train()


def test_an_installed_package_brings_a_processor(folder, monkeypatch):
    engines = "train_engines={'brought': 'plugins.ajet_aworld.tests.test_agent_trainer:Noted'}"
    monkeypatch.syspath_prepend(str(write_plugin(folder, "brings", engines)))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    trainer = AgentTrainer("a", train_engine_name="brought")
    AgentTrainer.unregister_processor("brought")
    assert trainer.train_processor.initialized and type(trainer.train_processor).__name__ == "Noted"


@pytest.mark.parametrize("engine", ["local", "debug", "verl"])
def test_the_four_modules_are_one_experiment_and_the_users_configuration_wins(folder, engine):
    with (folder / "train.csv").open("w") as file:
        csv.writer(file).writerows([["question", "answer"], ["1+1?", "2"], ["2+2?", "4"]])
    (folder / "test.json").write_text(json.dumps([{"prompt": "3?", "reward_model": {"ground_truth": "3"}}]))
    config = {"model": {"path": "embedded:tiny-tools"}, "rollout": {"num_repeat": 2}, "experiment_name": "mine"}
    trainer = AgentTrainer(
        agent="agent.yaml", train_dataset="train.csv", test_dataset="test.json", run_path="out", config=config,
        reward_func="gaia_reward_function.py", train_engine_name=engine,
    )  # fmt: skip
    made = trainer.train_processor
    found = made.experiment()
    assert found.ajet.backbone == engine and found.name == "mine" and found.ajet.rollout.num_repeat == 2
    assert found.config.aworld.agent.system_prompt == "Cost: ${x}"
    assert found.config.aworld.reward == "gaia_reward_function.py->gaia_reward_func"
    assert found.root == folder / "out"
    (train,), (test,) = (folder / "out").glob("train-*.jsonl"), (folder / "out").glob("test-*.jsonl")
    rows = [json.loads(line) for line in train.read_text().splitlines()]
    assert [str(row["answer"]) for row in rows] == ["2", "4"]
    assert json.loads(test.read_text())["answer"] == "3"
    assert made.config["ajet"]["task_reader"]["type"] == "jsonl_dataset_file"


def test_two_trainers_of_one_folder_each_keep_their_tasks(folder):
    """The first has not trained yet when the second is made."""
    made = [
        AgentTrainer("agent.yaml", train_dataset=[{"question": "1+1?", "answer": n}], train_engine_name="local")
        for n in ("2", "3", "2")
    ]
    files = [trainer.train_processor.config["ajet"]["task_reader"]["jsonl_dataset_file"] for trainer in made]
    paths = [Path(each["training"]["file_path"]) for each in files]
    assert [json.loads(path.read_text())["answer"] for path in paths] == ["2", "3", "2"] and paths[0] == paths[2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train_dataset": "none.parquet"}, "does not exist"),
        ({"train_dataset": "agent.yaml"}, "is not a data set"),
        ({"train_dataset": 3}, "expected a datasets.Dataset"),
        ({"reward_func": "none.py"}, "does not exist"),
        ({"reward_func": "agent.yaml->x"}, "x"),
        ({"reward_func": lambda a, b, c, d=None: 1.0}, "cannot be imported by a name"),
        ({"reward_func": 7}, "callable or file path"),
        ({"config": "none.yaml"}, "is not a file"),
        ({"config": 5}, "expected a mapping"),
        ({"agent": "none.yaml"}, "does not exist"),
        ({"agent": 5}, "expected an AWorld Agent"),
    ],
)
def test_each_module_refuses_what_will_not_do(given, said):
    with pytest.raises(ValueError, match=said):
        AgentTrainer(**{"agent": "agent.yaml", **given}, train_engine_name="local")


@pytest.mark.parametrize(("head", "said"), [("(a, b, c)", "expected"), ("(a, b, c, d=None) -> str", "a number")])
def test_a_rewards_signature_and_return_are_checked(folder, head, said):
    (folder / "bad.py").write_text(f"def bad{head}:\n    return 'x'\n")
    with pytest.raises(ValueError, match=said):
        AgentTrainer("agent.yaml", reward_func="bad.py", train_engine_name="local")


def test_a_wrong_key_is_named(folder):
    with pytest.raises(ConfigError, match="rollouts"):
        AgentTrainer("agent.yaml", config={"rollouts": {}}, train_engine_name="local")


def test_no_secret_is_written(folder, monkeypatch):
    monkeypatch.setenv("MCP_SERVER_TOKEN", "a-very-secret-token")
    entry = {"url": "http://x/mcp", "headers": {"Authorization": "Bearer a-very-secret-token"}}
    told = {
        "name": "a",
        "mcp_config": {"mcpServers": {"s": entry}},
        "conf": {"llm_api_key": "k", "llm_temperature": 0.3},
    }
    (folder / "agent.yaml").write_text(yaml.safe_dump(told))
    made = AgentTrainer("agent.yaml", train_engine_name="local").train_processor
    agent = made.experiment().config.aworld.agent.to_dict()
    assert agent["mcp_config"]["mcpServers"]["s"]["headers"]["Authorization"] == "Bearer $(MCP_SERVER_TOKEN)"
    assert agent["conf"] == {"llm_temperature": 0.3}
    assert fill_variables(agent)["mcp_config"]["mcpServers"]["s"] == entry
    monkeypatch.delenv("MCP_SERVER_TOKEN")
    with pytest.raises(UserError, match="MCP_SERVER_TOKEN"):
        fill_variables(agent)
    assert fill_variables({"system_prompt": "run $(pwd)"}) == {"system_prompt": "run $(pwd)"}
    with pytest.raises(ValueError, match="Authorization is a secret"):
        AgentTrainer("agent.yaml", train_engine_name="local")


@pytest.mark.parametrize("place", ["env: {SERP_API_KEY: sk-literal}", "headers: {X-Auth-Token: sk-literal}"])
def test_a_secret_of_a_server_that_no_variable_holds_is_refused(folder, place):
    (folder / "agent.yaml").write_text(f"{{name: a, mcp_config: {{mcpServers: {{s: {{command: x, {place}}}}}}}}}")
    with pytest.raises(ValueError, match="is a secret"):
        AgentTrainer("agent.yaml", train_engine_name="local")


@pytest.mark.parametrize(
    "name",
    [
        "train.adapter.verl.aworld_agent_loop:AworldAgentLoop",
        "train.integration.verl.aworld_agent_loop:AworldAgentLoop",
        "train.adapter.verl.common:get_agent_tool_env_and_servers",
        "train.adapter.common:get_agent_tool_env_and_servers",
        "train.integration.common:get_agent_tool_env_and_servers",
        "train.trainer.agent_trainer:AgentTrainer",
        "train.trainer.trainer_processor:TrainerProcessor",
        "train.trainer.utils:TRAIN_PROCESSOR",
        "env.train_env:words",
    ],
)
def test_the_printed_names_mean_what_is_here(name):
    place, _, what = name.partition(":")
    assert getattr(importlib.import_module(place), what) is not None


START = "from ajet_aworld.packages import install_finders; install_finders()\n"
OPTION_A = """
from train.integration.my_framework import MyFrameworkTrainer
from train.trainer.agent_trainer import AgentTrainer

AgentTrainer.register_processor('my_framework', MyFrameworkTrainer)
"""
OPTION_B = """
from train.trainer import AgentTrainer
"""
TRAINS = """
trainer = AgentTrainer(
    agent="my agent",
    train_engine_name='my_framework'
)
trainer.train()
print(trainer.train_processor.asked[-1], type(trainer.train_processor).__module__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("option", [OPTION_A, OPTION_B], ids=["dynamic", "automatic"])
def test_a_framework_is_registered_in_either_of_the_printed_ways(folder, option):
    """Steps 2 and 3 of the page: a package below a `train` of the user's. Where that one is first on the path, the
    script has started the plug-in before."""
    own = folder / "train" / "integration" / "my_framework"
    own.mkdir(parents=True)
    for place in (folder / "train", own.parent):
        (place / "__init__.py").touch()
    shutil.copy(__file__, own / "my_trainer.py")
    (own / "__init__.py").write_text(
        "from .my_trainer import Noted as MyFrameworkTrainer\n\n__all__ = ['MyFrameworkTrainer']\n"
    )
    if option is OPTION_B:
        (folder / "train" / "trainer").mkdir()
        (folder / "train" / "trainer" / "__init__.py").write_text("from .agent_trainer import AgentTrainer" + OPTION_A)
    mine, ours = str(folder), str(packages.find_folder())
    paths = os.pathsep.join([*([ours, mine] if option is OPTION_A else [mine, ours]), str(Path(__file__).parents[3])])
    code = "import sys; sys.path.remove('')\n" + (START if option is OPTION_B else "") + option + TRAINS
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env={"PYTHONPATH": paths, "PATH": ""},
                          capture_output=True, text=True)  # fmt: skip
    assert done.stdout.strip() == "train train.integration.my_framework.my_trainer", done.stderr


INSTALLED = """
import os, sys
others = [each for each in sys.path if not os.path.isdir(os.path.join(each, "env"))]
sys.path[:] = path = [os.path.realpath("site-packages"), *others, sys.argv[1]]
from ajet_aworld.packages import install_finders
install_finders()
assert sys.path == path
from env import MINE
from env.world import World
from train import MINE
from env.train_env import words
from train.adapter.common import get_agent_tool_env_and_servers
assert words([])[:2] == ["env", "up"]
"""


@pytest.mark.slow
def test_installed_packages_of_the_users_keep_their_names_and_ours_are_found_below(folder):
    for name in ("train", "env"):
        place = folder / "site-packages" / name
        place.mkdir(parents=True)
        (place / "__init__.py").write_text("MINE = 1\n")
    (place / "world.py").write_text("World = object\n")
    env = {"PYTHONPATH": str(packages.find_folder()), "PATH": ""}
    command = [sys.executable, "-c", INSTALLED, str(packages.find_folder())]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_tools_configuration_is_the_printed_one(monkeypatch, folder):
    monkeypatch.setenv("AJET_STATE", str(folder))
    monkeypatch.setenv("MCP_SERVER_URL", "http://localhost:8080/mcp")
    monkeypatch.delenv("MCP_SERVER_TOKEN", raising=False)
    config, servers = get_agent_tool_env_and_servers()
    entry = config["mcpServers"]["aworld-mcp"]
    assert entry == {
        "type": "streamable-http", "url": "http://localhost:8080/mcp", "timeout": 600, "sse_read_timeout": 600,
        "client_session_timeout_seconds": 600,
        "headers": {"MCP_SERVERS": "readweb-server,browseruse-server,documents-csv-server,documents-docx-server,"
            "documents-pptx-server,documents-pdf-server,documents-txt-server,download-server,intelligence-code-server,"
            "intelligence-think-server,intelligence-guard-server,media-audio-server,media-image-server,"
            "media-video-server,parxiv-server,terminal-server,wayback-server,wiki-server,googlesearch-server"},
    }  # fmt: skip
    assert servers == [*entry["headers"]["MCP_SERVERS"].split(","), "aworld-mcp"]
    monkeypatch.setenv("MCP_SERVER_TOKEN", "t0ken")
    assert get_agent_tool_env_and_servers()[0]["mcpServers"]["aworld-mcp"]["headers"]["Authorization"] == "Bearer t0ken"
    told = {
        "url": "http://h/mcp",
        "authorization": "Basic x",
        "mcp_servers": "a,b",
        "server_name": "mine",
        "timeout": 5,
    }
    for given in ({"tool_config": told}, {"url": told}):
        config, servers = get_agent_tool_env_and_servers(**given)
        assert servers == ["a", "b", "mine"] and config["mcpServers"]["mine"]["timeout"] == 5
        assert config["mcpServers"]["mine"]["headers"] == {"Authorization": "Basic x", "MCP_SERVERS": "a,b"}
    assert get_agent_tool_env_and_servers("http://h/mcp", "c")[1] == ["c", "aworld-mcp"]
    monkeypatch.delenv("MCP_SERVER_URL")
    with pytest.raises(ConfigError, match="MCP_SERVER_URL is not set, and no environment runs on this machine"):
        get_agent_tool_env_and_servers()


@pytest.mark.parametrize("own", [False, True], ids=["built-in", "a GAIA folder"])
def test_the_examples_tasks_become_ajets_with_system_message_and_truth(folder, own, capsys):
    from train.examples.train_gaia_with_aworld_verl.create_dataset import QUESTIONS, main

    given = []
    if own:
        (folder / "gaia" / "validation").mkdir(parents=True)
        rows = [
            {
                "task_id": str(n),
                "Question": f"Q{n}",
                "Level": 1,
                "Final answer": str(n),
                "file_name": "a.csv" * (n == 1),
            }
            for n in range(4)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "gaia" / "validation" / "metadata.jsonl").write_text(text)
        given = ["--dataset_path", str(folder / "gaia")]
    main([*given, "--system", "Be brief."])
    count = 4 if own else len(QUESTIONS)
    assert f"{count - count // 4} tasks" in capsys.readouterr().out
    shutil.copytree(packages.find_folder() / "train" / "examples" / "train_gaia_with_aworld_verl", folder / "example")
    (folder / "datasets").rename(folder / "example" / "datasets")
    experiment = load_experiment(folder / "example" / "gaia.yaml")
    reader = open_reader(experiment)
    tasks = [task for split in ("train", "validation") for task in reader.tasks(split)]
    assert len(tasks) == count
    for task in tasks:
        assert [each["role"] for each in task.init_messages] == ["system", "user"]
        asked = build_question(task)
        assert asked.startswith("Be brief.\n\n")
        if own and "Q1" in asked:
            assert "The file of this task is" in asked and "a.csv" in asked
        truth = task.metadata["reward_model"]["ground_truth"]
        assert gaia_reward_func("gaia", f"<answer>{truth}</answer>", truth) == 1.0


def test_the_pages_reward_functions_are_there():
    from train.examples.train_gaia_with_aworld_verl.metrics import gaia_reward_function as page
    from train.examples.train_gaia_with_aworld_verl.reward import gaia_reward_function as newer

    assert page.normalize_number_str("$1,234.50") == 1234.5 and page.normalize_number_str("x") == float("inf")
    assert page.split_string("a,b;c") == ["a", "b", "c"] and page.split_string("a|b", ["|"]) == ["a", "b"]
    assert page.normalize_str(" Sea Gull! ") == "seagull" and page.normalize_str("A b.", False) == "ab."
    assert page.question_scorer("17%", "17") and newer.gaia_reward_func is page.gaia_reward_func is gaia_reward_func
