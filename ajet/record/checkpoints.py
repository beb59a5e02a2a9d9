"""checkpoints/: the checkpoints of one run and the choice between them.

Invariant: a folder named `step-N` is complete. Files are written to a hidden folder and synced, `state.json` with size
and digest of each file comes last, then the folder is renamed. An interrupted save leaves a hidden folder, removed by
the next start. Old checkpoints are removed only after the new checkpoint is complete. A sound checkpoint is one whose
files have these digests. A run continues from a sound checkpoint (`sound`, `at`); a reader (`require_whole`) gets an
error for a damaged one.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ajet.config.record_file import list_record_folder
from ajet.record import files
from ajet.record.chain import Chain
from ajet.record.checkpoint import (
    NAME,
    OWN,
    READERS,
    STATE,
    Checkpoint,
    damaged_checkpoint_error,
    digest_state,
    inspect_checkpoint,
    read_checkpoint,
    step_of,
    submit_digests,
    verify_checkpoint,
)
from ajet.record.files import apply_umask, sync_folder, sync_tree, write_atomically
from ajet.record.held_out import Measurement
from ajet.schema.commands import FRESH_ADVICE
from ajet.schema.errors import UserError


def checkpoints_folder(run: Path, base: str | None) -> Path:
    """Return the folder of a run's checkpoints.

    Args:
        run: The run's folder.
        base: Value of `trainer_common.checkpoint_base_dir`. None: the checkpoints are in the run's folder.
    """
    if not base:
        return run / "checkpoints"
    is_below_home = base == "~" or base.startswith("~/")  # ~USER raises for an unknown user
    return (Path(base).expanduser() if is_below_home else Path(base)).absolute() / run.name


ROOM = "one checkpoint more than trainer_common.max_checkpoints_to_keep, and the record"
"""Free disk space needed by a run, for the error of a full disk."""


class Checkpoints:
    """The checkpoints of one run. Only the process that holds the run's lock may call `save` and `clean`."""

    def __init__(self, folder: Path, *, keep: int = 2, keep_best: bool = True) -> None:
        """Args:
        folder: The folder of the checkpoints, which need not exist.
        keep: Number of newest checkpoints that remain after a save.
        keep_best: Whether the best measured checkpoint remains too.
        """
        self.folder = folder
        self._keep, self._keep_best = max(1, keep), keep_best
        self.damaged: dict[Path, str] = {}
        """Damaged folders skipped by `sound` or `at`, with the reason."""
        self.chain: Chain | None = None
        """Chain linked with each saved checkpoint; the checkpoint stores the chain's head."""

    def all(self) -> list[Checkpoint]:
        """Return the complete checkpoints on disk, sorted by step."""
        checkpoints = [read_checkpoint(path) for path in self._step_folders()]
        return sorted((checkpoint for checkpoint in checkpoints if checkpoint), key=lambda checkpoint: checkpoint.step)

    def latest(self) -> Checkpoint | None:
        """Return the complete checkpoint of the highest step, or None."""
        return next(reversed(self.all()), None)

    @property
    def horizon(self) -> int:
        """Step of the oldest checkpoint that the run may still resume from; -1 without checkpoints.

        Older ones may be removed, apart from the best.
        """
        return next((checkpoint.step for checkpoint in self.all()[-self._keep :]), -1)

    def require_whole(self, *, above: int = -1) -> None:
        """Raise UserError for an incomplete checkpoint, which a reader must not skip unnoticed.

        Args:
            above: Only checkpoints of later steps are checked.
        """
        for path in self._step_folders():
            inspected = inspect_checkpoint(path) if step_of(path) > above else None
            if isinstance(inspected, str) and path.exists():  # a live run may remove old checkpoints meanwhile
                raise damaged_checkpoint_error(path, inspected)

    def sound(self) -> Checkpoint | None:
        """Return the latest checkpoint with matching digests, or None without checkpoints.

        Raises:
            UserError: every checkpoint is damaged.
        """
        for path in sorted(self._step_folders(), key=step_of, reverse=True):
            verified = verify_checkpoint(path)
            if isinstance(verified, Checkpoint):
                return verified
            self.damaged[path] = verified
        if self.damaged:
            raise _no_sound_checkpoint_error(self.damaged)
        return None

    def set_damaged_aside(self) -> None:
        """Rename the damaged checkpoints that `sound` or `at` met to step-N.damaged-M, so that no reader takes them."""
        for path in self.damaged:
            number = 1
            while (renamed := path.with_name(f"{path.name}.damaged-{number}")).exists():
                number += 1
            os.replace(path, renamed)
        self.damaged.clear()

    def best(self) -> Checkpoint | None:
        """Return the best checkpoint by validation score, or None without a measurement.

        A later checkpoint replaces an earlier one only if it is better by more than noise. Only measurements of the
        last judge are compared.
        """
        best: Checkpoint | None = None
        measured = [checkpoint for checkpoint in self.all() if checkpoint.score is not None]
        for checkpoint in measured:
            if checkpoint.judge == measured[-1].judge and (best is None or checkpoint.better_than(best)):
                best = checkpoint
        return best

    def at(self, path: Path) -> Checkpoint:
        """Return the checkpoint in folder `path`, or the latest undamaged one if `path` is a run folder.

        Raises:
            UserError: No checkpoint is found, or the named checkpoint is damaged.
        """
        checkpoint = verify_checkpoint(path) if NAME.fullmatch(path.name) or (path / STATE).exists() else None
        if isinstance(checkpoint, str):
            raise _no_sound_checkpoint_error({path: checkpoint})
        for folder in (path / "checkpoints", path):
            if checkpoint is None:
                folder_checkpoints = Checkpoints(folder)
                checkpoint = folder_checkpoints.sound()
                if folder.resolve() == self.folder.resolve():
                    self.damaged |= {
                        self.folder / damaged_path.name: reason
                        for damaged_path, reason in folder_checkpoints.damaged.items()
                    }
        if checkpoint is None:
            raise UserError(
                "There is no complete checkpoint to resume from.",
                where=str(path),
                expected="a folder such as launcher_record/NAME/checkpoints/step-20, or a run folder",
                do="pass the folder of a checkpoint to --resume, or omit --resume to continue the run of this YAML",
            )
        return checkpoint

    def save(
        self,
        step: int,
        write: Callable[[Path], None],
        state: dict[str, Any],
        *,
        measured: Measurement | None = None,
    ) -> Path:
        """Let `write` fill an empty folder, make it the checkpoint of `step`, then remove old checkpoints.

        Args:
            write: Writes the model and the optimizer's state into the folder.
            state: State of the training loop, as JSON values.
            measured: Validation of the saved weights.

        Raises:
            UserError: The disk is full, whatever error `write` raised; earlier checkpoints are unchanged.
        """
        content: dict[str, Any] = {"step": step, "score": None, "state": state}
        if measured is not None:
            content |= {"score": measured.score, "measured": measured.as_json()}
        if self.chain is not None:
            self.chain.commit_noted(step)
            content["chain"] = self.chain.head
        partial = self.folder / f".step-{step}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        latest = self.latest()
        intact = (
            f"the last complete checkpoint is of step {latest.step}" if latest else "the run has no earlier checkpoint"
        )
        advice = ", which resumes from the last complete checkpoint" if latest else ""
        try:
            with files.explain_write_errors(
                f"the checkpoint of step {step}", self.folder, intact=intact, room=ROOM, other_folder="", then=advice
            ):
                self.folder.mkdir(parents=True, exist_ok=True)
                partial.mkdir()
                write(partial)
                apply_umask(partial)
                digest = self._write_state(partial, content)
                if self.chain is not None and (self.folder / f"step-{step}").exists():
                    self.chain.commit("saving", step, checkpoint=digest)  # killed after this, either one may be there
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        path = self._publish_checkpoint(partial, step)
        expired = self.outlived()
        if self.chain is not None:
            remaining_digests = {
                str(checkpoint.step): checkpoint.digest for checkpoint in self.all() if checkpoint not in expired
            }
            self.chain.commit("checkpoint", step, checkpoint=remaining_digests[str(step)], kept=remaining_digests)
        self._remove_checkpoints(expired)
        return path

    def clean(self) -> None:
        """Finish or undo what an interrupted `save` left in the folder.

        A replaced checkpoint returns if its replacement is missing; partial and half-deleted folders are removed.
        """
        for path in self._list_matching(".step-*.replaced"):
            target = self.folder / path.name[1:].removesuffix(".replaced")
            if target.exists():
                shutil.rmtree(path)
            else:
                os.replace(path, target)
        for path in [*self._list_matching(".step-*.partial"), *self._list_matching(".step-*.pruned")]:
            shutil.rmtree(path)

    def _step_folders(self) -> list[Path]:
        """Return the folders named `step-N`, complete or not, in no order."""
        return [path for path in self._list_matching("step-*") if NAME.fullmatch(path.name)]

    def _list_matching(self, pattern: str) -> list[Path]:
        return [self.folder / name for name in list_record_folder(self.folder) if fnmatch(name, pattern)]

    def _write_state(self, partial: Path, content: dict[str, Any]) -> str:
        """Write `state.json` and return its digest. Files are digested during the sync, from the page cache."""
        file_sizes = {
            str(path.relative_to(partial)): path.stat().st_size for path in partial.rglob("*") if path.is_file()
        }
        with ThreadPoolExecutor(READERS) as pool:
            digests = submit_digests(pool, partial, file_sizes)
            sync_tree(partial)
            file_digests = {name: future.result() for name, future in digests.items()}
        state_content = json.loads(
            json.dumps({**content, "saved": time.time(), "files": file_sizes, "digests": file_digests})
        )
        digest = digest_state(state_content)
        write_atomically(partial / STATE, json.dumps({**state_content, OWN: digest}, indent=1) + "\n", sync=True)
        return digest

    def _publish_checkpoint(self, partial: Path, step: int) -> Path:
        """Rename the written folder to `step-N`, replacing an earlier checkpoint of the step."""
        path, replaced = self.folder / f"step-{step}", self.folder / f".step-{step}.replaced"
        if path.exists():
            os.replace(path, replaced)
        os.replace(partial, path)
        sync_folder(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)
        return path

    def outlived(self) -> list[Checkpoint]:
        """Return the checkpoints to remove: all except the newest `keep` and, with `keep_best`, the best."""
        best = self.best() if self._keep_best else None
        return [checkpoint for checkpoint in self.all()[: -self._keep] if best is None or checkpoint.step != best.step]

    def _remove_checkpoints(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Delete checkpoints. Each is renamed first, so that no reader finds a half-deleted one."""
        for checkpoint in checkpoints:
            pruned_path = self.folder / f".{checkpoint.path.name}.pruned"
            os.replace(checkpoint.path, pruned_path)
            shutil.rmtree(pruned_path)


def _no_sound_checkpoint_error(damaged: dict[Path, str]) -> UserError:
    """Return the error for a run whose checkpoints are all damaged.

    Args:
        damaged: The reason by folder.
    """
    damage_list = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
    return UserError(
        f"No undamaged checkpoint is left to resume from: {damage_list}.",
        where=", ".join(map(str, damaged)),
        expected="a checkpoint with unchanged files",
        do=f"restore the folder from a copy; or pass an earlier checkpoint with --resume FOLDER; or {FRESH_ADVICE}",
    )


def checkpoints_of(folder: Path) -> Checkpoints:
    """Return the checkpoints of the run in `folder`, in the place that its recorded settings name.

    `trainer_common.checkpoint_base_dir` may lie outside; without such a folder the checkpoints are in the run's folder.
    """
    from ajet.config import read_recorded_tree

    file = folder / "resolved.yaml"
    value: Any = read_recorded_tree(file) if os.path.lexists(file) else {}
    for name in ("ajet", "trainer_common", "checkpoint_base_dir"):
        value = value.get(name) if isinstance(value, dict) else None
    configured = checkpoints_folder(folder, value if isinstance(value, str) else None)
    return Checkpoints(configured if configured.is_dir() else checkpoints_folder(folder, None))
