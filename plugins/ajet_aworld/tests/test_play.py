"""AWorld's agents, unmodified, played by its own runner through the gateway."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numpy as np
import psutil
import pytest
from loguru import logger

from ajet.engine.scripted import ScriptedReply
from ajet_aworld import tool_environment
from ajet_environments.hosting.lifetime import start_environment, stop_environment
from ajet_gaia.catalogue import SEED_NAMES
from ajet_mcp.running_environments import running
from ajet_proof.recorded.prove import prove_record
from tests.docs.snippets import ROOT, blocks
from tests.mcp_servers.plain_http import PlainServer
from tests.support.aworld_fixtures import (
    NOTES,
    PRINTED,
    call,
    loop_from,
    played,
    program,
    question,
    require_exact,
    results,
)

pytest.importorskip("aworld")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """A small environment on this machine: one server, which keeps an episode's notes, of the nineteen names."""
    place = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AJET_STATE", str(place))
        for name in ("MCP_SERVER_URL", "MCP_SERVER_TOKEN"):
            patch.delenv(name, raising=False)
        file = place / "notes.yaml"
        server = program(NOTES).replace("}", f", aliases: [{SEED_NAMES[0]}]}}")
        file.write_text(f"name: notes\nmcpServers: {{all: {server}}}\n")
        yield start_environment(str(file), port=0)
        if running("notes") is not None:
            stop_environment("notes")


def writes_and_reads(request) -> str:
    told = results(request)
    if not told:
        return call("note", f'{{"text":  "of {question(request)}"}}')
    return call("notes") if len(told) == 1 else f"It says: {told[-1]}"


def play_at_once(folder, monkeypatch, isolation, tasks, repeats, code=PRINTED) -> None:
    monkeypatch.chdir(folder)
    loop = loop_from(folder, code, "GaiaAgentLoop")
    settings = {"user_workflow": "agent.py->GaiaAgentLoop", "isolation": isolation, "num_repeat": repeats}
    with played(
        loop, writes_and_reads, folder=folder, max_env_worker=2 if isolation == "process" else 6, **settings
    ) as made:
        episodes = [episode for group in made.play(tasks) for episode in group.episodes]
    assert len(episodes) == tasks * repeats
    for episode in episodes:
        require_exact(episode)
        assert len(episode.calls) == 3 and {each.agent for each in episode.calls} == {"gaia_super_agent"}
        assert episode.metadata["final_answer"] == f"It says: of {episode.task.main_query}"
    assert set(os.listdir(folder)) <= {"agent.py", "__pycache__"}


def test_the_printed_agent_plays_episodes_at_once_each_with_tools_of_its_own(notes, tmp_path, monkeypatch):
    tool_environment._warned.clear()
    said: list[str] = []
    number = logger.add(said.append, format="{message}", level="WARNING")
    play_at_once(tmp_path, monkeypatch, "thread", 2, 1)
    logger.remove(number)
    [line] = [line for line in said if "has no server" in line]
    names = line.partition("has no server ")[2].partition(":")[0].split(", ")
    assert notes.address in line and names == list(SEED_NAMES[1:]), "the names of the page that this environment lacks"


@pytest.mark.extra_slow
@pytest.mark.parametrize("isolation", ["thread", "loop", "process"])
def test_on_every_isolation(notes, tmp_path, monkeypatch, isolation):
    documented = next(block.text for block in blocks(ROOT / "docs" / "aworld.md") if block.title == "gaia.py")
    play_at_once(tmp_path, monkeypatch, isolation, 2, 3, documented)


@pytest.mark.extra_slow
def test_the_chinese_pages_agent_has_no_key(notes, tmp_path, monkeypatch):
    key = '                llm_api_key="dummy",\n'
    code = PRINTED.replace(key, "").replace("<your_system_prompt>", "你的系统提示")
    assert key not in code and key in PRINTED
    play_at_once(tmp_path, monkeypatch, "loop", 2, 1, code)


@pytest.mark.extra_slow
def test_its_import_silences_nobody(tmp_path):
    """Sinks of others get their lines, and lines that a user writes by AWorld's logger."""
    said: list[str] = []
    number = logger.add(said.append, format="{message}", level="DEBUG")
    from aworld.logs.util import logger as theirs
    from aworld.utils.import_package import import_package

    theirs.info("from a reward function {x}")
    logger.info("from ajet")
    logger.remove(number)
    assert [line.strip() for line in said] == ["from a reward function {x}", "from ajet"]
    with pytest.raises(ImportError, match="install it"):
        import_package("no_such_package_at_all")


@pytest.mark.extra_slow
def test_agents_may_import_aworld_where_they_are_built():
    """Then ours is the first import of AWorld's, whose modules are circles in other orders than its users'."""
    code = "import ajet_aworld.agent_loop; from ajet_aworld import isolation, play"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.extra_slow
