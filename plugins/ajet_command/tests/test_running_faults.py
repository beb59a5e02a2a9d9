"""Commands that hang, multiply, devour, flood, die or escape: each costs its own episode, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ajet.schema.errors import AgentFailure
from ajet.schema.task import Task, WorkflowOutput
from ajet.workflow import CommandWorkflow
from ajet_command.running import CommandSpec, RunningCommand
from tests.support.command_agents import agent, answer, program, shell
from tests.support.rollouts import HoldsNothing, stage, time_is_up

pytestmark = pytest.mark.slow

MARK = "LC_AJET_TEST_MARK"  # of the variables that commands inherit


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """In the environment of everything that a test's commands start."""
    name = f"{os.getpid()}-{tmp_path.name}"
    monkeypatch.setenv(MARK, name)
    return name


def living(mark: str) -> list[psutil.Process]:
    """The processes that bear the mark, but for this one."""
    found = []
    for process in psutil.process_iter():
        try:
            marked = process.pid != os.getpid() and process.environ().get(MARK) == mark
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def fails(folder: Path, **section: Any) -> AgentFailure:
    """The failure that the command comes to."""
    with agent(folder, "said", **section) as (_, run), pytest.raises(AgentFailure) as failed:
        run()
    return failed.value


ESCAPES = {
    "itself": "sleep 600",
    "children": "sleep 600 & sleep 601 & wait",
    "deaf to SIGTERM": "trap '' TERM INT HUP; while :; do sleep 0.1; done",
    "a daemon in a session of its own": "setsid sh -c 'sleep 600 & sleep 601' & setsid sleep 602 & wait",
    "a daemon whose parents are gone": "(setsid sh -c '(sleep 600 &) ; (sleep 601 &)' &) ; sleep 602",
}


@pytest.mark.parametrize("script", ESCAPES.values(), ids=ESCAPES.keys())
def test_a_hang_ends_at_its_timeout_with_everything_it_started(script, mark, tmp_path):
    for seconds in (0.5, 5.0, 50.0):  # on a busy machine it may not have begun by then
        failure = fails(tmp_path, command=shell(f"echo begun; {script}"), timeout=seconds)
        assert type(failure).__name__ == "CommandTimedOut" and f"within {seconds:g} seconds" in str(failure)
        assert living(mark) == []
        if "begun" in str(failure):
            return
    raise AssertionError(f"what it printed is not told: {failure}")


def test_what_a_command_leaves_behind_ends_with_it(mark, tmp_path):
    with agent(tmp_path, command=shell("setsid sleep 600 > /dev/null 2>&1 & echo done")) as (_, run):
        assert answer(run()) == "done\n" and living(mark) == []


def test_a_child_that_holds_the_output_open_does_not_hold_us(mark, tmp_path):
    with agent(tmp_path, command=shell("setsid sleep 600 & echo done"), timeout=120) as (_, run):
        assert answer(run()) == "done\n" and living(mark) == []


FORKS = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
    except OSError:
        time.sleep(0.01)
"""


def test_a_fork_bomb_is_ended(mark, tmp_path):
    failure = fails(tmp_path, command=["{python}", "-c", FORKS], limits={"processes": 20}, timeout=120)
    assert "more than 20 processes" in str(failure) and living(mark) == []


EATS = """
import time
held = []
while True:
    held.append(bytearray(b"x" * (8 << 20)))
    time.sleep(0.02)
