"""Agents that are a command line: what they are given, what is read from them, and how they are told apart."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from loguru import logger

from ajet.config import Experiment
from ajet.rollout.components import load_workflow
from ajet.schema.errors import AgentFailure, ConfigError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.workflow import CommandWorkflow
from tests.docs.snippets import ROOT, blocks
from tests.support.command_agents import TASK, agent, answer, program, shell
from tests.support.rollouts import HoldsNothing, stage
from tests.support.sandbox_fixtures import require
from tests.support.workflow_fixtures import scene

pytestmark = pytest.mark.slow


def test_a_command_plays_a_turn_and_its_call_is_captured(tmp_path):
    program(tmp_path / "agent.py", "print(ask(sys.argv[1]))")
    with agent(tmp_path, "It is 42.", command=["{python}", "{base}/agent.py", "{task}"]) as (played, run):
        output = run()
        assert answer(output) == "It is 42.\n"
        assert output.metadata["command"]["exit_code"] == 0 and output.reward is None
        assert output.log_metrics["command_seconds"] > 0 and output.log_metrics["command_memory_mb"] > 1
        (call,) = played.session.close().calls
        assert call.trained and call.finish == "stop" and len(call.response_ids)


def test_what_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "a secret of the launching shell")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-own")
    monkeypatch.setenv("PLAIN", "plain")
    env = {
        "NAMED": "${oc.env:PLAIN}",
        "EXTRA": "{task_id}:{model}:{metadata.hint}",
        "OTHER_KEY": "{api_key}",
        "PATH_TO": "{folder}",
        "GONE": None,
    }
    command = ["{python}", "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    with agent(tmp_path, command=command, env=env, agent="coder") as (played, run):
        seen = json.loads(answer(run()).replace("[redacted key]", "KEY"))
        base = played.gateway.base_url
        assert (seen["OPENAI_BASE_URL"], seen["OPENAI_API_BASE"], seen["AJET_BASE_URL"]) == (base, base, base)
        assert seen["ANTHROPIC_BASE_URL"] == seen["GOOGLE_GEMINI_BASE_URL"] == base.removesuffix("/v1")
        keys = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AJET_API_KEY", "OTHER_KEY")
        assert {seen[name] for name in keys} == {"KEY"}
        assert (seen["AJET_TASK"], seen["AJET_TASK_ID"]) == ("What is 40 + 2?", "sum")
        assert seen["EXTRA"] == f"sum:{seen['AJET_MODEL']}:add" and seen["NAMED"] == "plain"
        assert "SOME_API_KEY" not in seen and "127.0.0.1" in seen["NO_PROXY"]
        assert seen["PWD"] == seen["PATH_TO"] and seen["PWD"].startswith(str(tmp_path / "episodes"))
        drawn = (seen["PWD"], str(Path(seen["AJET_TASK_FILE"]).parent))  # folders whose names are
        told = {name: value.replace(drawn[0], "").replace(drawn[1], "") for name, value in seen.items()}
        assert "42" not in json.dumps({name: value for name, value in told.items() if name.startswith("AJET_TASK")})


def test_of_ajets_own_environment_it_gets_what_a_program_needs_and_no_secret(tmp_path, monkeypatch):
    secrets = {
        "GITHUB_PAT": "ghp_0123456789abcdefghijklmnop",
        "DATABASE_URL": "postgres://me:hunter2hunter2@db/x",
        "DB_PASS": "hunter3hunter3",
        "PGPASSWORD": "hunter4hunter4",
        "OPENAIKEY": "hunter5hunter5",
        "OPENAI_ORG": "hunter6hunter6",
        "UNREMARKABLE": "hunter7hunter7",
        "NODE_PATH": "https://me:hunter8hunter8@registry/x",
    }
    proxies = {"HTTPS_PROXY": "http://me:hunter9hunter9@proxy:3128", "http_proxy": "me:hunter9hunter9@proxy:3128"}
    kept = {"LANG": "C.UTF-8", "LC_TIME": "C", "SSL_CERT_FILE": "/certificates.pem", "ALL_PROXY": "socks5://proxy:1080"}
    for name, value in {**secrets, **proxies, **kept}.items():
        monkeypatch.setenv(name, value)
    noted = []
    sink = logger.add(noted.append, level="INFO", format="{message}")
    try:
        with agent(tmp_path, command=shell("env"), env={"DB_PASS": "${oc.env:DB_PASS}"}) as (_, run):
            printed = answer(run())
            again = answer(run())
    finally:
        logger.remove(sink)
    seen = dict(line.partition("=")[::2] for line in printed.splitlines())
    assert seen["DB_PASS"] == "hunter3hunter3", "what `env:` names is given"
    assert [n for n in "2456789" if f"hunter{n}" in printed + again] == []
    assert (seen["HTTPS_PROXY"], seen["http_proxy"]) == ("http://proxy:3128", "proxy:3128")
    assert {name: seen.get(name) for name in kept} == kept and seen["PATH"] == os.environ["PATH"]
    (note,) = [line for line in noted if "GITHUB_PAT" in line]
    assert "UNREMARKABLE" in note and "DB_PASS" not in note and "hunter" not in note


def test_the_key_is_in_no_argument_of_any_process(tmp_path):
    look = "import os, subprocess; print(subprocess.run(['ps', '-eo', 'args'], capture_output=True, text=True).stdout)"
    with agent(tmp_path, command=["{python}", "-c", look], limits={"output_mb": 16}) as (played, run):
        arguments = answer(run())
        assert "subprocess" in arguments and "keeper.py" in arguments
        assert "[redacted key]" not in arguments and played.tuner.as_oai_baseurl_apikey().api_key not in arguments
    with pytest.raises(ConfigError, match="must not be an argument"), agent(tmp_path, command="run {api_key}"):
        pass


def test_the_task_as_a_file_has_what_the_yaml_lets_through(tmp_path):
    with agent(tmp_path, command=shell('cat "$AJET_TASK_FILE"'), metadata=["hint"]) as (_, run):
        told = json.loads(answer(run()))
        assert told == {
            "task_id": "sum",
            "main_query": TASK.main_query,
            "init_messages": [],
            "metadata": {"hint": "add"},
        }


def test_the_task_by_standard_input_and_nothing_otherwise(tmp_path):
    long = Task(main_query="äß \n" * 100_000, task_id="long")
    with agent(tmp_path, command=["wc", "-c"], stdin="task") as (_, run):
        assert int(answer(run(long))) == len(long.main_query.encode())
    with agent(tmp_path, command=shell("cat; echo end [$AJET_TASK]")) as (_, run):
        assert answer(run(long)) == "end []\n", "a variable that long fits into no environment"


def test_a_task_given_as_messages_is_its_last_question(tmp_path):
    messages = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "?"}]
    task = Task(init_messages=[*messages, {"role": "user", "content": "last"}], task_id="m")
    with agent(tmp_path, command=["echo", "{task}"]) as (_, run):
        assert answer(run(task)) == "last\n"


def test_arguments_are_no_shell_and_unknown_braces_stay(tmp_path):
    nasty = Task(main_query="$(touch /tmp/x); `id` {base} \"'", task_id="n")
    command = ["printf", "%s|", "{task}", '{"json": 1}', "{unknown}", "{metadata.none}"]
    with agent(tmp_path, command=command) as (_, run):
        assert answer(run(nasty)) == f'{nasty.main_query}|{{"json": 1}}|{{unknown}}|{{metadata.none}}|'
    with agent(tmp_path, command="printf '%s' 'two words'") as (_, run):
        assert answer(run()) == "two words"


def test_every_episode_begins_with_a_fresh_copy_of_the_template(tmp_path):
    (tmp_path / "start" / "deep").mkdir(parents=True)
    (tmp_path / "start" / "deep" / "file.txt").write_text("original")
    (tmp_path / "start" / "link").symlink_to("deep/file.txt")
    command = shell("cat deep/file.txt link conf/a.toml; echo changed > deep/file.txt; ls -A | wc -l")
    files = {"conf/a.toml": "[{base_url}]"}
    with agent(tmp_path, command=command, template="start", files=files) as (played, run):
        expected = f"originaloriginal[{played.gateway.base_url}]3\n"
        assert answer(run()) == answer(run()) == expected
    assert (tmp_path / "start" / "deep" / "file.txt").read_text() == "original"


def test_a_home_of_its_own(tmp_path):
    with agent(tmp_path, command=shell('cd; pwd; echo x > "$HOME/.rc"'), home=True) as (_, run):
        assert answer(run()).strip().endswith("/home")
    with agent(tmp_path, command=shell('echo "$HOME"')) as (_, run):
        assert answer(run()).strip() == os.environ["HOME"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("stdout", "thinking\n\nthe answer\n\n"),
        ("last_line", "the answer"),
        ("file:out/a.txt", "in a file\n"),
        ("file:no", ""),
        ("file:out/a.json#info.text", "a value"),
        ("file:out/a.json#info.none", ""),
        ("file:out/a.txt#info", ""),
        ("file:~/home.txt", "at home"),
    ],
)
def test_where_the_answer_is(how, said, tmp_path):
    files = {"out/a.json": '{"info": {"text": "a value"}}', "~/home.txt": "at home"}
    command = shell("mkdir -p out; echo in a file > out/a.txt; printf 'thinking\\n\\nthe answer\\n\\n'; echo noise >&2")
    with agent(tmp_path, command=command, answer=how, files=files, home=True) as (_, run):
        output = run()
        assert answer(output) == said and output.metadata["command"]["stderr"] == "noise\n"


def test_folders_may_be_kept(tmp_path):
    with agent(tmp_path, command=shell("echo x > made"), keep="always") as (_, run):
        run()
    (folder,) = (tmp_path / "episodes").iterdir()
    assert (folder / "work" / "made").read_text() == "x\n" and folder.stat().st_mode & 0o077 == 0
    shutil.rmtree(tmp_path / "episodes")
    section: dict[str, Any] = {"command": shell("exit $(wc -c < $AJET_TASK_FILE)"), "keep": "failed"}
    with pytest.raises(AgentFailure), agent(tmp_path, **section) as (_, run):
        run()
    assert len(list((tmp_path / "episodes").iterdir())) == 1


def test_exit_codes_that_are_not_failures(tmp_path):
    with agent(tmp_path, command=shell("echo late; exit 3"), exit_codes=[0, 3]) as (_, run):
        assert run().metadata["command"]["exit_code"] == 3
    with agent(tmp_path, command=shell("kill -9 $$"), exit_codes="any") as (_, run):
        assert run().metadata["command"]["exit_code"] == -9


def test_a_timeout_may_be_judged(tmp_path):
    told = []
    for seconds in (0.5, 5.0, 50.0):  # on a busy machine it may not have begun by then
        with agent(tmp_path, command=shell("echo so far; sleep 60"), timeout=seconds, on_timeout="judge") as (_, run):
            output = run()
            assert output.metadata["command"]["ended_by"] == "timeout"
            told.append(answer(output))
        if told[-1]:
            break
    assert told[-1] == "so far\n"


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({}, "command_agent.command"),
        ({"command": []}, "command_agent.command"),
        ({"command": ["a"], "answer": "file"}, "command_agent.answer"),
        ({"command": ["a"], "limits": {"memory_mb": -1}}, "command_agent.limits.memory_mb"),
        ({"command": ["a"], "limits": {"memory": 1}}, "command_agent.limits.memory"),
        ({"command": ["a"], "timout": 1}, "command_agent.timout"),
        ({"command": ["a"], "template": "nowhere"}, "template"),
        ({"comand": ["a"]}, "command_agent.comand"),
        (None, "command_agent"),
    ],
    ids=str,
)
def test_a_section_that_cannot_be_used_is_refused_before_the_run(section, named, tmp_path):
    tree: dict[str, Any] = {"ajet": {"rollout": {"user_workflow": "ajet.workflow->CommandWorkflow"}}}
    if section is not None:
        tree["command_agent"] = section
    with pytest.raises(ConfigError) as refused:
        load_workflow(Experiment.from_dict(tree, base=tmp_path))
    assert refused.value.where == named


@pytest.mark.parametrize(
    ("tree", "do"),
    [
        ({"command_agent": {"comand": ["a"]}}, "did you mean command_agent.command?"),
        ({"comand_agent": {"command": ["a"]}}, "did you mean the section comand_agent? Rename it to command_agent"),
    ],
)
def test_a_slip_in_a_name_of_the_section_is_told(tree, do, tmp_path):
    ajet = {"rollout": {"user_workflow": "ajet.workflow->CommandWorkflow"}}
    with pytest.raises(ConfigError) as refused:
        load_workflow(Experiment.from_dict({"ajet": ajet, **tree}, base=tmp_path))
    assert refused.value.do == do


class OfItsOwn(CommandWorkflow):
    """Reads a section of its own, and gives the reward itself."""

    section = "tests_agent"

    def outcome(self, workflow_task: WorkflowTask, ended: Any, answer: str) -> WorkflowOutput:
        output = super().outcome(workflow_task, ended, answer)
        output.reward = float(answer.strip() == workflow_task.task.metadata["answer"])
        return output


def test_a_subclass_has_its_own_section_and_outcome(tmp_path):
    tree = {"ajet": {}, "tests_agent": {"command": ["echo", "42"]}}
    with scene(config=Experiment.from_dict(tree, base=tmp_path).config) as played:
        output = asyncio.run(OfItsOwn().execute(WorkflowTask(task=TASK), played.tuner))
        assert output.reward == 1.0


@pytest.mark.parametrize(
    "isolation",
    [
        "thread", "loop", pytest.param("process", marks=pytest.mark.slow),
        pytest.param("sandbox", marks=(pytest.mark.slow, pytest.mark.extra_slow)),
    ],
)  # fmt: skip
def test_a_rollout_plays_commands(isolation, tmp_path):
    if isolation == "sandbox":
        require("bubblewrap")
        tmp_path.chmod(0o755)  # for the sandbox's own user
    program(tmp_path / "agent.py", "print(ask(os.environ['AJET_TASK']))")
    sections = {"command_agent": {"command": ["{python}", "{base}/agent.py"], "answer": "last_line"}}

    class LastLine(HoldsNothing):
        async def verdict(self, workflow_task: Any, output: WorkflowOutput) -> Any:
            from ajet.schema.episode import Verdict

            return Verdict(float(output.metadata["final_answer"] == "yes"))

    options: dict[str, Any] = {"isolation": isolation, "user_workflow": "ajet.workflow->CommandWorkflow"}
    with stage(CommandWorkflow, folder=tmp_path, judge=LastLine(), sections=sections, **options) as played:
        groups = played.play(3)
        episodes = [episode for group in groups for episode in group.episodes]
        assert [episode.reward for episode in episodes] == [1.0] * 6, [episode.failure for episode in episodes]
        assert all(len(episode.timelines) == 1 and "command" in episode.metadata for episode in episodes)


def test_calls_of_other_agents_are_recorded_and_not_trained(tmp_path):
    ask = "os.environ['OPENAI_MODEL'] += '@side'; ask('a title'); print('yes')"
    program(tmp_path / "agent.py", "ask(os.environ['AJET_TASK'])", ask)
    section = {"command": ["{python}", "{base}/agent.py"], "trains": ["default"], "verify": {"command": ["true"]}}
    options: dict[str, Any] = {"isolation": "thread", "user_workflow": "ajet.workflow->CommandWorkflow"}
    with stage(CommandWorkflow, folder=tmp_path, sections={"command_agent": section}, **options) as played:
        for group in played.play(1):
            for episode in group.episodes:
                assert episode.reward == 1.0, episode.failure
                assert {call.agent: call.trained for call in episode.calls} == {"default": True, "side": False}
                assert len(episode.timelines) == 1


LOOK = '<tool_call>\n{"name": "bash", "arguments": {"command": "expr 40 + 2"}}\n</tool_call>'
DONE = (
    '<tool_call>\n{"name": "bash", "arguments": {"command": '
    '"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && expr 40 + 2"}}\n</tool_call>'
)


@pytest.mark.slow
def test_a_coding_agent_runs_as_the_page_says(tmp_path, monkeypatch):
    (block,) = (block for block in blocks(ROOT / "docs" / "command_agents.md") if '"mini"' in block.text)
    section = yaml.safe_load(block.text)["command_agent"]
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with agent(tmp_path, LOOK, DONE, **section) as (played, run):
        info = json.loads(answer(run()))["info"]
        assert info["exit_status"] == "Submitted" and info["submission"].strip() == "42"
        calls = played.session.close().calls
        assert len(calls) == 2 and calls[1].parent == 0 and calls[1].fork is None


def test_the_keeper_needs_nothing_but_the_standard_library():
    keeper = Path(sys.modules["ajet.workflow.keeper"].__file__ or "")
    done = subprocess.run([sys.executable, "-I", "-S", str(keeper), "1"], stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 0
