"""The GAIA servers as AWorld's users know them: names, tools, parameters; who is on; some of them over the wire.

TABLE is what AWorld's environment lists; a parameter with ? may be left out. Where its page prints no parameters, only
the names of the tools are held.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.environment.files import read_variables
from ajet.schema.errors import UserError
from ajet_gaia.catalogue import SEED_NAMES, SERVERS
from ajet_gaia.deployment import ServerPlace, selected, start
from ajet_gaia.environments import prepare
from ajet_gaia.needs import ENV_TEMPLATE, why_off, with_older_names
from ajet_gaia.servers.process import PASSED_VARIABLES
from ajet_mcp.processes import MARK

FORMATS = {"list_supported_formats": ""}
LEVELS = "temperature?=0.1"
TABLE: dict[str, dict[str, str | None]] = {
    "readweb-server": {"read_url": "url include_images?"},
    "browser-server": {
        "browser_use": "task max_steps?=50 extract_format?",
        "get_browser_capabilities": "",
    },
    "documents-csv-server": {
        "extract_csv_content": "file_path output_format? max_rows? include_statistics? generate_visualizations? "
        "encoding? delimiter?",
        **FORMATS,
    },
    "documents-docx-server": {
        "extract_docx_content": "file_path output_format? extract_images? extract_tables? extract_headers_footers? "
        "include_structure?",
        **FORMATS,
    },
    "documents-pptx-server": {
        "extract_pptx_content": "file_path output_format? extract_images? extract_notes? include_structure?",
        **FORMATS,
    },
    "documents-pdf-server": {"convert_document_to_markdown": "file_path paginate?"},
    "documents-txt-server": {
        "extract_text_content": "file_path output_format? encoding? max_content_length?",
        **FORMATS,
    },
    "download-server": {
        "download_file": "url output_file_path overwrite? timeout?=60 output_format?",
        "get_download_capabilities": "",
    },
    "intelligence-code-server": {
        "generate_python_code": f"task_description requirements? context? {LEVELS} code_style? save_to_file_path?",
        "get_reasoning_capabilities": "",
    },
    "intelligence-think-server": {
        "complex_problem_reasoning": "question original_task? temperature?=0.3 reasoning_style?",
        "get_reasoning_capabilities": "",
    },
    "intelligence-guard-server": {
        "guarding_reasoning_process": f"question original_task? {LEVELS} guarding_style?",
        "get_guarding_capabilities": "",
    },
    "media-audio-server": {
        "transcribe_audio": "file_path model_size? output_format?",
        "extract_audio_metadata": "file_path",
        "trim_audio": "file_path start_time duration?",
        **FORMATS,
    },
    "media-image-server": {
        "extract_text_ocr": 'file_path language?="eng" preprocess?',
        "analyze_image_ai": "file_path task?",
        "get_image_metadata": "file_path",
    },
    "media-video-server": {
        "analyze_video": "video_url question sample_rate? start_time? end_time? output_format? max_workers?",
        "summarize_video": None,
        "extract_keyframes": "video_path target_time window_size?=5 output_dir? output_format?",
    },
    "parxiv-server": {
        "search_papers": "query sort_by? sort_order? category? output_format?",
        "get_paper_details": None,
        "download_paper": None,
        "get_categories": None,
        "get_arxiv_capabilities": "",
    },
    "terminal-server": {
        "execute_command": "command timeout?=30 output_format?",
        "get_command_history": "count?=10 output_format?",
        "get_terminal_capabilities": "",
    },
    "wayback-server": {
        "list_archived_versions": "url limit?=10 from_date? to_date? output_format?",
        "get_archived_content": None,
        "get_wayback_capabilities": "",
    },
    "wiki-server": {
        "search_wikipedia": 'query limit?=10 language?="en" output_format?',
        "get_article_content": None,
        "get_article_summary": None,
        "get_article_categories": None,
        "get_article_links": None,
        "get_article_history": None,
        "get_wikipedia_capabilities": "",
    },
    "googlesearch-server": {
        "search_google": 'query num_results?=5 safe_search? language? country? output_format?="json"',
        "get_search_capabilities": "",
    },
    "google-search": {"search": "query num?", "read_webpage": "url"},
    "audio-server": {"mcp_transcribe_audio": "audio_urls"},
    "image-server": {"mcp_image_recognition": "image_urls question"},
    "e2b-code-server": {"e2b_upload_file": "path", "e2b_run_code": "sandbox_id? code_block?"},
}
COUNTS = {"filesystem-server": 14, "terminal-controller": 10, "excel": 25}
"""Servers of which AWorld's page says how many tools they have."""


