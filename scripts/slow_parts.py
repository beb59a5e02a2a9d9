"""Runs the extra slow tests in parts: all of them, or as many as fit into a time, beginning with another part each
time.

    python scripts/slow_parts.py                            all
    python scripts/slow_parts.py --only kills               one part
    python scripts/slow_parts.py --within 1800 --turn 17    from the 17th part on, round and round, while there is time

Invariant: every extra slow test is in exactly one part (tests/docs/test_slow_parts.py), and each part's seconds are
what it may take on two quiet cores; scripts/suite_costs.py holds it to them. Exit code 1 if a part failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Part:
    """Some of the extra slow tests: files or folders, and whether they boot Ray or vLLM."""

    name: str
    seconds: int
    paths: tuple[str, ...]
    boots: bool

    def marks(self) -> str:
        return "extra_slow and boots" if self.boots else "extra_slow and not boots"


FAULTS, LEARNS, CONTRACT, TUTORIALS = "tests/faults", "tests/learns", "tests/contract", "tests/tutorials"
VERL, VLLM = "plugins/ajet_verl/tests", "plugins/ajet_vllm/tests"
PACKAGES = ("algorithm", "backbone", "benchmarks", "commands", "scripts", "store", "workflow")
"""Folders of tests by package that have extra slow ones."""
PARTS = (
    Part(
        "kills",
        1100,
        (FAULTS, LEARNS, *(f"tests/{package}" for package in PACKAGES)),
        boots=False,
    ),
    Part("mistakes", 900, ("tests/mistakes",), boots=False),
    Part("products", 1460, (CONTRACT, "tests/docs", "plugins"), boots=False),
    Part("oldest and newest Python", 400, ("tests/installs/test_fresh_pythons.py",), boots=False),
    Part("newest packages", 900, ("tests/installs/test_newest_packages.py",), boots=False),
    Part("vllm", 1800, (f"{VLLM}/test_vllm_engine.py", f"{CONTRACT}/test_token_engines.py",
                       f"{VLLM}/test_server_follower_vllm.py", f"{CONTRACT}/test_deploy_vllm.py",
                       f"{VLLM}/test_versions_newest.py", f"{VLLM}/test_engine_learns.py"), boots=True),
    Part("sglang", 400, (f"{VLLM}/test_sglang_server_real.py",), boots=True),
    Part("tutorial", 1700, (f"{TUTORIALS}/test_example_agentrl.py", f"{TUTORIALS}/test_example_verifiers.py",
                            f"{TUTORIALS}/test_mcp_agent_learns.py", f"{TUTORIALS}/test_rubrics_learn.py",
                            f"{TUTORIALS}/test_learn2ask.py"),
         boots=False),
    Part("tutorials begun with demonstrations", 1650, (f"{TUTORIALS}/test_countdown.py",
                                                       f"{TUTORIALS}/test_example_compaction.py",
                                                       f"{TUTORIALS}/test_sft_then_rl.py",
                                                       f"{TUTORIALS}/test_werewolves.py",
                                                       f"{TUTORIALS}/test_feedback_tracing.py"), boots=False),
    Part("tutorials of tools", 1500, (f"{TUTORIALS}/test_example_distillation.py",
                                      f"{TUTORIALS}/test_coding.py",
                                      f"{TUTORIALS}/test_deep_research.py",
                                      f"{TUTORIALS}/test_quickstart.py"), boots=False),
    Part("tutorials of worlds and tools", 2200, (f"{TUTORIALS}/test_example_math_agent.py",
                                                 f"{TUTORIALS}/test_example_frozenlake.py",
                                                 f"{TUTORIALS}/test_example_swe.py",
                                                 f"{TUTORIALS}/test_example_openenv.py",
                                                 f"{TUTORIALS}/test_prime_rl.py",
                                                 f"{TUTORIALS}/test_example_appworld.py"), boots=False),
    Part("verl life", 1500, (f"{VERL}/test_verl_life.py", f"{VERL}/test_verl_kill_and_resume.py",
                             f"{VERL}/test_verl_faults.py"), boots=True),
    Part("verl modes", 2100, (f"{VERL}/test_verl_modes.py", f"{VERL}/test_verl_trees_learn.py",
                              "plugins/ajet_containers/tests/test_harbor_workflow_on_verl.py",
                              f"{VERL}/test_verl_async_resume.py"), boots=True),
    Part("verl from a store", 800, (f"{VERL}/test_verl_from_store.py",), boots=True),
    Part("verl elsewhere", 1500, ("plugins/ajet_cluster/tests/test_cluster_slurm.py",
                                  f"{VERL}/test_verl_workers_vision.py"), boots=True),
    Part("trinity", 1500, ("plugins/ajet_trinity/tests",), boots=True),
    Part("aworld on verl", 900, ("plugins/ajet_aworld/tests",), boots=True),
    Part("verl learns", 2400, (f"{VERL}/test_verl_learns.py",), boots=True),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[part.name for part in PARTS])
    parser.add_argument(
        "--within", type=float, metavar="SECONDS", help="start no part that would take longer than is left"
    )
    parser.add_argument("--turn", type=int, default=0, help="which part is first")
    parser.add_argument("--unsteady", action="store_true", help="run what failed again, as scripts/unsteady.py does")
    options = parser.parse_args()
    first = options.turn % len(PARTS)
    parts = [part for part in (*PARTS[first:], *PARTS[:first]) if options.only in (None, part.name)]
    end = time.monotonic() + (options.within if options.within is not None else float("inf"))
    failed, left_out = [], []
    for part in parts:
        if time.monotonic() + part.seconds > end:
            left_out.append(part.name)
        elif run(part, unsteady=options.unsteady) != 0:
            failed.append(part.name)
    if left_out:
        print(f"slow parts left for another turn: {', '.join(left_out)}", flush=True)
    if failed:
        print(f"slow parts that failed: {', '.join(failed)}", flush=True)
    return int(bool(failed))


def run(part: Part, *, unsteady: bool = False) -> int:
    """One part through pytest, measured; `unsteady`: through scripts/unsteady.py."""
    pytest = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    budget = ["--name", f"slow: {part.name}", "--seconds", str(part.seconds)]
    measured = [sys.executable, "scripts/suite_costs.py", *budget]
    command = [*measured, "--", *pytest, *part.paths, "-m", part.marks()]
    again = [sys.executable, "scripts/unsteady.py", "--"] if unsteady else []
    longest = {**os.environ, "PYTEST_TIMEOUT": str(part.seconds)}  # a test that takes all of its part's time hangs
    return subprocess.run([*again, *command], cwd=ROOT, env=longest).returncode


if __name__ == "__main__":
    sys.exit(main())
