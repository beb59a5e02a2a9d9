"""Runs a workflow of ajet as an agent loop in a verl run that ajet did not launch.

verl creates the `_target_` class of agent.yaml for each session (one sample of a task) and requests the session's
outputs. Invariants: an episode runs in the rollout used on every backbone, behind a gateway in this process, and is
written to disk even if it fails. The outputs are the exact tokens of its timelines, the episode's token sequences.
Steps, rewards and checkpoints belong to verl: ajet does not account for tokens, prove steps or resume the run, and the
first log line says so. A failed training episode raises, and in mode `sync` verl then trains the rest of the group. A
failed validation episode gives an empty output for verl's reward, since verl cannot validate an empty batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.config import Experiment
from ajet.engine.contract import Sampling
from ajet.record import RunDirectory
from ajet.rollout import Rollout
from ajet.rollout.components import open_gateway
from ajet.schema.episode import Episode, Group, Split
from ajet.schema.errors import RunFailed, UserError
from ajet.task_judge import Judge
from ajet.task_reader.rows import BadRowError, ColumnNames, task_of
from ajet_ray.routed_experts import drop_experts
from ajet_ray.rows import build_empty_row, build_unscored_rows
from ajet_verl.agent.process import build_engine, freeze_garbage

if TYPE_CHECKING:
    from pathlib import Path

    from ajet.gateway import Gateway
    from ajet.schema.task import Task


VERL_ARGUMENTS = (
    *("trainer_config", "server_manager", "tokenizer", "processor", "dataset_cls", "data_config"),
    *("hf_model_type", "tools"),
)
"""Arguments that verl passes to the class named by `_target_`. Other keys of agent.yaml belong to the workflow."""
_ROW = ("data_source", "ability", "reward_model", "extra_info")
"""Columns of verl's data set copied into the task."""
_HELD_OUT = ("validation", "val", "test")
"""Values of a row's `extra_info.split` for validation; verl does not pass the split to agent loops."""

_lock = threading.Lock()
_sessions: dict[str, PlainSessions] = {}


async def play_session(
    workflow: type[Any], made_with: Mapping[str, Any], drawn: Mapping[str, Any], row: Mapping[str, Any]
) -> list[Any]:
    """Run one session and return its `AgentLoopOutput`s, one per timeline.

    Args:
        workflow: class of the workflow.
        made_with: all arguments with which verl creates the workflow.
        drawn: sampling parameters under verl's names.
        row: a row of the data set, with verl's uid, session_id and global_steps.

    Raises:
        RunFailed: a training episode failed or sampled nothing; it is on disk already.
        UserError: this version of verl cannot run the workflow.
    """
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    workflow_name = f"{workflow.__module__}.{workflow.__qualname__}"
    if "trainer_config" not in made_with or "session_id" not in row:
        raise UserError(
            "ajet's agent loop only works in verl's agent-loop workers.",
            where=f"agent.yaml: {workflow_name}",
            expected="verl 0.9.1 with its V1 trainer (trainer.use_v1), which takes an output for each timeline",
        )
    # The sessions are opened in a thread, because this waits for the record.
    sessions = await asyncio.to_thread(_open_sessions, workflow_name, workflow, made_with)
    episode = await sessions.play_episode(drawn, row)
    failure_text = f"{episode.failure or episode.ending}" if episode.status != "completed" else ""
    version, shape = sessions.version, sessions.routed_shape
    rows = [] if failure_text else build_unscored_rows(episode, policy_version=version, routed_shape=shape)
    if not rows and episode.split == "validation":
        rows = [build_empty_row(episode, {"uuid": episode.uuid, "count": 0}, version, shape)]
    if not rows:
        reason = failure_text or "no agent called the trained model"
        raise RunFailed(f"task {episode.task.task_id}, attempt {episode.repeat}: {reason}")
    return [AgentLoopOutput(**output) for output in rows]