@pytest.mark.parametrize("name", TABLE)
def test_tools_and_parameters_are_those_of_the_table(name: str) -> None:
    (server,) = selected(name)
    tools = {tool.name: tool.schema for tool in server.tools()}
    assert list(tools) == list(TABLE[name])
    for tool, wanted in TABLE[name].items():
        if wanted is None:
            continue
        properties, required = tools[tool]["properties"], tools[tool].get("required", [])
        assert [f"{each}{'' if each in required else '?'}" for each in properties] == [
            word.split("=")[0] for word in wanted.split()
        ]
        for parameter, default in (word.split("?=") for word in wanted.split() if "?=" in word):
            assert properties[parameter]["default"] == json.loads(default)


def test_every_tool_says_what_it_is_for_in_few_characters() -> None:
    size = 0
    for server in SERVERS:
        tools = server.tools()
        assert len({tool.name for tool in tools}) == len(tools) == COUNTS.get(server.name, len(tools))
        for tool in tools if server.program else ():
            assert tool.description
            size += len(json.dumps([tool.name, tool.description, tool.schema])) * (server in selected(SEED_NAMES))
    assert size < 20_000  # AWorld's own schemas of the nineteen are 95,000


def test_names_are_accepted_as_printed_and_no_others() -> None:
    printed = ",".join(SEED_NAMES)
    servers = selected(printed)
    assert len(servers) == 19 and servers[1].name == "browser-server"
    assert selected(None) == SERVERS and len({server.name for server in SERVERS}) == len(SERVERS)
    assert selected("calculator, calculator-server") == selected(["calculator-server"])
    with pytest.raises(UserError, match="documents-csv-server"):
        selected("documents-cvs-server", where="the MCP_SERVERS header")


def test_what_lacks_something_is_off_and_says_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    def off(name: str, variables: dict[str, str], network: bool = True, corpus: bool = False) -> str:
        return why_off(*selected(name), variables, network=network, corpus=corpus)

    keys = {"GOOGLE_API_KEY": "k", "GOOGLE_CSE_ID": "c"}
    assert "GOOGLE_CSE_ID is not set; a corpus (" in off("googlesearch-server", {"GOOGLE_API_KEY": "k"})
    assert "the network is switched off" in off("googlesearch-server", keys, network=False)
    assert off("googlesearch-server", keys) == off("googlesearch-server", {}, network=False, corpus=True) == ""
    assert "THINK_LLM_BASE_URL" in off("intelligence-think-server", {})
    assert "chromium is not installed" in off("ms-playwright", {"CHROMIUM": ""})
    assert "needs a corpus" in off("search", {}) and off("search", {}, corpus=True) == ""
    assert off("media-audio-server", {}) == off("calculator", {}, network=False) == ""


def test_the_env_template_names_every_variable(tmp_path: Path) -> None:
    used = {name for each in SERVERS for name in (*each.variables, *each.some_tools, *each.passed)}
    assert set(read_variables(ENV_TEMPLATE, {"PATH": "x"})) - {"PATH"} == used
    file = tmp_path / ".env"
    file.write_text("GOOGLE_API_KEY=${MINE}\nGOOGLE_CSE_ID=${OTHER:-given}\nMINE_TOO=${GOOGLE_CSE_ID}-x\n")
    read = read_variables(file, {"MINE": "a-key", "PATH": "x"})
    assert (read["GOOGLE_API_KEY"], read["GOOGLE_CSE_ID"], read["MINE_TOO"]) == ("a-key", "given", "given-x")
    with pytest.raises(UserError, match="MINE is not set"):
        read_variables(file, {})


def test_the_env_file_of_aworlds_page_is_read(tmp_path: Path) -> None:
    """Its names, `${…}` among them; what lies behind those that nothing here reads is on this machine."""
    alone = ("JINA_API_KEY", "TAVILY_API_KEY", "GOOGLE_API_KEY", "GOOGLE_CSE_ID", "DATALAB_API_KEY", "E2B_API_KEY")
    parts = ("BASE_URL", "MODEL_NAME", "API_KEY")
    models = ("BROWSERUSE", "CODE", "THINK", "GUARD", "AUDIO", "IMAGE", "VIDEO")
    lines = [f"{name}=<YOUR_{name}>" for name in (*alone, *(f"MCP_LLM_{part}" for part in parts))]
    lines += [f"{model}_LLM_{part}=${{MCP_LLM_{part}}}" for model in models for part in parts]
    (tmp_path / ".env").write_text("\n".join(lines))
    read = with_older_names(read_variables(tmp_path / ".env", {}))
    used = {name for each in SERVERS for name in (*each.variables, *each.some_tools)}
    assert {name for name in used if not read.get(name)} == {"GOOGLE_SEARCH_ENGINE_ID"}
    assert read["BROWSER_LLM_API_KEY"] == "<YOUR_MCP_LLM_API_KEY>" == read["CODE_LLM_API_KEY"]
    own = {"BROWSER_LLM_API_KEY": "mine", "BROWSERUSE_LLM_API_KEY": "other"}
    assert with_older_names(own)["BROWSER_LLM_API_KEY"] == "mine"


