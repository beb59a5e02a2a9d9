"""Scores an agent's folder by a command that runs after the agent has ended (`command_agent.verify`).

Invariants: nothing that the agent wrote stands at the path of a verifier's file or of the reward file when the
verifier starts. The verifier has no key of the episode and a home directory of its own. Without an exit code or a
finite number there is no reward, but a failure of the judge.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

from ajet.record.remove_folder import remove_folder
from ajet.schema.errors import JudgeFailure
from ajet.schema.task import Task, WorkflowOutput
from ajet_command.environment import select_inherited
from ajet_command.episode import describe_task
from ajet_command.running import CommandSpec, Ended, EpisodeFolder, run_command
from ajet_command.settings import CommandLimits, VerifySettings, fill_placeholders, find_folder

REWARD_BYTES = 1024


class VerifierFailed(JudgeFailure):
    """The verifier did not start, hung, crashed or wrote no finite number."""


class Verifier:
    """Runs the verifier of one episode.

    The constructor takes the settings, the limits of its processes, the agent's folder, the placeholders, and the
    episode's key, which is redacted from the verifier's output.
    """

    def __init__(
        self,
        settings: VerifySettings,
        limits: CommandLimits,
        folder: EpisodeFolder,
        values: Mapping[str, str],
        secret: str,
    ) -> None:
        """Prepare the verifier of one episode.

        Args:
            limits: limits of the verifier's processes.
            folder: the agent's folder.
            values: placeholders of the episode.
            secret: the episode's key, redacted from the verifier's output.
        """
        self._settings, self._limits, self._folder = settings, limits, folder
        self._values, self._secret = dict(values), secret
        self._home = folder.root / "verifier"
        self._reward_file = self._home / "reward"

    async def score(self, task: Task, output: WorkflowOutput) -> None:
        """Set the reward of `output`, and record the verifier's output in it. Raises VerifierFailed."""
        try:
            await asyncio.to_thread(self._prepare_folder, task, output)
            ended = await run_command(self._build_spec())
        except OSError as error:
            raise VerifierFailed(f"the verifier could not be started: {error}") from error
        ended.redact(self._secret)
        exit_record = ended.to_record()
        del exit_record["ended_by"]
        output.metadata["verify"] = exit_record
        output.log_metrics["verify_seconds"] = ended.seconds
        if failure_text := self._explain_failure(ended):
            raise VerifierFailed(f"the verifier {failure_text}{ended.format_last_output()}")
        output.reward = float(ended.code == 0) if self._settings.reward == "exit" else self._parse_reward()

    def _prepare_folder(self, task: Task, output: WorkflowOutput) -> None:
        """Create the verifier's home with the task file, and write its files over whatever the agent left at their
        paths."""
        if self._home.is_dir() and not self._home.is_symlink():
            remove_folder(self._home)
        self._home.unlink(missing_ok=True)
        self._home.mkdir()
        files, template = self._settings.files, None
        if isinstance(files, str):
            base = Path(self._values["base"])
            template, files = find_folder(fill_placeholders(files, self._values), base, "verify.files"), {}
        self._folder.bring_in(template, {name: fill_placeholders(text, self._values) for name, text in files.items()})
        content = describe_task(task, task.metadata) | {"answer": output.metadata.get("final_answer")}
        (self._home / "task.json").write_text(json.dumps(content, ensure_ascii=False, default=str), encoding="utf-8")

    def _build_spec(self) -> CommandSpec:
        """Return the verifier's command, with a home directory of its own and no variable of the episode's model."""
        inherited = select_inherited(os.environ, {})
        verifier_variables = {
            "HOME": str(self._home),
            "TMPDIR": str(self._home),
            "PWD": str(self._folder.work),
            "AJET_TASK_ID": self._values["task_id"],
            "AJET_TASK_FILE": str(self._home / "task.json"),
            "AJET_REWARD_FILE": str(self._reward_file),
        }
        return CommandSpec(
            [fill_placeholders(word, self._values) for word in self._settings.command],
            self._folder.work,
            # XDG_ variables would lead to folders outside the verifier's home.
            {name: text for name, text in inherited.items() if not name.startswith("XDG_")} | verifier_variables,
            timeout=self._settings.timeout,
            limits=self._limits.numbers(),
            output=int(self._limits.output_mb * (1 << 20)),
        )

    def _explain_failure(self, ended: Ended) -> str:
        """Return why the verifier's end decides nothing, or ""."""
        if ended.problem:
            return f"could not be run: {ended.problem}"
        if ended.ended_by == "timeout":
            return f"did not end within {self._settings.timeout:g} seconds (verify.timeout)"
        if ended.ended_by:
            return f"was stopped ({ended.ended_by}; see command_agent.limits)"
        if ended.code is None or ended.code < 0:
            return f"was killed by signal {-(ended.code or 0)}"
        if ended.code != 0 and self._settings.reward == "file":
            return f"ended with exit code {ended.code}"
        return ""

    def _parse_reward(self) -> float:
        """Return the finite number in the reward file. Raises VerifierFailed if there is none."""
        try:
            # The file may be a link or a pipe, which must neither be followed nor waited for.
            descriptor = os.open(self._reward_file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(descriptor, "rb") as file:
                text = file.read(REWARD_BYTES).decode(errors="replace").strip()
        except OSError as error:
            raise VerifierFailed(f"the verifier wrote no reward into AJET_REWARD_FILE: {error.strerror}") from error
        try:
            reward = float(text)
        except ValueError:
            reward = math.nan
        if not math.isfinite(reward):
            raise VerifierFailed(f"the verifier wrote no finite number into AJET_REWARD_FILE: {text[:200]!r}")
        return reward
