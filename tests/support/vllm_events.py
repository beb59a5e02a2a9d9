"""Streams of vLLM's token route, recorded from a real server of each form: `vllm_events/VERSION.jsonl` in the tests of
ajet_vllm.

Record one with `python -m tests.support.vllm_events URL > FILE`, where the server has tiny-tools (vllm_fixtures).
"""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet_vllm.vllm_server import ROUTE, VllmWire

FOLDER = Path(__file__).resolve().parents[2] / "plugins" / "ajet_vllm" / "tests" / "vllm_events"
REQUEST = TokenRequest(
    np.array([5, 6, 7], np.int32), Sampling(6, temperature=2.0, top_logprobs=2, seed=3), DrawKey(0, 0, 0, 0)
)
"""What the recorded events answer."""


def read_recorded(version: str) -> list[dict[str, Any]]:
    """Return the recorded events of a server's version."""
    return [json.loads(line) for line in (FOLDER / f"{version}.jsonl").read_text().splitlines()]


def request_events(url: str) -> list[dict[str, Any]]:
    """Return the events with which a server answers REQUEST."""
    body = VllmWire().build_body(REQUEST, REQUEST.sampling.max_tokens, "salt")
    with httpx.stream("POST", url + ROUTE, json=body, timeout=300) as response:
        assert response.status_code == 200, response.read()
        lines = [line[len("data:") :].strip() for line in response.iter_lines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def list_fields(value: Any, prefix: str = "") -> set[str]:
    """Return the paths of all fields in events, without positions in lists."""
    if isinstance(value, list):
        return {path for each in value for path in list_fields(each, prefix)}
    if isinstance(value, dict):
        below = {path for name, each in value.items() for path in list_fields(each, f"{prefix}.{name}")}
        return below | {f"{prefix}.{name}" for name in value}
    return set()


def encode_array(array: np.ndarray) -> str:
    """Return an array as vLLM sends it."""
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


if __name__ == "__main__":
    for event in request_events(sys.argv[1]):
        print(json.dumps(event))
