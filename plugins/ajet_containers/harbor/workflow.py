"""HarborWorkflow: an episode of a Harbor task with the command agent of the YAML.

Invariants: the agent and then the verifier run in one container, which is removed at any end. As in Harbor, an agent
that fails or reaches its time limit is verified all the same. A failed container or verifier gives no reward.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import AgentFailure, ConfigError, SandboxFailure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.workflow.workflow import Workflow
from ajet_command.running import Ended
from ajet_command.settings import CommandSettings, fill_placeholders, get_base_folder
from ajet_containers.enter import NOT_EXECUTED
from ajet_containers.flags import count_flags, find_flags
from ajet_containers.harbor.task import HarborTask, resolve_variables
from ajet_containers.harbor.verifier import LOGS, choose_reward, verify
from ajet_containers.living import FileBundle, LivingContainer
from ajet_containers.places import ContainerSpec, check_engine, choose_engine, open_container
from ajet_containers.settings import ContainerSettings

if TYPE_CHECKING:
    from ajet.workflow.tuner import ModelTuner

OWN = "/ajet"
"""Folder inside for the task file and the agent's home."""
RECORDED = 8_000
"""Maximum characters of each recorded output, from its end."""
LONGEST_VARIABLE = 100_000
"""Bytes; Linux allows 128 KiB."""
HIDDEN = "[redacted key]"
NOT_STARTED = (126, 127)
"""Exit codes of a command that is missing in the container or cannot be executed."""
KILLED = 137
UNUSED = ("template", "folders", "keep", "requirements", "score")
"""Keys of `command_agent` for an agent on the host."""


class HarborWorkflow(Workflow):
    """Plays a task of the reader `harbor` with the command of the section `command_agent`."""

    name: str = "harbor"
    section: ClassVar[str] = "command_agent"

    @classmethod
    def check(cls, config: Any) -> None:
        """Check both sections, the engine and its limits. Raises UserError."""
        cls.settings(config)
        container = ContainerSettings.read(config)
        container.find_mounts(config)
        try:
            check_engine(choose_engine(container.engine), container.choose_limits(None, None, None))
        except SandboxFailure as problem:
            raise ConfigError(
                f"No container can be started: {problem}.",
                where="container.engine",
                expected="podman or docker on this machine (docs/harbor.md)",
                do="install podman",
            ) from None

    @classmethod
    def settings(cls, config: Any) -> CommandSettings:
        """Return the settings of the command. Raises ConfigError."""
        settings = CommandSettings.read(config, cls.section)
        limits = settings.limits.model_fields_set - {"output_mb"}
        unused = [*(name for name in UNUSED if name in settings.model_fields_set), *(f"limits.{e}" for e in limits)]
        if unused:
            raise ConfigError(
                f"{cls.section}.{unused[0]} has no effect on an agent in a container.",
                where=f"{cls.section}.{unused[0]}",
                do="remove the key; the section `container` has limits and mounts",
            )
        return settings

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner, /) -> WorkflowOutput:
        """Start the container, run the agent, run the verifier, remove the container."""
        settings = self.settings(tuner.config)
        task = HarborTask.read(Path(workflow_task.task.metadata["folder"]))
        endpoint = tuner.as_oai_baseurl_apikey(agent_name=settings.agent)
        spec = build_spec(task, ContainerSettings.read(tuner.config), tuner.config)
        start_time = time.monotonic()
        async with open_container(spec) as container:
            start_seconds = time.monotonic() - start_time
            async with container.serve_gateway(endpoint.base_url):
                workdir = task.table.environment.workdir or os.readlink(f"/proc/{container.pid}/cwd")
                agent = _AgentCommand(settings, workflow_task, endpoint, get_base_folder(tuner.config), workdir)
                await prepare(container, task, agent.files())
                container.count_network_attempts()
                ended = await agent.run(container, task)
            answer = await asyncio.to_thread(agent.read_answer, container, ended)
            flags = await asyncio.to_thread(observe_agent, container, ended)
            rewards, verified, printed = await verify(container, task)
        return WorkflowOutput(
            reward=choose_reward(rewards),
            metadata={
                "final_answer": answer,
                "command": {"exit_code": ended.code, "ended_by": ended.ended_by, "stdout": ended.stdout[-RECORDED:],
                            "stderr": ended.stderr[-RECORDED:]},
                "verifier": {"rewards": rewards, "exit_code": verified.code, "printed": printed[-RECORDED:]},
                "flags": flags,
            },
            log_metrics={
                "container_seconds": start_seconds, "command_seconds": ended.seconds,
                "verifier_seconds": verified.seconds,
                "rewards": rewards, "flags": count_flags(flags),
            },
        )  # fmt: skip


