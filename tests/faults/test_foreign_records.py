"""A record is data: looking at a run folder that somebody sent runs none of its code, asks no network, changes no
environment, and whatever is damaged in it is a sentence."""

from __future__ import annotations

import json
import os
import pty
import shutil
import socket
import subprocess
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import ajet.engine.embedded
from ajet.cli.launcher import app
from ajet.record import Checkpoints
from ajet.record.resume import RunIdentity
from ajet_viewer.app import Views, build_app
from ajet_viewer.library import Library
from ajet_viewer.view import find_speller
from tests.support.ajet_process import command
from tests.support.ajet_process import environment as environment_of
from tests.support.viewer_fixtures import write_run

pytestmark = pytest.mark.slow

STARTED = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system")
REACHED = ("socket.connect", "socket.getaddrinfo", "socket.sendto")
TINY = Path(ajet.engine.embedded.__file__).parent / "tiny_tools"
_watched: list[list[str]] = []
_others: set[int | None] = set()
"""Threads of other tests, which may reach for what is theirs: a database, a service."""


def _note(event: str, arguments: Any) -> None:
    if _watched and event in STARTED + REACHED and threading.get_ident() not in _others:
        _watched[-1].append(f"{event} {arguments!r}"[:300])


@pytest.fixture(scope="module", autouse=True)
def hook() -> None:
    sys.addaudithook(_note)


