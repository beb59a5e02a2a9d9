"""`ajet deploy --engine vllm`: real vLLM serves a model, and several adapters, and says what the transformers engine
says."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.contract.test_adapters_run import ASK, KEY, project, served, trained
from tests.support.deployed import start_deployment
from tests.support.vllm_fixtures import skip_without_vllm

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]


def test_vllm_serves_each_adapter_as_it_was_trained(tmp_path, monkeypatch):
    skip_without_vllm()
    project(tmp_path)
    done, run = trained(tmp_path, "run", "trainer_common.total_training_steps=2", "trainer_common.test_freq=2")
    assert done.returncode == 0, done.stdout
    inside, outside = (served(run, engine, monkeypatch) for engine in ("transformers", "vllm"))
    for name, logprobs in inside.items():
        np.testing.assert_allclose(outside[name], logprobs, atol=1e-3)
    assert len({tuple(each) for each in outside.values()}) == 3, "three policies"


def test_vllm_serves_one_model_as_it_was_trained(tool_project: Path, monkeypatch):
    """By every protocol, whatever name a client asks for: the run has no adapters."""
    skip_without_vllm()
    monkeypatch.setenv("AJET_API_KEY", KEY)
    bearer = {"authorization": f"Bearer {KEY}"}
    body = {"model": "any", "messages": ASK, "max_tokens": 6}
    said, names = {}, {}
    for engine in ("transformers", "vllm"):
        with start_deployment("plain", tool_project / "launcher_record", "step-2", engine=engine) as model:
            base = model.base_url
            answer = httpx.post(
                f"{base}/chat/completions", json={**body, "logprobs": True}, headers=bearer, timeout=300
            )
            assert answer.status_code == 200, answer.text
            told = answer.json()["choices"][0]["logprobs"]["content"]
            said[engine] = [each["token"] for each in told], [each["logprob"] for each in told]
            names[engine] = [each["id"] for each in httpx.get(f"{base}/models", headers=bearer).json()["data"]]
            if engine == "vllm":
                message = httpx.post(f"{base}/messages", json=body, headers={"x-api-key": KEY}, timeout=300).json()
                assert message["type"] == "message" and message["usage"]["output_tokens"] == len(told)
                stream = httpx.post(
                    f"{base}/chat/completions", json={**body, "stream": True}, headers=bearer, timeout=300
                )
                assert stream.text.endswith("data: [DONE]\n\n")
    assert names["vllm"] == names["transformers"] == ["plain"]
    assert said["vllm"][0] == said["transformers"][0], "greedy"
    np.testing.assert_allclose(said["vllm"][1], said["transformers"][1], atol=1e-3)
