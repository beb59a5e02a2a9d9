"""`ajet deploy RUN`: serves a run's tuned model over OpenAI's and Anthropic's protocols.

Invariants: weights, chat template and engine are the run's, and replies are sampled as in the run's validation unless a
request chooses otherwise. No training takes place and no message is stored: the gateway forgets a session's messages
except the newest of the Responses API, and full sessions are replaced. The key comes from the environment or a .env
file, or is random and shown once.
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

from ajet.commands.export import find_model_folder, find_training_run, select_checkpoint
from ajet.commands.http_server import read_key, serve_until_ended
from ajet.commands.model_card import write_card
from ajet.commands.recorded_run import find_recorded_model, load_recorded_settings
from ajet.engine.adapters import FOLDER, Adapter, Adapters, adapter_folder
from ajet.gateway.dialects.responses.stored import find_stored_responses
from ajet.gateway.listener import require_free
from ajet.record.checkpoints import checkpoints_of
from ajet.record.console import console, print_line
from ajet.rollout.components import choose_sampling, open_gateway
from ajet.schema.errors import UserError
from ajet.train.interrupts import Interrupts

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.gateway import Gateway, Session
    from ajet.record.checkpoint import Checkpoint

KEY = "AJET_API_KEY"
"""Environment variable with the clients' key."""
MAX_SESSION_CALLS = 256
"""Calls after which a session is replaced. The Responses of a session are stored for as many further calls."""
POLL_S = 1.0
BASE = "base"
"""Name of the model without adapters."""


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """Flags of `ajet deploy`. `checkpoint`: latest, best or step-N."""

    run: str
    root: Path
    checkpoint: str = "latest"
    engine: str | None = None
    """transformers or vllm. None: the engine of the run."""
    host: str | None = None
    port: int = 0
    name: str | None = None
    """Name of the model. None: the run's name."""
    with_base: bool = False
    """True to serve also the model without adapter, as `base`, for a run with one adapter."""
    fetch: bool = False
    """True if the base model may be downloaded or converted without a question."""


@dataclass(slots=True)
class ModelServer:
    """Serves a model through a gateway, and replaces gateway sessions that are full."""

    gateway: Gateway
    key: str
    name: str
    experiment: Experiment
    models: dict[str, str | None] = field(default_factory=dict)
    """Adapter of each name available to clients. Empty: any name is the model's."""
    session: Session | None = None
    earlier: list[Session] = field(default_factory=list)

    def open(self) -> ModelServer:
        """Accept clients from now on, and return this server."""
        self._open_session()
        return self

    def renew_sessions(self) -> None:
        """Close earlier sessions without open requests, and replace the present session if full."""
        if self.earlier:
            self.gateway.on_loop(self._close_idle)  # runs on the loop, where requests are counted
        if self.session is None or self.session.calls >= MAX_SESSION_CALLS:
            self._open_session()

    @property
    def is_idle(self) -> bool:
        """True if no request is open."""
        return all(session.idle for session in (*self.earlier, self.session) if session)

    def _close_idle(self) -> None:
        """Close earlier sessions that have no open request any more."""
        for session in [earlier for earlier in self.earlier if earlier.idle]:
            session.close()
            self.earlier.remove(session)

    def _open_session(self) -> None:
        """Open a gateway session for the clients' key, in place of the present one.

        The present session stays open until its requests have ended. Its stored Responses stay available.
        """
        session = self.gateway.open(
            secrets.token_hex(8),
            # The time makes the random numbers of each session different.
            key=(self.experiment.ajet.seed, 0, time.time_ns() & 0x7FFFFFFF),
            sampling=choose_sampling(self.experiment.ajet, "validation"),
            trainable=(),
            model_name=self.name,
            models=self.models,
        )
        if self.session is not None:
            session.dialect_state = self.session.dialect_state
            self.gateway.loop.call_soon_threadsafe(
                find_stored_responses(session.dialect_state).keep_newest, MAX_SESSION_CALLS
            )
            self.earlier.append(self.session)
        self.session = session
        self.gateway.admit(self.key, session)


def deploy(options: DeployOptions) -> int:
    """Serve until Ctrl-C or SIGTERM. After SIGTERM finish open requests and return the exit code 0.

    Raises:
        UserError: The run cannot be served.
        KeyboardInterrupt: At Ctrl-C.
    """
    with serve_model(options) as model:
        _print_address(model)

        def renew_periodically() -> None:
            """Wait POLL_S seconds, then replace full sessions."""
            time.sleep(POLL_S)
            model.renew_sessions()

        with Interrupts().install() as interrupts:
            serve_until_ended(interrupts, renew_periodically, lambda: model.is_idle)
    return 0