@pytest.fixture
def events() -> Iterator[list[str]]:
    """What was started or reached for."""
    _others.update(each.ident for each in threading.enumerate() if each is not threading.current_thread())
    _watched.append([])
    yield _watched[-1]
    _watched.pop()
    _others.clear()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A listener where the hub would be; a connection to it waits to be accepted."""
    from huggingface_hub import constants

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield listener


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment as it is to stay; the caches are empty."""
    monkeypatch.setenv("AJET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_person")
    for name in ("PYTHONPATH", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    before = surroundings()
    yield before
    for name in surroundings().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def surroundings() -> dict[str, str]:
    """The environment but for what pytest changes itself."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def foreign(root: Path, model: str, *, checkpoint: bool = False) -> Path:
    """A run as somebody might send it, with what would take over whoever loads its `.env`."""
    run = write_run(root / "sent", steps=1)
    (run / "resolved.yaml").write_text(
        f"ajet:\n  backbone: local\n  model: {{path: '{model}'}}\n  rollout: {{max_response_length_in_one_turn: 4}}\n"
        "mine: {key: '${oc.env:HF_TOKEN}'}\n"
    )
    RunIdentity("r", "local", {}).write(run)
    (run / ".env").write_text(f"PYTHONPATH={run}\nAJET_CACHE={run}/cache\nHF_ENDPOINT=http://127.0.0.1:9\n")
    (run / "sitecustomize.py").write_text(f"open({str(run / 'ran')!r}, 'w')\n")
    if checkpoint:
        Checkpoints(run / "checkpoints").save(1, lambda folder: _copy_model(folder), {})
    return run


def _copy_model(folder: Path, spoiled: tuple[str, str] | None = None) -> None:
    shutil.copytree(TINY, folder, dirs_exist_ok=True)
    if spoiled is not None:
        (folder / spoiled[0]).write_text(spoiled[1])


def ajet_here(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a command, in this process."""
    done = CliRunner().invoke(app, list(arguments), obj={})
    return done.exit_code, done.output


def client_of(run: Path) -> TestClient:
    return TestClient(build_app(Views(Library.of(run), find_speller), hosts=frozenset(), key=None))


COMMANDS = {
    "view": ["view", "RUN", "--html", "OUT"],
    "prove": ["prove", "RUN"],
    "ids": ["prove", "RUN", "--ids-only"],
    "chat": ["chat", "RUN", "--prompt", "hello"],
    "agent": ["chat", "RUN", "--agent", "--prompt", "hello"],
    "export": ["export", "RUN"],
    "runs": ["runs", "--exp-dir", "ROOT"],
    "episodes": ["episodes", "RUN"],
    "stop": ["stop", "RUN"],
}


@pytest.mark.parametrize("model", ["embedded:smollm2-135m", "evil/model"])
@pytest.mark.parametrize("command", COMMANDS)
def test_looking_at_a_record_starts_and_reaches_nothing(tmp_path, environment, hub, events, command, model):
    run = foreign(tmp_path, model)
    words = {"RUN": str(run), "OUT": str(tmp_path / "page.html"), "ROOT": str(tmp_path)}
    code, said = ajet_here(*(words.get(each, each) for each in COMMANDS[command]))
    assert code == (0 if command in ("view", "runs", "episodes", "stop") else 2), said
    assert events == []
    assert surroundings() == environment
    assert not (run / "ran").exists() and not (run / "cache").exists()
    with pytest.raises(BlockingIOError):
        hub.accept()
    if command in ("prove", "ids"):
        assert model in said and "--fetch" in said


@pytest.mark.parametrize("answer", ["", "y"])
def test_at_a_terminal_the_person_is_asked_and_nothing_is_fetched_before_the_answer(tmp_path, hub, answer):
    run = foreign(tmp_path, "evil/model")
    keyboard, terminal = pty.openpty()
    where = f"http://127.0.0.1:{hub.getsockname()[1]}"
    process = subprocess.Popen(
        command("prove", str(run), "--ids-only"), stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path,
        start_new_session=True, env=environment_of(
            HF_ENDPOINT=where, HF_HUB_OFFLINE="0", HF_TOKEN="hf_secret", HF_HUB_CACHE=str(tmp_path / "hub")
        ),
    )  # fmt: skip
    os.close(terminal)
    said = read_to(keyboard, "Download it? [y/N]")
    with pytest.raises(BlockingIOError):
        hub.accept()
    assert f"'evil/model' would be downloaded from {where}" in said
    assert "token would be sent there" in said and "hf_secret" not in said
    os.write(keyboard, f"{answer}\n".encode())
    if answer:
        hub.settimeout(60)
        asked, _ = hub.accept()
        with asked:
            assert b"evil/model" in asked.recv(4096)
        process.kill()  # what the hub would answer is no matter of this test
    else:
        assert "--fetch downloads it" in read_to(keyboard, None) and process.wait(240) == 2
        with pytest.raises(BlockingIOError):
            hub.accept()
    process.wait(240)
    os.close(keyboard)


def read_to(keyboard: int, words: str | None) -> str:
    """What the terminal shows until these words, or until its program has ended."""
    shown = b""
    while words is None or words.encode() not in shown:
        try:
            shown += os.read(keyboard, 4096)
        except OSError:  # its last program has left it
            assert words is None, shown.decode()
            break
    return " ".join(shown.decode().split())


def test_the_viewer_shows_ids_where_no_tokenizer_is_here(tmp_path, environment, hub, events):
    client = client_of(foreign(tmp_path, "evil/model"))
    found = client.get("/api/tokens/e00100/of/sent?line=0").json()
    assert found["text"] is None and len(found["ids"]) == 27
    assert surroundings() == environment
    assert [each for each in events if not each.startswith("socket.")] == []
    with pytest.raises(BlockingIOError):
        hub.accept()


def test_the_checkpoints_own_tokenizer_spells_and_its_model_talks(tmp_path, environment, hub, events):
    run = foreign(tmp_path, "evil/model", checkpoint=True)
    code, said = ajet_here("chat", str(run), "--prompt", "What does the eel cost?")
    assert code == 0 and "model:" in said and "an empty line ends" not in said, said
    assert events == [] and environment.items() <= surroundings().items(), "torch adds a variable of its own"
    assert not {"PYTHONPATH", "HF_ENDPOINT"} & surroundings().keys()
    code, said = ajet_here("prove", str(run), "--ids-only")
    assert "evil/model" not in said and code == 1, said  # the fixture's tokens are random: they are not proven
    found = client_of(run).get("/api/tokens/e00100/of/sent?line=0").json()
    assert len(found["text"]) == len(found["ids"]) == 27
    saved = run / "checkpoints" / "step-1"
    for spoiled in (("config.json", "[" * 100_000), ("model.safetensors", "no tensors"), ("tokenizer.json", "{")):
        Checkpoints(run / "checkpoints").save(2, partial(_copy_model, spoiled=spoiled), {})
        code, said = ajet_here("chat", str(run), "--prompt", "hello")
        assert code == 2 and "cannot be loaded" in said, said
    shutil.rmtree(run / "checkpoints" / "step-2")
    (saved / "tokenizer.json").write_text("{")
    assert client_of(run).get("/api/tokens/e00100/of/sent?line=0").json()["text"] is None
    with pytest.raises(BlockingIOError):
        hub.accept()


def test_a_model_that_is_fetched_by_consent_is_asked_for_by_name(tmp_path, environment, hub):
    """With the flag the hub is asked: it is what the person said."""
    run = foreign(tmp_path, "./missing.gguf")
    code, said = ajet_here("prove", str(run), "--fetch")
    assert code == 2 and "There is no model at" in said


def test_an_agent_is_the_projects_own_code(tmp_path, environment, events, monkeypatch):
    run = foreign(tmp_path, "embedded:tiny-tools", checkpoint=True)
    marker = tmp_path / "agent ran"
    (run / "workflow.py").write_text(f"open({str(marker)!r}, 'w')\nclass Agent: ...\n")
    (run / "resolved.yaml").write_text(
        "ajet:\n  model: {path: 'embedded:tiny-tools'}\n  task_reader: {type: random_dummy}\n"
        f"  base_dir: {tmp_path}\n  rollout: {{user_workflow: '{run}/workflow.py->Agent'}}\n"
    )
    monkeypatch.chdir(tmp_path)
    code, said = ajet_here("chat", str(run), "--agent", "--prompt", "hello")
    assert code == 2 and "user_workflow" in said and "--conf" in said and not marker.exists(), said
    shutil.move(run / "workflow.py", tmp_path / "workflow.py")
    text = (run / "resolved.yaml").read_text()
    (run / "resolved.yaml").write_text(text.replace(f"{run}/workflow.py", f"{tmp_path}/workflow.py"))
    code, said = ajet_here("chat", str(run), "--agent", "--prompt", "hello")
    assert marker.exists() and str(tmp_path / "workflow.py") in said, "what is the project's own is run, and said"
    assert code == 2 and "not a subclass of Workflow" in said and events == []
    (run / "resolved.yaml").write_text(
        "ajet:\n  model: {path: 'embedded:tiny-tools'}\n  task_reader: {type: random_dummy}\n"
        f"  base_dir: {tmp_path}\n  rollout: {{user_workflow: mcp_agent}}\n"
        f"  environment: {{use: touch {tmp_path}/ran}}\n"
    )
    code, said = ajet_here("chat", str(run), "--agent", "--prompt", "hello")
    assert code == 2 and "environment.use is 'touch" in said and not (tmp_path / "ran").exists() and events == []


def spoil(run: Path, change: Any, *, blob: bytes | None = None) -> str:
    """Change the first recorded episode; answers its uuid. `blob`: its arrays instead."""
    file = run / "episodes" / "step-1.jsonl"
    lines = file.read_text().splitlines()
    row = json.loads(lines[0])
    if blob is not None:
        arrays = file.with_suffix(".bin")
        place = {"offset": arrays.stat().st_size, "length": len(blob), "crc32": zlib.crc32(blob)}
        with arrays.open("ab") as out:
            out.write(blob)
        row["blob"] = place
    change(row)
    file.write_text("\n".join([json.dumps(row), *lines[1:]]) + "\n")
    return str(row["uuid"])


def _bomb(row: dict[str, Any]) -> None:
    row["arrays"]["ints"] += 1


def _long(row: dict[str, Any]) -> None:
    row["blob"]["length"] = 99_999_999_261


def _wide(row: dict[str, Any]) -> None:
    row["arrays"] = {"ints": 1 << 34, "floats": 0}


def _shared(row: dict[str, Any]) -> None:
    for call in row["calls"]:
        call["response_ids"] = [0, row["arrays"]["ints"]]


def _circle(row: dict[str, Any]) -> None:
    row["calls"][0].update(parent=1, prefix=3)


def _nowhere(row: dict[str, Any]) -> None:
    row["calls"][0]["reply"] = 99


def _odd(row: dict[str, Any]) -> None:
    row["messages"][0] = 7


DAMAGE = {
    "bomb": (_bomb, zlib.compress(bytes(30_000_000))),
    "long": (_long, None),
    "wide": (_wide, None),
    "shared": (_shared, None),
    "circle": (_circle, None),
    "nowhere": (_nowhere, None),
    "odd": (_odd, None),
    "garbage": (lambda row: None, b"no zlib at all"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_episode_is_a_sentence_and_the_others_are_shown(tmp_path, environment, kind):
    run = foreign(tmp_path, "embedded:tiny-tools")
    uuid = spoil(run, DAMAGE[kind][0], blob=DAMAGE[kind][1])
    client = client_of(run)
    tracemalloc.start()
    answer = client.get(f"/api/tokens/{uuid}/of/sent?line=0")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.status_code == 422 and "damaged" in answer.json()["error"]
    assert peak < 20 << 20, "a blob is not unpacked beyond what it is said to hold"
    assert client.get("/api/episode/e00101/of/sent").status_code == 200
    code, said = ajet_here("view", str(run), "--html", str(tmp_path / "page.html"))
    assert code == 0 and "1 damaged episodes are not in it" in (tmp_path / "page.html").read_text(), said
    code, said = ajet_here("episodes", str(run), "--worst", "9")
    assert code == 0 and "damaged" in said and "5 of 5" in said, said
    code, said = ajet_here("prove", str(run), "--ids-only")
    assert code == 2 and "damaged" in said, said


LEVELS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10)
)
MERGED = "b0: &b0 {x: 1}\n" + "".join(
    f"b{level}: &b{level}\n  <<: [{', '.join([f'*b{level - 1}'] * 10)}]\n" for level in range(1, 10)
)


@pytest.mark.parametrize(
    "text",
    [LEVELS, MERGED, "a: &a [*a]\n", f"a: {'[' * 5000}{']' * 5000}\n", f"a: {'1:' * 200_000}1\n", "a: !!int x\n"],
    ids=["aliases", "merges", "itself", "deep", "number", "tag"],
)
def test_a_yaml_that_means_more_than_it_says(tmp_path, environment, text):
    run = foreign(tmp_path, "embedded:tiny-tools")
    (run / "resolved.yaml").write_text(text)
    answer = client_of(run).get("/api/config/sent")
    assert answer.status_code == 200 and answer.json()["keys"] == []
    assert client_of(run).get("/api/tokens/e00101/of/sent?line=0").json()["text"] is None
    code, said = ajet_here("prove", str(run))
    assert code == 2 and "is not valid YAML" in said
    code, said = ajet_here("config", "validate", "--conf", str(run / "resolved.yaml"))
    assert code == 2 and "is not valid YAML" in said, "the same bounds hold for a YAML of one's own"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"step": NaN, "updated": "x"}', '{"processes": [7]}', "[1]", "\xff"])
