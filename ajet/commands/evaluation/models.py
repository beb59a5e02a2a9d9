"""The target of `ajet eval` (a run or a YAML), and the models named by `--model`.

Invariants: a model is a possible start of a run (`model.path`), or an endpoint for messages. The identity comes from
the model's files: a record is never mistaken for another model's. A run's record provides settings only. The run's code
must be the user's own (`require_own_code`), and a model named by the record is fetched only with the user's permission.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.commands.export import find_model_folder, find_training_run, select_checkpoint
from ajet.config.other_models import read_api_key
from ajet.record.checkpoint import NAME, STATE, Checkpoint, damaged_checkpoint_error, inspect_checkpoint
from ajet.record.checkpoints import checkpoints_of
from ajet.record.evaluations import state_digest
from ajet.schema.bounded_json import load_json
from ajet.schema.commands import format_command, format_list_command, shorten_path
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment


BASE_NAMES = ("base", "start")
"""Names of the run's starting model."""
CHECKPOINT_NAMES = ("best", "latest", "last")
EXPECTED = (
    "base, best, latest, step-N, a run's name, a checkpoint or model folder, a Hugging Face name, embedded:NAME, or "
    "NAME@http://HOST:PORT/v1"
)
REQUEST_TIMEOUT_S = 20.0
"""Seconds for an endpoint to list its models."""
_STEP = re.compile(r"(?:step-)?(\d+)")
_ENDPOINT = re.compile(r"(?:(?P<model>[^\s]+)@)?(?P<url>https?://[^\s]+)")
_DESCRIBING = ("*.safetensors", "*.gguf", "*.json", "*.jinja", "*.model")


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """One model of an evaluation: a model path or a server, with its name."""

    label: str
    """The model as the user named it, for tables."""
    path: str | None = None
    """Value of `model.path`. None for an endpoint."""
    url: str | None = None
    """URL of an endpoint, up to /v1."""
    name: str = ""
    """Name of the model at the endpoint."""
    step: int = 0
    """Training step of the saved model."""

    def apply_to(self, experiment: Experiment) -> Experiment:
        """Return the experiment with this model in place of the one in its settings."""
        settings = experiment.ajet.model_copy(deep=True)
        if self.url is not None:
            settings.rollout.engine = "endpoint"
            settings.rollout.endpoint.base_url, settings.rollout.endpoint.model = self.url, self.name
        elif self.path != settings.model.path or settings.rollout.engine == "endpoint":
            settings.model.path = self.path
            settings.rollout.vllm.base_url = None  # the YAML's server serves another model
            if settings.rollout.engine == "endpoint":
                settings.rollout.engine = "auto"
        return replace(experiment, ajet=settings)

    def make_identity(self, base: Path) -> dict[str, Any]:
        """Return JSON values that identify the model, to recognize a record of the same one.

        For a checkpoint it is the digest of its state, for another folder a digest of names, sizes and times of the
        files.

        Args:
            base: Folder of relative paths.
        """
        if self.url is not None:
            return {"url": self.url, "name": self.name}
        assert self.path is not None
        existing = next((path for path in (base / self.path, Path(self.path)) if path.exists()), None)
        if self.path.startswith("embedded:") or existing is None:
            return {"path": self.path}
        if (existing / STATE).is_file():
            return {"path": str(existing.resolve()), "state": state_digest(existing)}
        files = (
            [existing]
            if existing.is_file()
            else sorted({path for pattern in _DESCRIBING for path in existing.glob(pattern)})
        )
        file_facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        digest = hashlib.blake2b(repr(file_facts).encode(), digest_size=16).hexdigest()
        return {"path": str(existing.resolve()), "files": digest}


def choose_models(named: Sequence[str], experiment: Experiment, run: Path | None) -> list[EvaluatedModel]:
    """Return the models that the option --model names. Without it: the run's tuned model, else the YAML's.

    Args:
        named: The values of the option.
        experiment: The experiment to evaluate with.
        run: The folder of the evaluated run. None without a run.

    Raises:
        UserError: A name is unknown, or two names are the same model.
    """
    if not named:
        has_checkpoints = run is not None and checkpoints_of(run).all()
        return [
            _find_tuned_model(run)
            if has_checkpoints and run is not None
            else _make_base_model(experiment, BASE_NAMES[0])
        ]
    models: list[EvaluatedModel] = []
    identities: list[dict[str, Any]] = []
    for name in named:
        model = _parse_model(name, experiment, run)
        if (identity := model.make_identity(experiment.base)) in identities:
            raise UserError(
                f"--model {name} is the same model as {models[identities.index(identity)].label}.",
                expected="different models; to measure the noise of one model, use --repeat",
            )
        models.append(model)
        identities.append(identity)
    return models


