"""AgentRL's own page can be followed line by line: whatever it names has a row, in both languages.

Its names in the order of its page (README_zh.md of AgentRL): files, fields, classes, flags, defaults, steps.
"""

from __future__ import annotations

from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMED = """
128K
requirements.txt
models, sampler
tests/dtensor_bench.py
tests/mongo_connection_test.py
src/databases/deploy/mongo/docker-compose.yml
27017
`root`
`password`
MCP-Docker
src/databases/deploy/sglang/docker-compose.yml
assets/agent_config_example.yml
browse_agent.models
api_key
base_url
max_prompt_length
min_prompt_length
browse_tools
default_purpose
`status`
judge_prompt_template
`id`
`query`
`answer`
`scorer`
answer_schema
agentcpm
"scorer": "math"
boxed
fbox
MCPScorerFactory.register_scorer(
AsyncSampler
run()
evaluate_record()
MCPSampler
minirl_example.sh
grpo_example.sh
eval_example.sh
--loss_calculater
MINIRL
GRPO
--token_level_loss
--strict_in_bound
--skip_length_normalization
--model_name_or_path
--db_connection_string
--mcp_manager_url
--agent_config_path
src/configs.py
RUN_NAME
logs/as/${RUN_NAME}_train_${MACHINE_RANK}.log
output/${RUN_NAME}/
--save_steps
Mongo Compass
Task
Record
DispatchedSamplingTask
DBRecordData
1.
2.
3.
4.
assets/fsdp2_dst.yml
""".strip().splitlines()


@pytest.mark.parametrize("page", ["agentrl.md", "agentrl_zh.md"])
def test_each_name_of_its_page_has_a_row(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    head = text.split("\n## ")[0]
    lacking = [name for name in NAMED if name not in head and not any(name in row for row in rows)]
    assert not lacking
