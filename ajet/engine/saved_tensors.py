"""Reads the tensors of a model folder that a trainer in another process has written.

Invariant: all tensors are located, and their files held open, before the first is read, so a caller gets a folder's
complete weights or none. A checkpoint's files must match their recorded digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ajet.record.checkpoint import STATE, digest_file, inspect_checkpoint, step_of
from ajet.schema.errors import UserError


@contextmanager
def open_saved_tensors(
    folder: Path, shapes: Mapping[str, tuple[int, ...]] | None
) -> Iterator[Iterator[tuple[str, Any]]]:
    """Within the block, iterate over the tensors of a model folder, even if the folder is deleted meanwhile.

    Args:
        shapes: shapes of the required tensors by name; None for all tensors.

    Raises:
        FileNotFoundError: weights are missing or not complete yet.
        UserError: a tensor is missing, has another shape, or differs from the recorded digest.
    """
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"the folder {folder} contains no weights")
    with ExitStack() as stack:
        try:
            tensor_files = [stack.enter_context(safe_open(file, framework="pt")) for file in files]
        except SafetensorError as error:
            _require_written(folder, files)
            raise UserError(f"The weights in {folder} cannot be read: {error}", where=str(folder)) from error
        _require_written(folder, files)
        file_of_tensor = {name: file for file in tensor_files for name in file.keys()}  # noqa: SIM118 - no mapping
        for name, shape in (shapes or {}).items():
            if name not in file_of_tensor or tuple(file_of_tensor[name].get_slice(name).get_shape()) != shape:
                raise UserError(
                    f"The weights in {folder} belong to another model: {name} does not have the shape {shape} there.",
                    where=str(folder),
                    expected="a checkpoint of the model that model.path names",
                )
        names = file_of_tensor if shapes is None else shapes
        yield ((name, file_of_tensor[name].get_tensor(name)) for name in names)


def _require_written(folder: Path, files: Iterable[Path]) -> None:
    """Check that a checkpoint's weight files match their recorded digests.

    Folders that are no checkpoints pass. Sizes are compared first: with wrong sizes a copy is still running
    (FileNotFoundError), with right sizes and other bytes the file is damaged (UserError).
    """
    if not (folder / STATE).exists() and step_of(folder) < 0:
        return
    inspected = inspect_checkpoint(folder)
    if isinstance(inspected, str):
        raise FileNotFoundError(f"{folder}: {inspected}")
    damaged = [file.name for file in files if inspected.digests.get(file.name) != digest_file(file)]
    if damaged:
        raise UserError(
            f"The weights that the trainer announced are damaged: {', '.join(damaged)} in {folder} differs from "
            "what the trainer wrote.",
            where=str(folder),
            expected="files whose digests equal those in state.json",
            do="copy the checkpoint again, or check the disk; no token was sampled with these weights",
        )
