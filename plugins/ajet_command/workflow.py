"""CommandWorkflow: runs an agent that is a command-line program.

Invariants: an episode's processes end with the episode (also at timeout, cancellation and the end of ajet). The key is
redacted from recorded output. A failed command is a failed episode with a reason.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from ajet.schema.bounded_json import load_json
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import (
    AgentFailure,
    BoundaryError,
    EngineFailure,
    EnvironmentFailure,
    JudgeFailure,
    SandboxFailure,
    ToolFailure,
)
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.workflow.workflow import Workflow
from ajet_command.environment import select_inherited
from ajet_command.episode import describe_task, extract_answer, list_episode_values, list_episode_variables
from ajet_command.running import HIDDEN, CommandSpec, Ended, EpisodeFolder, run_command
from ajet_command.settings import (
    CommandSettings,
    fill_placeholders,
    find_folder,
    get_base_folder,
    list_common_values,
)
from ajet_command.verify import Verifier

if TYPE_CHECKING:
    from ajet.workflow.tuner import ModelTuner


class CommandFailed(AgentFailure):
    """The command exited with a failure code, or could not be started."""


class CommandTimedOut(AgentFailure):
    """The command was ended after its timeout."""


class CommandOverLimit(AgentFailure):
    """The command was ended after exceeding a limit."""


class CommandWorkflow(Workflow):
    """Runs the command of the YAML section `command_agent` (docs/command_agents.md).

    Subclasses may read another section or compute another outcome.
    """

    name: str = "command"
    section: ClassVar[str] = "command_agent"

    @classmethod
    def check(cls, config: Any) -> None:
        """Check the section, and install its Python environment and harness before the run. Raises UserError."""
        settings = cls.settings(config)
        settings.venv(get_base_folder(config))
        settings.harness_folder()

    @classmethod
    def needs_judge(cls, config: Any) -> bool:
        """True unless the command prints the score, a verifier or a subclass computes the outcome."""
        has_own_outcome = cls.execute is not CommandWorkflow.execute or cls.outcome is not CommandWorkflow.outcome
        settings = cls.settings(config)
        return not has_own_outcome and settings.score != "printed" and settings.verify is None

    @classmethod
    def settings(cls, config: Any) -> CommandSettings:
        """Return the settings of the command. Raises ConfigError."""
        return CommandSettings.read(config, cls.section)

    def choose_targets(self, config: Any) -> list[str] | None:
        """Return the names of the trained agents, from `trains` or the class; None trains all."""
        return self.settings(config).trains or self.trainable_targets

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner, /) -> WorkflowOutput:
        """Run the command in a new folder, and return its answer and outcome.

        The folder is removed afterwards unless `keep` retains it.

        Raises:
            BoundaryError: the command, its verifier or a limit failed.
        """
        settings = self.settings(tuner.config)
        endpoint = tuner.as_oai_baseurl_apikey(agent_name=settings.agent)
        base_folder = get_base_folder(tuner.config)
        folder = EpisodeFolder(settings.folders, workflow_task.episode_uuid or workflow_task.task_id or "episode")
        succeeded = False
        try:
            values = list_common_values(base_folder) | {"folder": str(folder.work), "home": str(folder.home)}
            values |= list_episode_values(workflow_task, endpoint, tuner.config)
            values |= await asyncio.to_thread(_list_installed, settings, base_folder)
            files = {name: fill_placeholders(text, values) for name, text in settings.files.items()}
            visible_task = describe_task(workflow_task.task, settings.metadata)
            folder.fill(_find_template(settings.template, base_folder, values), files, visible_task)
            spec = self._build_spec(settings, endpoint, values, folder)
            try:
                ended = await run_command(spec)
            except OSError as error:
                raise CommandFailed(f"no process could be started: {error}") from error
            ended.redact(endpoint.api_key)
            _raise_unless_good(ended, settings)
            answer = self.answer(settings, ended, folder).replace(endpoint.api_key, HIDDEN)
            output = self.outcome(workflow_task, ended, answer)
            if settings.score == "printed":
                output = apply_score(output, ended.stdout)
            if settings.verify is not None:
                # The verifier must not call the model.
                del values["api_key"]
                verifier = Verifier(settings.verify, settings.limits, folder, values, endpoint.api_key)
                await verifier.score(workflow_task.task, output)
            succeeded = True
            return output
        finally:
            if settings.keep == "never" or (settings.keep == "failed" and succeeded):
                await asyncio.shield(asyncio.to_thread(folder.remove))

    def answer(self, settings: CommandSettings, ended: Ended, folder: EpisodeFolder) -> str:
        """Return the agent's answer: standard output, its last non-empty line, a file, or a value of a JSON file."""
        return extract_answer(settings.answer, ended.stdout, folder.read_answer)

    def outcome(self, workflow_task: WorkflowTask, ended: Ended, answer: str) -> WorkflowOutput:
        """Return the workflow's output, without a reward by default, so that the judge scores it.

        Override it to set a reward.
        """
        metrics = {
            "command_seconds": ended.seconds,
            "command_cpu_seconds": ended.cpu,
            "command_memory_mb": ended.memory / (1 << 20),
        }
        return WorkflowOutput(metadata={"final_answer": answer, "command": ended.to_record()}, log_metrics=metrics)

    def _build_spec(
        self,
        settings: CommandSettings,
        endpoint: Endpoint,
        values: Mapping[str, str],
        folder: EpisodeFolder,
    ) -> CommandSpec:
        """Return the command with filled placeholders, its variables and limits. Raises AgentFailure for a NUL
        character."""
        command = [fill_placeholders(word, values) for word in settings.command]
        environment = _build_environment(settings, endpoint, values, folder)
        for text in (*command, *environment.values()):
            if "\0" in text:
                raise AgentFailure("the task contains a NUL character, which is not allowed in arguments")
        return CommandSpec(
            command,
            folder.work,
            environment,
            timeout=settings.timeout,
            limits=settings.limits.numbers(),
            output=int(settings.limits.output_mb * (1 << 20)),
            input=values["task"] if settings.stdin == "task" else None,
        )


