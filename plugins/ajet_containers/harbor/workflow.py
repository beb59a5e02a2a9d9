"""HarborWorkflow: an episode of a Harbor task with the command agent of the YAML.

Invariants: the agent and then the verifier run in one container, which is removed at any end. As in Harbor, an agent
that fails or reaches its time limit is verified all the same. A failed container or verifier gives no reward.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import AgentFailure, ConfigError, SandboxFailure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.workflow.workflow import Workflow
from ajet_command.episode import describe_task, extract_answer, list_episode_values, list_episode_variables
from ajet_command.running import ANSWER_BYTES, HIDDEN, RECORDED, Ended
from ajet_command.settings import HOME, CommandSettings, fill_placeholders, get_base_folder
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
TASK_FILE, HOME_FOLDER = f"{OWN}/task.json", f"{OWN}/home"
NOT_STARTED = (126, 127)
"""Exit codes of a command that is missing in the container or cannot be executed."""
KILLED = 137
UNUSED = ("template", "folders", "keep", "requirements", "score", "verify")
"""Keys of `command_agent` for an agent on the host."""


class HarborWorkflow(Workflow):
    """Plays a task of the reader `harbor` with the command of the section `command_agent`."""

    name: str = "harbor"
    section: ClassVar[str] = "command_agent"

    @classmethod
    def check(cls, config: Any) -> None:
        """Check both sections, the engine and its limits, and install the harness. Raises UserError."""
        settings = cls.settings(config)
        container = ContainerSettings.read(config)
        container.find_mounts(config)
        settings.list_harness_folders()
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
        unused = [
            *(name for name in UNUSED if name in settings.model_fields_set),
            *(f"limits.{limit}" for limit in limits),
        ]
        if unused:
            raise ConfigError(
                f"{cls.section}.{unused[0]} has no effect on an agent in a container.",
                where=f"{cls.section}.{unused[0]}",
                do="remove the key; the section `container` has limits and mounts",
            )
        return settings

    def choose_targets(self, config: Any) -> list[str] | None:
        """Return the names of the trained agents, from `trains` or the class; None trains all."""
        return self.settings(config).trains or self.trainable_targets

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner, /) -> WorkflowOutput:
        """Start the container, run the agent, run the verifier, remove the container."""
        settings = self.settings(tuner.config)
        task = HarborTask.read(Path(workflow_task.task.metadata["folder"]))
        endpoint = tuner.as_oai_baseurl_apikey(agent_name=settings.agent)
        harness_folders = await asyncio.to_thread(settings.list_harness_folders)
        spec = build_spec(task, ContainerSettings.read(tuner.config), tuner.config, harness_folders)
        start_time = time.monotonic()
        async with open_container(spec) as container:
            start_seconds = time.monotonic() - start_time
            async with container.serve_gateway(endpoint.base_url):
                workdir = task.table.environment.workdir or os.readlink(f"/proc/{container.pid}/cwd")
                agent = _AgentCommand(settings, workflow_task, endpoint, tuner.config, workdir)
                await prepare(container, task, agent.files())
                container.count_network_attempts()  # attempts of the health check do not count as the agent's
                ended = await agent.run(container, task)
            answer = await asyncio.to_thread(agent.read_answer, container, ended)
            flags = await asyncio.to_thread(observe_agent, container, ended)
            rewards, verified, printed = await verify(container, task)
        return WorkflowOutput(
            reward=choose_reward(rewards),
            metadata={
                "final_answer": answer,
                "command": ended.to_record(),
                "verifier": {"rewards": rewards, "exit_code": verified.code, "printed": printed[-RECORDED:]},
                "flags": flags,
            },
            log_metrics={
                "container_seconds": start_seconds, "command_seconds": ended.seconds,
                "verifier_seconds": verified.seconds,
                "rewards": rewards, "flags": count_flags(flags),
            },
        )  # fmt: skip


def build_spec(
    task: HarborTask, settings: ContainerSettings, config: Any, folders: Sequence[Path] = ()
) -> ContainerSpec:
    """Return the container of a task.

    Args:
        folders: folders of the host to mount at the same paths.

    Raises:
        ConfigError: a mount does not exist.
        TaskError: the task names a variable that is not set.
        SandboxFailure: no engine is installed.
    """
    table = task.table.environment
    return ContainerSpec(
        engine=choose_engine(settings.engine),
        limits=settings.choose_limits(table.memory_mb, table.cpus, table.storage_mb),
        image=table.docker_image,
        folder=task.build_folder,
        root=settings.find_root(table.docker_image, config),
        mounts=settings.find_mounts(config) | {str(folder): str(folder) for folder in folders},
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
        self, settings: CommandSettings, workflow_task: WorkflowTask, endpoint: Endpoint, config: Any, workdir: str
    ) -> None:
        self._settings, self._task, self._workdir = settings, workflow_task.task, workdir
        # Inside the container the gateway listens on the loopback address, at the same port and path.
        address = urlsplit(endpoint.base_url)
        self._endpoint = replace(endpoint, base_url=f"http://127.0.0.1:{address.port or 80}{address.path}")
        self._values = list_episode_values(workflow_task, self._endpoint, config) | {
            "python": "python3", "base": str(get_base_folder(config)), "folder": workdir, "home": HOME_FOLDER,
        }  # fmt: skip
        if (programs := settings.harness_folder()) is not None:
            self._values["harness"] = str(programs)

    def files(self) -> FileBundle:
        """Return the task file, the home folder and the files of the YAML."""
        bundle = FileBundle()
        bundle.add_folder(HOME_FOLDER, 0o777)
        content = describe_task(self._task, self._settings.metadata)
        bundle.add_file(TASK_FILE, json.dumps(content, ensure_ascii=False, default=str).encode())
        for name, text in self._settings.files.items():
            bundle.add_file(self._resolve_path(name), fill_placeholders(text, self._values).encode(), 0o666)
        return bundle

    async def run(self, container: LivingContainer, task: HarborTask) -> Ended:
        """Run the command as the task's agent user.

        Raises:
            AgentFailure: the command could not be started, wrote too much, or ended in a way that the YAML refuses.
            SandboxFailure: the container was killed, or the kernel killed the command for lack of memory.
        """
        settings, table = self._settings, task.table.agent
        command = [fill_placeholders(word, self._values) for word in settings.command]
        kills_before = container.count_memory_kills()
        ended = await container.run(
            command,
            environment=self._build_environment(container.read_variable("PATH")),
            user=None if table.user is None else str(table.user),
            workdir=self._workdir,
            timeout=settings.timeout or table.timeout_sec,
            stdin=self._values["task"] if settings.stdin == "task" else None,
            output=int(settings.limits.output_mb * (1 << 20)),
        )
        ended.redact(self._endpoint.api_key)
        if ended.code == KILLED and container.count_memory_kills() > kills_before:
            raise SandboxFailure("the agent's command was killed, because the container's memory was full")
        self._raise_unless_ended(ended, command[0])
        return ended

    def read_answer(self, container: LivingContainer, ended: Ended) -> str:
        """Return the agent's answer by `command_agent.answer`."""

        def read_file(name: str) -> str:
            """Return the text of a file in the container; "" if it is missing. Raises AgentFailure."""
            try:
                return (container.get(self._resolve_path(name), ANSWER_BYTES) or b"").decode(errors="replace")
            except ValueError as error:
                raise AgentFailure(f"the agent's answer ({name}) cannot be read: {error}") from None

        answer = extract_answer(self._settings.answer, ended.stdout, read_file)
        return answer.replace(self._endpoint.api_key, HIDDEN)

    def _resolve_path(self, name: str) -> str:
        """Return the path inside of a file of the YAML."""
        folder = HOME_FOLDER if name.startswith(HOME) else self._workdir
        return os.path.join(folder, name.removeprefix(HOME))

    def _build_environment(self, path: str) -> dict[str, str]:
        """Return the command's variables. Nothing of ajet's own environment is among them.

        Args:
            path: PATH of the image.
        """
        variables = list_episode_variables(self._endpoint, self._values, TASK_FILE)
        variables |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        variables |= {"HOME": HOME_FOLDER} if self._settings.home else {}
        variables |= {"PATH": f"{self._values['harness']}:{path}"} if "harness" in self._values else {}
        yaml_variables: Mapping[str, str | None] = self._settings.env
        variables |= {name: text and fill_placeholders(text, self._values) for name, text in yaml_variables.items()}
        return {name: value for name, value in variables.items() if value is not None}

    def _raise_unless_ended(self, ended: Ended, program: str) -> None:
        """Raise AgentFailure if the command was not started, wrote too much, or ended in a way that the YAML refuses.

        By default an agent that failed or reached its time limit is verified all the same.
        """
        settings = self._settings
        set_keys = settings.model_fields_set
        last_output = ended.format_last_output()
        is_missing = ended.code in NOT_STARTED and ("OCI runtime" in ended.stderr or NOT_EXECUTED in ended.stderr)
        if ended.problem or is_missing:
            raise AgentFailure(
                f"{program} could not be run in the container{f': {ended.problem}' if ended.problem else last_output}"
            )
        if ended.ended_by == "output":
            raise AgentFailure(f"{program} wrote more than {settings.limits.output_mb:g} MB (limits.output_mb)")
        if ended.ended_by == "timeout":
            if "on_timeout" in set_keys and settings.on_timeout == "fail":
                raise AgentFailure(f"{program} did not end in time{last_output}")
        elif "exit_codes" in set_keys and settings.exit_codes != "any" and ended.code not in settings.exit_codes:
            raise AgentFailure(f"{program} ended with exit code {ended.code}{last_output}")
