"""EngineFollower: an engine of a sampler process that loads the checkpoints a trainer in another process writes.

Invariant: the engine samples with a folder's complete weights or the previous ones. All tensors are located, and their
files held open, before the first write. A checkpoint's files must match their recorded digests. Running calls continue
with the new weights, and each token carries the version that sampled it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ajet.engine.sampler import choose_machine, make_transformers_engine, open_sampler
from ajet.record.checkpoint import STATE, digest_file, inspect_checkpoint, step_of
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.engine.contract import TokenEngine
    from ajet.engine.probe import WeightsProbe


class EngineFollower(Protocol):
    """A token engine whose weights can be replaced by those in a folder."""

    tokenizer: Any

    @property
    def engine(self) -> TokenEngine: ...

    @property
    def version(self) -> int:
        """Version of the current weights; negative if unknown."""
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


def read_server_address(config: AjetConfig) -> str:
    """Return the normalised URL of the remote inference server, or "" without one."""
    chosen = config.rollout.vllm.base_url if config.rollout.engine == "vllm" else None
    return (chosen or "").rstrip("/").removesuffix("/v1").rstrip("/")


def open_follower(config: AjetConfig, *, base: Path | None = None) -> EngineFollower:
    """Open the engine selected by `rollout.engine`, with the weights of `model.path` as version 0.

    Raises:
        UserError: the engine or the model cannot be opened.
    """
    if config.rollout.engine == "vllm" and config.rollout.vllm.base_url is not None:
        from ajet.engine.model_source import locate_model
        from ajet.engine.models import load_tokenizer, prepare_folder
        from ajet.engine.server_follower import ServerFollower

        assert config.model.path is not None, "require_ready asks for it"
        source = locate_model(config.model.path, base=base, trust_remote_code=config.model.trust_remote_code)
        return ServerFollower(config, load_tokenizer(source), prepare_folder(source))
    if config.rollout.engine == "vllm":
        return _VllmFollower(config, base)
    return _TransformersFollower(config, base)


class _TransformersFollower:
    def __init__(self, config: AjetConfig, base: Path | None) -> None:
        from ajet.engine.model_source import locate_model
        from ajet.engine.models import load_model, load_tokenizer

        assert config.model.path is not None, "require_ready asks for it"
        source = locate_model(config.model.path, base=base, trust_remote_code=config.model.trust_remote_code)
        self.tokenizer: Any = load_tokenizer(source)
        device, dtype = choose_machine(config)
        self._model = load_model(source, dtype=dtype, device=device, max_model_len=config.rollout.max_model_len)
        self.engine = make_transformers_engine(config, self._model)

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
        """Copy the weights of `folder` into the model in place, as described in `EngineFollower`."""
        import torch

        assert folder is not None, "the engine began with the weights of model.path"
        parameters = dict(self._model.named_parameters())
        with open_saved_tensors(folder, {name: tuple(each.shape) for name, each in parameters.items()}) as tensors:
            if version < self.version:
                raise ValueError(f"policy version {version} is older than the engine's version {self.version}")
            with self.engine.paused(), torch.no_grad():
                for name, tensor in tensors:
                    parameters[name].copy_(tensor)
                self.engine.weights_changed(version)
        return True


class _VllmFollower:
    def __init__(self, config: AjetConfig, base: Path | None) -> None:
        self._folder: Path | None = None
        self.engine, self.tokenizer = open_sampler(config, base=base, weights=self._read_tensors)

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
        """Send the weights of `folder` to vLLM, as described in `EngineFollower`."""
        assert folder is not None, "the engine began with the weights of model.path"
        if version < self.version:
            raise ValueError(f"policy version {version} is older than the engine's version {self.version}")
        with open_saved_tensors(folder, {}):  # checks that the weights exist and are readable
            self._folder = folder
            self.engine.weights_changed(version)
        return True

    def _read_tensors(self) -> Iterator[tuple[str, Any]]:
        assert self._folder is not None, "`load_weights` names it first"
        with open_saved_tensors(self._folder, None) as tensors:
            yield from tensors


@contextmanager
def open_saved_tensors(
    folder: Path, wanted: Mapping[str, tuple[int, ...]] | None
) -> Iterator[Iterator[tuple[str, Any]]]:
    """Within the block, iterate over the tensors of a model folder, even if the folder is deleted meanwhile.

    Args:
        wanted: shapes of the required tensors by name; None for all tensors.

    Raises:
        FileNotFoundError: weights are missing or not complete yet.
        UserError: a tensor is missing, has another shape, or differs from the recorded digest.
    """
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"the folder {folder} contains no weights")
    with ExitStack() as held:
        try:
            opened = [held.enter_context(safe_open(file, framework="pt")) for file in files]
        except SafetensorError as error:
            _require_written(folder, files)
            raise UserError(f"The weights in {folder} cannot be read: {error}", where=str(folder)) from error
        _require_written(folder, files)
        place = {name: file for file in opened for name in file.keys()}  # noqa: SIM118 - no mapping
        for name, shape in (wanted or {}).items():
            if name not in place or tuple(place[name].get_slice(name).get_shape()) != shape:
                raise UserError(
                    f"The weights in {folder} belong to another model: {name} does not have the shape {shape} there.",
                    where=str(folder),
                    expected="a checkpoint of the model that model.path names",
                )
        names = place if wanted is None else wanted
        yield ((name, place[name].get_tensor(name)) for name in names)


def _require_written(folder: Path, files: Iterable[Path]) -> None:
    """Check that a checkpoint's weight files match their recorded digests.

    Folders that are no checkpoints pass. Sizes are compared first: with wrong sizes a copy is still running
    (FileNotFoundError), with right sizes and other bytes the file is damaged (UserError).
    """
    if not (folder / STATE).exists() and step_of(folder) < 0:
        return
    found = inspect_checkpoint(folder)
    if isinstance(found, str):
        raise FileNotFoundError(f"{folder}: {found}")
    wrong = [each.name for each in files if found.digests.get(each.name) != digest_file(each)]
    if wrong:
        raise UserError(
            f"The weights that the trainer announced are damaged: {', '.join(wrong)} in {folder} differs from "
            "what the trainer wrote.",
            where=str(folder),
            expected="files whose digests equal those in state.json",
            do="copy the checkpoint again, or check the disk; no token was sampled with these weights",
        )
