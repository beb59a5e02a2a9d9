"""Opens the token engine of `rollout.engine` by the driver of that name, a plug-in's part of the kind `engine`.

Invariant: an engine starts with the weights of `model.path` as policy version 0. A follower samples with a folder's
complete weights or the previous ones. Running calls continue with the new weights, and each token carries the version
that sampled it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ajet.config.plugin import load_code
from ajet.config.plugins import find_part
from ajet.engine.adapters import Adapters
from ajet.engine.saved_tensors import open_saved_tensors
from ajet.schema.errors import ConfigError, require_packages

if TYPE_CHECKING:
    import torch

    from ajet.config import AjetConfig
    from ajet.engine.contract import PausableEngine, TokenEngine
    from ajet.engine.model_source import ModelSource
    from ajet.engine.probe import WeightsProbe
    from ajet.engine.transformers import TransformersEngine
    from ajet.engine.verdict_cache import VerdictCache


Weights = Callable[[], Iterable[tuple[str, Any]]]


class EngineFollower(Protocol):
    """A token engine whose weights can be replaced by those in a folder."""

    engine: TokenEngine
    tokenizer: Any

    @property
    def version(self) -> int:
        """Version of the current weights, negative if unknown."""
        ...

    def load_weights(
        self,
        folder: Path | None,
        version: int,
        probe: WeightsProbe | None,
        on_wait: Callable[[], None],
        *,
        is_leader: bool = True,
    ) -> bool:
        """Load policy `version` for all further samples.

        Args:
            folder: folder of the weights; None for the weights of model.path.
            version: policy step of the weights.
            probe: log-probabilities of a fixed text under each announced version, by which a remote server's weights
                are recognized. Local engines ignore it.
            on_wait: called about once per second while running replies finish.
            is_leader: True if this process sends weights to the remote server.

        Returns:
            False if the server cannot load weights; `self.version` then stays at the version in use.

        Raises:
            FileNotFoundError: the weights are gone or not complete yet.
            ValueError: `version` is older than the current one.
            UserError: the weights belong to another model.
        """
        ...


class LocalFollower(EngineFollower, ABC):
    """An EngineFollower whose engine is this process's own."""

    engine: PausableEngine

    def __init__(self, engine: PausableEngine, tokenizer: Any) -> None:
        self.engine, self.tokenizer = engine, tokenizer

    @property
    def version(self) -> int:
        """Policy version of the weights in the engine."""
        return self.engine.version

    def load_weights(
        self,
        folder: Path | None,
        version: int,
        probe: WeightsProbe | None,
        on_wait: Callable[[], None],
        *,
        is_leader: bool = True,
    ) -> bool:
        """Load the weights of `folder` as policy `version`, and return True: a local engine can always load."""
        assert folder is not None, "every version of an engine that started from model.path has a folder"
        if version < self.version:
            raise ValueError(f"policy version {version} is older than the engine's version {self.version}")
        self.replace_weights(folder, version)
        return True

    @abstractmethod
    def replace_weights(self, folder: Path, version: int) -> None:
        """Load all weights of `folder` into the engine as policy `version`."""


class EngineDriver(Protocol):
    """Opens the engines of one value of `rollout.engine`. A driver is created without arguments."""

    def require_machine(self, config: AjetConfig) -> None:
        """Check that the packages of the engine are installed.

        Raises:
            UserError: a package is missing or has an unsupported version.
        """
        ...

    def require_trainable(self, config: AjetConfig, *, looking: bool) -> None:
        """Check that the engine can sample for a trainer in the same process.

        Args:
            looking: True if the settings are only inspected, not launched: they may belong to a sampler with a server
                that follows the trainer.

        Raises:
            ConfigError: training would refuse the settings.
        """
        ...

    def read_server_address(self, config: AjetConfig) -> str:
        """Return the normalised URL of the remote server that samples, or "" without one."""
        ...

    def open_sampler(self, config: AjetConfig, source: ModelSource, tokenizer: Any) -> TokenEngine:
        """Open an engine whose weights never change. Raises UserError."""
        ...

    def open_follower(self, config: AjetConfig, source: ModelSource, tokenizer: Any) -> EngineFollower:
        """Open an engine that loads the checkpoints of a trainer in another process. Raises UserError."""
        ...

    def open_trained(
        self, config: AjetConfig, source: ModelSource, model: Any, weights: Weights, verdicts: VerdictCache | None
    ) -> PausableEngine:
        """Open an engine for the trainer of `model` in this process.

        Args:
            weights: yields the trained tensors under the plain model's names, with adapters merged in.
            verdicts: stores which models passed the engine's checks on this machine, to skip the checks.

        Raises:
            UserError: the engine cannot be started.
        """
        ...


def find_driver(config: AjetConfig) -> EngineDriver:
    """Return the driver of `rollout.engine`.

    Raises:
        ConfigError: the engine returns text without token ids.
    """
    plugin_part = find_part("engine", config.rollout.engine)
    assert plugin_part is not None, "the configuration accepts known names only"
    code = load_code(plugin_part.code)
    if not hasattr(code, "open_sampler"):
        raise ConfigError(
            f"rollout.engine: {config.rollout.engine} returns text without the sampled token ids.",
            where="ajet.rollout.engine",
            expected="auto, transformers or vllm",
        )
    driver: EngineDriver = code()
    return driver


