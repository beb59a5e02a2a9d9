"""The tutorials run as they are, on debug and local, with a tiny model, small steps and a local data folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ajet.config import resolve_reference
from ajet.record import Checkpoints, EpisodeFiles, read_status
from ajet.schema.episode import Episode
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from tests.ajet_command import ajet, metric_rows

ROOT = Path(__file__).resolve().parents[2]
MATH = ROOT / "tutorial" / "example_math_agent" / "math_agent.yaml"
LAKE = ROOT / "tutorial" / "example_frozenlake" / "frozen_lake.yaml"
SMALL = [
    "model.path=embedded:tiny-tools",
    "rollout.max_model_len=1024",
    "rollout.max_response_length_in_one_turn=24",
    "rollout.num_repeat=2",
    "data.train_batch_size=2",
    "trainer_common.total_training_steps=2",
    "trainer_common.threads=1",
]
VARIANTS = ["agentscope_model", "openai_sdk", "langchain", "http"]
USED = ["math_agent", *VARIANTS]
PLAYED, TRAINED = ("math_agent", "openai_sdk", "http"), ("math_agent", "agentscope_model", "langchain")
"""Each variant on one backbone: they differ in the client alone, and what a client's calls become is the gateway's, the
same on both. The other half of the product is extra slow."""


def half(chosen: tuple[str, ...]) -> list[Any]:
    return [used if used in chosen else pytest.param(used, marks=pytest.mark.extra_slow) for used in USED]


@pytest.fixture(scope="module")
def gsm8k(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows of GSM8K's form, laid out like a folder downloaded from the hub."""
    folder = tmp_path_factory.mktemp("gsm8k") / "main"
    folder.mkdir()
    for split, count in (("train", 8), ("test", 2)):
        rows = [{"question": f"What is {n} + 2?", "answer": f"{n} + 2 = {n + 2}\n#### {n + 2}"} for n in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"task_reader.huggingface_dat_repo.dataset_path={folder}"


def run(yaml: Path, backbone: str, cwd: Path, *overrides: str) -> tuple[Path, str]:
    """Run a tutorial; answers its run folder and what it printed."""
    done = ajet("--conf", str(yaml), "--backbone", backbone, *SMALL, *overrides, cwd=cwd)
    assert done.returncode == 0, done.stdout
    (status,) = (cwd / "launcher_record" / yaml.stem).rglob("status.json")
    assert (read_status(status.parent) or {})["outcome"] == "finished"
    return status.parent, done.stdout


def episodes(folder: Path, split: str) -> list[Episode]:
    files = EpisodeFiles(folder / "episodes")
    return [episode for step in files.steps(split) for episode in files.read(step, split)]  # type: ignore[arg-type]


def assert_trained(folder: Path, episodes_a_step: int) -> list[dict]:
    """Two steps were trained on what the agent sampled, and the last one was saved whatever `save_freq` says."""
    rows = [row for row in metric_rows(folder) if "train/episodes" in row]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["train/failed"] == 0 and row["train/scored"] == episodes_a_step for row in rows)
    latest = Checkpoints(folder / "checkpoints").latest()
    assert latest is not None and latest.step == 2 and list(latest.path.glob("*.safetensors"))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("used", half(PLAYED))
def test_the_math_agent_plays_on_debug(used: str, tmp_path: Path, gsm8k: str) -> None:
    more = [] if used == "math_agent" else [f"rollout.user_workflow='workflow_{used}.py->MathAgentWorkflow'"]
    folder, _ = run(MATH, "debug", tmp_path, gsm8k, *more)
    played = episodes(folder, "debug")
    assert len(played) == 2 * 2, "debug_first_n_tasks times num_repeat"
    for episode in played:
        assert episode.status == "completed" and episode.verdict is not None and episode.reward is not None
        assert episode.calls and episode.timelines and "final_answer" in episode.metadata
        assert episode.tools and episode.tools[0][0]["function"]["name"] == "execute_python_code"
        assert "\\boxed{{}}" in str(episode.messages[0]["content"])


@pytest.mark.slow
@pytest.mark.parametrize("used", half(TRAINED))
def test_the_math_agent_trains_on_local(used: str, tmp_path: Path, gsm8k: str) -> None:
    more = [] if used == "math_agent" else [f"rollout.user_workflow='workflow_{used}.py->MathAgentWorkflow'"]
    spread = ["rollout.num_repeat=6", "rollout.agent_madness_reward=-1.0"]  # garbled replies are this model's rewards
    folder, printed = run(MATH, "local", tmp_path, gsm8k, *spread, *more)
    rows = assert_trained(folder, 12)
    assert any(row.get("grad_norm", 0) > 0 for row in rows), "no step had anything to learn from"
    assert "0 skipped, 0 doubled" in printed


