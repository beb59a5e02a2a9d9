"""Runs a task's verifier after its agent, and reads the rewards by Harbor's rules.

Invariants: reward files from before the verifier are removed. Only finite numbers are rewards; anything else is a
failure of the judge, never a reward.
"""

from __future__ import annotations

import asyncio
import json
import math

from ajet.schema.errors import JudgeFailure
from ajet_command.running import Ended
from ajet_containers.harbor.task import HarborTask, resolve_variables
from ajet_containers.living import FileBundle, LivingContainer

LOGS = "/logs/verifier"
REWARD_JSON, REWARD_TEXT, PRINTED = f"{LOGS}/reward.json", f"{LOGS}/reward.txt", f"{LOGS}/test-stdout.txt"
REWARD_BYTES = 1 << 20
PRINTED_BYTES = 4 << 20
SHOWN = 1_500
"""Characters of the verifier's output in an error."""


async def verify(container: LivingContainer, task: HarborTask) -> tuple[dict[str, float], Ended, str]:
    """Run tests/test.sh in the container and return the rewards, how it ended, and what it printed.

    Raises:
        JudgeFailure: the verifier reached its time limit, tried to reach the network, or wrote no valid reward.
        SandboxFailure: the container was killed.
    """
    await asyncio.to_thread(_put_tests, container, task)
    table = task.table.verifier
    container.count_network_attempts()  # attempts before the verifier do not count as its own
    ended = await container.run(
        ["bash", "-c", f"(/tests/test.sh) > {PRINTED} 2>&1"],
        environment=resolve_variables(table.env, task.folder),
        user=None if table.user is None else str(table.user),
        workdir=task.table.environment.workdir,
        timeout=table.timeout_sec,
    )
    if ended.ended_by:
        raise JudgeFailure(f"the verifier did not end within {table.timeout_sec:g} seconds")
    printed = await asyncio.to_thread(_read_printed, container) or ended.stderr  # of a missing bash
    _require_offline(container, task, printed)
    try:
        return await asyncio.to_thread(read_rewards, container), ended, printed
    except JudgeFailure as error:
        raise JudgeFailure(f"{error}; the verifier printed:\n{printed[-SHOWN:]}") from None


def read_rewards(container: LivingContainer) -> dict[str, float]:
    """Return the rewards that the verifier wrote. Raises JudgeFailure."""
    try:
        content, is_json = container.get(REWARD_JSON, REWARD_BYTES), True
        if content is None:
            content, is_json = container.get(REWARD_TEXT, REWARD_BYTES), False
    except ValueError as error:
        raise JudgeFailure(str(error)) from None
    if content is None:
        raise JudgeFailure(f"the verifier wrote neither {REWARD_JSON} nor {REWARD_TEXT}")
    return parse_rewards(content, is_json=is_json)


def parse_rewards(content: bytes, *, is_json: bool) -> dict[str, float]:
    """Parse a reward file: a JSON object of finite numbers, or one finite number. Raises JudgeFailure."""
    name = "reward.json" if is_json else "reward.txt"
    try:
        text = content.decode()
        rewards = json.loads(text) if is_json else {"reward": float(text)}
    except (ValueError, RecursionError):
        raise JudgeFailure(f"{name} has no reward: {content[:200]!r}") from None
    if not isinstance(rewards, dict) or not rewards:
        raise JudgeFailure(f"{name} is no object of numbers: {content[:200]!r}")
    for key, value in rewards.items():
        if not isinstance(value, (bool, int, float)) or abs(value) > 1e300 or not math.isfinite(value):
            raise JudgeFailure(f"{name}: {key} is {str(value)[:100]!r}, not a finite number")
    return {key: float(value) for key, value in rewards.items()}


def choose_reward(rewards: dict[str, float]) -> float:
    """Return the reward named `reward`, or the only one. Raises JudgeFailure if there are several others."""
    if "reward" in rewards or len(rewards) == 1:
        return rewards.get("reward", next(iter(rewards.values())))
    raise JudgeFailure(f"the verifier wrote {len(rewards)} rewards ({', '.join(rewards)}), none named `reward`")


def _put_tests(container: LivingContainer, task: HarborTask) -> None:
    """Remove the reward files that the agent may have written, and put the task's tests into the container."""
    container.remove(REWARD_JSON, REWARD_TEXT, PRINTED)
    bundle = FileBundle()
    bundle.add_folder(LOGS, 0o777)
    bundle.add_tree(task.folder / "tests", "/tests")
    bundle.add_file("/tests/test.sh", (task.folder / "tests" / "test.sh").read_bytes(), 0o755)
    container.put(bundle)


def _read_printed(container: LivingContainer) -> str:
    """Return what the verifier printed, or a note in brackets if that is too long."""
    try:
        return (container.get(PRINTED, PRINTED_BYTES) or b"").decode(errors="replace")
    except ValueError as error:
        return f"({error})"


def _require_offline(container: LivingContainer, task: HarborTask, printed: str) -> None:
    """Raise JudgeFailure if a verifier of a task with network was refused it: its reward would be arbitrary."""
    table = task.table
    mode = table.verifier.network_mode or table.environment.network_mode
    if mode == "public" and container.count_network_attempts():
        raise JudgeFailure(
            "the verifier tried to reach the network, which containers do not have: install its packages in the image, "
            f"or set network_mode = 'no-network' if it works without; it printed:\n{printed[-SHOWN:]}"
        )