class Wire:
    """A server over stdin and stdout, spoken to by hand."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str], folder: Path) -> None:
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.asked = 0
        client = {"name": "test", "version": "1"}
        self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self.process.stdout.close()

    def send(self, message: dict) -> None:
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def ask(self, method: str, **parameters) -> dict:
        self.asked += 1
        self.send({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": parameters})
        answer = json.loads(self.process.stdout.readline())
        assert answer["id"] == self.asked
        return answer["result"]

    def call(self, tool: str, **arguments) -> tuple[str, bool]:
        result = self.ask("tools/call", name=tool, arguments=arguments)
        return result["content"][0]["text"], bool(result.get("isError"))


def listed(wire: Wire) -> list[tuple[str, str, dict]]:
    tools = wire.ask("tools/list")["tools"]
    return [(tool["name"], tool["description"], tool["inputSchema"]) for tool in tools]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerPlace:
    """A place whose environments are this interpreter's own, for servers that need no package beside the SDK."""
    monkeypatch.setattr("ajet_gaia.deployment.interpreter_of", lambda *_: Path(sys.executable))
    work = tmp_path / "work"
    work.mkdir()
    (work / "mcp.py").write_text("raise SystemExit('what a model wrote was imported')")
    return ServerPlace(work, tmp_path / "environments", variables={"PATH": os.environ["PATH"]})


@pytest.mark.slow
def test_a_server_over_the_wire_lists_what_the_catalogue_says(here: ServerPlace) -> None:
    (server,) = selected("e2b-code-server")
    ready = start(server, here)
    with Wire(ready.command, dict(ready.environment), here.workdir) as wire:
        assert listed(wire) == [(tool.name, tool.description, tool.schema) for tool in server.tools()]
        said, failed = wire.call("e2b_run_code", code_block="import os; print('to the wire?', os.getcwd()); 6 * 7")
        assert not failed and f"{here.workdir}" in said and "42" in said
        assert wire.call("e2b_run_code", code_block=7)[1]
        assert wire.call("nope")[1]


@pytest.mark.slow
def test_one_that_is_off_lists_its_tools_and_answers_why(here: ServerPlace) -> None:
    (server,) = selected("googlesearch-server")
    ready = start(server, here)
    assert ready.off
    with Wire(ready.command, dict(ready.environment), here.workdir) as wire:
        assert [name for name, *_ in listed(wire)] == ["search_google", "get_search_capabilities"]
        assert wire.call("search_google", query="x") == (ready.off, True)


@pytest.mark.extra_slow
def test_every_server_in_an_environment_of_its_own(tmp_path: Path) -> None:
    if prepare(SERVERS, tmp_path / "environments"):
        pytest.skip("packages could not be fetched")
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"title": "Zorbia", "text": "Its capital is Quell."}\n')
    place = ServerPlace(
        work, tmp_path / "environments", dict(os.environ), corpus=tmp_path / "corpus.jsonl", cache=tmp_path / "cache"
    )
    for server in SERVERS:
        ready = start(server, place)
        with Wire(ready.command, dict(ready.environment), work) as wire:
            assert [name for name, *_ in listed(wire)] == [tool.name for tool in server.tools()]
            if ready.off:
                assert wire.call(server.tools()[0].name) == (ready.off, True)
    assert prepare(SERVERS, tmp_path / "environments") == []  # all is there


def test_the_page_lists_every_server() -> None:
    page = (Path(__file__).parents[3] / "docs" / "gaia.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [row[0].strip("|` ") for row in rows] == [server.name for server in SERVERS]
    for server, row in zip(SERVERS, rows, strict=True):
        names = [tool.name for tool in server.tools()]
        assert (f"{len(names)} " in row[1] or f"{len(names)}:" in row[1]) or all(
            f"`{name}`" in row[1] for name in names
        )


def test_what_a_servers_commands_start_carries_the_mark_by_which_it_is_ended() -> None:
    assert MARK in PASSED_VARIABLES