class PlainSessions:
    """Runs all sessions of one workflow in this process. Created once and used until the process ends."""

    def __init__(self, experiment: Experiment, workflow: type[Any], config: Any, made_with: Mapping[str, Any]) -> None:
        """Open the run's folder, the engine, the gateway and the rollout.

        Args:
            config: verl's complete config.
            made_with: all arguments with which verl creates the workflow.
        """
        self._record = open_record(experiment)
        self._tokenizer = made_with["tokenizer"]
        parts = made_with["server_manager"], self._tokenizer, made_with.get("processor")
        self._engine, images = build_engine(config, *parts)
        self._max_response_tokens = experiment.ajet.rollout.max_response_length_in_one_turn
        self._gateway: Gateway = open_gateway(experiment, self._engine, self._tokenizer, images)
        run_id = self._record.run_id()
        self._rollout = Rollout(experiment, self._gateway, workflow, Judge(None), run_id=run_id)
        self._position_of_task: dict[str, Any] = {}
        self._lock = asyncio.Lock()

    @property
    def version(self) -> int:
        """The newest policy version seen in a reply."""
        return self._engine.version

    @property
    def routed_shape(self) -> tuple[int, int] | None:
        """(layers, experts per token) of replayed experts. None without replay."""
        return self._engine.routed_shape

    def close(self) -> None:
        """Close the rollout and the gateway. Used by tests; verl's processes are killed instead."""
        self._rollout.close()
        self._gateway.close()

    async def play_episode(self, drawn: Mapping[str, Any], row: Mapping[str, Any]) -> Episode:
        """Run the episode of one session and write it to disk.

        Args:
            drawn: sampling parameters under verl's names.
            row: a row of the data set, with verl's uid, session_id and global_steps.

        Raises:
            UserError: the row makes no task.
        """
        repeat, task = int(row["session_id"]), build_task(row)
        extra_info = row.get("extra_info") or {}
        split: Split = "validation" if str(extra_info.get("split")) in _HELD_OUT else "train"
        group = await asyncio.wrap_future(
            self._rollout.play_group(
                await self._find_place(str(row["uid"])),
                task,
                step=int(row["global_steps"]),
                split=split,
                # verl requests one session at a time: run only the repeat with this number, as if the earlier were done
                repeats=repeat + 1,
                finished=range(repeat),
                sampling=self._build_sampling(drawn),
            )
        )
        await self._record.keep(drop_experts(group))
        (episode,) = group.episodes
        return episode

    async def _find_place(self, uid: str) -> int:
        """Return the group number that the run's folder uses for verl's group `uid`."""
        async with self._lock:
            if uid not in self._position_of_task:
                self._position_of_task[uid] = await self._record.place(uid)
            return int(self._position_of_task[uid])

    def _build_sampling(self, drawn: Mapping[str, Any]) -> Sampling:
        """Build an episode's sampling settings from verl's parameters and ajet's limit of reply tokens."""
        return Sampling(
            self._max_response_tokens, float(drawn["temperature"]), float(drawn["top_p"]), int(drawn["top_k"])
        )


def build_task(row: Mapping[str, Any]) -> Task:
    """Convert a row of verl's data set to a task.

    Raises:
        UserError: the row makes no task.
    """
    extra_info = row.get("extra_info") or {}
    columns = {name: row[name] for name in _ROW if row.get(name) is not None}
    ground_truth = (row.get("reward_model") or {}).get("ground_truth")
    try:
        return task_of(
            {
                "prompt": [dict(message) for message in row["raw_prompt"]],
                "task_id": str(extra_info.get("task_id") or extra_info.get("index") or row["uid"]),
                **columns,
                **({} if ground_truth is None else {"answer": ground_truth}),
            },
            ColumnNames(),
        )
    except BadRowError as error:
        raise UserError(
            f"A row of the data set cannot be used as a task: {error}.", where=str(row.get("uid"))
        ) from error


def build_experiment(config: Any, workflow: type[Any]) -> Experiment:
    """Build an experiment with the rollout settings of verl's config.

    Its run folders are created next to verl's checkpoints.
    """
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    validation_sampling = rollout.val_kwargs
    max_length = int(rollout.max_model_len or rollout.prompt_length + rollout.response_length)
    settings = {
        "user_workflow": f"{workflow.__module__}->{workflow.__qualname__}",
        "num_repeat": int(rollout.n),
        "temperature": float(rollout.temperature),
        "top_p": float(rollout.top_p),
        "top_k": int(rollout.top_k),
        "val_kwargs": {
            "do_sample": True,
            "temperature": float(validation_sampling.temperature),
            "top_p": float(validation_sampling.top_p),
            "top_k": int(validation_sampling.top_k),
            "num_repeat": int(validation_sampling.n),
        },
        "max_model_len": max_length,
        "max_response_length_in_one_turn": min(int(rollout.response_length), max_length),
        "max_retries": 0,  # verl fetches another task, if configured
        "compute_madness_checklist": [],
    }
    length_limits = {
        "max_prompt_length": int(rollout.prompt_length),
        "max_response_length": int(rollout.response_length),
    }
    ajet_section = {
        "project_name": str(trainer.project_name),
        "experiment_name": str(trainer.experiment_name),
        "backbone": "verl",
        "model": {"path": str(config.actor_rollout_ref.model.path)},
        "data": {**length_limits, "train_batch_size": int(config.data.train_batch_size)},
        "rollout": settings,
        "trainer_common": {"logger": []},
    }
    folder = Path(str(trainer.default_local_dir)).absolute()
    return Experiment.from_dict({"ajet": ajet_section}, base=Path.cwd(), exp_dir=folder / "launcher_record")