def test_an_environment_that_loses_what_was_done_fails_the_episode(notes, tmp_path):
    loop = loop_from(tmp_path, PRINTED, "GaiaAgentLoop")
    with played(loop, lambda asked: "fine" if results(asked) else call("die"), max_retries=0) as made:
        episode = made.episode()
    assert episode.failure is not None and episode.failure.boundary == "environment", episode.failure
    assert "environment was lost during the episode: all:" in episode.failure.message


@pytest.mark.extra_slow
def test_where_nothing_answers_the_environment_of_this_machine_is_named(notes, tmp_path, monkeypatch):
    monkeypatch.setenv("MCP_SERVER_URL", "http://localhost:9/mcp")
    loop = loop_from(tmp_path, PRINTED, "GaiaAgentLoop")
    with played(loop, lambda _: "never", max_retries=0) as made:
        episode = made.episode()
        assert made.engine.requests == 0
    assert episode.failure is not None and episode.failure.boundary == "environment"
    assert f"notes at http://127.0.0.1:{notes.port}/mcp" in episode.failure.message


TOOLS = """
import sys
from aworld.agents.llm_agent import Agent
from aworld.config import AgentConfig
from train.adapter.verl.aworld_agent_loop import AworldAgentLoop

class Loop(AworldAgentLoop):
    def build_agents(self):
        conf = AgentConfig(llm_base_url=self.get_llm_server_address(), llm_model_name="m", llm_api_key="dummy")
        return Agent(name="a", conf=conf, mcp_servers=SERVERS, mcp_config={"mcpServers": CONFIG})
"""


@pytest.mark.extra_slow
@pytest.mark.parametrize(
    ("servers", "config"),
    [
        (["gone"], {"gone": {"command": "no-such-command"}}),
        (["here", "gone"], {"here": {"command": sys.executable, "args": ["-I", str(NOTES)]},
                            "gone": {"type": "streamable-http", "url": "http://127.0.0.1:9/mcp"}}),
        (["a-name-of-none"], {"here": {"command": sys.executable, "args": ["-I", str(NOTES)]}}),
    ],
    ids=["command", "one of two", "no such key"],
)  # fmt: skip
def test_tools_that_did_not_start_are_a_failure_of_tools(tmp_path, servers, config):
    loop = loop_from(tmp_path, f"{TOOLS}\nSERVERS, CONFIG = {servers!r}, {config!r}\n", "Loop")
    with played(loop, lambda _: "I have no tools", max_retries=0) as made:
        episode = made.episode()
    assert episode.failure is not None and episode.failure.boundary == "tool", episode.failure
    assert servers[-1] in episode.failure.message


@pytest.mark.extra_slow
def test_a_call_that_no_server_answered_is_made_once_and_fails_the_episode(tmp_path):
    here = {"here": {"command": sys.executable, "args": ["-I", str(NOTES)]}}
    loop = loop_from(tmp_path, f"{TOOLS}\nSERVERS, CONFIG = ['here'], {here!r}\n", "Loop")
    with played(loop, lambda asked: "fine" if results(asked) else call("die"), max_retries=0) as made:
        episode = made.episode()
    assert episode.failure is not None and episode.failure.boundary == "tool", episode.failure
    assert (
        "a tool call was lost: here__die" in episode.failure.message and "ClosedResource" not in episode.failure.message
    )


@pytest.mark.extra_slow
def test_a_long_result_reaches_the_model_whole(tmp_path):
    server = PlainServer("legacy").start()
    server.tools = [each for each in server.tools if each["name"] == "big"]  # AWorld reads one page of a list
    config = {"plain": {"type": "streamable-http", "url": server.url}}
    loop = loop_from(tmp_path, f"{TOOLS}\nSERVERS, CONFIG = ['plain'], {config!r}\n", "Loop")
    seen: list[str] = []

    def script(request) -> str:
        seen[:] = results(request)
        return "done" if seen else call("big", '{"size": 12000}')

    with played(loop, script) as made:
        require_exact(made.episode())
    server.shutdown()
    server.server_close()
    assert seen == ["x" * 12_000]


@pytest.mark.extra_slow
def test_a_model_that_fails_is_asked_once_and_no_prompt_is_left_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop = loop_from(tmp_path, f"{TOOLS}\nSERVERS, CONFIG = None, {{}}\n", "Loop")
    with played(loop, lambda _: ScriptedReply(text="x", fail_after=0), max_retries=0) as made:
        episode = made.episode()
        assert made.engine.requests == 1
    assert episode.failure is not None and set(os.listdir(tmp_path)) <= {"agent.py", "__pycache__"}


def held() -> tuple[float, int, int]:
    """MiB, descriptors and threads of this process."""
    gc.collect()
    process = psutil.Process()
    return process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()


