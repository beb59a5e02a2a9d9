"""`ajet deploy`: what a run has tuned answers clients of every protocol, in bounded memory, and says what it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import pytest

from ajet.schema.errors import UserError
from tests.contract.conftest import TOOL_SETTINGS
from tests.support.ajet_process import ajet
from tests.support.deployed import replace_sessions_after, start_deployment

ASK = [{"role": "user", "content": "What is 1 + 2?"}]
KEY = "a-key-of-my-own-0123456789"


@pytest.fixture(scope="module")
def record(tool_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deploy") / "launcher_record"
    shutil.copytree(tool_project / "launcher_record" / "plain", folder / "tool")
    return folder


def post(base: str, path: str, body: dict, **headers: str) -> httpx.Response:
    return httpx.post(base + path, json={"model": "any", **body}, headers=headers, timeout=120)


@pytest.mark.slow
def test_the_model_of_a_run_answers_openais_and_anthropics_clients(record, monkeypatch):
    """What test_every_protocol_is_answered_as_the_run_was_evaluated holds in full."""
    monkeypatch.setenv("AJET_API_KEY", KEY)
    with start_deployment("tool", record, "step-2") as model:
        base = model.base_url
        told = {"messages": ASK, "max_tokens": 8}
        reply = post(base, "/chat/completions", told, authorization=f"Bearer {KEY}").json()
        assert reply["choices"][0]["message"]["role"] == "assistant" and reply["usage"]["completion_tokens"] > 0
        stranger = post(base, "/messages", told, **{"x-api-key": "another"})
        message = post(base, "/messages", told, **{"x-api-key": KEY}).json()
        assert stranger.status_code == 401 and message["type"] == "message" and message["content"]
        assert message["usage"]["output_tokens"] == reply["usage"]["completion_tokens"], "greedy: the same reply"
        stream = post(base, "/chat/completions", {**told, "stream": True}, authorization=f"Bearer {KEY}").text
        assert stream.endswith("data: [DONE]\n\n")
    assert "# tool, step 2" in (record / "tool" / "model_card.md").read_text()


@pytest.mark.extra_slow
def test_every_protocol_is_answered_as_the_run_was_evaluated(record, monkeypatch):
    monkeypatch.setenv("AJET_API_KEY", KEY)
    bearer = {"authorization": f"Bearer {KEY}"}
    with replace_sessions_after(3), start_deployment("tool", record, "step-1") as model:
        base = model.base_url
        assert post(base, "/chat/completions", {"messages": ASK}).status_code == 401
        told = {"messages": ASK, "max_tokens": 8}
        replies = [post(base, "/chat/completions", told, **bearer).json() for _ in range(2)]
        texts = {json.dumps(reply["choices"][0]["message"]) for reply in replies}
        assert len(texts) == 1 and replies[0]["usage"]["completion_tokens"] > 0  # greedy, as it was evaluated
        first = post(base, "/responses", {"input": "What is 1 + 2?", "max_output_tokens": 8}, **bearer).json()
        assert first["status"] in ("completed", "incomplete")
        model.tend()  # three calls: another session from here on
        more = {"input": "And 2 + 2?", "previous_response_id": first["id"], "max_output_tokens": 8}
        assert post(base, "/responses", more, **bearer).status_code == 200
        claude = {"messages": ASK, "max_tokens": 8}
        message = post(base, "/messages", claude, **{"x-api-key": KEY, "anthropic-version": "2023-06-01"}).json()
        assert message["type"] == "message" and message["content"]
        stream = post(base, "/chat/completions", {**told, "stream": True}, **bearer)
        assert stream.text.endswith("data: [DONE]\n\n")
        model.tend()
        assert len(model.replaced_sessions) <= 1 and model.session.calls < 3
        assert httpx.get(base + "/models", headers=bearer).json()["data"][0]["id"] == "tool"
    card = (record / "tool" / "model_card.md").read_text()
    for part in ("base_model:", "# tool, step 1", "## Data", "## Rewards", "## Curve", "## Evaluation", "- torch "):
        assert part in card
    rows = [json.loads(line) for line in (record / "tool" / "metrics.jsonl").read_text().splitlines()]
    measured = {f"{row['train/reward']:.4g}" for row in rows if row["step"] == 1 and "train/reward" in row}
    assert all(number in card for number in measured)
    assert KEY not in card and str(record.parent) not in card and "workflow.py->Prices" in card


@pytest.mark.extra_slow
def test_mistakes_have_answers(record, monkeypatch):
    with pytest.raises(UserError, match="no checkpoint newest"), start_deployment("tool", record, "newest"):
        pass
    with pytest.raises(UserError, match="no checkpoint of step 9"), start_deployment("tool", record, "step-9"):
        pass
    monkeypatch.setenv("AJET_API_KEY", "short")
    with pytest.raises(UserError, match="AJET_API_KEY is not a valid key"), start_deployment("tool", record):
        pass
    monkeypatch.delenv("AJET_API_KEY")
    done = ajet("deploy", "nothing", "--exp-dir", str(record), cwd=record)
    assert done.returncode == 2 and "no run named nothing" in done.stdout


def said(base: str, name: str) -> list[float]:
    """The log-probabilities of a greedy reply of one of the models."""
    body = {"model": name, "messages": ASK, "max_tokens": 6, "logprobs": True}
    answer = post(base, "/chat/completions", body, authorization=f"Bearer {KEY}")
    assert answer.status_code == 200, answer.text
    return [each["logprob"] for each in answer.json()["choices"][0]["logprobs"]["content"]]


@pytest.mark.extra_slow
def test_a_lora_run_answers_beside_the_model_it_began_with(record, tmp_path, tool_project, monkeypatch):
    """The adapter beside the weights is the merged model, and `base` is what was trained from: one copy of it."""
    monkeypatch.setenv("AJET_API_KEY", KEY)
    yaml = next((tool_project / "tool").glob("*.yaml"))
    small = ["trainer_common.lora.rank=4", "trainer_common.optim.lr=0.05", "trainer_common.total_training_steps=1"]
    given = ["--conf", str(yaml), "--backbone", "local", "experiment_name=low.rank", *TOOL_SETTINGS, *small]
    done = ajet(*given, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    runs = tmp_path / "launcher_record"
    with start_deployment("low.rank", runs) as merged:
        alone = said(merged.base_url, "any")
    with start_deployment("low.rank", runs, with_base=True) as model:
        assert model.models == ["low.rank", "base"]
        tuned, base = (said(model.base_url, name) for name in model.models)
        assert post(model.base_url, "/chat/completions", {"messages": ASK},
                    authorization=f"Bearer {KEY}").status_code == 404  # fmt: skip
    assert tuned == pytest.approx(alone, abs=1e-4) and tuned != pytest.approx(base, abs=1e-3)
    for named, refusal in (({}, "This run trained all weights"), ({"name": "base"}, "is reserved")):
        with pytest.raises(UserError, match=refusal), start_deployment("tool", record, with_base=True, **named):
            pass
