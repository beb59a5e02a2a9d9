"""`ajet deploy` when something goes wrong around it: what is being answered is finished or fails in order, and what is
served is not the run's to take away."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import httpx
import pytest

from ajet.schema.errors import UserError
from tests.contract.conftest import TOOL_SETTINGS
from tests.support.ajet_process import ajet, start
from tests.support.deployed import engine_dies_in_replies, start_deployment

pytestmark = pytest.mark.extra_slow
KEY = "the-key-of-these-tests-0123456789"
BEARER = {"authorization": f"Bearer {KEY}"}
LONG = {"model": "any", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 120, "temperature": 1.5}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deploy")
    assert ajet("init", "tool", "--template", "tool", cwd=folder).returncode == 0
    more = [*TOOL_SETTINGS, "trainer_common.total_training_steps=1"]
    done = ajet("--conf", "tool/tool.yaml", "--backbone", "local", *more, cwd=folder)
    assert done.returncode == 0, done.stdout
    return folder / "launcher_record"


@pytest.fixture
def own_key(monkeypatch):
    monkeypatch.setenv("AJET_API_KEY", KEY)


def asked(base: str, **more) -> httpx.Response:
    return httpx.post(f"{base}/chat/completions", json={**LONG, "max_tokens": 4, **more}, headers=BEARER, timeout=120)


def events(lines) -> list[str]:
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def test_sigterm_finishes_what_is_being_answered(record, tmp_path):
    log = tmp_path / "log"
    process = start("deploy", "tool", "--exp-dir", str(record), cwd=tmp_path, log=log, AJET_API_KEY=KEY)
    try:
        while "Press Ctrl-C" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)  # polls the output; nothing is assumed of how long it takes
        base = next(word for word in log.read_text().split() if word.startswith("http"))
        body = {**LONG, "stream": True}
        with httpx.stream("POST", f"{base}/chat/completions", json=body, headers=BEARER, timeout=120) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            process.terminate()
            said = events([first, *lines])
        assert said[-1] == "[DONE]" and json.loads(said[-2])["choices"][0]["finish_reason"] in ("stop", "length")
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def test_a_stream_whose_engine_dies_ends_as_an_error_and_the_next_request_is_answered(record, own_key):
    with start_deployment("tool", record) as model:
        base = model.base_url
        with engine_dies_in_replies():
            said = events(asked(base, max_tokens=120, stream=True).text.splitlines())
            alone = asked(base, max_tokens=120)
        assert "error" in json.loads(said[-1] if said[-1] != "[DONE]" else said[-2]), said
        assert alone.status_code >= 500 and "error" in alone.json()
        assert asked(base).status_code == 200
        model.tend()
        assert all(session.is_idle for session in model.replaced_sessions)


def test_a_port_is_one_deployments(record, own_key):
    with start_deployment("tool", record) as model:
        port = int(model.base_url.split(":")[2].split("/")[0])
        taken, again = (
            f"cannot listen on .*:{port}: Address already in use",
            start_deployment("tool", record, port=port),
        )
        with pytest.raises(UserError, match=taken) as refused, again:
            pass
        assert "--port" in (refused.value.where or "")
        assert asked(model.base_url).status_code == 200


def test_a_card_that_cannot_be_written_does_not_keep_a_model_from_answering(record, own_key, tmp_path):
    shutil.copytree(record, tmp_path / "runs")
    card = tmp_path / "runs" / "tool" / "model_card.md"
    card.unlink(missing_ok=True)
    (card / "in the way").mkdir(parents=True)  # as a full or read-only disk: the write fails, whoever one is
    with start_deployment("tool", tmp_path / "runs") as model:
        assert asked(model.base_url).status_code == 200
    assert card.is_dir() and not list(card.parent.glob("*.partial"))


def test_a_checkpoint_may_go_while_it_is_served(record, own_key, tmp_path):
    """A run that goes on replaces and removes its checkpoints."""
    shutil.copytree(record, tmp_path / "runs")
    greedy = {"temperature": 0.0, "max_tokens": 8}
    with start_deployment("tool", tmp_path / "runs") as model:
        before = asked(model.base_url, **greedy).json()["choices"]
        checkpoints = tmp_path / "runs" / "tool" / "checkpoints"
        for weights in checkpoints.glob("step-*/*.safetensors"):
            weights.with_suffix(".aside").write_bytes(b"other weights")
            weights.with_suffix(".aside").rename(weights)  # atomically, as checkpoints are
        assert asked(model.base_url, **greedy).json()["choices"] == before
        shutil.rmtree(checkpoints)
        assert asked(model.base_url, **greedy).json()["choices"] == before
        assert asked(model.base_url, logprobs=True).status_code == 200
    with pytest.raises(UserError, match="no complete checkpoint"), start_deployment("tool", tmp_path / "runs"):
        pass
