"""What `ajet eval` is asked about: a run or a YAML, and its models.

Invariant: a run's record gives settings only; its code must be the person's own (`require_own`), and a model that the
record names is fetched only with the person's word. A YAML is the person's own word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.commands.evaluation.models import BASE, Model, chosen_models, needs_run
from ajet.schema.commands import command, lists_runs, short_path
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment

YAML = (".yaml", ".yml")


def opened_target(
    target: str | None,
    conf: Path | None,
    models: Sequence[str],
    *,
    overrides: Sequence[str] = (),
    exp_dir: Path | None = None,
    fetch: bool = False,
) -> tuple[Experiment, list[Model]]:
    """The experiment, and the models to play. Raises UserError."""
    from ajet.config import load_experiment
    from ajet.config.experiment import DEFAULT_ROOT

    if conf is None and target is not None and target.endswith(YAML):
        conf, target = Path(target), None
    if conf is not None:
        experiment = load_experiment(conf, backbone="debug", overrides=overrides, exp_dir=exp_dir)
        folder = experiment.root / experiment.name if target is None else _run(target, experiment.root)
        run = folder if (folder / "run.json").is_file() else None
        if run is not None and target is None and needs_run(models):
            _require_own_project(experiment, run, conf)
        return experiment, chosen_models(models, experiment, run)
    if target is None:
        raise UserError(
            "There is nothing to evaluate.",
            expected=f"{command('eval', 'RUN')}, or {command('eval', 'FILE.yaml')}",
            do=f"`{lists_runs(Path(exp_dir or DEFAULT_ROOT))}` lists the runs",
        )
    if overrides:
        raise UserError(
            f"{overrides[0]} changes nothing of a recorded run.",
            where=target,
            expected="a YAML beside settings",
            do=command("eval", target, "--conf", "FILE.yaml", *overrides),
        )
    return _recorded(target, models, (exp_dir or Path(DEFAULT_ROOT)).absolute(), fetch=fetch)


def _recorded(target: str, models: Sequence[str], root: Path, *, fetch: bool) -> tuple[Experiment, list[Model]]:
    from ajet.commands.recorded_agent import recorded_settings, require_own
    from ajet.commands.recorded_model import recorded_model
    from ajet.config.dotenv import load_project_dotenv

    folder = _run(target, root)
    load_project_dotenv(record=folder)
    experiment = recorded_settings(folder)
    require_own(experiment, folder, judged=True, otherwise=command("eval", target, "--conf", "FILE.yaml"))
    chosen = []
    for model in chosen_models(models, experiment, folder):
        if model.label in BASE and model.path is not None:
            found = recorded_model(model.path, base=experiment.base, record=folder, fetch=fetch)
            model = replace(model, path=str(found))
        chosen.append(model)
    return experiment, chosen


def _require_own_project(experiment: Experiment, run: Path, conf: Path) -> None:
    """Raises UserError where the run of this name belongs to a YAML of another project."""
    from ajet.record.resume import RunIdentity, yaml_path_of

    identity, yaml = RunIdentity.read(run), yaml_path_of(experiment, run)
    if identity is None or not identity.is_of_other_yaml(yaml, run) or not Path(str(identity.yaml)).exists():
        return
    raise UserError(
        f'Two projects use the run name "{experiment.name}": the run in {short_path(run)} is of '
        f"{short_path(str(identity.yaml))}, and you named {short_path(str(yaml))}.",
        where=short_path(run),
        expected="another ajet.experiment_name for each project",
        do=f"{command('eval', experiment.name, '--conf', str(conf))} evaluates that run by this YAML",
    )


def _run(target: str, root: Path) -> Path:
    from ajet.commands.export import run_of

    return run_of(target, root)