def _open_sessions(name: str, workflow: type[Any], made_with: Mapping[str, Any]) -> PlainSessions:
    """Return the sessions object of a workflow in this process. The first call creates it.

    Args:
        name: full name of the workflow's class. Each set of its own arguments gets its own object.
        made_with: all arguments with which verl creates the workflow.
    """
    own_arguments = {key: value for key, value in made_with.items() if key not in VERL_ARGUMENTS}
    with _lock:
        key = f"{name} {sorted(map(str, own_arguments.items()))}"
        if key not in _sessions:
            config = made_with["trainer_config"].config
            experiment = build_experiment(config, workflow)
            workflow.check(experiment.config)
            _sessions[key] = PlainSessions(
                experiment, _bind_arguments(workflow, own_arguments, len(_sessions)), config, made_with
            )
            freeze_garbage()
        return _sessions[key]


def _bind_arguments(workflow: type[Any], arguments: Mapping[str, Any], number: int) -> type[Any]:
    """Return a subclass of the workflow that needs no constructor arguments.

    Args:
        arguments: the constructor arguments to bind.
        number: makes the subclass's name unique in the process.
    """
    if not arguments:
        return workflow

    def init_with_arguments(self: Any) -> None:
        workflow.__init__(self, **arguments)

    return type(
        f"{workflow.__name__}_{number}",
        (workflow,),
        {"__init__": init_with_arguments, "__module__": workflow.__module__},
    )


# The record of a verl run not launched by ajet: one actor writes, the agent-loop processes send.
# Invariants: an awaited episode is on disk. A run has one writer, a named actor with the lifetime of the job, so
# all processes use the same group numbers. The first log line lists the guarantees of ajet missing in such a run.
NAME = "ajet-plain-record"
FIRST = (
    "ajet did not start verl, so verl controls the steps: tokens are exact and each episode is recorded in {}, "
    "but ajet does not count tokens, check steps or resume the run, and rewards are in verl's own log. `ajet "
    "--backbone verl` does all of this."
)


class PlainRecord:
    """Ray actor that writes the run's folder (episodes and status) for episodes that run in other processes."""

    def __init__(self, yaml: str, base: Path, root: Path) -> None:
        """Open the run's folder and log which guarantees of ajet are missing.

        Args:
            yaml: the resolved experiment as YAML text.
            base: path of the experiment's YAML file.
            root: folder of all runs.
        """
        experiment = Experiment.from_text(yaml, base, root=root)
        self._run = RunDirectory.open(experiment, root=root, kind="debug")
        self._run.status.set(phase="verl's", step=0)
        self._position_of_task: dict[str, int] = {}
        logger.warning(FIRST, self._run.path)

    def run_id(self) -> str:
        """Return the id of this run."""
        return self._run.run_id

    def place(self, uid: str) -> int:
        """Return the group number of verl's group `uid`. A new `uid` gets the next number, counted from 0."""
        return self._position_of_task.setdefault(uid, len(self._position_of_task))

    def keep(self, group: Group) -> None:
        """Write the episodes of a group to disk."""
        first = group.episodes[0]
        self._run.episodes.write(first.step, first.split, group.episodes)
        self._run.status.set(step=first.step)


class RecordClient:
    """Calls the actor that writes the run's folder, from any process of the run."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def run_id(self) -> str:
        """Return the id of this run."""
        import ray

        return str(ray.get(self._actor.run_id.remote()))

    async def place(self, uid: str) -> int:
        """Return the group number of verl's group `uid`, which is equal in all processes."""
        return int(await self._actor.place.remote(uid))

    async def keep(self, group: Group) -> None:
        """Write the episodes of a group to disk, and return when they are there."""
        await self._actor.keep.remote(group)


def open_record(experiment: Experiment) -> RecordClient:
    """Connect to the actor that writes the run's folder. The first call of the job creates it."""
    import ray

    actor: Any = ray.remote(PlainRecord)
    arguments = experiment.dump_resolved(), experiment.yaml_path, experiment.root
    return RecordClient(actor.options(name=NAME, get_if_exists=True, num_cpus=0).remote(*arguments))