@pytest.mark.parametrize("name", ["status.json", "metrics.jsonl", "proof.json"])
def test_odd_json_hides_no_run(tmp_path, environment, name, text):
    run = foreign(tmp_path, "embedded:tiny-tools")
    (run / name).write_text(text + "\n", encoding="latin-1")
    client = client_of(run)
    assert [row["name"] for row in client.get("/api/runs").json()["runs"]] == ["sent"]
    assert client.get("/api/run/sent").status_code == 200
    assert client.get("/api/metrics/sent").status_code == 200
    assert ajet_here("runs", "--exp-dir", str(tmp_path))[0] == 0


def test_deep_lines_and_links_are_not_followed(tmp_path, environment):
    run = foreign(tmp_path, "embedded:tiny-tools")
    (tmp_path / "secret").write_text("of the person")
    (run / "command").unlink()
    (run / "command").symlink_to(tmp_path / "secret")
    os.mkfifo(run / "proof.json")
    with (run / "episodes" / "step-1.jsonl").open("a") as out:
        out.write('{"uuid": ' + "[" * 100_000 + "\n")
    client = client_of(run)
    assert client.get("/api/config/sent").json()["commands"] == ""
    assert client.get("/api/run/sent").json()["proof"] is None
    assert len(client.get("/api/episodes/sent").json()["rows"]) == 5


