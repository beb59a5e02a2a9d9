"""`ajet env up gaia-local`: the tool servers by name, started for an episode when they are first called."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from ajet.schema.errors import UserError
from ajet_aworld.packages import find_folder as names_folder
from ajet_environments.deployment import find_environment_file, read_description
from ajet_environments.deployment.description import find_shipped_name
from ajet_environments.deployment.workdirs import Workdirs
from ajet_environments.front import FrontEpisodes
from ajet_environments.hosting.program import build_pool
from ajet_gaia.catalogue import SEED_NAMES
from ajet_sandbox.choose import try_mechanism
from tests.support.gaia_packages import packages

__all__ = ["packages"]
pytestmark = pytest.mark.slow


def test_it_is_there_by_the_names_that_people_know(packages, tmp_path):
    assert find_environment_file("gaia-mcp-server") == find_environment_file("gaia-local")
    assert find_shipped_name(find_environment_file("gaia-mcp-server")) == "gaia-local" and not find_shipped_name(
        tmp_path / "x.yaml"
    )
    description = read_description(find_environment_file("gaia-local"))
    names = {part.name for part in description.parts} | set(description.aliases)
    assert set(SEED_NAMES) <= names
    by_name = {part.name: part for part in description.parts}
    terminal = by_name["terminal-server"]
    assert terminal.off == "" and terminal.start(tmp_path, None).walls is not None, "it is never this user's"
    assert "sandbox" in by_name["download-server"].off and by_name["calculator-server"].off == ""
    assert "GOOGLE_API_KEY" in by_name["googlesearch-server"].off
    assert [tool["name"] for tool in by_name["time-server"].tools] == ["get_current_time", "convert_time"]


@pytest.mark.parametrize("confined", [True, pytest.param(False, marks=pytest.mark.extra_slow)])
def test_servers_of_an_episode_share_a_folder_that_goes_with_it(packages, tmp_path, monkeypatch, confined):
    if confined and not try_mechanism("bubblewrap").works:
        pytest.skip("no bubblewrap here")
    file = tmp_path / "some.yaml"
    file.write_text(
        f"gaia: {{confined: {str(confined).lower()}, network: false, "
        "servers: [time-server, filesystem-server, documents-txt-server, terminal-server, googlesearch-server]}"
    )
    monkeypatch.setenv("SOME_SECRET", "x")
    workdirs = Workdirs()
    servers = [build_pool(part, workdirs) for part in read_description(file).parts]
    episodes = FrontEpisodes(servers, capacity=4, idle=60, on_ended=workdirs.remove)

    async def play():
        await episodes.open()
        assert not [server.waiting for server in servers if server.waiting], "none runs before it is called"
        first, second = episodes.create(), episodes.create()
        wrote = await episodes.call(first, "write_file", {"path": "a.txt", "content": "hello"})
        assert not wrote.get("isError"), wrote
        read = await episodes.call(first, "extract_text_content", {"file_path": "a.txt"})
        assert "hello" in str(read["content"]), read
        command = "echo user $(id -u); env; cat /proc/1/environ; ls /root; echo hi > /usr/local/left && echo written"
        ran = await episodes.call(first, "execute_command", {"command": command})
        said = str(ran["content"])
        assert "SOME_SECRET" not in said and "user " in said, said
        assert not confined or ("user 0" not in said and "written" not in said), said
        other = await episodes.call(second, "extract_text_content", {"file_path": "a.txt"})
        assert "hello" not in str(other["content"])
        off = await episodes.call(first, "search_google", {"query": "x"})
        assert off["isError"] and "GOOGLE_API_KEY" in str(off["content"])
        folder, _ = workdirs.prepare_folder(first.name)
        await episodes.end(first.name)
        assert not folder.exists()
        await episodes.close()

    try:
        asyncio.run(play())
    finally:
        workdirs.close()


def test_aworlds_command_means_ours():
    from env.train_env import words

    wanted = ["env", "up", "gaia-mcp-server", "--host", "0.0.0.0", "--port", "0"]
    assert words(["--docker_dir=gaia-mcp-server", "--port", "0"]) == wanted
    assert words(["--docker_dir", "gaia-mcp-server", "--port", "0"]) == wanted


def test_aworlds_script_starts_ours(tmp_path):
    """`sh run-local.sh`, with a Python that says what it was given."""
    (tmp_path / "python").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "python").chmod(0o755)
    done = subprocess.run(
        ["sh", "run-local.sh"], cwd=names_folder() / "env", env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split() == ["-m", "ajet", "env", "up", "gaia-mcp-server"], done.stderr
    assert find_environment_file("gaia-mcp-server") == find_environment_file("gaia-local")


def test_a_name_in_no_table_is_an_error(tmp_path):
    (tmp_path / "x.yaml").write_text("gaia: {servers: [calculater-server]}")
    with pytest.raises(UserError, match="no tool server calculater-server") as caught:
        read_description(tmp_path / "x.yaml")
    assert "calculator-server" in caught.value.expected