"""


def test_a_command_that_devours_memory_is_ended_before_the_machine_is(mark, tmp_path):
    failure = fails(tmp_path, command=["{python}", "-c", EATS], limits={"memory_mb": 200}, timeout=60)
    assert "memory" in str(failure).lower() and living(mark) == []


def test_memory_counts_over_the_whole_tree(mark, tmp_path):
    eater = "import time; held = bytearray(b'x' * (60 << 20)); time.sleep(600)"
    script = f'for n in 1 2 3 4; do {sys.executable} -c "{eater}" & done; wait'
    failure = fails(tmp_path, command=shell(script), limits={"memory_mb": 150}, timeout=60)
    assert "more than 150 MB" in str(failure) and living(mark) == []


def test_one_allocation_past_twice_the_limit_never_succeeds(mark, tmp_path):
    failure = fails(tmp_path, command=["{python}", "-c", "bytearray(1 << 30)"], limits={"memory_mb": 200}, timeout=60)
    assert "MemoryError" in str(failure)


def test_cpu_time_is_bounded(mark, tmp_path):
    failure = fails(tmp_path, command=shell("while :; do :; done"), limits={"cpu_seconds": 0.5}, timeout=60)
    assert "more than 0.5 seconds of CPU time" in str(failure) and living(mark) == []


@pytest.mark.parametrize("where", ["", " >&2"], ids=["stdout", "stderr"])
def test_a_flood_of_output_is_ended_and_little_of_it_is_held(where, mark, tmp_path):
    failure = fails(tmp_path, command=shell(f"yes flood{where}"), limits={"output_mb": 1}, timeout=60)
    assert "more than 1 MB of output" in str(failure) and len(str(failure)) < 3000 and living(mark) == []


def test_a_file_that_grows_without_end_is_cut_off(mark, tmp_path):
    failure = fails(tmp_path, command=shell("exec head -c 100m /dev/zero > big"), limits={"file_mb": 1}, timeout=60)
    assert f"signal {signal.SIGXFSZ.value}" in str(failure)


def test_a_program_that_is_not_there(tmp_path):
    assert "no-such-program could not be run: FileNotFoundError" in str(fails(tmp_path, command=["no-such-program"]))
    (tmp_path / "plain").write_text("text")
    assert "PermissionError" in str(fails(tmp_path, command=[str(tmp_path / "plain")]))


def test_a_failure_says_how_it_ended_and_what_was_said_without_the_key(tmp_path):
    failure = str(fails(tmp_path, command=shell('echo "my key is $OPENAI_API_KEY" >&2; exit 7')))
    assert "exit code 7" in failure and "my key is [redacted key]" in failure
    assert "signal 11" in str(fails(tmp_path, command=shell("kill -SEGV $$")))


def test_a_task_that_no_command_can_be_given(tmp_path):
    with agent(tmp_path, command=["echo", "{task}"]) as (_, run), pytest.raises(AgentFailure, match="NUL"):
        run(Task(main_query="a\0b", task_id="n"))
    with agent(tmp_path, command=["echo", "{task}"]) as (_, run), pytest.raises(AgentFailure, match="Argument list"):
        run(Task(main_query="x" * 200_000, task_id="n"))


def test_an_answer_outside_of_the_folder_is_none_of_its(tmp_path):
    (tmp_path / "secret").write_text("secret")
    failure = fails(tmp_path, command=shell(f"ln -s {tmp_path}/secret answer"), answer="file:answer")
    assert "outside" in str(failure)
    assert "outside" in str(fails(tmp_path, command=["true"], files={"../x": "y"}))


@pytest.mark.parametrize("script", ["mkfifo answer", "mkdir answer", "ln -s answer answer", "ln -s /dev/zero answer"])
def test_an_answer_that_is_no_file_holds_nobody(script, tmp_path):
    with agent(tmp_path, command=shell(script), answer="file:answer") as (_, run):
        try:
            assert answer(run()) == ""
        except AgentFailure as failure:
            assert "outside" in str(failure) or "answer" in str(failure)


def test_a_folder_that_the_agent_locked_goes_all_the_same(tmp_path):
    with agent(tmp_path, command=shell("mkdir -p a/b; touch a/b/c; chmod 000 a/b a")) as (_, run):
        run()
    assert list((tmp_path / "episodes").iterdir()) == []


def test_stopping_from_another_thread_ends_it_before_it_began_too(mark, tmp_path):
    for wait in (0.0, 0.3):
        running = RunningCommand(CommandSpec(["sleep", "600"], tmp_path, dict(os.environ)))
        timer = threading.Timer(wait, running.stop)
        if wait:
            timer.start()
        else:
            running.stop()
        ended = running.wait()
        assert ended.ended_by == "stopped" and living(mark) == []


def test_a_keeper_that_is_killed_is_a_failed_episode(tmp_path):
    failure = fails(tmp_path, command=shell("kill -9 $PPID; sleep 0.2"))
    assert "another process ended the process that supervises the command" in str(failure)


def test_a_keeper_that_is_killed_before_it_has_read_its_order_leaves_no_descriptor(tmp_path):
    running = RunningCommand(CommandSpec(["sleep", "600"], tmp_path, dict(os.environ)))
    keeper = running.keeper
    os.killpg(keeper.pid, signal.SIGKILL)
    keeper.wait()
    ended = running.wait()
    assert (ended.code, ended.ended_by, ended.problem) == (
        None,
        "stopped",
        "another process ended the process that supervises the command",
    )
    assert all(pipe is not None and pipe.closed for pipe in (keeper.stdin, keeper.stdout, keeper.stderr))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(running.report)


class Fine(HoldsNothing):
    """Any answer is worth 1."""

    async def verdict(self, workflow_task: Any, output: WorkflowOutput) -> Any:
        from ajet.schema.episode import Verdict

        return Verdict(1.0)


@pytest.mark.parametrize("isolation", ["thread", "loop", pytest.param("process", marks=pytest.mark.slow)])
def test_the_episodes_own_limit_ends_the_command_and_no_other_episode(isolation, mark, tmp_path):
    program(
        tmp_path / "agent.py",
        """
        import time
        print(ask(os.environ["AJET_TASK"]))
        sys.stdout.flush()
        if os.environ["AJET_TASK"] == "task 0":
            open(f"{os.path.dirname(__file__)}/hangs {os.getpid()}", "x").close()
            time.sleep(600)
        """,
    )
    sections = {"command_agent": {"command": ["{python}", "{base}/agent.py"], "folders": str(tmp_path / "f")}}
    options: dict[str, Any] = {"isolation": isolation, "user_workflow": "ajet.workflow->CommandWorkflow"}
    limits = {"max_retries": 0, **options}

    def all_others_have_ended() -> bool:
        return len(played.seen) == 2 and len(list(tmp_path.glob("hangs *"))) == 2

    with (
        time_is_up(all_others_have_ended),
        stage(CommandWorkflow, folder=tmp_path, judge=Fine(), sections=sections, **limits) as played,
    ):
        episodes = [episode for group in played.play(2) for episode in group.episodes]
        states = sorted((episode.task.task_id, episode.status) for episode in episodes)
        assert states == [("t0", "failed")] * 2 + [("t1", "completed")] * 2, [e.failure for e in episodes]
        _until(lambda: not any("agent.py" in _line(process) for process in living(mark)))


def test_an_agent_that_never_asks_the_model_is_a_failed_episode(tmp_path):
    sections = {"command_agent": {"command": ["true"]}}
    with stage(CommandWorkflow, folder=tmp_path, judge=Fine(), sections=sections) as played:
        failure = played.episode().failure
        assert failure is not None and failure.kind == "no_model_call"


KILLED = """
import os, sys
from pathlib import Path
from ajet_command.running import CommandSpec, RunningCommand
command = ["sh", "-c", "setsid sleep 600 & echo up > up; sleep 601"]
running = RunningCommand(CommandSpec(command, Path(sys.argv[1]), dict(os.environ)))
print("begun", flush=True)
running.wait()
"""


def test_when_ajet_is_killed_its_commands_end(mark, tmp_path):
    ajet = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
    assert ajet.stdout is not None and ajet.stdout.readline() == b"begun\n"
    _until((tmp_path / "up").exists)
    assert len(living(mark)) >= 4
    ajet.kill()
    ajet.wait()
    _until(lambda: living(mark) == [])


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)
