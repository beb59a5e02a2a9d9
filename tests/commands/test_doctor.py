"""`ajet doctor`: what it finds on this machine, in a config, and in a model's chat template."""

import importlib
import json
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.cli import launcher
from ajet.commands.doctor_checks import check_network, check_packages
from ajet.engine.dimensions import read_embedding_shapes
from ajet.schema.commands import format_extra_install
from ajet.schema.errors import MissingExtraError
from ajet.tokens import Renderer
from ajet.tokens.template_doctor import TURNS, examine, sizes
from ajet_verl.launch import check_verl as verl
from tests.support.ajet_process import environment
from tests.support.chat_templates import SMOLLM2, made, variant
from tests.support.ports import free_port
from tests.support.published_templates import FAMILIES, family

pytestmark = pytest.mark.slow

READY = """
ajet:
  model: {path: embedded:tiny-tools}
  task_reader: {type: random_dummy}
  rollout: {user_workflow: workflow.py->W}
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """`ajet doctor …` in this process and an empty folder, as (exit code, stdout)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as caught:
            launcher.main(["doctor", *arguments])
        return int(caught.value.code or 0), capsys.readouterr().out

    return call


def states(found) -> dict[str, str]:
    return {each.topic: each.state for each in found}


def test_without_a_model_it_is_quick_and_finds_no_problem_here(tmp_path):
    code = """
import sys
from ajet.cli.launcher import main
try:
    main(["doctor", "--json"])
except SystemExit as done:
    print("code", done.code, "heavy", sorted({"torch", "transformers", "openai", "hydra"} & set(sys.modules)))
"""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report, _, last = done.stdout.rpartition("code ")
    assert last.strip() == "0 heavy []", done.stdout + done.stderr
    assert after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime < 5  # attacks on a sandbox among it
    told = json.loads(report)
    assert told["healthy"] is True and list(told["sections"]) in (
        ["machine", "packages", "verl", "network", "sandbox"],
        ["machine", "packages", "network", "sandbox"],
    )
    topics = [each["topic"] for found in told["sections"].values() for each in found]
    for topic in ("python", "cores", "memory", "gpu", "disk", "ajet", "[local]", "ports", "gateway", "ray"):
        assert topic in topics
    assert len({"[verl]", "[verl-cpu]"} & set(topics)) == len({"[vllm]", "[vllm-cpu]"} & set(topics)) == 1
    assert "[dev]" not in topics
    assert list(tmp_path.iterdir()) == []


def test_with_a_model_it_plays_its_template(run):
    code, text = run("embedded:tiny-tools", "--json")
    told = json.loads(text)
    assert code == 0 and told["healthy"] is True
    found = {each["topic"]: each for each in told["sections"]["model"]}
    assert found["vocabulary"]["text"] == "The tokenizer has 379 tokens, the model 379 rows (embedding 379)."
    assert found["stop tokens"]["text"] == "<|im_end|>" and found["context"]["text"] == "1024 tokens"
    assert {each["state"] for each in found.values()} == {"ok"}


def test_the_table_marks_what_is_wrong_and_ends_with_a_verdict(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    code, text = run("/nowhere/at/all")
    assert code == 1
    assert re.search(r"^FAIL\s+model\s+There is no model at '/nowhere/at/all'\.", text, re.M)
    assert re.search(r"^1 problem, \d+ warnings? \(\d+\.\d s\)$", text, re.M)


def test_a_config_is_looked_at_with_its_port_and_extras(run, tmp_path):
    conf = tmp_path / "x.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        conf.write_text(f"{READY}  gateway: {{port: {port}}}\n")
        code, text = run("--conf", str(conf), "--backbone", "local", "--json")
    told = json.loads(text)["sections"]
    assert code == 1 and states_of(told["network"])["ports"] == "problem"
    assert f"cannot listen on 127.0.0.1:{port}" in told["network"][0]["text"]
    assert [each["topic"] for each in told["model"]][0] == "model"
    assert told["experiment"][0]["state"] == "ok" and "backbone local" in told["experiment"][0]["text"]
    conf.write_text("ajet: {project_name: p}\n")
    code, text = run("--conf", str(conf), "--json")
    assert code == 1 and json.loads(text)["sections"]["experiment"][0]["state"] == "problem"
    conf.write_text("ajet: {projectname: p}\n")
    assert run("--conf", str(conf))[0] == 2


def states_of(found) -> dict[str, str]:
    return {each["topic"]: each["state"] for each in found}


def test_an_extra_that_the_run_needs_and_lacks_is_a_problem():
    missing = [each for each in check_packages() if "not installed" in each.text]
    assert missing, "every extra is installed here"
    extra = missing[0].topic.strip("[]")
    assert missing[0].state == "note" and missing[0].do == format_extra_install(extra)
    assert states(check_packages([extra]))[f"[{extra}]"] == "problem"


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Puts a distribution before all others: its metadata, and the files of its package."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(name: str, version: str, *requires: str, files: dict[str, str] | None = None) -> None:
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {each}" for each in requires]
        lines += [f"Provides-Extra: {extra}" for each in requires for extra in re.findall(r'extra == "([^"]+)"', each)]
        for file, text in {f"{name}-{version}.dist-info/METADATA": "\n".join(lines) + "\n", **(files or {})}.items():
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text)
        importlib.invalidate_caches()

    return put


