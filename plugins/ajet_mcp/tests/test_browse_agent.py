"""The browse agent: real servers of tools and of chat completions, real episodes; only the model that plays is a
script of replies."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from ajet.commands.services import check_services as asked_services
from ajet.commands.services import list_services
from ajet.config import Experiment
from ajet.config.view import View
from ajet.schema.errors import ConfigError
from ajet.schema.tool_use import compute_digest
from ajet_mcp.browse import browse_agent_of
from ajet_mcp.tests.test_mcp_agent import call, how, played, words  # noqa: F401
from ajet_proof.tokens.proof import prove_uses

ROOT = Path(__file__).parents[3]
SECRET = "sk-do-not-show-4711-abcdef"
PAGE = "The content from a:\nThe eel costs 3 today. " + "Nothing else is of any interest here. " * 20
BROWSE = {"default_purpose": {"read": "the default purpose"}, "browse_tools": ["read"], "max_retries": 2,
          "min_prompt_length": 100, "max_prompt_length": 600, "retry_delay": 0.01,
          "extra_body": {"top_k": 20}}  # fmt: skip


class Chat(BaseHTTPRequestHandler):
    """Chat completions: `broken` refuses and repeats the key, `silent` answers nothing, others condense."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.top_k = asked.get("top_k")
        self.server.seen.append((asked["model"], asked["messages"][0]["content"], self.headers["Authorization"]))
        if asked["model"] == "broken":
            return self.answer(401, {"error": {"message": f"wrong key {self.headers['Authorization']}"}})
        if self.server.meet is not None:
            self.server.meet.wait(60)
        said = "" if asked["model"] == "silent" else f"<think>hm</think>In short {len(self.server.seen)}: 3."
        self.answer(200, {"choices": [{"message": {"role": "assistant", "content": said}}]})

    def do_GET(self):
        self.answer(200, {"data": [{"id": "good"}]})

    def answer(self, status, told):
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def chat():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    server.seen, server.meet = [], None
    server.url = f"http://127.0.0.1:{server.server_port}"  # without /v1, as AgentRL's page has it
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def browsed(played, chat, tmp_path):  # noqa: F811
    """Play one episode beside a file that names these models."""

    def play(*replies, models=("good",), agent=None, room=18000, **settings):
        told = {**BROWSE, **(settings.pop("section", {}))}
        told["models"] = [{"base_url": chat.url, "model": name, "api_key": SECRET} for name in models]
        (tmp_path / "agent_config.yml").write_text(yaml.safe_dump({"browse_agent": told, "scorer_agent": {}}))
        return played(
            *replies, "\\boxed{3}", environment={"agent_config": "agent_config.yml"}, browse=True, room=room,
            max_result_tokens=400, **settings,
        )  # fmt: skip

    return play


def test_a_long_result_is_condensed_for_the_purpose_recorded_and_not_trained(browsed, chat):
    episode, asked = browsed(f"I look. {call('read', text='a', purpose='What does the eel cost?')}")
    assert episode.failure is None and episode.metadata["final_answer"] == "3"
    [(model, prompt, authorization)] = chat.seen
    assert (model, authorization, chat.top_k) == ("good", f"Bearer {SECRET}", 20)
    assert "What does the eel cost?" in prompt and "The eel costs 3 today." in prompt
    assert "[cut: the first 600 of" in prompt, "max_prompt_length"
    question, use = episode.tool_uses
    assert (use.name, use.result, use.digest, use.whole) == ("read", "In short 1: 3.", compute_digest(PAGE), len(PAGE))
    assert use.arguments["purpose"] == "What does the eel cost?"
    assert (question.name, question.result, question.server) == ("browse_agent", "In short 1: 3.", chat.url[7:])
    assert question.arguments["model"] == "good" and question.arguments["digest"] == compute_digest(PAGE.strip())
    assert "In short 1: 3." in asked[1] and "Nothing else" not in asked[1]
    assert '"purpose"' in asked[0], "the model is told that it may state one"
    assert len(episode.calls) == 2 and all(call_.trained for call_ in episode.calls)
    assert not any(wrong for _, wrong in prove_uses(episode.tool_uses, episode.calls, episode.messages, "e"))
    assert (how(episode)["browse_condensed"], episode.metrics["mcp_agent/browse_condensed"]) == (1, 1)
    assert SECRET not in repr(episode)


def test_pages_are_asked_for_at_once_and_a_purpose_may_be_the_default(browsed, chat):
    chat.meet = threading.Barrier(2)
    episode, asked = browsed(call("read", text="https://a/1 https://a/2"))
    assert episode.failure is None and len(chat.seen) == 2
    assert all("the default purpose" in prompt for _, prompt, _ in chat.seen)
    shown = episode.tool_uses[-1].result
    assert shown.index("https://a/1") < shown.index("---") < shown.index("https://a/2") and shown.count("In short") == 2


def test_a_model_that_fails_is_followed_by_the_next(browsed, chat):
    episode, _ = browsed(call("read", text="a"), models=("broken", "silent", "good"))
    assert [model for model, *_ in chat.seen] == ["broken", "silent", "silent", "good"], "a refused key is not repeated"
    assert [(use.name, use.arguments.get("model"), use.error) for use in episode.tool_uses] == [
        ("browse_agent", "broken", "tool"), ("browse_agent", "silent", "tool"), ("browse_agent", "good", ""),
        ("read", None, ""),
    ]  # fmt: skip
    assert "401" in episode.tool_uses[0].result and "[redacted]" in episode.tool_uses[0].result
    assert episode.failure is None and SECRET not in repr(episode)