def read_server_address(config: AjetConfig) -> str:
    """Return the normalised URL of the remote server that samples, or "" without one."""
    return find_driver(config).read_server_address(config)


def open_sampler(config: AjetConfig, *, base: Path | None = None) -> tuple[TokenEngine, Any]:
    """Open the engine of `rollout.engine` and the tokenizer of `model.path`, for sampling without training.

    Args:
        base: first folder for relative paths.

    Raises:
        UserError: the model or the engine cannot be opened.
    """
    source, tokenizer = _load_source(config, base)
    return find_driver(config).open_sampler(config, source, tokenizer), tokenizer


def open_follower(config: AjetConfig, *, base: Path | None = None) -> EngineFollower:
    """Open the engine of `rollout.engine` for a sampler whose trainer is another process.

    Raises:
        UserError: the engine or the model cannot be opened.
    """
    return find_driver(config).open_follower(config, *_load_source(config, base))


def _load_source(config: AjetConfig, base: Path | None) -> tuple[ModelSource, Any]:
    """Return the files of `model.path` and the loaded tokenizer. Raises UserError."""
    from ajet.engine.model_source import locate_configured_model
    from ajet.engine.models import load_tokenizer

    source = locate_configured_model(config, base)
    return source, load_tokenizer(source)


class TransformersDriver:
    """Opens the engine `transformers`, which samples with the tensors of this process."""

    def require_machine(self, config: AjetConfig) -> None:
        """Check that torch and transformers are installed."""
        require_packages("torch", "transformers", "jinja2", extra="local", needed_for=f"The model {config.model.path}")

    def require_trainable(self, config: AjetConfig, *, looking: bool) -> None:
        """Accept all settings: the engine samples with the trainer's own weights."""

    def read_server_address(self, config: AjetConfig) -> str:
        """Return "": the engine runs in this process."""
        return ""

    def open_sampler(self, config: AjetConfig, source: ModelSource, tokenizer: Any) -> TokenEngine:
        """Load the model once, in the engine's own dtype, with its adapters."""
        from ajet.engine.adapters import attach_adapters

        model = _load_model(config, source)
        names = Adapters.from_folder(source.folder).names
        if names and source.folder is not None:
            model = attach_adapters(model, source.folder, names)
        return _make_engine(config, model, names)

    def open_follower(self, config: AjetConfig, source: ModelSource, tokenizer: Any) -> EngineFollower:
        """Load the model once. Later weights are copied into it."""
        return _TransformersFollower(config, source, tokenizer)

    def open_trained(
        self, config: AjetConfig, source: ModelSource, model: Any, weights: Weights, verdicts: VerdictCache | None
    ) -> PausableEngine:
        """Sample with the trainer's own tensors."""
        return _make_engine(config, model, Adapters.from_config(config.trainer_common.lora).names, verdicts)


class _TransformersFollower(LocalFollower):
    def __init__(self, config: AjetConfig, source: ModelSource, tokenizer: Any) -> None:
        self._model = _load_model(config, source)
        super().__init__(_make_engine(config, self._model), tokenizer)

    def replace_weights(self, folder: Path, version: int) -> None:
        """Copy the weights of `folder` into the model in place."""
        import torch

        parameters = dict(self._model.named_parameters())
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        with open_saved_tensors(folder, shapes) as tensors, self.engine.paused(), torch.no_grad():
            for name, tensor in tensors:
                parameters[name].copy_(tensor)
            self.engine.weights_changed(version)


def _load_model(config: AjetConfig, source: ModelSource) -> Any:
    """Load the model on the configured device, in the configured number format."""
    from ajet.engine.models import load_model

    device, dtype = choose_machine(config)
    return load_model(source, dtype=dtype, device=device, max_model_len=config.rollout.max_model_len)


def _make_engine(
    config: AjetConfig, model: Any, adapters: Sequence[str] = (), verdicts: VerdictCache | None = None
) -> TransformersEngine:
    """Create an engine over `model` and its `adapters`, with the configured limits."""
    from ajet.engine.models import read_context_length
    from ajet.engine.transformers import TransformersEngine

    return TransformersEngine(
        model,
        max_num_seqs=config.rollout.max_num_seqs,
        max_model_len=min(config.rollout.max_model_len, read_context_length(model)),
        adapters=adapters,
        verdicts=verdicts,
    )


def choose_machine(config: AjetConfig) -> tuple[str, torch.dtype]:
    """Return the device and number format of the model. Also sets torch's thread count if it is configured."""
    import torch

    from ajet.engine.models import choose_fast_dtype

    device = config.trainer_common.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and config.trainer_common.threads != "auto":
        torch.set_num_threads(int(config.trainer_common.threads))
    return device, choose_fast_dtype(device) if config.model.dtype == "auto" else getattr(torch, config.model.dtype)