@pytest.mark.parametrize(
    ("agentscope", "mcp", "state"),
    [("1.0.21", "1.30.0", "ok"), ("2.0.11", "2.3.0", "ok"), ("1.0.21", "2.3.0", "warning"), ("0.9", "1.30", "warning")],
)
def test_both_agentscopes_fit_with_their_mcp(installed, agentscope, mcp, state):
    for name, version in {"agentscope": agentscope, "mcp": mcp, "greenlet": "3.2", "tqdm": "4.68"}.items():
        installed(name, version)
    (found,) = [each for each in check_packages() if each.topic == "[agentscope]"]
    assert found.state == state and (mcp != "2.3.0" or state == "ok" or '"mcp<2"' in found.do)


def test_an_extra_for_older_pythons_says_so(installed):
    installed("ajet", "0.1.0", 'verl==0.9.1; python_version < "3.5" and extra == "verl-cpu"')
    bound = f"verl 0.9.1 needs Python below 3.5, and this is Python {platform.python_version()}"
    found = {each.topic: each for each in check_packages(["verl"])}
    assert found["[verl-cpu]"].state == "problem" and found["[verl-cpu]"].text == bound
    error = MissingExtraError("verl", "verl-cpu", needed_for="The verl backbone")
    assert error.what.endswith(f"not installed: {bound}.") and "older Python" in error.do


def test_what_verl_needs_fits_here():
    pytest.importorskip("verl")
    found = states(verl(needed=True))
    assert {"verl", "TransferQueue", "ray", "with verl", "engine"} <= set(found)
    assert set(found.values()) == {"ok"}, verl(needed=True)


def test_packages_that_do_not_fit_verl_are_named_one_by_one(installed):
    installed("verl", "0.7.0", "ray[default]>=99", "transformers<5", 'sglang==0.5.12 ; extra == "sglang"')
    installed("TransferQueue", "0.0.1")
    found = {each.topic: each for each in verl(needed=True)}
    for topic, words in {
        "verl": "verl 0.7.0 is installed, but ==0.9.1 is required",
        "TransferQueue": "transferqueue 0.0.1 is installed, but ==0.1.11 is required",
        "ray": ">=99",
        "with verl": "but <5 is required",
    }.items():
        assert found[topic].state == "problem" and words in found[topic].text.lower(), found[topic]
        assert "pip install" in found[topic].do
    assert {each.state for each in verl() if each.topic in ("verl", "ray")} == {"warning"}


def test_the_engine_is_held_against_what_verl_pins(installed):
    installed("verl", "0.9.1", 'sglang==0.5.12 ; extra == "sglang"')
    assert "not installed" in {each.topic: each.text for each in verl("sglang")}["engine"]
    installed("sglang", "0.5.0")
    told = {each.topic: each for each in verl("sglang")}["engine"]
    assert (told.state, told.text) == ("warning", "sglang 0.5.0 is installed, but verl requires ==0.5.12")
    installed("sglang", "0.5.12")
    shutil.rmtree(Path(sys.path[0]) / "sglang-0.5.0.dist-info")
    importlib.invalidate_caches()
    assert states(verl("sglang"))["engine"] == "ok"


def test_a_trl_that_breaks_verl_is_told_from_one_that_does_not(installed):
    installed("verl", "0.9.1")
    assert "trl" not in states(verl())
    installed("trl", "1.16.0", files={"trl/__init__.py": "", "trl/experimental/ppo/__init__.py": ""})
    told = {each.topic: each for each in verl(needed=True)}["trl"]
    assert told.state == "problem" and told.text.startswith("trl 1.16.0 lacks a class") and "uninstall trl" in told.do
    installed("trl", "1.16.0", files={"trl/experimental/ppo/__init__.py": "AutoModelForCausalLMWithValueHead = 1"})
    assert states(verl(needed=True))["trl"] == "ok"


