"""A TokenEngine whose weights are those of a trainer elsewhere, taken from the checkpoint folders that it writes.

Invariant: it samples with a folder's weights as a whole or with the ones from before: every tensor is found, and the
file held open, before the first is written, and a checkpoint's files have the digests that were written with them.
What runs meanwhile goes on with the new ones, and each token says which version sampled it.
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
    """An engine, and how it gets other weights."""

    tokenizer: Any

    @property
    def engine(self) -> TokenEngine: ...

    @property
    def version(self) -> int:
        """The version of the weights that it samples with; negative: nobody knows yet."""
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
        """Sample with the weights in `folder` (None: those of model.path), which are policy `version`, from here on.
        `probe`: by which weights elsewhere are known; `on_wait`: called about once a second while replies under way are
        waited for; `is_leader`: whether a server elsewhere is given them by this process. Answers False where it cannot
        be given others: `version` says which it goes on with. Raises FileNotFoundError where they are gone by now or
        not there yet, ValueError for a version older than the present one, UserError for another model's."""
        ...


def read_server_address(config: AjetConfig) -> str:
    """The address of the server elsewhere that is sampled from, the same for all who name it so; "": there is none."""
    chosen = config.rollout.vllm.base_url if config.rollout.engine == "vllm" else None
    return (chosen or "").rstrip("/").removesuffix("/v1").rstrip("/")


def open_follower(config: AjetConfig, *, base: Path | None = None) -> EngineFollower:
    """The engine that `rollout.engine` names, with the weights of `model.path` as version 0. Raises UserError."""
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
        """See `EngineFollower`."""
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
        """See `EngineFollower`."""
        import torch

        assert folder is not None, "it began with those of model.path"
        parameters = dict(self._model.named_parameters())
        with open_saved_tensors(folder, {name: tuple(each.shape) for name, each in parameters.items()}) as tensors:
            if version < self.version:
                raise ValueError(f"policy version {version} is older than {self.version}")
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
        """See `EngineFollower`."""
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
        """See `EngineFollower`."""
        assert folder is not None, "it began with those of model.path"
        if version < self.version:
            raise ValueError(f"policy version {version} is older than {self.version}")
        with open_saved_tensors(folder, {}):  # there, and readable
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
    """Within the block the tensors of a model in Hugging Face layout, one at a time, though the folder be removed.
    `wanted`: by name, of this shape; None: all. Raises FileNotFoundError, also where not all of it is there yet;
    UserError where one is missing or another, or is not what was written."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no weights")
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
                    f"The weights in {folder} are of another model: {name} is not {shape} there.",
                    where=str(folder),
                    expected="a checkpoint of the model that model.path names",
                )
        names = place if wanted is None else wanted
        yield ((name, place[name].get_tensor(name)) for name in names)


def _require_written(folder: Path, files: Iterable[Path]) -> None:
    """Require that the weights of a checkpoint are those that were written; a folder that is none passes. Sizes first:
    a copy that is still being made is not there yet, one of the right sizes and other bytes is damaged."""
    if not (folder / STATE).exists() and step_of(folder) < 0:
        return
    found = inspect_checkpoint(folder)
    if isinstance(found, str):
        raise FileNotFoundError(f"{folder}: {found}")
    wrong = [each.name for each in files if found.digests.get(each.name) != digest_file(each)]
    if wrong:
        raise UserError(
            f"The announced weights are damaged: {', '.join(wrong)} in {folder} is not what the trainer wrote.",
            where=str(folder),
            expected="the bytes whose digests stand in state.json",
            do="copy the checkpoint anew, or look at the disk; nothing was sampled with these weights",
        )