def test_where_none_answers_the_page_is_shown_or_the_environment_has_failed(browsed, chat, capfd):
    episode, asked = browsed(call("read", text="a"), models=("broken",))
    assert episode.failure is None and how(episode)["browse_failed"] == 1
    use = episode.tool_uses[-1]
    assert use.result.startswith(PAGE[:100]) and "[cut: the first 400 of" in use.result and use.error == ""
    episode, asked = browsed(call("read", text="a"), models=("broken",), on_tool_failure="end")
    assert (episode.failure.boundary, episode.failure.policy) == ("environment", False) and len(asked) == 1
    assert episode.verdict is None and episode.tool_uses[-1].error == "environment"
    said = capfd.readouterr()
    assert SECRET not in said.out + said.err + repr(episode)


@pytest.mark.parametrize("why", ["short", "off", "other tool"])
def test_what_is_not_its_business_is_handed_over_raw(browsed, chat, why):
    tool = call("read", text="a", **({"most": 90} if why == "short" else {}))
    section = {"off": {"status": False}, "other tool": {"browse_tools": ["visit"]}}.get(why, {})
    episode, asked = browsed(tool, section=section)
    assert not chat.seen and [use.name for use in episode.tool_uses] == ["read"]
    assert episode.tool_uses[0].result.startswith(PAGE[:90])
    assert ('"purpose"' in asked[0]) is (why == "short")


def tree(folder, text="", browse=True, **environment):
    if text:
        (folder / "a.yml").write_text(text)
        environment["agent_config"] = "a.yml"
    rollout = {"user_workflow": "mcp_agent", "mcp_agent": {"browse": browse}}
    return {"ajet": {"rollout": rollout, "environment": environment}}


def agent_of(folder, *told, **more):
    ajet = tree(folder, *told, **more)["ajet"]
    ajet["environment"].setdefault("agent_config", None)
    return browse_agent_of(View({"ajet": {**ajet, "base_dir": str(folder)}}))


def test_the_example_is_read_and_its_models_win_over_the_environment(tmp_path, monkeypatch):
    text = (ROOT / "default_config" / "agent_config_example.yml").read_text()
    for name, value in (("BASE_URL", "http://own/v1"), ("MODEL_NAME", "own"), ("API_KEY", SECRET)):
        monkeypatch.setenv(f"BROWSE_LLM_{name}", value)
    monkeypatch.delenv("MODEL_API_KEY", raising=False)
    found = agent_of(tmp_path, text)
    assert [each.model for each in found.models] == ["browse-model", "own"] and SECRET not in repr(found)
    assert found.purpose_for("execute_code") == "Summarize the output of the code." != found.purpose_for("x")
    assert [each.model for each in agent_of(tmp_path).models] == ["own"], "no file names one"
    assert agent_of(tmp_path, text, browse=False) is None


def test_what_the_compose_file_serves_is_what_the_example_asks():
    [service] = yaml.safe_load((ROOT / "deploy" / "model" / "docker-compose.yml").read_text())["services"].values()
    words_ = dict(zip(service["command"][::2], service["command"][1::2], strict=True))
    first = yaml.safe_load((ROOT / "default_config" / "agent_config_example.yml").read_text())["browse_agent"]["models"]
    assert first[0]["model"] == words_["--served-model-name"] and service["image"].startswith("vllm/vllm-openai:")
    port = words_["--port"]
    assert first[0]["base_url"] == f"http://localhost:{port}/v1" and service["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert first[0]["api_key"] == service["environment"]["VLLM_API_KEY"] == "${MODEL_API_KEY:-none}"


WRONG = {
    f"browse_agent: {{models: [{{api_key: {SECRET}}}]}}": r"browse_agent\.models\.0\.base_url",
    f"browse_agent:\n  models: [\n   key: {SECRET}: x\n": r"is not valid YAML: .*, line 3",
    "browse_agent: {models: [{base_url: localhost, model: m}]}": "expected a URL",
    "browse_agent: {min_promt_length: 3}": "min_promt_length",
    "scorer_agent: {}": "no section browse_agent",
    "browse_agent: {}": "has no model",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_cannot_be_used_is_said_and_shows_no_key(tmp_path, monkeypatch, text):
    monkeypatch.delenv("BROWSE_LLM_BASE_URL", raising=False)
    with pytest.raises(ConfigError, match=WRONG[text]) as refused:
        agent_of(tmp_path, text)
    assert SECRET not in str(refused.value)
    with pytest.raises(ConfigError, match="does not exist"):
        agent_of(tmp_path, agent_config="nowhere.yml")


def test_models_and_tool_servers_are_among_what_a_run_stands_on(chat, tmp_path):
    models = [{"base_url": address, "model": "good", "api_key": SECRET} for address in ("http://127.0.0.1:9", chat.url)]
    text = yaml.safe_dump({"browse_agent": {"models": models}})
    found = list_services(Experiment.from_dict(tree(tmp_path, text, use="http://127.0.0.1:9/mcp"), base=tmp_path))
    assert [each.name for each in found] == ["MCP server", "model of the browse agent"]
    (server, down), (_, fine) = asked_services(found)
    assert "cannot be reached" in down and server.address == "http://127.0.0.1:9/mcp" and fine == ""
    text = yaml.safe_dump({"browse_agent": {"models": models[:1]}})
    [(service, down)] = asked_services(list_services(Experiment.from_dict(tree(tmp_path, text), base=tmp_path)))
    assert "good at 127.0.0.1:9: ConnectError" in down and SECRET not in down + str(service)