@pytest.mark.slow
def test_the_frozen_lake_plays_on_debug_with_its_own_section(tmp_path: Path) -> None:
    folder, _ = run(LAKE, "debug", tmp_path, "rollout.multi_turn.max_steps=3", "frozen_lake.frozen_lake_size=5")
    played = episodes(folder, "debug")
    lakes: dict[str, set[str]] = {}
    for episode in played:
        assert episode.status == "completed" and episode.reward in (0.0, 1.0)
        assert [len(row) for row in episode.metadata["lake"]] == [5] * 5
        assert 1 <= episode.metrics["turns"] == len(episode.calls) <= 3
        lakes.setdefault(episode.task.task_id, set()).add(str(episode.metadata["lake"]))
    assert len(lakes) == 2 and all(len(same) == 1 for same in lakes.values()), "one lake for all repeats of a task"


@pytest.mark.slow
def test_the_frozen_lake_trains_on_local(tmp_path: Path) -> None:
    quick = ["rollout.multi_turn.max_steps=3", "trainer_common.val_before_train=false", "trainer_common.test_freq=-1"]
    folder, _ = run(LAKE, "local", tmp_path, *quick)
    assert_trained(folder, 4)


@pytest.mark.parametrize(
    ("answer", "final_answer", "reward"),
    [
        ("2 + 2 = 4\n#### 4", "It is \\boxed{4}.", 1.0),
        ("#### 1,234", "\\boxed{{1234}}", 1.0),
        ("#### 0.5", str([{"type": "text", "text": "so \\boxed{\\frac{1}{2}}"}]), 1.0),
        ("#### 4", [{"type": "text", "text": "\\boxed{4}"}], 1.0),
        ("#### 4", "\\boxed{5}", 0.0),
        ("#### 4", "I do not know", 0.0),
        ("#### 4", None, 0.0),
        (None, "\\boxed{4}", None),
    ],
)
def test_the_math_judge_compares_values(answer: str | None, final_answer: object, reward: float | None) -> None:
    reference = "tutorial.example_math_agent.math_answer_as_judge->MathAnswerAsJudge"
    judge = resolve_reference(reference, base=Path("/"))(None)
    task = Task(task_id="t", metadata={} if answer is None else {"answer": answer})
    output = WorkflowOutput(metadata={"final_answer": final_answer})
    assert judge.compute_reward(WorkflowTask(task=task), output).reward == reward


def test_the_frozen_lake_reads_steps_and_shows_the_lake() -> None:
    reference = f"{LAKE.parent / 'workflow.py'}->"
    chosen = resolve_reference(reference + "chosen", base=LAKE.parent)
    assert chosen("first \\boxed{up}, no: \\boxed{ Left }") == 0
    assert chosen("\\boxed{jump}") is None and chosen("left") is None
    show = resolve_reference(reference + "show", base=LAKE.parent)
    assert show(["SF", "HG"], 0) == "P _\nO G" and show(["SF", "HG"], 3) == "_ _\nO P"


def test_each_variant_is_about_the_same_agent() -> None:
    """They differ in the client only: prompt, tool and judge are shared."""
    folder = MATH.parent
    prompt = (folder / "python_tool.py").read_text().split('"""')[3]
    assert prompt in (folder / "workflow.py").read_text()
    for used in VARIANTS:
        assert "SYSTEM_PROMPT" in (folder / f"workflow_{used}.py").read_text()


@pytest.mark.slow
def test_the_python_tool_runs_code_and_survives_what_models_write(tmp_path: Path) -> None:
    script = """
import asyncio
from python_tool import call_tool, execute_python_code
async def main():
    print(await call_tool('{"code": "print(6 * 7)"}'))
    print(await call_tool('{"code": "1/0"}'))
    print(await call_tool('not json'))
    print(await execute_python_code("while True: pass", timeout=0.5))
asyncio.run(main())
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=MATH.parent, capture_output=True, text=True, check=True, timeout=60)
    lines = done.stdout.splitlines()
    assert lines[0] == "42" and "ZeroDivisionError" in done.stdout
    assert lines[-2].startswith("The arguments must be") and "stopped after" in lines[-1]
