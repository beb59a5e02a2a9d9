"""VllmDriver opens the engines of `rollout.engine: vllm`: vLLM in child processes, or a running server.

Invariant: reading the module imports neither torch nor vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.engine.adapters import Adapters
from ajet.engine.drivers import LocalFollower, choose_machine
from ajet.engine.saved_tensors import open_saved_tensors
from ajet.schema.errors import ConfigError, require_packages
from ajet_vllm.versions import require_vllm

if TYPE_CHECKING:
    import torch

    from ajet.config import AjetConfig
    from ajet.engine.contract import PausableEngine, TokenEngine
    from ajet.engine.drivers import EngineFollower, Weights
    from ajet.engine.model_source import ModelSource
    from ajet.engine.verdict_cache import VerdictCache
    from ajet_vllm.engine import VllmEngine


class VllmDriver:
    """The EngineDriver of vLLM and of its and SGLang's servers."""

    def require_machine(self, config: AjetConfig) -> None:
        """Check that the packages for the engine are installed: vLLM, or only a tokenizer's for a running server.

        Raises:
            UserError: a package is missing, or vLLM has an unsupported version.
        """
        needed_for = f"The model {config.model.path}"
        require_packages("transformers", "jinja2", extra="local", needed_for=needed_for)
        if not self.read_server_address(config):
            require_packages("torch", extra="local", needed_for=needed_for)
            require_vllm()

    def require_trainable(self, config: AjetConfig, *, looking: bool) -> None:
        """Raise ConfigError if the local backbone cannot train with this engine.

        It cannot change the weights of a running server, and vLLM cannot sample with several adapters in training.

        Args:
            looking: True if the settings are only inspected, not launched: they may belong to a sampler with a server
                that follows the trainer.
        """
        if config.rollout.vllm.base_url is not None and not looking:
            raise ConfigError(
                "The local backbone cannot change the weights of a vLLM server.",
                where="ajet.rollout.vllm.base_url",
                expected="null, so that ajet starts vLLM itself",
                do="to use a running server, use --backbone debug",
            )
        if config.trainer_common.lora.adapters:
            raise ConfigError(
                "Only the transformers engine can sample with several adapters on the local backbone: vLLM gets "
                "merged weights.",
                where="ajet.rollout.engine",
                expected="auto or transformers, with lora.adapters",
                do="remove rollout.engine; vLLM can serve the adapters after training (docs/deploy.md)",
            )

    def read_server_address(self, config: AjetConfig) -> str:
        """Return the URL of `rollout.vllm.base_url` without `/v1`, or "" if ajet starts vLLM."""
        return (config.rollout.vllm.base_url or "").rstrip("/").removesuffix("/v1").rstrip("/")

    def open_sampler(self, config: AjetConfig, source: ModelSource, tokenizer: Any) -> TokenEngine:
        """Return an engine with fixed weights: start vLLM with the model and its adapters, or connect to a server."""
        if config.rollout.vllm.base_url is None:
            names = Adapters.from_folder(source.folder).names
            return _start_vllm(config, source, choose_machine(config), adapters=names)
        from ajet_vllm.server_detection import open_remote

        return open_remote(config, vocabulary=len(tokenizer))

    def open_follower(self, config: AjetConfig, source: ModelSource, tokenizer: Any) -> EngineFollower:
        """Return an engine that receives a trainer's weights: start vLLM, or connect to a server.

        A server gets the weights by requests, if it can load them.
        """
        if config.rollout.vllm.base_url is None:
            return _VllmFollower(config, source, tokenizer)
        from ajet.engine.models import prepare_folder
        from ajet_vllm.server_follower import ServerFollower

        return ServerFollower(config, tokenizer, prepare_folder(source))

    def open_trained(
        self, config: AjetConfig, source: ModelSource, model: Any, weights: Weights, verdicts: VerdictCache | None
    ) -> PausableEngine:
        """Start vLLM with a copy of the trainer's weights.

        Without trained adapters, check that an update reaches every parameter of vLLM's model.

        Args:
            model: the trainer's model, whose device and number format vLLM uses.
            weights: yields the trainer's tensors under the checkpoint's names.
            verdicts: not used by this engine.

        Raises:
            UserError: vLLM cannot load the model or all of its weights.
        """
        logger.info("starting vLLM; on a CPU this takes about a minute")
        first_parameter = next(model.parameters())
        engine = _start_vllm(config, source, (first_parameter.device, first_parameter.dtype), weights)
        try:
            if not config.trainer_common.lora.trains_adapters:
                engine.check_weights()
        except BaseException:
            engine.close()
            raise
        sizes = {name: f"{size / 1e6:,.0f} MB" for name, size in engine.memory.items()}
        logger.info(
            "vLLM's processes hold a copy of the weights ({weights}) and a key-value cache of {cache}; weight "
            "updates use {bucket} of shared memory",
            **sizes,
        )
        return engine


class _VllmFollower(LocalFollower):
    """vLLM in child processes, with weights that are replaced by those in a checkpoint folder."""

    def __init__(self, config: AjetConfig, source: ModelSource, tokenizer: Any) -> None:
        """Start vLLM with the weights of model.path."""
        self._folder = Path()
        engine = _start_vllm(config, source, choose_machine(config), self._read_tensors)
        super().__init__(engine, tokenizer)

    def replace_weights(self, folder: Path, version: int) -> None:
        """Load the weights in `folder` into vLLM, as policy version `version`."""
        with open_saved_tensors(folder, {}):  # checks that the weights exist and are readable
            self._folder = folder
            self.engine.weights_changed(version)  # reads the folder through `_read_tensors`

    def _read_tensors(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, tensor) of the weights to load into vLLM, under the checkpoint's names."""
        with open_saved_tensors(self._folder, None) as tensors:
            yield from tensors


def _start_vllm(
    config: AjetConfig,
    source: ModelSource,
    machine: tuple[torch.device | str, torch.dtype],
    weights: Weights | None = None,
    adapters: tuple[str, ...] = (),
) -> VllmEngine:
    """Start vLLM with a model and the settings of `rollout`.

    Args:
        machine: device and number format.
        weights: yields the tensors of an update under the checkpoint's names, or None if the weights never change.
        adapters: names of the adapters in the model's folder that requests may select.
    """
    import torch

    from ajet.engine.models import prepare_folder
    from ajet_vllm.launch import VllmLaunch

    (device, dtype), settings = machine, config.rollout.vllm
    launch = VllmLaunch(
        prepare_folder(source),
        dtype=dtype,
        device=torch.device(device),
        max_num_seqs=config.rollout.max_num_seqs,
        max_model_len=config.rollout.max_model_len,
        seed=config.seed,
        threads=torch.get_num_threads(),
        cache_bytes=int(settings.cache_gib * (1 << 30)) if settings.cache_gib else None,
        eager=settings.eager,
        trust_remote_code=source.trust_remote_code,
        adapters=adapters,
    )
    return load_engine()(launch, weights=weights)


def load_engine() -> type[VllmEngine]:
    """Import the engine's class while the environment variables are set that vLLM reads during its import.

    Raises:
        UserError: vLLM is missing, or has an unsupported version.
    """
    from ajet_vllm.launch import environment

    require_vllm()
    with environment(1):
        from ajet_vllm.engine import VllmEngine
    return VllmEngine
