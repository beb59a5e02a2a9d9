"""`ajet export RUN`: writes a checkpoint as a model folder for transformers, vLLM and `model.path`.

Invariant: the run is only read. The folder appears complete or not at all, and no existing folder is changed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ajet.commands.model_card import write_card
from ajet.commands.runner import load_runner
from ajet.config.backbones import find_checkpoint_owner
from ajet.config.record_file import make_record_folder
from ajet.record.checkpoint import Checkpoint, damaged_checkpoint_error, inspect_checkpoint, require_sound
from ajet.record.checkpoints import Checkpoints, checkpoints_of
from ajet.record.files import apply_umask, convert_os_errors, explain_write_errors, sync_tree
from ajet.record.find_run import require_run
from ajet.schema.errors import UserError

_NOT_THE_MODEL = ("trainer", "state.json")
"""Files of a checkpoint in Hugging Face layout that do not belong to the model."""


def export(
    run: str,
    root: Path,
    *,
    step: int | None = None,
    out: Path | None = None,
    dtype: str | None = None,
    reuse: bool = False,
    merging: bool = False,
) -> Path:
    """Write the model of a run's checkpoint as a folder that transformers and vLLM load, and return the folder.

    Args:
        run: Name or folder of the run.
        root: Folder of all runs.
        step: Step of the checkpoint. None: the last one.
        out: A new folder. None: `exports/step-N` in the run's folder.
        dtype: float32 or bfloat16, for a checkpoint of verl. None: the type of training.
        reuse: True to return an existing folder unchanged.
        merging: True for a command that needs the model in the default folder.

    Raises:
        UserError: The checkpoint or the folder cannot be used.
    """
    folder = find_training_run(run, root)
    checkpoint = select_checkpoint(checkpoints_of(folder), step)
    target = (out or folder / "exports" / f"step-{checkpoint.step}").absolute()
    if target.exists():
        if reuse:
            return target
        raise UserError(f"The folder {target} exists already.", do="choose another folder with --out, or delete it")
    partial_folder = target.with_name(f".{target.name}.partial")
    size = _format_size(checkpoint.path)
    shutil.rmtree(partial_folder, ignore_errors=True)
    with convert_os_errors(target, "the merged checkpoint" if merging else "--out"):
        if out is None:
            make_record_folder(target.parent)
        partial_folder.mkdir(parents=out is not None)
    try:
        with explain_write_errors(
            f"the model of step {checkpoint.step}",
            target.parent,
            intact="the checkpoint is unchanged",
            room=f"the size of the model: its checkpoint has {size}, including the optimizer's state",
            other_folder="" if merging else ", or choose a folder on another disk with --out",
        ):
            write_model(partial_folder, checkpoint, dtype)
            write_card(folder, checkpoint, partial_folder)
            apply_umask(partial_folder)
            sync_tree(partial_folder)
            partial_folder.rename(target)
    except BaseException:
        shutil.rmtree(partial_folder, ignore_errors=True)
        raise
    return target


def _format_size(folder: Path) -> str:
    """Return the size of all files in a folder as text, in MiB or GiB."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def find_training_run(run: str, root: Path) -> Path:
    """Return the folder of a training run by its name or folder. Raises UserError if there is no such run."""
    return require_run(run, root, holding="run.json", expected="the folder of a training run with checkpoints")


def find_model_folder(folder: Path, checkpoint: Checkpoint) -> Path:
    """Return a folder from which transformers can load a checkpoint's model.

    It is the checkpoint itself, or an export of it if a backbone wrote it in its own format; the export is made once.

    Raises:
        UserError: The checkpoint cannot be exported.
    """
    if find_checkpoint_owner(checkpoint.state) is None:
        return checkpoint.path
    exported = folder / "exports" / f"step-{checkpoint.step}"
    if os.path.lexists(exported):
        return exported
    return export(str(folder), folder.parent, step=checkpoint.step, merging=True)


def select_checkpoint(checkpoints: Checkpoints, step: int | None) -> Checkpoint:
    """Return the checkpoint of `step`, or the last one for None.

    Raises:
        UserError: The checkpoint is missing or incomplete.
    """
    complete = checkpoints.all()
    if step is None:
        checkpoints.require_whole(above=complete[-1].step if complete else -1)
    if not complete and step is None:
        raise UserError(
            "The run has no complete checkpoint.",
            where=str(checkpoints.folder),
            expected="a run that has saved a step (every trainer_common.save_freq steps, and at its end)",
        )
    for checkpoint in reversed(complete):
        if step is None or checkpoint.step == step:
            return checkpoint
    folder = checkpoints.folder / f"step-{step}"
    if folder.exists():
        raise damaged_checkpoint_error(folder, str(inspect_checkpoint(folder)))
    steps = ", ".join(str(checkpoint.step) for checkpoint in complete) or "none"
    is_partial = (checkpoints.folder / f".step-{step}.partial").exists()
    raise UserError(
        f"The checkpoint of step {step} is incomplete." if is_partial else f"There is no checkpoint of step {step}.",
        where=str(checkpoints.folder),
        expected=f"one of the complete checkpoints: {steps}",
        do="trainer_common.max_checkpoints_to_keep sets how many checkpoints a run keeps"
        if complete and not is_partial
        else "",
    )


def write_model(target: Path, checkpoint: Checkpoint, dtype: str | None) -> None:
    """Write a checkpoint's model into the folder `target`, without optimizer and training state.

    A backbone's own format is converted; Hugging Face layout is copied.

    Raises:
        UserError: The checkpoint is damaged, or cannot be converted to the number type.
    """
    require_sound(checkpoint.path)
    if (owner := find_checkpoint_owner(checkpoint.state)) is not None:
        load_runner(owner).export(checkpoint, target, dtype)
        return
    if dtype is not None:
        raise UserError(
            "The checkpoint is already in Hugging Face layout and is copied as it is, so --dtype has no effect.",
            where="--dtype",
            do="omit --dtype; transformers can convert the number format when it loads the model",
        )
    for path in checkpoint.path.iterdir():
        if path.name in _NOT_THE_MODEL:
            continue
        if path.is_dir():
            shutil.copytree(path, target / path.name, symlinks=True)
        else:
            shutil.copy2(path, target / path.name, follow_symlinks=False)