def needs_run(named: Sequence[str]) -> bool:
    """Return True if a model is a checkpoint of the run that the YAML names, or if no model is named."""
    return not named or any(name in CHECKPOINT_NAMES or _STEP.fullmatch(name) for name in named)


def _parse_model(named: str, experiment: Experiment, run: Path | None) -> EvaluatedModel:
    """Return the model that one value of --model names: a server's URL, `base`, a checkpoint, a run or a path.

    Raises:
        UserError: There is no such checkpoint, or the server cannot be used.
    """
    if match := _ENDPOINT.fullmatch(named):
        url = match["url"].rstrip("/")
        return EvaluatedModel(named, url=url, name=match["model"] or find_served_model(url, experiment))
    if named in BASE_NAMES:
        return _make_base_model(experiment, named)
    path, step = Path(named).expanduser(), _STEP.fullmatch(named)
    if named in CHECKPOINT_NAMES or (step and not path.exists()):
        if run is None:
            raise UserError(
                f"No run has a checkpoint {named} yet.",
                where=str(experiment.root / experiment.name),
                expected=EXPECTED,
            )
        if named == "best":
            return _make_checkpoint_model(named, run, checkpoints_of(run).best())
        number = int(step[1]) if step else None
        return _make_checkpoint_model(
            named if number is None else f"step-{number}", run, select_checkpoint(checkpoints_of(run), number)
        )
    if (path / STATE).is_file() and NAME.fullmatch(path.name):
        inspected = inspect_checkpoint(path)
        if isinstance(inspected, str):
            raise damaged_checkpoint_error(path, inspected)
        return _make_checkpoint_model(named, path.absolute().parent.parent, inspected)
    for folder in (path, experiment.root / named):
        if (folder / "run.json").is_file():
            return replace(_find_tuned_model(folder), label=named)
    return EvaluatedModel(named, path=named)


def _make_base_model(experiment: Experiment, label: str) -> EvaluatedModel:
    """Return the model of the experiment's settings: its `model.path`, or its endpoint."""
    rollout = experiment.ajet.rollout
    if rollout.engine == "endpoint":
        assert rollout.endpoint.base_url is not None and rollout.endpoint.model is not None, (
            "require_ready refuses a missing model"
        )
        return EvaluatedModel(rollout.endpoint.model, url=rollout.endpoint.base_url, name=rollout.endpoint.model)
    assert experiment.ajet.model.path is not None, "require_ready refuses a missing model"
    return EvaluatedModel(label, path=experiment.ajet.model.path)


def _find_tuned_model(run: Path) -> EvaluatedModel:
    """Return the best measured checkpoint of a run as a model, else the last one.

    Raises:
        UserError: The run has no checkpoint, or a damaged one.
    """
    checkpoints = checkpoints_of(run)
    checkpoints.require_whole()
    checkpoint = checkpoints.best() or select_checkpoint(checkpoints, None)
    return _make_checkpoint_model(f"step-{checkpoint.step}", run, checkpoint)


def _make_checkpoint_model(label: str, run: Path, checkpoint: Checkpoint | None) -> EvaluatedModel:
    """Return a checkpoint as a model. Raise UserError for None, if no validation measured one."""
    if checkpoint is None:
        raise UserError(
            "No validation measured a checkpoint of this run, so the best one is unknown.",
            where=str(run),
            expected="latest, or step-N",
            do="evaluate it with --model latest; to measure during training, set trainer_common.test_freq",
        )
    return EvaluatedModel(label, path=str(find_model_folder(run, checkpoint).absolute()), step=checkpoint.step)


