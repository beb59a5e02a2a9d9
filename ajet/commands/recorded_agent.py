"""The agent that a record tells of, for those who play it again.

Invariant: the record gives settings, as data: code comes from the person's own project, and addresses and the
environment from no record.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ajet.record.console import console
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment


def recorded_settings(folder: Path) -> Experiment:
    """The run's settings on the debug backbone, but for what no record decides: an address to send to or to listen
    on, which variable holds a key, and services and code that are told of it. Raises ConfigError."""
    from ajet.config import recorded_experiment
    from ajet.config.plugins import find_parts
    from ajet.config.schema.rollout import RemoteEndpoint

    experiment = recorded_experiment(folder / "resolved.yaml")
    settings = experiment.ajet
    settings.backbone = "debug"
    settings.gateway.host, settings.gateway.advertise = None, "auto"
    settings.rollout.vllm.base_url = None
    if settings.rollout.engine == "endpoint":
        settings.rollout.engine = "auto"
    settings.rollout.endpoint = RemoteEndpoint()
    trainer = settings.trainer_common
    trackers = [trainer.logger] if isinstance(trainer.logger, str) else trainer.logger
    shipped = find_parts("tracker")
    trainer.logger = [each for each in trackers if each in shipped and not shipped[each].variables]
    return experiment


def require_own(experiment: Experiment, folder: Path, *, otherwise: str, judged: bool = False) -> None:
    """Raises UserError unless all code that the agent needs is the project's own (below the working directory and not
    in the record, or a tutorial of ajet's), and nothing is needed from the environment or a network; says which code
    it is. `judged`: the judge's, too. `otherwise`: the command that takes a YAML in place of the record."""
    from ajet.config.plugins import find_part, list_packages
    from ajet.config.recorded import from_elsewhere
    from ajet.config.references import code_file
    from ajet.config.schema.choices import is_reference

    reader = experiment.ajet.task_reader
    named = {"ajet.rollout.user_workflow": str(experiment.ajet.rollout.user_workflow)}
    why = [] if _own(experiment.base, folder) else [f"ajet.base_dir is {experiment.base}"]
    if is_reference(experiment.ajet.rollout.isolation):
        named["ajet.rollout.isolation"] = experiment.ajet.rollout.isolation
    if is_reference(reader.type):
        named["ajet.task_reader.type"] = reader.type
    elif reader.type == "huggingface_dat_repo":
        place = reader.huggingface_dat_repo.dataset_path or ""
        if not any((root / place).exists() for root in (experiment.base, Path.cwd())):
            why.append(f"its tasks, {place!r}, are not on this machine")
    for path, judge in experiment.ajet.task_judge.named() if judged else []:
        if is_reference(judge) or path[-1] == "judge_protocol":
            named[f"ajet.{'.'.join(map(str, path))}"] = judge
    if experiment.ajet.environment.use is not None:
        why.append(f"ajet.environment.use is {experiment.ajet.environment.use!r}")
    for key, reference in named.items():
        file = code_file(reference, experiment.base) if is_reference(reference) else None
        if file is None and (find_part("workflow", reference) or reference.partition(".")[0] in list_packages()):
            continue
        if file is None or not _own(file, folder):
            why.append(f"{key} is {reference!r}")
        else:
            console.print(f"{key}, as the record says: {str(file)!r}", style="dim", markup=False, soft_wrap=True)
    unknown = from_elsewhere(experiment)
    if unknown:
        why.append(f"{', '.join(unknown[:5])} came from the environment")
    if why:
        raise UserError(
            f"The record alone does not give this agent: {'; '.join(why)}.",
            where=str(folder / "resolved.yaml"),
            expected=f"code below {Path.cwd()}; a record is data, and may come from anywhere",
            do=f"name the YAML that the run was started with: {otherwise}",
        )


def _own(place: Path, record: Path) -> bool:
    """Whether a file or folder is the project's own or ajet's, and not of a record."""
    from ajet.config.locations import shipped_tutorials

    place = place.resolve()
    roots = (Path.cwd().resolve(), shipped_tutorials().resolve())
    return any(place.is_relative_to(root) for root in roots) and not place.is_relative_to(record.resolve())
