"""Trinity by itself: what bench_trinity.py compares ours with. Run as a program it is `trinity run` for one config.

    plain.py CONFIG.json CLOCK.jsonl        CLOCK gets a line for each training step

Trinity's own workflow of one turn, its chat, reader, GRPO and loss; only the reward (the same line as on our side) and
the monitor, which looks at the clock, are written here, at its extension points.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from trinity.common.rewards.reward_fn import RewardFn
from trinity.utils.monitor import Monitor

CLOCK = "BENCH_TRINITY_CLOCK"


class ShareOfLetters(RewardFn):
    """`default_reward_fn_type`."""

    def __init__(self, **given: Any) -> None:
        pass

    def __call__(self, **given: Any) -> dict[str, float]:
        text = given["response"] or ""
        return {"letters": sum(sign.islower() for sign in text) / max(len(text), 1)}


class Clock(Monitor):
    """`monitor_type`: a line at the end of each training step."""

    def __init__(self, project: str, group: str, name: str, role: str, config: Any = None) -> None:
        super().__init__(project, name, role, config)
        self._trains, self._explores = role == config.trainer.name, role == config.explorer.name
        self._began = time.monotonic()

    def log(self, data: dict[str, Any], step: int, commit: bool = False) -> None:
        """A step is over."""
        if self._explores and any(name.startswith("rollout/") for name in data):
            Path(os.environ[CLOCK]).with_suffix(".explored").open("a").write(f"{step}\n")
        if self._trains:
            now = time.monotonic()
            with open(os.environ[CLOCK], "a") as out:
                told = {"step": step, "seconds": now - self._began, "update": float(data.get("time/train_step", 0.0))}
                out.write(json.dumps(told) + "\n")
            self._began = now

    def log_table(self, *told: Any, **given: Any) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing is open."""


def main() -> None:
    """Train. Raises RuntimeError where Trinity says that it failed."""
    import ray
    from omegaconf import OmegaConf
    from trinity.cli.launcher import run_stage
    from trinity.common.config import load_config

    os.environ[CLOCK] = sys.argv[2]
    given = json.loads(Path(sys.argv[1]).read_text())
    file = Path(sys.argv[1]).with_suffix(".yaml")
    OmegaConf.save(OmegaConf.create(given), file)
    slots = given["cluster"]["gpu_per_node"]
    carried = {
        name: os.environ[name] for name in os.environ if name.startswith(("VLLM", "VERL", "BENCH", "PYTHONPATH"))
    }
    ray.init(
        address="local", num_gpus=slots, num_cpus=16, include_dashboard=False, namespace=given["ray_namespace"],
        runtime_env={"env_vars": carried},
    )  # fmt: skip
    config = load_config(str(file))
    config.check_and_update()
    status = run_stage(config)
    if not status.success:
        raise RuntimeError(str(status.error))


if __name__ == "__main__":
    main()
