"""`ajet deploy RUN`: the model that a run has tuned, behind an address, for any client.

Invariant: weights, renderer and engine are those of the run, and a reply is drawn as the run's validation was unless
its request says otherwise; nothing is trained and nothing that is said is kept: what the gateway remembers of a session
goes with it but for the newest Responses, and sessions are replaced as they fill. The key comes from the environment or
a .env file, or is shown once.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from loguru import logger
from rich.text import Text

from ajet.commands.export import checkpoint_of, model_folder, run_of
from ajet.commands.model_card import write_card
from ajet.commands.own_key import own_key
from ajet.commands.recorded_agent import recorded_settings
from ajet.commands.recorded_model import recorded_model
from ajet.commands.service_end import until_ended
from ajet.engine.adapters import FOLDER, Adapter, Adapters, folder_of
from ajet.gateway.dialects.responses.kept import kept_responses
from ajet.gateway.listener import require_free
from ajet.record.checkpoints import checkpoints_of
from ajet.record.console import console
from ajet.rollout.components import open_gateway, split_sampling
from ajet.schema.errors import UserError
from ajet.train.interrupts import Interrupts

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.gateway import Gateway, Session
    from ajet.record.checkpoint import Checkpoint

KEY = "AJET_API_KEY"
"""Environment variable with the key that clients bear."""
MOST_CALLS = 256
"""Calls after which a session is replaced; its Responses are found for so many calls more."""
LOOK_S = 1.0
BASE = "base"
"""Name of the model without its adapters."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The options of a deployment. `checkpoint`: latest, best or step-N."""

    run: str
    root: Path
    checkpoint: str = "latest"
    engine: str | None = None
    """transformers or vllm; None: the one that the run sampled with."""
    host: str | None = None
    port: int = 0
    name: str | None = None
    """Of the model; None: the run's."""
    with_base: bool = False
    """Whether the model that the run began with answers, too, as `base`: of a run with one adapter."""
    fetch: bool = False
    """Whether that one may be downloaded or converted without being asked for."""


@dataclass(slots=True)
class Deployed:
    """A model that answers."""

    gateway: Gateway
    key: str
    name: str
    experiment: Experiment
    models: dict[str, str | None] = field(default_factory=dict)
    """Names that clients ask for, and the adapter that answers to each; empty: any name is the model's."""
    _now: Session | None = None
    _before: list[Session] = field(default_factory=list)

    def open(self) -> Deployed:
        """Let clients in."""
        self._renew()
        return self

    def tend(self) -> None:
        """Let go of the sessions before this one that nobody uses, and replace it if it is full."""
        if self._before:
            self.gateway.on_loop(self._let_go)  # there who has found a session is counted with it
        if self._now is None or self._now.calls >= MOST_CALLS:
            self._renew()

    @property
    def idle(self) -> bool:
        """Nobody is being answered."""
        return all(each.idle for each in (*self._before, self._now) if each)

    def _let_go(self) -> None:
        for session in [each for each in self._before if each.idle]:
            session.close()
            self._before.remove(session)

    def _renew(self) -> None:
        session = self.gateway.open(
            secrets.token_hex(8),
            key=(self.experiment.ajet.seed, 0, time.time_ns() & 0x7FFFFFFF),
            sampling=split_sampling(self.experiment.ajet, "validation"),
            trainable=(),
            model_name=self.name,
            models=self.models,
        )
        if self._now is not None:
            session.kept = self._now.kept
            self.gateway.loop.call_soon_threadsafe(kept_responses(session.kept).keep_newest, MOST_CALLS)
            self._before.append(self._now)
        self._now = session
        self.gateway.admit(self.key, session)


def deploy(wanted: Deployment) -> int:
    """Serve until Ctrl-C, or until SIGTERM, after which what is being answered is finished: exit code 0. Raises
    UserError, KeyboardInterrupt or a bug."""
    with deployed(wanted) as model:
        _say(model)

        def look() -> None:
            time.sleep(LOOK_S)
            model.tend()

        with Interrupts().installed() as interrupts:
            until_ended(interrupts, look, lambda: model.idle)
    return 0