def test_doctor_converts_nothing(tmp_path, environment, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    code, said = ajet_here("doctor", str(tmp_path / "m.gguf"))
    assert "would be converted" in said.replace("\n", " ") and not (tmp_path / "cache").exists(), said


def own_code(folder: Path) -> Path:
    """A model whose configuration asks for code beside it."""
    shutil.copytree(TINY, folder)
    marker = folder / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass EvilConfig: ...\nclass EvilTokenizer: ...\n")
    told = json.loads((folder / "config.json").read_text())
    told |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig"}}
    (folder / "config.json").write_text(json.dumps(told))
    told = json.loads((folder / "tokenizer_config.json").read_text())
    told |= {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": [None, "evil.EvilTokenizer"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return marker


def test_a_models_own_code_is_run_only_where_a_key_allows_it(tmp_path, environment, monkeypatch):
    """transformers would ask on standard input: what lies there is no answer."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    marker = own_code(tmp_path / "evil")
    asked = CliRunner().invoke(app, ["doctor", str(tmp_path / "evil")], obj={}, input="y\n" * 9)
    assert not marker.exists() and "contains Python code" in asked.output and "trust_remote_code" in asked.output
    run = foreign(tmp_path, str(tmp_path / "evil"))
    text = (run / "resolved.yaml").read_text().replace("evil'}", "evil', trust_remote_code: true}")
    (run / "resolved.yaml").write_text(text)
    done = CliRunner().invoke(app, ["prove", str(run)], obj={}, input="y\n" * 9)
    assert done.exit_code == 2 and "model.trust_remote_code: true" in done.output.replace("\n", " "), done.output
    assert not marker.exists()


def test_a_yaml_of_ones_own_allows_it(tmp_path, environment, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    marker = own_code(tmp_path / "evil")
    yaml = tmp_path / "own.yaml"
    yaml.write_text(f"ajet:\n  model: {{path: '{tmp_path}/evil', trust_remote_code: true}}\n")
    ajet_here("doctor", "--conf", str(yaml))
    assert marker.exists(), "the class of the tokenizer is taken from the model's folder"