def build_spec(task: HarborTask, settings: ContainerSettings, config: Any) -> ContainerSpec:
    """Return the container of a task. Raises ConfigError, TaskError or SandboxFailure."""
    table = task.table.environment
    return ContainerSpec(
        engine=choose_engine(settings.engine),
        limits=settings.choose_limits(table.memory_mb, table.cpus, table.storage_mb),
        image=table.docker_image,
        folder=task.build_folder,
        root=settings.find_root(table.docker_image, config),
        mounts=settings.find_mounts(config),
        environment=resolve_variables(table.env, task.folder),
        build_network=settings.build_network,
        build_timeout=table.build_timeout_sec,
    )


async def prepare(container: LivingContainer, task: HarborTask, files: FileBundle) -> None:
    """Create Harbor's folders, put the files in, and wait until the task's health check passes.

    Raises SandboxFailure if the container does not become healthy.
    """
    for folder in (LOGS, "/logs/agent", "/logs/artifacts"):
        files.add_folder(folder, 0o777)
    await asyncio.to_thread(container.put, files)
    check = task.table.environment.healthcheck
    started, failures = time.monotonic(), 0
    while check is not None:
        ended = await container.run(["bash", "-c", check.command], environment={}, timeout=check.timeout_sec)
        if ended.code == 0 and not ended.ended_by:
            return
        is_starting = time.monotonic() - started < check.start_period_sec
        failures += not is_starting
        if failures >= check.retries:
            raise SandboxFailure(f"the task's health check failed {failures} times: {check.command}")
        await asyncio.sleep(check.start_interval_sec if is_starting else check.interval_sec)


def observe_agent(container: LivingContainer, ended: Ended) -> dict[str, Any]:
    """Return the flags of an episode whose agent has just ended."""
    changes = [(kind, path) for kind, path in container.list_changes() if not f"{path}/".startswith(f"{OWN}/")]
    return find_flags(
        changes, container.count_network_attempts(), container.count_processes(), ended.ended_by == "timeout"
    )


