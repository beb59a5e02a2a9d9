"""The models that `--model` names.

Invariant: each is one that a run could begin with (`model.path`), or an endpoint that answers in messages; what it is
is told by its files, so that a record is never taken for another model's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.commands.export import checkpoint_of, model_folder
from ajet.config.other_models import key_in
from ajet.record.checkpoint import NAME, STATE, Checkpoint, look_at, refusal
from ajet.record.checkpoints import checkpoints_of
from ajet.record.evaluations import state_digest
from ajet.schema.bounded_json import load_json
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment

BASE = ("base", "start")
"""What the run began with."""
OF_RUN = ("best", "latest", "last")
EXPECTED = (
    "base, best, latest, step-N, a run's name, a checkpoint or model folder, a Hugging Face name, embedded:NAME, or "
    "NAME@http://HOST:PORT/v1"
)
ASK_S = 20.0
"""Seconds in which an endpoint must say which models it has."""
_STEP = re.compile(r"(?:step-)?(\d+)")
_ENDPOINT = re.compile(r"(?:(?P<model>[^\s]+)@)?(?P<url>https?://[^\s]+)")
_DESCRIBING = ("*.safetensors", "*.gguf", "*.json", "*.jinja", "*.model")


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is evaluated."""

    label: str
    """As the person called it."""
    path: str | None = None
    """As `model.path` takes it; None for an endpoint."""
    url: str | None = None
    """Of an endpoint, up to /v1."""
    name: str = ""
    """Of the model there."""
    step: int = 0
    """The training step after which it was saved."""

    def of(self, experiment: Experiment) -> Experiment:
        """The experiment with this model in place of its own."""
        settings = experiment.ajet.model_copy(deep=True)
        if self.url is not None:
            settings.rollout.engine = "endpoint"
            settings.rollout.endpoint.base_url, settings.rollout.endpoint.model = self.url, self.name
        elif self.path != settings.model.path or settings.rollout.engine == "endpoint":
            settings.model.path = self.path
            settings.rollout.vllm.base_url = None  # a server there serves another model
            if settings.rollout.engine == "endpoint":
                settings.rollout.engine = "auto"
        return replace(experiment, ajet=settings)

    def identity(self, base: Path) -> dict[str, Any]:
        """What tells it from every other model, as JSON values: of a folder, a checkpoint's own digest, or names, sizes
        and times of its files."""
        if self.url is not None:
            return {"url": self.url, "name": self.name}
        assert self.path is not None
        place = next((p for p in (base / self.path, Path(self.path)) if p.exists()), None)
        if self.path.startswith("embedded:") or place is None:
            return {"path": self.path}
        if (place / STATE).is_file():
            return {"path": str(place.resolve()), "state": state_digest(place)}
        files = [place] if place.is_file() else sorted({p for kind in _DESCRIBING for p in place.glob(kind)})
        told = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        return {"path": str(place.resolve()), "files": _digest(repr(told).encode())}


def chosen_models(named: Sequence[str], experiment: Experiment, run: Path | None) -> list[Model]:
    """The models, each once. `run`: the folder of the run that is evaluated; None: there is none yet. Without a name
    it is the run's tuned model, else what the YAML names. Raises UserError."""
    if not named:
        tuned = run is not None and checkpoints_of(run).all()
        return [_tuned(run) if tuned and run is not None else _base(experiment, BASE[0])]
    found: list[Model] = []
    identities: list[dict[str, Any]] = []
    for each in named:
        model = _model(each, experiment, run)
        if (identity := model.identity(experiment.base)) in identities:
            raise UserError(
                f"--model {each} is the same model as {found[identities.index(identity)].label}.",
                expected="different models: how far two runs of one lie apart is told by --repeat",
            )
        found.append(model)
        identities.append(identity)
    return found


def needs_run(named: Sequence[str]) -> bool:
    """True if a checkpoint of the run of the YAML's name is among the models."""
    return not named or any(each in OF_RUN or _STEP.fullmatch(each) for each in named)


def _model(named: str, experiment: Experiment, run: Path | None) -> Model:
    if match := _ENDPOINT.fullmatch(named):
        url = match["url"].rstrip("/")
        return Model(named, url=url, name=match["model"] or _served_at(url, experiment))
    if named in BASE:
        return _base(experiment, named)
    place, step = Path(named).expanduser(), _STEP.fullmatch(named)
    if named in OF_RUN or (step and not place.exists()):
        if run is None:
            raise UserError(
                f"There is no run yet whose checkpoint {named} could be.",
                where=str(experiment.root / experiment.name),
                expected=EXPECTED,
            )
        if named == "best":
            return _of_checkpoint(named, run, checkpoints_of(run).best())
        number = int(step[1]) if step else None
        return _of_checkpoint(
            named if number is None else f"step-{number}", run, checkpoint_of(checkpoints_of(run), number)
        )
    if (place / STATE).is_file() and NAME.fullmatch(place.name):
        found = look_at(place)
        if isinstance(found, str):
            raise refusal(place, found)
        return _of_checkpoint(named, place.absolute().parent.parent, found)
    for folder in (place, experiment.root / named):
        if (folder / "run.json").is_file():
            return replace(_tuned(folder), label=named)
    return Model(named, path=named)


def _base(experiment: Experiment, label: str) -> Model:
    rollout = experiment.ajet.rollout
    if rollout.engine == "endpoint":
        assert rollout.endpoint.base_url is not None and rollout.endpoint.model is not None, "require_ready asks for it"
        return Model(rollout.endpoint.model, url=rollout.endpoint.base_url, name=rollout.endpoint.model)
    assert experiment.ajet.model.path is not None, "require_ready asks for it"
    return Model(label, path=experiment.ajet.model.path)


def _tuned(run: Path) -> Model:
    """The best that was measured, else the last."""
    checkpoints = checkpoints_of(run)
    checkpoints.require_whole()
    found = checkpoints.best() or checkpoint_of(checkpoints, None)
    return _of_checkpoint(f"step-{found.step}", run, found)


def _of_checkpoint(label: str, run: Path, checkpoint: Checkpoint | None) -> Model:
    if checkpoint is None:
        raise UserError(
            "No checkpoint of this run was measured, so none is known as the best.",
            where=str(run),
            expected="latest, or step-N",
            do="play it with --model latest; trainer_common.test_freq measures while it trains",
        )
    return Model(label, path=str(model_folder(run, checkpoint).absolute()), step=checkpoint.step)


def _served_at(url: str, experiment: Experiment) -> str:
    """The only model that the server has. Raises UserError."""
    import httpx

    key = key_in(experiment.ajet.rollout.endpoint.api_key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    names: list[str] = []
    try:
        reply = httpx.get(f"{url}/models", headers=headers, timeout=ASK_S)
        names = [str(each["id"]) for each in load_json(reply.raise_for_status().content)["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}".replace(key or "\0", "…")
        if isinstance(error, httpx.ReadTimeout):
            why = f"it hangs: it took the request and sent nothing for {ASK_S:g} s"
        elif not isinstance(error, httpx.HTTPError):
            kind = reply.headers.get("content-type") or "nothing that says what it is"
            why = f"its GET /models answers with no list of models ({kind})"
        raise UserError(
            f"{url} does not say which models it has: {why}",
            where=f"--model {url}",
            expected=f"NAME@{url}",
        ) from None
    if len(names) != 1:
        listed = ", ".join(names[:8]) or "none"
        raise UserError(f"{url} has {len(names)} models: {listed}.", where=f"--model {url}", expected=f"NAME@{url}")
    return names[0]


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