@contextmanager
def deployed(wanted: Deployment) -> Iterator[Deployed]:
    """The model answers within the block. Raises UserError."""
    from ajet.backbone import open_backbone
    from ajet.config.dotenv import load_project_dotenv

    folder = run_of(wanted.run, wanted.root)
    load_project_dotenv(record=folder)
    key = _key()
    require_free(wanted.host, wanted.port, name="deployment", where="--host, --port")
    checkpoint = named(folder, wanted.checkpoint)
    experiment = recorded_settings(folder)
    settings = experiment.ajet
    settings.gateway.host, settings.gateway.port = wanted.host, wanted.port
    if wanted.engine is not None:
        settings.rollout.engine = "vllm" if wanted.engine == "vllm" else "transformers"
    with _weights(wanted, folder, checkpoint, experiment) as model:
        settings.model.path = str(model.absolute())
        try:
            logger.info("{}; its card: {}", model, write_card(folder, checkpoint))
        except OSError as problem:
            logger.warning("{}; its card cannot be written: {}", model, problem)
        backbone = open_backbone(experiment)
        gateway = None
        try:
            gateway = open_gateway(experiment, backbone.engine, backbone.tokenizer)
            models = _models(backbone.adapters, wanted.name or folder.name)
            yield Deployed(gateway, key, next(iter(models), wanted.name or folder.name), experiment, models).open()
        finally:
            if gateway is not None:
                gateway.close()
            backbone.close()


@contextmanager
def _weights(wanted: Deployment, folder: Path, checkpoint: Checkpoint, experiment: Experiment) -> Iterator[Path]:
    """The folder of the model that is served. Raises UserError."""
    model = model_folder(folder, checkpoint)
    if not wanted.with_base or Adapters.saved(model):
        yield model
        return
    if wanted.name == BASE:
        raise UserError(f"The model that the run began with is called {BASE}.", where="--name", do="take another name")
    require_adapter(model)
    began = experiment.ajet.model.path
    assert began is not None, "a run that has trained had a model"
    base = recorded_model(began, base=experiment.base, record=folder, fetch=wanted.fetch)
    with beside_base(model, base) as both:
        yield both


def named(folder: Path, checkpoint: str) -> Checkpoint:
    """The named checkpoint of the run in `folder`. Raises UserError."""
    known = checkpoints_of(folder)
    if checkpoint == "best":
        return known.best() or checkpoint_of(known, None)
    if checkpoint == "latest":
        return checkpoint_of(known, None)
    step = checkpoint.removeprefix("step-")
    if not step.isdecimal():
        raise UserError(
            f"There is no checkpoint {checkpoint}.", where="--checkpoint", expected="latest, best or step-N"
        )
    return checkpoint_of(known, int(step))


def _models(adapters: Adapters, name: str) -> dict[str, str | None]:
    """What adapters are served as: each of several by its own name, the only one by the run's, and the model without
    them."""
    return {**{name if each == TUNED else each: each for each in adapters.names}, BASE: None} if adapters else {}


def _key() -> str:
    given = own_key(KEY, do="leave it out: a random one is made and shown")
    return "ajet-" + secrets.token_hex(16) if given is None else given


def _say(model: Deployed) -> None:
    base = model.gateway.base_url
    names = ", ".join(model.models) or model.name
    answers = f" answer{'s' if len(model.models) < 2 else ''} on "
    console.print(Text.assemble((names, "bold"), answers, (base, "bold")), soft_wrap=True)
    if KEY not in os.environ:
        console.print(f"API key (shown once; {KEY} sets one of your own):", markup=False)
        console.print(model.key, markup=False, highlight=False, soft_wrap=True)
    root = base.removesuffix("/v1")
    console.print(
        f"OpenAI (Chat Completions, Completions, Responses): base_url={base}\n"
        f"Anthropic: base_url={root}\nCtrl-C ends it.",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


TUNED = "tuned"
"""Name of the adapter, of whatever run: a run's own may be one that peft could not tell from the model's parts."""
_ALONE = "adapter"
"""Where a checkpoint or an export has its one adapter, in peft's layout."""


@contextmanager
def beside_base(model: Path, base: Path) -> Iterator[Path]:
    """Yield a folder with the model `base` and the one adapter of the checkpoint or export in `model`.

    An engine that loads it answers as both, from one copy of the weights. Run and model are only read: the folder holds
    links, the adapter's files and a table, and is removed afterwards. Raises UserError if `model` has no adapter.
    """
    adapter = require_adapter(model)
    with TemporaryDirectory(prefix="ajet-base-") as place:
        folder = Path(place)
        for each in base.iterdir():
            if each.name != FOLDER:
                (folder / each.name).symlink_to(each.absolute())
        shutil.copytree(adapter, folder_of(folder, TUNED))
        Adapters([Adapter(TUNED, ("*",))]).write(folder)
        yield folder


def require_adapter(model: Path) -> Path:
    """The one adapter of a checkpoint or export. Raises UserError."""
    adapter = model / _ALONE
    if not (adapter / "adapter_config.json").is_file():
        raise UserError(
            "All weights of this run were tuned: its model and the one that it began with are two.",
            where=str(model),
            expected="the checkpoint of a run with trainer_common.lora.rank, for --with-base",
            do="leave --with-base out, and serve the other one by a server of its own",
        )
    return adapter