@contextmanager
def serve_model(options: DeployOptions) -> Iterator[ModelServer]:
    """Serve the model of a run within the block, and yield its server.

    Raises:
        UserError: the run, its checkpoint or its base model cannot be used, or the port is not free.
    """
    from ajet.backbone import open_backbone
    from ajet.config.dotenv import load_project_dotenv

    folder = find_training_run(options.run, options.root)
    load_project_dotenv(record=folder)
    key = read_key(KEY, do="unset it: a random key is then created and shown") or f"ajet-{secrets.token_hex(16)}"
    require_free(options.host, options.port, name="deployment", where="--host, --port")
    checkpoint = find_checkpoint(folder, options.checkpoint)
    experiment = load_recorded_settings(folder)
    settings = experiment.ajet
    settings.gateway.host, settings.gateway.port = options.host, options.port
    if options.engine is not None:
        settings.rollout.engine = "vllm" if options.engine == "vllm" else "transformers"
    with _open_weights(options, folder, checkpoint, experiment) as model_folder:
        settings.model.path = str(model_folder.absolute())
        try:
            logger.info("serving {}; the model card is {}", model_folder, write_card(folder, checkpoint))
        except OSError as error:
            logger.warning("serving {}; its model card cannot be written: {}", model_folder, error)
        backbone = open_backbone(experiment)
        gateway = None
        try:
            gateway = open_gateway(experiment, backbone.engine, backbone.tokenizer)
            name = options.name or folder.name
            # Several adapters have their own names, a single adapter has the run's. None is the model without adapter.
            models: dict[str, str | None] = {
                name if adapter == TUNED else adapter: adapter for adapter in backbone.adapters.names
            }
            models |= {BASE: None} if backbone.adapters else {}
            yield ModelServer(gateway, key, next(iter(models), name), experiment, models).open()
        finally:
            if gateway is not None:
                gateway.close()
            backbone.close()


@contextmanager
def _open_weights(
    options: DeployOptions, folder: Path, checkpoint: Checkpoint, experiment: Experiment
) -> Iterator[Path]:
    """Yield the folder of the served model: the checkpoint's, or with `--with-base` one that also has the base model.

    Raises:
        UserError: the base model cannot be served next to the run's.
    """
    model_folder = find_model_folder(folder, checkpoint)
    if not options.with_base or Adapters.from_folder(model_folder):
        yield model_folder
        return
    if options.name == BASE:
        raise UserError(
            f"{BASE} is reserved for the name of the run's initial model.",
            where="--name",
            do="choose another name with --name",
        )
    require_adapter(model_folder)
    base_path = experiment.ajet.model.path
    assert base_path is not None, "a run with checkpoints has a base model"
    base_folder = find_recorded_model(base_path, base=experiment.base, record=folder, fetch=options.fetch)
    with join_adapter(model_folder, base_folder) as joined_folder:
        yield joined_folder


def find_checkpoint(folder: Path, checkpoint: str) -> Checkpoint:
    """Return the checkpoint `latest`, `best` or `step-N` of the run in `folder`. Raises UserError if there is none."""
    checkpoints = checkpoints_of(folder)
    if checkpoint == "best":
        return checkpoints.best() or select_checkpoint(checkpoints, None)
    if checkpoint == "latest":
        return select_checkpoint(checkpoints, None)
    step = checkpoint.removeprefix("step-")
    if not step.isdecimal():
        raise UserError(
            f"The run has no checkpoint {checkpoint}.", where="--checkpoint", expected="latest, best or step-N"
        )
    return select_checkpoint(checkpoints, int(step))


def _print_address(model: ModelServer) -> None:
    """Print the models' names, the addresses for OpenAI's and Anthropic's clients, and a random key."""
    base_url = model.gateway.base_url
    names = ", ".join(model.models) or model.name
    verb_text = f" answer{'s' if len(model.models) < 2 else ''} on "
    console.print(Text.assemble((names, "bold"), verb_text, (base_url, "bold")), soft_wrap=True)
    if KEY not in os.environ:
        console.print(f"API key (shown only once; set {KEY} to use your own):", markup=False)
        print_line(model.key)
    root_url = base_url.removesuffix("/v1")
    print_line(f"OpenAI (Chat Completions, Completions, Responses): base_url={base_url}")
    print_line(f"Anthropic: base_url={root_url}")
    print_line("Press Ctrl-C to stop the server.")


TUNED = "tuned"
"""Name of the adapter in the folder: peft could mistake a run's own name for a part of the model."""
_ALONE = "adapter"
"""Folder of the single adapter of a checkpoint or an export, in peft's layout."""


@contextmanager
def join_adapter(model: Path, base: Path) -> Iterator[Path]:
    """Yield a temporary folder that combines a base model with a single LoRA adapter.

    An engine serves both from one copy of the weights. Run and model are only read: the folder holds links, the
    adapter's files and a table of adapters.

    Args:
        model: checkpoint or export with one adapter.
        base: folder of the base model.

    Raises:
        UserError: `model` has no adapter.
    """
    adapter = require_adapter(model)
    with TemporaryDirectory(prefix="ajet-base-") as directory:
        folder = Path(directory)
        for path in base.iterdir():
            if path.name != FOLDER:
                (folder / path.name).symlink_to(path.absolute())
        shutil.copytree(adapter, adapter_folder(folder, TUNED))
        Adapters([Adapter(TUNED, ("*",))]).write(folder)
        yield folder


def require_adapter(model: Path) -> Path:
    """Return the folder of the single adapter of a checkpoint or export. Raises UserError."""
    adapter = model / _ALONE
    if not (adapter / "adapter_config.json").is_file():
        raise UserError(
            "This run trained all weights, not a LoRA adapter, so its model and the initial model share no weights.",
            where=str(model),
            expected="for --with-base: the checkpoint of a run with trainer_common.lora.rank",
            do="omit --with-base, and serve the initial model with a second server",
        )
    return adapter
