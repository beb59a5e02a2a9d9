"""Settings, agent and model of a recorded run, for commands that run its agent again.

Invariants: the record provides settings only. Code comes from the user's own project, and addresses and environment
from no record. A model named by a record is downloaded or converted only with the user's permission, by an answer on
the terminal or by --fetch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.engine.model_source import describe_download, find_local_model, locate_model
from ajet.engine.models import prepare_folder
from ajet.record.console import console, print_line
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment


def load_recorded_settings(folder: Path) -> Experiment:
    """Return the settings of a recorded run, on the backbone debug.

    Addresses and trackers of services have their defaults, because a record may come from another person and must not
    decide them.

    Raises:
        ConfigError: The recorded settings cannot be read.
    """
    from ajet.config import load_recorded_experiment
    from ajet.config.plugins import find_parts
    from ajet.config.schema.rollout import EndpointConfig

    experiment = load_recorded_experiment(folder / "resolved.yaml")
    settings = experiment.ajet
    settings.backbone = "debug"
    settings.gateway.host, settings.gateway.advertise = None, "auto"
    settings.rollout.vllm.base_url = None
    if settings.rollout.engine == "endpoint":
        settings.rollout.engine = "auto"
    settings.rollout.endpoint = EndpointConfig()
    trainer = settings.trainer_common
    trackers = [trainer.logger] if isinstance(trainer.logger, str) else trainer.logger
    shipped = find_parts("tracker")
    trainer.logger = [tracker for tracker in trackers if tracker in shipped and not shipped[tracker].variables]
    return experiment


def require_own_code(experiment: Experiment, folder: Path, *, otherwise: str, judged: bool = False) -> None:
    """Raise UserError unless the code of the recorded agent is the user's own, and needs no environment or service.

    Own code lies below the working directory and not in the record, or is a tutorial of ajet's. The files of the code
    are printed.

    Args:
        folder: The run's folder.
        otherwise: The command to use with a YAML instead of the record.
        judged: True to check the judge's code, too.

    Raises:
        UserError: The agent needs something else.
    """
    from ajet.config.plugins import find_part, list_packages
    from ajet.config.recorded import list_unknown_values
    from ajet.config.references import find_code_file
    from ajet.config.schema.choices import is_reference

    reader = experiment.ajet.task_reader
    references = {"ajet.rollout.user_workflow": str(experiment.ajet.rollout.user_workflow)}
    reasons = [] if _is_own(experiment.base, folder) else [f"ajet.base_dir is {experiment.base}"]
    if is_reference(experiment.ajet.rollout.isolation):
        references["ajet.rollout.isolation"] = experiment.ajet.rollout.isolation
    if is_reference(reader.type):
        references["ajet.task_reader.type"] = reader.type
    elif reader.type == "huggingface_dat_repo":
        dataset = reader.huggingface_dat_repo.dataset_path or ""
        if not any((root / dataset).exists() for root in (experiment.base, Path.cwd())):
            reasons.append(f"its tasks, {dataset!r}, are not on this machine")
    for path, judge in experiment.ajet.task_judge.list_judges() if judged else []:
        if is_reference(judge) or path[-1] == "judge_protocol":
            references[f"ajet.{'.'.join(map(str, path))}"] = judge
    if experiment.ajet.environment.use is not None:
        reasons.append(f"ajet.environment.use is {experiment.ajet.environment.use!r}")
    for key, reference in references.items():
        file = find_code_file(reference, experiment.base) if is_reference(reference) else None
        if file is None and (find_part("workflow", reference) or reference.partition(".")[0] in list_packages()):
            continue
        if file is None or not _is_own(file, folder):
            reasons.append(f"{key} is {reference!r}")
        else:
            print_line(f"{key} is the recorded file {str(file)!r}", style="dim")
    unknown_keys = list_unknown_values(experiment)
    if unknown_keys:
        reasons.append(f"the values of {', '.join(unknown_keys[:5])} came from environment variables")
    if reasons:
        raise UserError(
            f"The record is not enough to start this agent: {'; '.join(reasons)}.",
            where=str(folder / "resolved.yaml"),
            expected=f"code in {Path.cwd()} or below; a record may come from anywhere, so ajet does not run code from "
            "other places",
            do=f"pass the YAML that the run was started with: {otherwise}",
        )


def _is_own(path: Path, record: Path) -> bool:
    """Return True if a path belongs to the user's project or to ajet's tutorials, and not to the record."""
    from ajet.config.locations import find_tutorials

    path = path.resolve()
    roots = (Path.cwd().resolve(), find_tutorials().resolve())
    return any(path.is_relative_to(root) for root in roots) and not path.is_relative_to(record.resolve())


def find_recorded_model(
    path: str, *, base: Path, record: Path, fetch: bool, weights: bool = True, otherwise: str = ""
) -> Path:
    """Return the folder of the model that a record names, after a download if the user permits it.

    Args:
        path: The model, as in `model.path`.
        base: Folder of relative paths.
        record: The run's folder.
        fetch: True if the model may be downloaded without a question.
        weights: True if the weights are needed.
        otherwise: Advice on how to go on without the model.

    Raises:
        UserError: The model is not on this machine and may not be downloaded.
    """
    local_folder = find_local_model(path, base=base, weights=weights)
    if local_folder is not None:
        return local_folder
    download = describe_download(path, base=base)
    if not fetch and not _ask_to_fetch(path, download):
        raise UserError(
            f"The record names the model {path!r}, which is not on this machine: {download}.",
            where=str(record),
            expected="a model on this machine, or your permission to download it",
            do="--fetch downloads it, if you trust the source of the record" + (f"; {otherwise}" if otherwise else ""),
        )
    return prepare_folder(locate_model(path, base=base, weights=weights))


def _ask_to_fetch(path: str, how: str) -> bool:
    """Ask on the terminal whether the model may be downloaded. Return False without a terminal.

    Args:
        how: What a download means, such as its source and size.
    """
    if not (sys.stdin.isatty() and console.is_terminal):
        return False
    print_line(f"The record names the model {path!r}, which is not on this machine: {how}.")
    try:
        return console.input("Download it? [y/N] ", markup=False).strip().lower() in ("y", "yes")
    except EOFError:
        return False
