"""Models behind the address of `ajet deploy`, in this process.

Only this module names internals of a deployment; tests ask it over HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ajet.backbone import open_backbone
from ajet.config import Experiment
from ajet.config.experiment import load_defaults
from ajet.gateway import Session
from ajet.rollout.components import open_gateway
from ajet.schema.errors import EngineFailure
from ajet_deploy import deploy
from ajet_deploy.deploy import DeployOptions, ModelServer, serve_model
from tests.support.gateways import start_gateway


@dataclass(frozen=True)
class DeployedSession:
    """What a deployment remembers of its clients between two renewals."""

    session: Session

    @property
    def is_idle(self) -> bool:
        """True if nobody is being answered, and no request is coming in."""
        return self.session.idle

    @property
    def is_closed(self) -> bool:
        """True once it has been let go of."""
        return self.session.closed

    @property
    def last_call(self) -> float:
        """When a call was last under way, by the monotonic clock; minus infinity before the first."""
        return self.session.last_call

    @property
    def calls(self) -> int:
        """The number of its calls."""
        return self.session.calls


class RunningDeployment:
    """A model that answers."""

    def __init__(self, model: ModelServer) -> None:
        self._model = model

    @property
    def base_url(self) -> str:
        """The URL that clients are given; it ends in /v1."""
        return self._model.gateway.base_url

    @property
    def models(self) -> list[str]:
        """The names that clients ask for; empty: any name is the model's."""
        return list(self._model.models)

    @property
    def is_idle(self) -> bool:
        """True if nobody is being answered."""
        return self._model.is_idle

    @property
    def session(self) -> DeployedSession:
        """The session that takes new requests."""
        assert self._model.session is not None
        return DeployedSession(self._model.session)

    @property
    def replaced_sessions(self) -> list[DeployedSession]:
        """Earlier sessions that somebody still uses, oldest first."""
        return [DeployedSession(each) for each in self._model.earlier]

    def tend(self) -> None:
        """Replace a full session and let go of unused ones, as the command does each second."""
        self._model.renew_sessions()


@contextmanager
def start_deployment(run: str, root: Path, checkpoint: str = "latest", **options: Any) -> Iterator[RunningDeployment]:
    """Serve a run's model as `ajet deploy` does; `options` are the command's."""
    with serve_model(DeployOptions(run, root, checkpoint, **options)) as model:
        yield RunningDeployment(model)


@contextmanager
def start_scripted_deployment(folder: Path, key: str, **options: Any) -> Iterator[RunningDeployment]:
    """Serve a scripted engine, which always answers "Three.", behind a deployment's address."""
    experiment = load_defaults(backbone="debug", name="tool", exp_dir=folder)
    with start_gateway(["Three."] * 20, **options) as made:
        yield RunningDeployment(ModelServer(made.gateway, key, "tool", experiment).open())


@contextmanager
def start_configured_deployment(settings: dict[str, Any], folder: Path, key: str) -> Iterator[RunningDeployment]:
    """Serve the engine that these keys below `ajet` name behind a deployment's address."""
    experiment = Experiment.from_dict({"ajet": settings}, base=folder)
    backbone = open_backbone(experiment)
    gateway = open_gateway(experiment, backbone.engine, backbone.tokenizer)
    try:
        yield RunningDeployment(ModelServer(gateway, key, "tiny", experiment).open())
    finally:
        gateway.close()
        backbone.close()


@contextmanager
def replace_sessions_after(count: int) -> Iterator[None]:
    """Within the block a deployment's session is replaced after `count` calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deploy, "MAX_SESSION_CALLS", count)
        yield


@contextmanager
def engine_dies_in_replies() -> Iterator[None]:
    """Within the block the engine of a deployment dies after the first tokens of each reply."""
    from ajet.engine.transformers.engine import TransformersEngine  # with torch

    whole = TransformersEngine.generate

    async def dies(self: TransformersEngine, request: Any) -> AsyncIterator[Any]:
        async for chunk in whole(self, request):
            yield chunk
            raise EngineFailure("The engine is gone.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransformersEngine, "generate", dies)
        yield