def find_served_model(url: str, experiment: Experiment) -> str:
    """Return the name of the model that a server serves. Raises UserError unless it lists exactly one."""
    import httpx

    key = read_api_key(experiment.ajet.rollout.endpoint.api_key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    names: list[str] = []
    try:
        reply = httpx.get(f"{url}/models", headers=headers, timeout=REQUEST_TIMEOUT_S)
        names = [str(entry["id"]) for entry in load_json(reply.raise_for_status().content)["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}".replace(key or "\0", "…")
        if isinstance(error, httpx.ReadTimeout):
            reason = f"it hangs: it accepted the request and sent nothing for {REQUEST_TIMEOUT_S:g} s"
        elif not isinstance(error, httpx.HTTPError):
            kind = reply.headers.get("content-type") or "no content type"
            reason = f"the answer to GET /models is not a list of models ({kind})"
        raise UserError(
            f"The server {url} does not list its models: {reason}",
            where=f"--model {url}",
            expected=f"NAME@{url}",
        ) from None
    if len(names) != 1:
        served = ", ".join(names[:8]) or "none"
        raise UserError(
            f"The server {url} has {len(names)} models: {served}. Choose one.",
            where=f"--model {url}",
            expected=f"NAME@{url}",
        )
    return names[0]


YAML = (".yaml", ".yml")


def open_target(
    target: str | None,
    conf: Path | None,
    models: Sequence[str],
    *,
    overrides: Sequence[str] = (),
    exp_dir: Path | None = None,
    fetch: bool = False,
) -> tuple[Experiment, list[EvaluatedModel]]:
    """Return the experiment to evaluate, and the models to run it with.

    Args:
        target: Name or folder of a run, or a YAML.
        conf: A YAML to use instead of a run's record.
        models: Values of `--model`.
        overrides: Overrides of the YAML.
        exp_dir: Folder of all runs. None: as the YAML says, or the default.
        fetch: True if a model may be downloaded without a question.

    Raises:
        UserError: The target or a model cannot be used.
    """
    from ajet.config import load_experiment
    from ajet.config.experiment import DEFAULT_ROOT

    if conf is None and target is not None and target.endswith(YAML):
        conf, target = Path(target), None
    if conf is not None:
        experiment = load_experiment(conf, backbone="debug", overrides=overrides, exp_dir=exp_dir)
        folder = experiment.root / experiment.name if target is None else find_training_run(target, experiment.root)
        run = folder if (folder / "run.json").is_file() else None
        if run is not None and target is None and needs_run(models):
            _require_own_project(experiment, run, conf)
        return experiment, choose_models(models, experiment, run)
    if target is None:
        raise UserError(
            "The command names no run and no YAML to evaluate.",
            expected=f"{format_command('eval', 'RUN')}, or {format_command('eval', 'FILE.yaml')}",
            do=f"`{format_list_command(Path(exp_dir or DEFAULT_ROOT))}` lists the runs",
        )
    if overrides:
        raise UserError(
            f"The override {overrides[0]} has no effect on a recorded run.",
            where=target,
            expected="a YAML as the first argument, if there are overrides",
            do=format_command("eval", target, "--conf", "FILE.yaml", *overrides),
        )
    return _open_recorded(target, models, (exp_dir or Path(DEFAULT_ROOT)).absolute(), fetch=fetch)


def _open_recorded(
    target: str, models: Sequence[str], root: Path, *, fetch: bool
) -> tuple[Experiment, list[EvaluatedModel]]:
    """Return the experiment of a recorded run, with the user's own code, and the models to run it with.

    Args:
        target: Name or folder of the run.
        models: Values of `--model`.
        root: Folder of all runs.
        fetch: True if a model may be downloaded without a question.
    """
    from ajet.commands.recorded_run import find_recorded_model, load_recorded_settings, require_own_code
    from ajet.config.dotenv import load_project_dotenv

    folder = find_training_run(target, root)
    load_project_dotenv(record=folder)
    experiment = load_recorded_settings(folder)
    require_own_code(experiment, folder, judged=True, otherwise=format_command("eval", target, "--conf", "FILE.yaml"))
    local_models = []
    for model in choose_models(models, experiment, folder):
        if model.label in BASE_NAMES and model.path is not None:
            model_folder = find_recorded_model(model.path, base=experiment.base, record=folder, fetch=fetch)
            model = replace(model, path=str(model_folder))
        local_models.append(model)
    return experiment, local_models


def _require_own_project(experiment: Experiment, run: Path, conf: Path) -> None:
    """Raise UserError if the run of this name belongs to a YAML of another project."""
    from ajet.record.resume import RunIdentity, yaml_path_of

    identity, yaml = RunIdentity.read(run), yaml_path_of(experiment, run)
    if identity is None or not identity.is_of_other_yaml(yaml, run) or not Path(str(identity.yaml)).exists():
        return
    raise UserError(
        f'Two projects use the run name "{experiment.name}": the recorded run {shorten_path(run)} belongs to '
        f"{shorten_path(str(identity.yaml))}, but the command names {shorten_path(str(yaml))}.",
        where=shorten_path(run),
        expected="a different ajet.experiment_name in each project",
        do=f"to evaluate that run with this YAML: {format_command('eval', experiment.name, '--conf', str(conf))}",
    )
