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
from ajet.schema.errors import UserError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet_environments.venvs import prepare_python
from tests.support.ajet_process import ajet, metric_rows
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
MATH = ROOT / "tutorial" / "example_math_agent" / "math_agent.yaml"
LAKE = ROOT / "tutorial" / "example_frozenlake" / "frozen_lake.yaml"
VERIFIERS = ROOT / "tutorial" / "example_verifiers" / "verifiers.yaml"
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
PLAYED, TRAINED = ("agentscope_model", "http"), ("math_agent",)
"""With a framework's client, and with none: the variants differ in the client alone, and what a client's calls become
is the gateway's, the same on both backbones. The rest of the product is extra slow."""


def some(chosen: tuple[str, ...]) -> list[Any]:
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
@pytest.mark.parametrize("used", some(PLAYED))
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
@pytest.mark.parametrize("used", some(TRAINED))
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


def in_world(folder: str, file: str, port: str, cwd: Path, *more: str) -> list[Episode]:
    """A tutorial in a world that a service of its own keeps, on a free port."""
    free = f"{port}={free_port()}"
    found, _ = run(ROOT / "tutorial" / folder / file, "debug", cwd, free, "rollout.multi_turn.max_steps=2", *more)
    played = episodes(found, "debug")
    assert len(played) == 4 and list((found / "services").glob("*.log"))
    for episode in played:
        assert episode.status == "completed" and episode.reward is not None and 0 <= episode.reward <= 1
        assert len(episode.tool_uses) == len(episode.calls) and episode.messages[0]["role"] == "system"
    return played


@pytest.mark.slow
def test_the_frozen_lake_is_played_behind_a_service(tmp_path: Path) -> None:
    played = in_world("example_frozenlake", "frozen_lake_service.yaml", "lake_port", tmp_path)
    assert {str(episode.messages[1]["content"])[:6] for episode in played} == {"###\n#P"}


RUBRICS = ROOT / "tutorial" / "example_rubrics_judge" / "rubrics_judge.yaml"
ASK = ROOT / "tutorial" / "example_learn2ask" / "learn2ask.yaml"
LISTWISE = ["task_judge.rubrics_auto_grader.grader_mode=listwise",
            "task_judge.rubrics_auto_grader.jsonl_dataset_file.training.file_path=ranked.jsonl"]  # fmt: skip
OF_MODELS = "ajet_judges.model_judge->ModelJudge"
KINDS = {
    "pointwise": (RUBRICS, []),
    "listwise": (RUBRICS, LISTWISE),
    "criteria of a row": (RUBRICS, ["task_judge.judge_type=customized_protocol", "task_judge.scorer=rubric"]),
    "asking, criteria of a row": (ASK, []),
    "asking, ranked": (ASK, ["task_judge.scorer=null"]),
    "asking, right or wrong": (ASK, ["task_judge.scorer=null", f"task_judge.judge_protocol='{OF_MODELS}'"]),
}
QUICK = ["trainer_common.val_before_train=false", "trainer_common.test_freq=-1", "trainer_common.save_freq=-1"]


def judged(kind: str, backbone: str, cwd: Path, *more: str) -> tuple[Path, list[Episode]]:
    """A tutorial with a kind of verdict; its judge is the stand-in, on a free port."""
    file, own = KINDS[kind]
    port = f"stand_in_port={free_port()}"
    folder, _ = run(file, backbone, cwd, port, *own, *more)
    played = episodes(folder, "debug" if backbone == "debug" else "train")
    assert len(played) == (4 if backbone == "debug" else 8)
    assert all(each.reward is not None and each.verdict is not None for each in played)
    return folder, played


@pytest.mark.extra_slow
def test_rubrics_are_made_at_launch_and_grade_what_is_played(tmp_path: Path) -> None:
    folder, played = judged("pointwise", "debug", tmp_path)
    kept = json.loads((folder / "auto_grader.json").read_text())
    texts = {each["criterion"] for each in kept["rubrics"]}
    assert texts == {"It apologises.", "It offers a refund or a replacement.", "It is short."}
    for episode in played:
        assert episode.verdict is not None and episode.verdict.scorer == "auto_grader"
        assert {each["criterion"] for each in episode.verdict.details["grades"]} == texts


@pytest.mark.extra_slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_verdict_of_models_trains(kind: str, tmp_path: Path) -> None:
    folder, played = judged(kind, "local", tmp_path, *QUICK)
    assert_trained(folder, 4)
    by = {episode.verdict.scorer for episode in played if episode.verdict is not None}
    assert by == {"auto_grader" if "wise" in kind else "rubric" if "criteria" in kind else ""}
    assert (folder / "auto_grader.json").exists() == ("wise" in kind)


@pytest.mark.extra_slow
def test_openenv_is_played_by_its_socket(tmp_path: Path) -> None:
    played = in_world("example_openenv", "openenv.yaml", "openenv_port", tmp_path)
    assert all("JSON object" in str(episode.messages[0]["content"]) for episode in played)


@pytest.mark.extra_slow
def test_appworld_is_played_in_the_service_that_its_flag_starts(tmp_path: Path) -> None:
    played = in_world("example_appworld", "appworld.yaml", "appworld_port", tmp_path, "--with-appworld")
    assert {episode.task.env_type for episode in played} == {"appworld"}


@pytest.mark.extra_slow
def test_a_taskset_of_verifiers_is_played_in_an_environment_of_its_own(tmp_path: Path) -> None:
    try:
        prepare_python(VERIFIERS.parent / "requirements.txt")
    except UserError as problem:
        pytest.skip(f"verifiers could not be installed here: {problem.do}")
    folder, _ = run(VERIFIERS, "debug", tmp_path, "debug.debug_first_n_tasks=1", "rollout.max_model_len=512")
    played = episodes(folder, "debug")
    assert [(episode.status, episode.failure) for episode in played] == 2 * [("completed", None)]
    for episode in played:
        assert episode.reward in (0.0, 1.0) and episode.metrics["reward_right"] == episode.reward
        assert len(episode.calls) == 1
        assert any(str(message["content"]).startswith("What is ") for message in episode.messages)


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


def test_the_frozen_lake_reads_steps_and_describes_the_lake() -> None:
    reference = f"{LAKE.parent / 'workflow.py'}->"
    parse_action = resolve_reference(reference + "parse_action", base=LAKE.parent)
    assert parse_action("first \\boxed{up}, no: \\boxed{ Left }") == 0
    assert parse_action("\\boxed{jump}") is None and parse_action("left") is None
    describe = resolve_reference(reference + "describe", base=LAKE.parent)
    assert describe(["SF", "HG"], 0) == "###\n#P_\n#OG"
    assert describe(["SFF", "HFF", "FFG"], 4) == "___\nOP_\n__G"
    assert describe(["SF", "HG"], 3) == "__#\nOP#\n###"


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
    done = subprocess.run(command, cwd=MATH.parent, capture_output=True, text=True, check=True, timeout=300)
    lines = done.stdout.splitlines()
    assert lines[0] == "42" and "ZeroDivisionError" in done.stdout
    assert lines[-2].startswith("The arguments must be") and "stopped after" in lines[-1]
