"""The tool agent learns with vLLM as its engine: sampled in vLLM's process, trained in ours, every step's weights
handed over. In float32 engine and trainer must agree on every token of every step. And vLLM as a teacher."""

import pytest

from ajet.commands.summary import RunTally
from ajet.record.episodes import read_recorded
from tests.learns.test_distillation_learns import learns_from
from tests.support.ajet_process import ajet, metric_rows
from tests.support.vllm_fixtures import skip_without_vllm, tiny_folder, vllm_server

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]


def test_the_tool_agent_learns_with_vllm(tmp_path):
    skip_without_vllm()
    made = ajet("init", "tool", "--template", "tool", cwd=tmp_path)
    assert made.returncode == 0, made.stdout
    (yaml,) = (tmp_path / "tool").glob("*.yaml")
    changes = ["rollout.engine=vllm", "model.dtype=float32", "rollout.episode_timeout=120"]
    changes += ["trainer_common.total_training_steps=12", "trainer_common.test_freq=12", "trainer_common.save_freq=12"]
    done = ajet("--conf", str(yaml), "--backbone", "local", *changes, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout
    assert "vLLM's processes hold a copy of the weights" in done.stdout

    (run,) = (path for path in (tmp_path / "launcher_record").iterdir() if path.is_dir())
    rows = metric_rows(run)
    held_out = [row["validation/reward"] for row in rows if "validation/reward" in row]
    assert held_out[0] < 0.3 and held_out[-1] > 0.9, (held_out, done.stdout)
    gaps = [row["logprob_gap_max"] for row in rows if "logprob_gap_max" in row]
    assert len(gaps) == 12 and max(gaps) < 1e-3, "engine and trainer are the same policy at every step"
    tally = RunTally.from_rows(rows)
    assert (tally.skipped, tally.doubled, tally.failed) == (0, 0, 0)

    checked = ajet("export", run.name, "--check", "--engine", "vllm", "--at-most", "4", cwd=tmp_path)
    assert checked.returncode == 0 and "behaves as the run's model" in checked.stdout, checked.stdout
    assert "4 of 4 greedy replies equal" in checked.stdout, checked.stdout


def test_held_out_tasks_are_evaluated_with_vllm_as_with_transformers(tmp_path):
    """Greedy, in float32: the same answers, token by token."""
    skip_without_vllm()
    made = ajet("init", "tool", "--template", "tool", cwd=tmp_path)
    assert made.returncode == 0, made.stdout
    (yaml,) = (tmp_path / "tool").glob("*.yaml")
    common = ["eval", str(yaml), "--model", "embedded:tiny-tools", "--at-most", "4", "model.dtype=float32"]
    replies = []
    for engine in ("transformers", "vllm"):
        folder = tmp_path / engine
        done = ajet(*common, f"rollout.engine={engine}", "--exp-dir", str(folder), cwd=tmp_path, timeout=300)
        assert done.returncode == 0, done.stdout
        (record,) = folder.glob("*/eval/*/episodes/*.jsonl")
        episodes = [episode for episode, _ in read_recorded(record)]
        found = {each.task.task_id: [call.response_ids.tolist() for call in each.calls] for each in episodes}
        assert len(found) == 4 and all(found.values())
        replies.append(found)
    assert replies[0] == replies[1]


def test_a_policy_becomes_the_teacher_that_a_vllm_server_is(tmp_path):
    """`prompt_logprobs` of a real server, over a whole run: learned, recorded and proven."""
    with vllm_server() as url:
        learns_from(tmp_path, f"base_url: {url}/v1, model: {tiny_folder()}, timeout: 300.0")
