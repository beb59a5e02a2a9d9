"""Harbor's own runner and ajet give the same rewards to the solutions of the same task folders."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from ajet.schema.errors import JudgeFailure
from ajet_containers.tests.harbor_package import ENVIRONMENT
from ajet_containers.tests.harbor_tasks import SOLUTION, list_containers, play, write_task

pytestmark = pytest.mark.extra_slow

REWARD = "/logs/verifier/reward"


def write_tasks(folder: Path) -> list[Path]:
    """Write one task for each rule of rewards."""
    tasks = {
        "solved": {"solution": SOLUTION},
        "unsolved": {},
        "fails_and_is_graded": {"solution": f"{SOLUTION}; exit 3"},
        "several_rewards": {
            "verifier": f'echo \'{{"reward": 0.25, "style": 1}}\' > {REWARD}.json; echo 1 > {REWARD}.txt'
        },
        "exit_code_means_nothing": {"verifier": f"echo 0.5 > {REWARD}.txt; exit 1"},
        "no_reward": {"verifier": "true"},
        "stale_reward": {"solution": f"echo 1 > {REWARD}.txt; echo 1 > {REWARD}.json", "verifier": "true"},
        "not_finite": {"verifier": f"echo nan > {REWARD}.txt"},
        "empty": {"verifier": f"printf '' > {REWARD}.txt"},
        "text_in_json": {"verifier": f'echo \'{{"reward": "1"}}\' > {REWARD}.json; echo 1 > {REWARD}.txt'},
        "of_the_user": {
            "verifier": f'python3 -c "import os; print(os.getuid() / 1000)" > {REWARD}.txt',
            "toml": "[verifier]\nuser = 1000",
        },
        "of_the_environment": {
            "verifier": f'echo "$SCORE" > {REWARD}.txt',
            "toml": '[verifier]\nenv = {SCORE = "${UNSET:-0.75}"}',
        },
    }
    return [write_task(folder / name, **each) for name, each in tasks.items()]


def read_harbors_rewards(harbor: Path, folder: Path, tasks: list[Path]) -> dict[str, dict[str, float] | None]:
    """Run Harbor's oracle on the tasks and return the rewards by task."""
    job = folder / "job.yaml"
    environment = {"import_path": f"{ENVIRONMENT.stem}:PodmanCommand", "delete": True}
    tree = {
        "jobs_dir": str(folder / "jobs"),
        "job_name": "job",
        "agents": [{"name": "oracle"}],
        "n_concurrent_trials": 2,
    }
    job.write_text(
        yaml.safe_dump({**tree, "environment": environment, "tasks": [{"path": str(each)} for each in tasks]})
    )
    variables = {**os.environ, "PYTHONPATH": str(ENVIRONMENT.parent), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run([harbor, "run", "-c", job, "-y", "-q"], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for file in (folder / "jobs" / "job").glob("*/result.json"):
        result = json.loads(file.read_text())
        found[Path(result["task_name"]).name] = (result["verifier_result"] or {}).get("rewards")
    return found


def read_our_rewards(task: Path) -> dict[str, float] | None:
    """Play the task's solution as a command agent and return its rewards."""
    mounts = {"mounts": [f"{task}/solution:/solution"]}
    try:
        output, _ = play(task, "", command=["bash", "/solution/solve.sh"], container=mounts)
    except JudgeFailure:
        return None
    rewards: dict[str, float] = output.metadata["verifier"]["rewards"]
    return rewards


def test_solutions_have_the_same_rewards(harbor: Path, tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks")
    theirs = read_harbors_rewards(harbor, tmp_path, tasks)
    assert len(theirs) == len(tasks)
    assert {each.name: read_our_rewards(each) for each in tasks} == theirs
    assert theirs["solved"] == {"reward": 1.0} and theirs["several_rewards"] == {"reward": 0.25, "style": 1}
    assert theirs["no_reward"] is theirs["stale_reward"] is None
    assert list_containers() == []
