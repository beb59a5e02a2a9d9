"""Trains on Trinity: this code prepares and follows the run in the process that the user started.

Invariants: configuration errors appear before Ray starts; a run with too few steps, and without a requested stop, has
failed. `ajet_ray.on_ray` implements start and end.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.algorithm import open_algorithm
from ajet.schema.errors import ConfigError
from ajet.task_reader import TaskOrder
from ajet.task_reader.contamination import find_overlap
from ajet.task_reader.overlong import drop_overlong
from ajet_ray.cluster.gpus import refuse_busy
from ajet_ray.cluster.ray_cluster import RayNeeds
from ajet_ray.mailbox import CheckpointNotice, CreditNotice, Notice, StepNotice
from ajet_ray.on_ray import find_address, make_run_error, run_on_ray
from ajet_ray.record import RayRecord
from ajet_ray.store_tickets import open_store_tickets
from ajet_ray.tickets import LaunchTickets, open_verl_store
from ajet_trinity import cpu
from ajet_trinity.config import TrinityLaunch, choose_device, compose_trinity_config, compute_demand
from ajet_trinity.package import require_trinity
from ajet_trinity.processes.here import build_variable

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.tokens import Renderer
    from ajet.train.interrupts import Interrupts
    from ajet.train.runner import LaunchOptions
    from ajet.train.sink import RunSink
    from ajet_ray.cluster.resources import Demand
    from ajet_ray.tickets import LaunchTickets


FOLDER = "trinity"
"""Trinity's folder in the run's folder. It is removed after a launch; checkpoints are moved out before."""
CPUS = 16
"""Minimum number of Ray CPUs in a cluster started by the run: slots for processes that mostly wait, not cores."""


def train_on_trinity(
    experiment: Experiment, run: RunDirectory, options: LaunchOptions, interrupts: Interrupts, sink: RunSink
) -> None:
    """Train until the last step, and pass each finished step to `sink`.

    Raises:
        KeyboardInterrupt: the run was interrupted, after saving.
        UserError: the run cannot start.
        RunFailed: Trinity's processes reported an error, or ended too early.
    """
    from ajet_trinity.processes.stage import TrinityStage

    folder = require_trinity()
    address, device = find_address(options), choose_device(experiment)
    config, order, renderer, tokenizer = prepare_config(experiment, run, sink)
    steps, resumed_step = config["buffer"]["total_steps"], run.resumed.step if run.resumed is not None else 0
    is_finished = resumed_step >= steps
    if is_finished and options.from_store is None:
        return
    demand = compute_demand(config)
    if not is_finished and address is None and device == "cuda" and not options.skip_check_avail_gpu:
        refuse_busy(demand.accelerators)
    tickets: LaunchTickets
    if options.from_store is not None:
        tickets = open_store_tickets(experiment, run, options.from_store, order, tokenizer, steps=steps)
    else:
        store = open_verl_store(run, order, sessions=experiment.ajet.rollout.num_repeat, oldest=resumed_step)
        tickets = LaunchTickets(store, order, batch=experiment.ajet.data.train_batch_size)
    if is_finished:  # a killed run may not have marked its end
        tickets.finish_run()
        return
    if run.resumed is not None:
        recovery_note = run.recovery(tickets.list_begun(), dead=tickets.list_dead())
        logger.info("resumed after step {} from {}{}", resumed_step, run.resumed.path, recovery_note)
    sink.begin(renderer, total=steps)
    record = TrinityRecord(experiment, run, sink, tickets)
    _prepare_folder(config, run)
    run.status.set(phase="starting Ray", steps=steps)
    environment = _build_environment(folder, device)
    environment |= build_variable(
        experiment, run_id=run.run_id, begun=resumed_step, total=steps, ranks=demand.training[1]
    )
    try:
        was_stopped = run_on_ray(
            "Trinity",
            TrinityStage,
            config,
            _build_needs(demand, config["ray_namespace"], device),
            record,
            tickets,
            experiment=experiment,
            run=run,
            address=address,
            environment=environment,
            interrupts=interrupts,
        )
    finally:
        shutil.rmtree(run.path / FOLDER, ignore_errors=True)
    if record.step < steps and not was_stopped:
        problem = f"Trinity reports success, but made only {record.step} of {steps} steps"
        raise make_run_error("Trinity", problem, run.path / "logs")
    tickets.finish_run()


def _build_needs(demand: Demand, namespace: str, device: str) -> RayNeeds:
    """Return what Trinity needs from Ray. On a CPU, GPUs are slots without hardware, and a warning is logged."""
    init: dict[str, Any] = {}
    if device == "cpu":  # slots by name only
        logger.warning("Trinity runs without an accelerator: this is slow, and meant for tests only")
        init = {"num_gpus": demand.accelerators, "num_cpus": max(CPUS, demand.cpus)}
    return RayNeeds(
        demand,
        resource="GPU",
        extra="trinity",
        needed_for="The trinity backbone",
        init=init,
        cpus_key="Ray's CPUs",
        serving_key="ajet.rollout.n_vllm_engine",
        namespace=namespace,
    )


def _build_environment(folder: Path | None, device: str) -> dict[str, str]:
    """Return the environment variables of Trinity's processes.

    Args:
        folder: Trinity's package folder, or None if the processes can import it without help.
    """
    variables = {"TRINITY_LOG_LEVEL": "INFO", "TRINITY_PLUGIN_DIRS": ""}
    paths = [str(folder)] if folder is not None else []
    if device == "cpu":
        variables |= cpu.build_environment()
        paths.append(str(cpu.PLUGIN))
    if paths:
        paths.append(os.environ.get("PYTHONPATH", ""))
        variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return variables


def prepare_config(
    experiment: Experiment, run: RunDirectory, sink: RunSink
) -> tuple[dict[str, Any], TaskOrder, Renderer, Any]:
    """Return Trinity's config for this run, the training order of the tasks, the renderer and the tokenizer.

    Raises:
        ConfigError: a setting is unsupported, or the checkpoint belongs to another backbone.
    """
    from ajet.engine.model_limits import warn_unreplayed_experts
    from ajet.engine.model_source import locate_configured_model
    from ajet.engine.models import load_image_tokens, load_tokenizer, prepare_folder
    from ajet.rollout.components import make_renderer
    from ajet.task_reader import open_reader

    settings = experiment.ajet
    compose_trinity_config(experiment)  # raises errors of the config before anything is loaded
    if run.resumed is not None and BACKBONE not in run.resumed.state:
        raise ConfigError(
            "The checkpoint belongs to another backbone, so Trinity cannot resume from it.",
            where=str(run.resumed.path),
            do=f"start a new run from its weights with ajet.model.path: {run.resumed.path}",
        )
    source = locate_configured_model(settings, experiment.base)
    model_folder = prepare_folder(source)
    if load_image_tokens(model_folder) is not None:
        raise ConfigError(
            "Trinity cannot train on images.",
            where="ajet.model.path",
            expected="a text model, or --backbone verl",
        )
    warn_unreplayed_experts(model_folder)
    reader, tokenizer = open_reader(experiment), load_tokenizer(source)
    renderer = make_renderer(settings, tokenizer, None)
    tasks = drop_overlong(reader.tasks("train"), settings.data, tokenizer)
    order = TaskOrder(tasks, seed=settings.seed, shuffle=settings.data.shuffle)
    overlap = find_overlap(tasks, reader.tasks("validation")) if reader.has("validation") else None
    sink.review(open_algorithm(settings, base=experiment.base), train=len(tasks), validates=False, overlap=overlap)
    launch = TrinityLaunch(run.path / FOLDER, f"ajet-{run.run_id}", settings.count_steps(len(tasks)))
    return compose_trinity_config(experiment, model_folder=model_folder, run=launch), order, renderer, tokenizer


def _prepare_folder(config: dict[str, Any], run: RunDirectory) -> None:
    """Create the folder from which Trinity starts: empty, or with the files of a resumed checkpoint."""
    shutil.rmtree(run.path / FOLDER, ignore_errors=True)
    job_folder = Path(config["checkpoint_root_dir"]) / config["project"] / config["name"]
    job_folder.mkdir(parents=True)
    if run.resumed is None:
        return
    step, folder = run.resumed.step, run.resumed.path / run.resumed.state[BACKBONE]
    # Trinity finds the checkpoint by these names and numbers, as if it had written them itself.
    (job_folder / f"global_step_{step}").symlink_to(folder.absolute())
    (job_folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    (job_folder / "latest_state_dict_iteration.txt").write_text(str(step))
    for process_name, more_state in (("explorer", {"taskset_states": [{"current_index": 0}]}), ("trainer", {})):
        (job_folder / f"{process_name}_meta.json").write_text(json.dumps({"latest_iteration": step, **more_state}))


# The run's record and screen from the notices of Trinity's processes.
# Invariants: as for verl's record, with mostly the same notices. A step ends once both parts of its numbers exist,
# the credit's and the trainer's. A checkpoint is Trinity's folder of the step, moved completely.
BACKBONE = "trinity"
"""The key, in a checkpoint's state, of the name of Trinity's own checkpoint folder."""


class TrinityRecord(RayRecord):
    """Writes each notice of Trinity's processes to the run's folder."""

    backbone = BACKBONE

    def __init__(self, experiment: Experiment, run: RunDirectory, sink: RunSink, tickets: LaunchTickets) -> None:
        super().__init__(experiment, run, sink, tickets)
        self._credit_of_step: dict[int, CreditNotice] = {}
        """Advantages of steps that Trinity's trainer has not reported yet, by step."""

    def handle_notice(self, letter: Notice) -> None:
        """Apply a notice to the run's folder and status.

        A step is applied once both its advantages and the trainer's metrics have arrived.

        Raises:
            UserError: a whole batch failed, several batches had no score, or too many processes died.
        """
        if isinstance(letter, CreditNotice):
            self._credit_of_step[letter.step] = letter
            return
        if isinstance(letter, StepNotice):
            credit = self._credit_of_step.pop(letter.step)
            letter = StepNotice(letter.step, credit.metrics | letter.metrics, credit.credited)
        super().handle_notice(letter)
        # The last checkpoint is written after the step's metrics were recorded.
        if isinstance(letter, CheckpointNotice) and letter.step == self.step:
            self._commit_checkpoint(letter)