def _list_installed(settings: CommandSettings, base: Path) -> dict[str, str]:
    """Return the placeholders {venv} and {harness}, for what the section installs. Missing parts are installed."""
    folders = {"venv": settings.venv(base), "harness": settings.harness_folder()}
    return {name: str(path) for name, path in folders.items() if path is not None}


def _find_template(name: str | None, base: Path, values: Mapping[str, str]) -> Path | None:
    """Return the template folder whose name may contain placeholders, or None without one. Raises ConfigError."""
    return find_folder(fill_placeholders(name, values), base, "template") if name is not None else None


def _build_environment(
    settings: CommandSettings,
    endpoint: Endpoint,
    values: Mapping[str, str],
    folder: EpisodeFolder,
) -> dict[str, str]:
    """Return the command's variables: inherited ones, then the episode's addresses and keys, then the YAML's."""
    environment: dict[str, str | None] = {**select_inherited(os.environ, settings.env)}
    environment |= list_episode_variables(endpoint, values, str(folder.task_file)) | {"PWD": str(folder.work)}
    if "harness" in values:
        environment["PATH"] = os.pathsep.join(filter(None, (values["harness"], environment.get("PATH"))))
    if settings.home:
        environment |= {"HOME": str(folder.home), "TMPDIR": str(folder.home)}
        environment |= dict.fromkeys(("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"))
    # The gateway must be reached without a proxy.
    host = urlsplit(endpoint.base_url).hostname or ""
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, (os.environ.get(name), host)))
    environment |= {
        name: None if text is None else fill_placeholders(text, values) for name, text in settings.env.items()
    }
    return {name: value for name, value in environment.items() if value is not None}