@pytest.mark.extra_slow
@pytest.mark.parametrize("isolation", ["thread", "loop"])
def test_three_hundred_episodes_leave_nothing(notes, tmp_path, isolation):
    """Each with a tool; the growth after the first hundred is that of the record that the test itself keeps."""
    loop = loop_from(tmp_path, PRINTED, "GaiaAgentLoop")
    seen = []
    with played(loop, writes_and_reads, isolation=isolation, num_repeat=5, max_env_worker=5) as made:
        for _ in range(15):
            for group in made.play(4):
                assert all(episode.failure is None for episode in group.episodes)
            made.seen.clear()
            seen.append(held())
    memory, files, threads = zip(*seen[5:], strict=True)
    assert max(files) - min(files) <= 8 and files[-1] - files[0] <= 4, files
    assert threads[-1] - threads[0] <= 4, threads
    slope = np.polyfit(np.arange(len(memory)) * 20, memory, 1)[0]
    assert slope < 0.05, f"{slope:.3f} MiB an episode: {memory}"


CUSTOM = '''
from train.trainer.trainer_processor import TrainerProcessor
from typing import Union, Callable, Any
from datasets import Dataset
from aworld.agents.llm_agent import Agent
from aworld.logs.util import logger

class MyFrameworkTrainer(TrainerProcessor):
    """My custom training framework adapter."""

    def __init__(self, run_path: str):
        super().__init__(run_path)
        self.framework_config = None

    def train(self):
        logger.info("Starting training with MyFramework...")
        logger.info("Training completed!")

    def check_agent(self, agent: Union[str, Agent]):
        if isinstance(agent, str):
            logger.info(f"Loading agent from {agent}")
        else:
            logger.info("Validating Agent object")

    def check_dataset(self,
                      dataset: Union[str, Dataset] = None,
                      test_dataset: Union[str, Dataset] = None):
        if dataset:
            if isinstance(dataset, str):
                logger.info(f"Loading dataset from {dataset}")
            else:
                logger.info("Validating dataset format")
        if test_dataset:
            pass

    def check_reward(self, reward_func: Union[str, Callable[..., Any]] = None):
        if reward_func:
            if isinstance(reward_func, str):
                logger.info(f"Loading reward function from {reward_func}")
            elif callable(reward_func):
                logger.info("Validating reward function")
            else:
                raise ValueError("Reward func must be callable or file path")

    def check_config(self, config: Union[str, Any] = None):
        if config is None:
            config = self.get_default_config()
        elif isinstance(config, str):
            logger.info(f"Loading config from {config}")
        self.framework_config = config
        return config

    @staticmethod
    def get_default_config():
        return {
            'learning_rate': 1e-4,
            'batch_size': 32,
            'epochs': 10,
            'warmup_steps': 1000,
        }
'''


def test_the_printed_processor_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kind = loop_from(tmp_path, CUSTOM, "MyFrameworkTrainer")
    from aworld.agents.llm_agent import Agent
    from aworld.config import AgentConfig

    from train.trainer.agent_trainer import AgentTrainer

    my_agent = Agent(name="a", conf=AgentConfig(llm_provider="openai", llm_model_name="m", llm_api_key="k"))
    said: list[str] = []
    number = logger.add(said.append, format="{message}", level="INFO")
    AgentTrainer.register_processor("my_framework", kind)
    trainer = AgentTrainer(agent=my_agent, train_engine_name="my_framework")
    trainer.train()
    AgentTrainer.unregister_processor("my_framework")
    logger.remove(number)
    assert [line.strip() for line in said] == [
        "Validating Agent object", "All check finished.", "Starting training with MyFramework...", "Training completed!"
    ]  # fmt: skip
    assert trainer.train_processor.framework_config["batch_size"] == 32 and (tmp_path / "runs").is_dir()


@pytest.mark.extra_slow
def test_an_agent_object_trains_and_its_run_is_proven(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from aworld.agents.llm_agent import Agent
    from aworld.config import AgentConfig

    from train.trainer.agent_trainer import AgentTrainer

    (tmp_path / "score.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return float(len(solution_str) % 7) / 7 + (ground_truth == '2')\n"
    )
    conf = AgentConfig(llm_provider="openai", llm_model_name="m", llm_api_key="very-secret", llm_temperature=1.0)
    rows = [{"question": f"{n}+{n}?", "answer": str(2 * n)} for n in range(1, 5)]
    config = {
        "experiment_name": "t", "model": {"path": "embedded:tiny-tools", "dtype": "float32"},
        "data": {"train_batch_size": 2}, "rollout": {"num_repeat": 3, "max_response_length_in_one_turn": 12},
        "trainer_common": {"total_training_steps": 1, "use_kl_loss": False, "threads": 1},
    }  # fmt: skip
    trainer = AgentTrainer(
        agent=Agent(name="a", conf=conf, system_prompt='Say "it", {{task}}.'), train_dataset=rows, config=config,
        reward_func="score.py", run_path="out", train_engine_name="local",
    )  # fmt: skip
    trainer.train()
    report = prove_record(str(tmp_path / "out" / "t"), tmp_path / "out")
    assert report.proof.ok, str(report.proof)
    text = "".join(path.read_text() for path in (tmp_path / "out" / "t").glob("*.yaml"))
    assert "very-secret" not in text and not list(tmp_path.rglob("a.py"))