class _AgentCommand:
    """The command of the YAML with an episode's values, for a container."""

    def __init__(
        self, settings: CommandSettings, workflow_task: WorkflowTask, endpoint: Endpoint, base: Path, workdir: str
    ) -> None:
        self._settings, self._task, self._workdir = settings, workflow_task, workdir
        port = urlsplit(endpoint.base_url).port or 80
        path = urlsplit(endpoint.base_url).path
        self._endpoint = replace(endpoint, base_url=f"http://127.0.0.1:{port}{path}")
        task = workflow_task.task
        self._values = {
            "python": "python3", "base": str(base), "folder": workdir, "model": endpoint.model,
            "base_url": self._endpoint.base_url, "api_key": endpoint.api_key, "task": task.main_query,
            "task_id": task.task_id, "episode": workflow_task.episode_uuid,
        }  # fmt: skip

    def files(self) -> FileBundle:
        """Return the task file, the home folder and the files of the YAML."""
        task = self._task.task
        visible_metadata = {name: task.metadata[name] for name in self._settings.metadata if name in task.metadata}
        content = {
            "task_id": task.task_id,
            "main_query": task.main_query,
            "init_messages": [],
            "metadata": visible_metadata,
        }
        bundle = FileBundle()
        bundle.add_folder(f"{OWN}/home", 0o777)
        bundle.add_file(f"{OWN}/task.json", json.dumps(content, ensure_ascii=False).encode())
        for name, text in self._settings.files.items():
            bundle.add_file(os.path.join(self._workdir, name), fill_placeholders(text, self._values).encode(), 0o666)
        return bundle

    async def run(self, container: LivingContainer, task: HarborTask) -> Ended:
        """Run the command as the task's agent user.

        Raises:
            AgentFailure: the command could not be started, wrote too much, or ended in a way that the YAML refuses.
            SandboxFailure: the container was killed, or the kernel killed the command for lack of memory.
        """
        settings, table = self._settings, task.table.agent
        command = [fill_placeholders(word, self._values) for word in settings.command]
        kills = container.count_memory_kills()
        ended = await container.run(
            command,
            environment=self._build_environment(),
            user=None if table.user is None else str(table.user),
            workdir=self._workdir,
            timeout=settings.timeout or table.timeout_sec,
            stdin=self._values["task"] if settings.stdin == "task" else None,
            output=int(settings.limits.output_mb * (1 << 20)),
        )
        ended.stdout, ended.stderr = (
            each.replace(self._endpoint.api_key, HIDDEN) for each in (ended.stdout, ended.stderr)
        )
        if ended.code == KILLED and container.count_memory_kills() > kills:
            raise SandboxFailure("the agent's command was killed, because the container's memory was full")
        self._raise_unless_ended(ended, command[0])
        return ended

    def read_answer(self, container: LivingContainer, ended: Ended) -> str:
        """Return the agent's answer by `command_agent.answer`."""
        answer = self._settings.answer
        if answer.startswith("file:"):
            try:
                path = os.path.join(self._workdir, answer.removeprefix("file:"))
                content = container.get(path, 4 << 20) or b""
            except ValueError as error:
                raise AgentFailure(f"the agent's answer ({answer}) cannot be read: {error}") from None
            return content.decode(errors="replace").replace(self._endpoint.api_key, HIDDEN)
        lines = [line.strip() for line in ended.stdout.splitlines() if line.strip()]
        return ended.stdout if answer == "stdout" else lines[-1] if lines else ""

    def _build_environment(self) -> dict[str, str]:
        """Return the command's variables. Nothing of ajet's own environment is among them."""
        endpoint, task = self._endpoint, self._values["task"]
        variables: dict[str, str | None] = {
            **endpoint.environment, "OPENAI_MODEL": endpoint.model, "ANTHROPIC_MODEL": endpoint.model,
            "AJET_BASE_URL": endpoint.base_url, "AJET_API_KEY": endpoint.api_key, "AJET_MODEL": endpoint.model,
            "AJET_TASK": task if len(task.encode(errors="replace")) <= LONGEST_VARIABLE else None,
            "AJET_TASK_ID": self._values["task_id"], "AJET_TASK_FILE": f"{OWN}/task.json",
            "AJET_EPISODE": self._values["episode"], "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
            "HOME": f"{OWN}/home" if self._settings.home else None,
        }  # fmt: skip
        yaml_variables: Mapping[str, str | None] = self._settings.env
        variables |= {name: text and fill_placeholders(text, self._values) for name, text in yaml_variables.items()}
        return {name: value for name, value in variables.items() if value is not None}

    def _raise_unless_ended(self, ended: Ended, program: str) -> None:
        """Raise AgentFailure unless the verifier may judge what the agent left."""
        settings = self._settings
        set_keys = settings.model_fields_set
        last = (ended.stderr.strip() or ended.stdout.strip())[-1_500:]
        is_missing = ended.code in NOT_STARTED and ("OCI runtime" in ended.stderr or NOT_EXECUTED in ended.stderr)
        if ended.problem or is_missing:
            raise AgentFailure(f"{program} could not be run in the container: {ended.problem or last}")
        if ended.ended_by == "output":
            raise AgentFailure(f"{program} wrote more than {settings.limits.output_mb:g} MB (limits.output_mb)")
        if ended.ended_by == "timeout":
            if "on_timeout" in set_keys and settings.on_timeout == "fail":
                raise AgentFailure(f"{program} did not end in time; last output:\n{last}")
        elif "exit_codes" in set_keys and settings.exit_codes != "any" and ended.code not in settings.exit_codes:
            raise AgentFailure(f"{program} ended with exit code {ended.code}; last output:\n{last}")
