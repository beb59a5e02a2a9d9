"""`confined: true` in a file of MCP servers: behind a sandbox's walls, with the attempt's own working folder."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from ajet.schema.errors import ConfigError, UserError
from ajet_environments.deployment import read_description
from ajet_environments.deployment.workdirs import Workdirs
from ajet_environments.front import FrontEpisodes
from ajet_environments.hosting.program import build_pool
from ajet_mcp import CallFailedError, require_sandbox, servers_of
from ajet_mcp import processes as mcp_processes
from ajet_sandbox import choose
from ajet_sandbox.choose import try_mechanism
from tests.support.mcp_fixtures import attempt
from tests.support.waiting import until

SHELL = """
import json, subprocess, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "shell", "version": "1"}
    elif asked["method"] == "tools/list":
        result = {"tools": [{"name": "shell", "inputSchema": {"type": "object"}}]}
    else:
        command = asked["params"]["arguments"]["command"]
        said = subprocess.run(["sh", "-c", command], stdout=-1, stderr=-2, text=True).stdout
        result = {"content": [{"type": "text", "text": said}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two servers that share a sandbox's folder; one of them sees a folder more."""
    if not try_mechanism("bubblewrap").works:
        pytest.skip("no bubblewrap here")
    monkeypatch.setenv("SOME_SECRET", "of mine")
    home = tmp_path / "project"
    for name, text in (
        ("shell.py", SHELL), (".env", "KEY=of mine"), ("back/end/.env.local", "KEY=of mine"), ("data.txt", "shown"),
        ("../more/book.txt", "shown, too"),
    ):  # fmt: skip
        (home / name).resolve().parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    (tmp_path / "other.txt").write_text("of mine")
    one = {"command": "{python}", "args": ["-I", "-S", "shell.py"], "confined": True, "env": {"GIVEN": "1"}}
    by_name = {"command": "sh", "args": ["-c", f": {'long ' * 99}; exec {sys.executable} -I -S {home}/shell.py"]}
    found = home / "tools.json"
    found.write_text(json.dumps({"mcpServers": {"one": one, "two": {**one, **by_name, "shows": ["../more"]}}}))
    tmp_path.chmod(0o755)
    return found


def test_servers_of_an_attempt_share_a_sandbox_and_see_nothing_of_this_machine(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, mark = file.parent.parent / "other.txt", ["sleep", str(3600 + os.getpid())]  # nobody else's
    make, made = tempfile.mkdtemp, list[Path]()

    def noted(**of: str) -> str:
        made.append(Path(make(**of)))
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", noted)

    async def plays() -> tuple[dict[str, str], list[str]]:
        asked = {
            "one__shell": f"cd {file.parent}; cat data.txt .env back/end/.env.local {elsewhere}; cd; env; id -u; "
            f"echo x > {file.parent}/left; cat /proc/1/environ; ls {file.parent.parent}/more; echo hello > a; pwd",
            "two__shell": f"cat a {file.parent.parent}/more/book.txt; ln -s {file.parent} link; "
            f"setsid {' '.join(mark)} > /dev/null 2>&1 &",
        }
        async with attempt(*servers_of("tools.json", file.parent)) as tools:
            return {name: (await tools.use(name, {"command": told})).text for name, told in asked.items()}

    said = asyncio.run(plays())
    one, two = said["one__shell"], said["two__shell"]
    assert "shown" in one and "GIVEN=1" in one and "of mine" not in one, one
    assert not (file.parent / "left").exists() and "book.txt" not in one
    assert os.geteuid() or "\n0\n" not in one
    assert two.startswith("hello\nshown, too"), two
    assert (file.parent / "data.txt").exists(), "what a link leads to is nobody's to remove"
    assert until(lambda: not any(each.info["cmdline"] == mark for each in psutil.process_iter(["cmdline"])))
    assert len(made) == 1 and not made[0].exists()


def test_each_episode_of_an_environment_has_one_of_its_own(file: Path) -> None:
    workdirs = Workdirs()
    parts = read_description(file).parts
    assert [(part.server.confined, part.spare) for part in parts if part.server] == [(True, 0)] * 2
    episodes = FrontEpisodes([build_pool(parts[0], workdirs)], capacity=4, idle=60, on_ended=workdirs.remove)

    async def play() -> None:
        await episodes.open()
        first, second = episodes.create(), episodes.create()
        await episodes.call(first, "shell", {"command": "echo hello > a"})
        assert "hello" in str(await episodes.call(first, "shell", {"command": "cat a"}))
        assert "hello" not in str(await episodes.call(second, "shell", {"command": "cat a"}))
        folder, _ = workdirs.prepare_folder(first.name)
        await episodes.end(first.name)
        assert not folder.exists()
        await episodes.close()

    try:
        asyncio.run(play())
    finally:
        workdirs.close()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"url": "http://a/mcp", "confined": True}, "confined requires a command"),
        ({"command": "a", "confined": True, "shared": True}, "either confined or shared"),
        ({"command": "a", "shows": ["b"]}, "shows requires confined"),
    ],
)
def test_what_cannot_be_confined_is_said(tmp_path: Path, entry: dict[str, object], said: str) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"mcpServers": {"x": entry}}))
    with pytest.raises(ConfigError, match=said):
        servers_of("x.json", tmp_path)


@pytest.mark.parametrize("terms", ["per: shared", "reset: clear", "spare: 2"])
def test_an_environment_starts_a_confined_server_in_its_episode_only(tmp_path: Path, terms: str) -> None:
    (tmp_path / "x.yaml").write_text(f"mcpServers: {{x: {{command: a, confined: true, {terms}}}}}")
    with pytest.raises(UserError, match="in the folder of its episode"):
        read_description(tmp_path / "x.yaml")


def test_where_there_is_no_sandbox_it_is_refused_and_never_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(wanted: str) -> str:
        raise ConfigError(f"No sandbox here: {wanted}: user namespaces are forbidden.")

    for module in (choose, mcp_processes, sys.modules[require_sandbox.__module__]):
        monkeypatch.setattr(module, "choose_mechanism", nothing)
    entry = {"command": "{python}", "args": ["-c", f"open({str(tmp_path / 'ran')!r}, 'w')"], "confined": True}
    (tmp_path / "x.json").write_text(json.dumps({"mcpServers": {"x": entry}}))
    servers = servers_of("x.json", tmp_path)
    with pytest.raises(ConfigError, match="The server x is confined, .*namespaces are forbidden"):
        require_sandbox(servers)

    async def plays() -> None:
        async with attempt(*servers):
            pass

    with pytest.raises(CallFailedError, match="cannot get its sandbox: .*namespaces are forbidden") as failed:
        asyncio.run(plays())
    assert (failed.value.kind, failed.value.lost) == ("sandbox", True) and not (tmp_path / "ran").exists()