def _raise_unless_good(ended: Ended, settings: CommandSettings) -> None:
    """Raise AgentFailure if the command was killed or returned a failure code."""
    limits = settings.limits
    excesses = {
        "memory": f"more than {limits.memory_mb:g} MB of memory (limits.memory_mb)" if limits.memory_mb else "",
        "cpu": f"more than {limits.cpu_seconds} seconds of CPU time (limits.cpu_seconds)",
        "processes": f"more than {limits.processes} processes (limits.processes)",
        "output": f"more than {limits.output_mb:g} MB of output (limits.output_mb)",
    }
    program = settings.command[0]
    if ended.problem:
        hint = ""
        if "PermissionError" in ended.problem:
            hint = f'; make the file executable (chmod +x), or put its interpreter first: ["{{python}}", "{program}"]'
        elif "/" in program and not program.startswith(("/", "{")):
            hint = "; each episode runs in a new folder: write {base}/… for a file next to the YAML"
        elif program.startswith("{base}"):
            hint = "; {base} is the folder of the YAML"
        raise CommandFailed(f"{program} could not be run: {ended.problem}{hint}")
    if ended.ended_by in excesses:
        raise CommandOverLimit(
            f"{program} was stopped, because it used {excesses[ended.ended_by]}{ended.format_last_output()}"
        )
    if ended.ended_by == "timeout":
        if settings.on_timeout == "judge":
            return
        raise CommandTimedOut(f"{program} did not end within {settings.timeout:g} seconds{ended.format_last_output()}")
    if ended.ended_by == "stopped":
        raise CommandFailed(f"{program} was stopped")
    if settings.exit_codes != "any" and ended.code not in settings.exit_codes:
        code = ended.code or 0
        ending = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise CommandFailed(f"{program} {ending}{ended.format_last_output()}")


# Parse the score printed by a command as its last line: `{"reward": 0.5, "errors": []}`.
# Invariant: a line without a finite reward is never a reward of 0. With errors there is no reward, and the first
# error decides the failed boundary (`Boundary`).
FAILURES: dict[str, type[BoundaryError]] = {
    kind.boundary: kind
    for kind in (AgentFailure, EngineFailure, EnvironmentFailure, JudgeFailure, SandboxFailure, ToolFailure)
}
FORM = '{"reward": 0.5, "errors": []}'


def apply_score(output: WorkflowOutput, printed: str) -> WorkflowOutput:
    """Set reward, final answer and metrics from the command's last output line.

    Raises the failure that the line reports, or AgentFailure for a malformed line.
    """
    score = parse_score(printed)
    if score["errors"]:
        raise make_failure(score["errors"][0])
    output.reward = float(score["reward"])
    if "answer" in score:
        output.metadata["final_answer"] = score["answer"]
    metrics = score.get("metrics")
    if isinstance(metrics, dict):
        output.log_metrics |= {str(name): value for name, value in metrics.items() if is_number(value)}
    return output


def parse_score(printed: str) -> dict[str, Any]:
    """Parse the command's last non-empty output line. Raises AgentFailure if it is no JSON with a score or errors."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    last_line = lines[-1] if lines else ""
    try:
        score = load_json(last_line)
    except (ValueError, RecursionError):
        score = None
    if not isinstance(score, dict) or not isinstance(score.setdefault("errors", []), list):
        raise AgentFailure(
            f"the last line that the command printed is not a score; expected {FORM}, got {last_line[:200]!r}"
        )
    if not score["errors"] and not is_number(score.get("reward")):
        raise AgentFailure(f"the command printed neither a finite reward nor an error: {last_line[:200]!r}")
    return score


def make_failure(error: Any) -> BoundaryError:
    """Convert `{"boundary", "type", "message"}` to an exception.

    `boundary` names the failing side. An unknown one is an environment failure, never a reward.
    """
    error_fields = error if isinstance(error, dict) else {"message": str(error)}
    failure_class = FAILURES.get(str(error_fields.get("boundary")), EnvironmentFailure)
    message = ": ".join(str(error_fields[name]) for name in ("type", "message") if error_fields.get(name))
    return failure_class(message or "the command reported an error without a message")


def is_number(value: Any) -> bool:
    """True for a finite number."""
    return isinstance(value, (bool, int, float)) and math.isfinite(value)
