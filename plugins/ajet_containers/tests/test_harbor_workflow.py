"""Episodes of Harbor tasks in containers: the agent, then its verifier, and nothing left of either."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet.schema.errors import AgentFailure, ConfigError, JudgeFailure, SandboxFailure
from ajet_containers.harbor.workflow import HarborWorkflow
from ajet_containers.places import ContainerSpec, open_container
from ajet_containers.settings import ContainerLimits
from ajet_containers.tests.harbor_tasks import RIGHT, WRONG, list_containers, play, write_task
from tests.support.container_fixtures import IMAGE, unpack_image
from tests.support.sandbox_fixtures import require

pytestmark = pytest.mark.extra_slow


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    require("podman")
    yield
    assert list_containers() == []


def test_the_agent_plays_and_the_verifier_rewards(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    output, episode = play(task, "solve(); print('done')", answer="last_line", home=True)
    assert (output.reward, output.metadata["final_answer"]) == (1.0, "done")
    assert output.metadata["flags"] == {} and output.metadata["verifier"]["rewards"] == {"reward": 1.0}
    (call,) = episode.calls
    assert call.trained and len(call.response_ids)
    output, _ = play(task, "solve()", WRONG)
    assert output.reward == 0.0


def test_a_cheating_agent_is_flagged_and_not_rewarded(tmp_path: Path) -> None:
    script = """
    import os, socket, subprocess
    ask("how?")
    os.makedirs("/tests", exist_ok=True)
    open("/tests/check.py", "w").write("passed")
    open("/logs/verifier/reward.json", "w").write('{"reward": 1}')
    open("/usr/bin/true", "w").write("")
    try: socket.create_connection(("192.0.2.1", 80), 1)
    except OSError as error: print(error)
    subprocess.Popen(["setsid", "sleep", "100"])
    """
    output, _ = play(write_task(tmp_path / "task"), script)
    assert output.reward == 0.0
    flags = output.metadata["flags"]
    assert flags["verifier_files"] == ["/logs/verifier/reward.json", "/tests/check.py"]
    assert flags["programs"] == ["/usr/bin/true"] and flags["network_attempts"] >= 1 and flags["processes_left"] == 1
    assert output.log_metrics["flags"]["verifier_files"] == 2


@pytest.mark.parametrize(
    ("verifier", "toml", "why"),
    [
        ("sleep 60", "[verifier]\ntimeout_sec = 1", "did not end within 1 seconds"),
        ("echo nan > /logs/verifier/reward.txt", "", "not a finite number"),
        ("echo broken; exit 1", "", "printed:\nbroken"),
        ("mkfifo /logs/verifier/reward.txt", "", "no regular file"),
        ("ln -s /etc /logs/verifier/reward.json", "", "no regular file"),
        ("python3 -c 'print(\"1\" * 2000000)' > /logs/verifier/reward.txt", "", "no regular file of at most"),
    ],
)
def test_a_broken_verifier_gives_no_reward(tmp_path: Path, verifier: str, toml: str, why: str) -> None:
    with pytest.raises(JudgeFailure, match=why):
        play(write_task(tmp_path / "task", verifier=verifier, toml=toml), "solve()")


def test_a_verifier_without_its_network_gives_no_reward(tmp_path: Path) -> None:
    look = (
        "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80))'; echo 0 > /logs/verifier/reward.txt"
    )
    public = write_task(tmp_path / "task", verifier=look, **{"task.toml": ""})
    with pytest.raises(JudgeFailure, match="tried to reach the network"):
        play(public, "solve()")
    output, _ = play(write_task(tmp_path / "offline", verifier=look), "solve()")
    assert output.reward == 0.0


def test_an_agent_out_of_time_is_verified(tmp_path: Path) -> None:
    task = write_task(
        tmp_path / "task",
        verifier="sleep 6; [ -e /app/late ] || echo 0.5 > /logs/verifier/reward.txt",
        toml="[agent]\ntimeout_sec = 3",
    )
    script = """
    import subprocess, time
    solve()
    subprocess.Popen(["sh", "-c", "sleep 8; touch /app/late"])
    time.sleep(60)
    """
    output, _ = play(task, script)
    assert output.reward == 0.5 and output.metadata["flags"]["time_limit"] == 1
    with pytest.raises(AgentFailure, match="did not end in time"):
        play(task, script, on_timeout="fail")


def test_a_daemon_of_the_agent_lives_for_its_verifier(tmp_path: Path) -> None:
    serve = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8000/calc.py\").status // 200)'"
    script = """
    import subprocess, time
    ask("how?")
    subprocess.Popen(["setsid", "python3", "-m", "http.server"], cwd="/app", stdout=-3, stderr=-3)
    time.sleep(2)
    """
    output, _ = play(write_task(tmp_path / "task", verifier=f"{serve} > /logs/verifier/reward.txt"), script)
    assert output.reward == 1.0 and output.metadata["flags"]["processes_left"] == 1


def test_exit_codes_and_missing_programs(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    output, _ = play(task, "solve(); sys.exit(3)")
    assert output.reward == 1.0 and output.metadata["command"]["exit_code"] == 3
    with pytest.raises(AgentFailure, match="exit code 3"):
        play(task, "solve(); sys.exit(3)", exit_codes=[0])
    with pytest.raises(AgentFailure, match="could not be run"):
        play(task, "", command=["no-such-program"])


def test_agent_and_verifier_are_the_users_of_the_task(tmp_path: Path) -> None:
    toml = """
    [environment.env]
    OF_THE_TASK = "1"
    [agent]
    user = 1000
    [verifier]
    env = {OF_THE_VERIFIER = "2"}
    """
    user = 'python3 -c "import os; print(os.getuid())"'
    check = f'echo "$OF_THE_TASK$OF_THE_VERIFIER$OPENAI_API_KEY" > /logs/verifier/reward.txt; {user}'
    script = "ask('?'); print(os.getuid(), os.access('/app', os.W_OK), os.environ['OF_THE_TASK'], os.environ['HOME'])"
    output, _ = play(write_task(tmp_path / "task", toml=toml, verifier=check), script, home=True)
    assert output.metadata["final_answer"].split() == ["1000", "False", "1", "/ajet/home"]
    assert output.reward == 12.0 and output.metadata["verifier"]["printed"] == "0\n"


def test_a_health_check_comes_first(tmp_path: Path) -> None:
    toml = "[environment.healthcheck]\ncommand = '[ -e /app/calc.py ] && echo > /app/healthy'\ninterval_sec = 0.1"
    output, _ = play(write_task(tmp_path / "task", toml=toml), "solve(); print(os.path.exists('/app/healthy'))")
    assert output.metadata["final_answer"] == "True\n"
    ill = "[environment.healthcheck]\ncommand = 'false'\ninterval_sec = 0.1\nretries = 2"
    with pytest.raises(SandboxFailure, match="health check failed 2 times"):
        play(write_task(tmp_path / "ill", toml=ill), "solve()")


def test_a_killed_container_is_a_failure_of_the_sandbox(tmp_path: Path) -> None:
    def kill() -> None:
        while not (names := list_containers()):
            time.sleep(0.2)
        time.sleep(3)
        subprocess.run(["podman", "kill", *names], capture_output=True)

    killing = threading.Thread(target=kill)
    killing.start()
    with pytest.raises(SandboxFailure):
        play(write_task(tmp_path / "task"), "import time; ask('?'); time.sleep(60)")
    killing.join()


def test_memory_of_the_task_is_a_limit(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", toml="memory_mb = 64")
    with pytest.raises(SandboxFailure, match="memory was full"):
        play(task, "ask('?'); x = bytearray(200 << 20)")


@pytest.mark.parametrize(
    "fill",
    ["os.write(os.memfd_create('x'), block)", "open(f'/dev/shm/{n}', 'wb').write(block)"],
)
def test_memory_outside_of_processes_is_limited(fill: str, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", toml="memory_mb = 64")
    script = f"""
    ask("?")
    block = bytes(1 << 20)
    try:
        for n in range(200): {fill}
    except OSError as error: print("refused:", error)
    """
    try:
        output, _ = play(task, script)
    except SandboxFailure as failure:
        assert "memory was full" in str(failure)
    else:
        assert "refused: " in output.metadata["final_answer"]
    assert list_containers() == []


def test_processes_are_limited(tmp_path: Path) -> None:
    script = """
    import subprocess
    ask("?")
    started = []
    try:
        for _ in range(100): started.append(subprocess.Popen(["sleep", "100"]))
    except OSError as error: print(error)
    for each in started: each.kill()
    """
    output, _ = play(write_task(tmp_path / "task"), script, container={"processes": 30})
    assert "Resource temporarily unavailable" in output.metadata["final_answer"]


def test_a_limit_that_cannot_be_held_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="disk_mb"):
        play(write_task(tmp_path / "task"), "solve()", container={"disk_mb": 100})
    with pytest.raises(SandboxFailure, match="disk_mb"):
        play(write_task(tmp_path / "large", toml="storage_mb = 100"), "solve()")


def test_images_are_missing_or_cannot_be_built(tmp_path: Path) -> None:
    missing = write_task(tmp_path / "missing", toml="docker_image = 'localhost/no-such-image:1'")
    with pytest.raises(SandboxFailure, match="podman pull localhost/no-such-image:1"):
        play(missing, "solve()")
    broken = write_task(tmp_path / "broken", dockerfile="RUN echo no luck; exit 3\n")
    with pytest.raises(SandboxFailure, match="no luck"):
        play(broken, "solve()")


def test_keys_of_an_agent_on_the_host_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="command_agent.template"):
        play(write_task(tmp_path / "task"), "solve()", template=".")
    with pytest.raises(ConfigError, match="command_agent.verify"):
        play(write_task(tmp_path / "task"), "solve()", verify={"command": ["true"]})
    with pytest.raises(ConfigError, match=r"container\.mounts"):
        play(write_task(tmp_path / "task"), "solve()", container={"mounts": ["no/such/file"]})


def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    async def begin() -> None:
        async with open_container(ContainerSpec("podman", ContainerLimits(), image=IMAGE)):
            await asyncio.sleep(60)  # a fast engine may have started it

    async def cancel() -> None:
        starting = asyncio.ensure_future(begin())
        await asyncio.sleep(0.05)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(cancel())


def test_without_an_engine_an_unpacked_image_is_used(tmp_path: Path) -> None:
    require("bubblewrap")
    root = unpack_image(tmp_path / "roots" / "any_image_1")
    (root / "app").mkdir()
    task = write_task(tmp_path / "task", toml="docker_image = 'any/image:1'\nworkdir = '/app'")
    output, episode = play(task, "solve()", container={"engine": "bubblewrap", "roots": "roots"})
    assert output.reward == 1.0 and len(episode.calls) == 1 and list((root / "app").iterdir()) == []
    with pytest.raises(SandboxFailure, match="a Dockerfile needs podman"):
        play(write_task(tmp_path / "built"), "solve()", container={"engine": "bubblewrap", "roots": "roots"})
    user = write_task(tmp_path / "user", toml="docker_image = 'any/image:1'\n[agent]\nuser = 1000")
    with pytest.raises(SandboxFailure, match="no user but root"):
        play(user, "solve()", container={"engine": "bubblewrap", "roots": "roots"})


def test_the_end_of_a_loop_leaves_nothing() -> None:
    async def use() -> None:
        async with open_container(ContainerSpec("podman", ContainerLimits(), image=IMAGE)) as container:
            await container.run(["sleep", "1"], environment={})
            raise ZeroDivisionError

    async def fail_at_once() -> None:
        await asyncio.gather(*(use() for _ in range(8)))

    with pytest.raises(ZeroDivisionError):
        asyncio.run(fail_at_once())  # it cancels what the others are doing


def test_a_container_of_many_files_and_replies(tmp_path: Path) -> None:
    script = "print(len([ask(str(n)) for n in range(3)]), open('notes/a.txt').read())"
    output, episode = play(
        write_task(tmp_path / "task"), script, RIGHT, RIGHT, RIGHT, files={"notes/a.txt": "{task_id} {folder}"}
    )
    assert output.metadata["final_answer"] == "3 task /app\n" and len(episode.calls) == 3


def test_the_agent_has_what_an_agent_on_the_host_has(tmp_path: Path) -> None:
    script = """
    solve()
    given = open(os.environ["HOME"] + "/.config/agent.txt").read()
    address = os.environ["GOOGLE_GEMINI_BASE_URL"] + "/v1" == os.environ["OPENAI_BASE_URL"]
    answer = [given, address, os.environ["GEMINI_API_KEY"]]
    json.dump({"info": {"answer": answer}}, open(os.environ["HOME"] + "/run.json", "w"))
    """
    output, _ = play(
        write_task(tmp_path / "task"),
        script,
        home=True,
        files={"~/.config/agent.txt": "{context_tokens} {home} {api_key}"},
        answer="file:~/run.json#info.answer",
    )
    given, address, key = json.loads(output.metadata["final_answer"])
    assert given.split()[1:] == ["/ajet/home", "[redacted", "key]"] and int(given.split()[0]) > 0
    assert (address, key) == (True, "[redacted key]")


def test_agents_of_the_yaml_are_trained() -> None:
    config = {"command_agent": {"command": ["true"], "trains": ["solver"]}}
    assert HarborWorkflow().choose_targets(config) == ["solver"]