def test_a_proxy_that_would_catch_loopback_requests_is_named(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert "proxy" not in states(check_network(None))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert states(check_network(None))["proxy"] == "warning" and states(check_network(None))["gateway"] == "ok"
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    assert "proxy" not in states(check_network(None))


def test_an_address_of_ray_where_nothing_answers_is_named(monkeypatch):
    port = free_port()  # nobody else takes it when it is let go
    with socket.create_server(("127.0.0.1", port)):
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        there = states(check_network(None))["ray"]
    gone = states(check_network(None))["ray"]
    try:
        from importlib.metadata import version

        version("ray")
    except ModuleNotFoundError:
        assert (there, gone) == ("note", "note")
    else:
        assert (there, gone) == ("ok", "warning")


# Chat templates.

FORKS = {
    "qwen2.5": [],
    "llama3": [],
    "llama3.2": [],
    "smollm2": [],
    "hermes": ["answer after a result", f"episode of {TURNS} tool calls"],
    "qwen3": ["thinking", "no thinking", "length", "answer after a result", f"episode of {TURNS} answers"],
    "qwen3.5": ["thinking", "no thinking", "length", "answer after a result", f"episode of {TURNS} answers"],
    "glm4.5": ["thinking", "length", "answer after a result", f"episode of {TURNS} answers"],
    "gpt-oss": ["thinking", "no thinking", "length", "answer after a result", f"episode of {TURNS} answers"],
}


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_it_says_which_turns_fork(name):
    found = examine(Renderer(family(name)))
    assert [each.topic for each in found if each.state == "warning"] == FORKS[name]
    assert not [each for each in found if each.state == "problem"]
    cost = next((each.text for each in found if each.topic in FORKS[name] and "episode" in each.topic), "")
    assert cost.count("times the tokens") == bool(FORKS[name])


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "glm4.5"])
def test_keep_thinking_is_the_cure_that_it_names(name):
    advice = {each.topic: each.do for each in examine(Renderer(family(name)))}
    assert "context_tracker.keep_thinking: true" in advice["thinking"]
    cured = examine(Renderer(family(name), keep_thinking=True))
    assert [each.topic for each in cured if each.state != "ok"] == []


def test_costs_are_counted_in_tokens_of_the_episode():
    found = {each.topic: each.text for each in examine(Renderer(family("hermes")))}
    told = found[f"episode of {TURNS} tool calls"]
    assert told.startswith(
        f"{TURNS - 1} of {TURNS} turns do not extend the turn before: {TURNS} sequences to train on, "
    )
    assert 2 < float(re.search(r"([\d.]+) times the tokens", told)[1]) < TURNS


def test_a_tokenizer_that_changes_text_is_a_problem():
    from tokenizers import normalizers

    tokenizer = made(SMOLLM2, ("<|im_start|>", "<|im_end|>"), "<|im_end|>")
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    found = {each.topic: each for each in examine(Renderer(tokenizer))}
    assert found["text and ids"].state == "problem" and "becomes" in found["text and ids"].text


def test_replies_that_nothing_ends_and_templates_that_refuse_are_problems():
    plain = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    endless = made(plain, (), "<|end|>")
    endless.eos_token = None
    assert states(examine(Renderer(endless)))["stop tokens"] == "problem"
    refusing = variant("smollm2", template="{{ raise_exception('never') }}")
    found = examine(Renderer(refusing))
    assert [(each.topic, each.state) for each in found] == [("template", "problem")] and "never" in found[0].text


def test_a_vocabulary_beyond_the_embeddings_is_a_problem():
    tokenizer = family("smollm2")
    size = len(tokenizer)
    fits = sizes(tokenizer, {"vocab_size": size + 5}, {"embedding": [size + 5, 8]})
    assert [each.state for each in fits] == ["ok"] and "5 of them spare" in fits[0].text
    assert sizes(tokenizer, {"vocab_size": size - 1}, {})[0].state == "problem"
    assert sizes(tokenizer, {"text_config": {"vocab_size": size}}, {"embedding": [size - 1, 8]})[0].state == "problem"
    assert sizes(tokenizer, {"vocab_size": size}, {"embedding": [size, 8], "head": [size + 1, 8]})[0].state == "problem"
    assert sizes(tokenizer, {}, {})[0].state == "note"


def test_shapes_are_read_from_the_files_heads(tmp_path: Path):
    assert read_embedding_shapes(tmp_path) == {}

    def write(name: str, tensors: dict[str, list[int]]) -> None:
        head = {each: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for each, shape in tensors.items()}
        text = json.dumps({"__metadata__": {"format": "pt"}, **head}).encode()
        (tmp_path / name).write_bytes(len(text).to_bytes(8, "little") + text)

    write("model-1.safetensors", {"model.embed_tokens.weight": [7, 2], "model.norm.weight": [2]})
    write("model-2.safetensors", {"lm_head.weight": [8, 2]})
    assert read_embedding_shapes(tmp_path) == {"embedding": [7, 2], "head": [8, 2]}
    named = {"weight_map": {"model.embed_tokens.weight": "model-1.safetensors", "x": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(named))
    assert read_embedding_shapes(tmp_path) == {"embedding": [7, 2]}
    (tmp_path / "model-1.safetensors").write_bytes(b"\xff" * 20)
    assert read_embedding_shapes(tmp_path) == {}


def test_a_hub_model_is_looked_at_without_its_weights(tmp_path: Path, monkeypatch):
    from huggingface_hub import constants

    from ajet.engine.model_source import locate_model
    from ajet.schema.errors import UserError

    kept = tmp_path / "models--some--model"
    snapshot = kept / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0123")
    (snapshot / "config.json").write_text("{}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert locate_model("some/model", weights=False).folder == snapshot
    with pytest.raises(UserError, match="HF_HUB_OFFLINE"):
        locate_model("some/model")
