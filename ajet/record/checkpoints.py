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
    home = base == "~" or base.startswith("~/")  # ~USER raises for an unknown user
    return (Path(base).expanduser() if home else Path(base)).absolute() / run.name


ROOM = "one checkpoint more than trainer_common.max_checkpoints_to_keep, and the record"
"""Free disk space needed by a run, for the error of a full disk."""


class Checkpoints:
    """The checkpoints of one run. Only the lock holder may call `save` and `clean`."""

    def __init__(self, folder: Path, *, keep: int = 2, keep_best: bool = True) -> None:
        self.folder = folder
        self._keep, self._keep_best = max(1, keep), keep_best
        self.damaged: dict[Path, str] = {}
        """Damaged folders skipped by `sound` or `at`, with the reason."""
        self.chain: Chain | None = None
        """Chain linked with each saved checkpoint; the checkpoint stores the chain's head."""

    def all(self) -> list[Checkpoint]:
        """Return the checkpoints on disk, by step."""
        checkpoints = [read_checkpoint(path) for path in self._step_folders()]
        return sorted((checkpoint for checkpoint in checkpoints if checkpoint), key=lambda checkpoint: checkpoint.step)

    def latest(self) -> Checkpoint | None:
        """Return the checkpoint of the highest step."""
        return next(reversed(self.all()), None)

    @property
    def horizon(self) -> int:
        """Step of the oldest checkpoint from which the run may continue if newer ones are damaged. -1 without
        checkpoints.
        """
        return next((checkpoint.step for checkpoint in self.all()[-self._keep :]), -1)

    def require_whole(self, *, above: int = -1) -> None:
        """Raise UserError if a checkpoint is incomplete, so that a reader does not skip it unnoticed.

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
        """Rename damaged checkpoints, so that they are not used as checkpoints."""
        for path in self.damaged:
            number = 1
            while (renamed := path.with_name(f"{path.name}.damaged-{number}")).exists():
                number += 1
            os.replace(path, renamed)
        self.damaged.clear()

    def best(self) -> Checkpoint | None:
        """Return the best measured checkpoint, or None without a measurement.

        A later checkpoint replaces an earlier one only if the improvement exceeds noise. Only measurements of the last
        judge are compared.
        """
        best: Checkpoint | None = None
        measured = [checkpoint for checkpoint in self.all() if checkpoint.score is not None]
        for checkpoint in measured:
            if checkpoint.judge == measured[-1].judge and (best is None or checkpoint.better_than(best)):
                best = checkpoint
        return best

    def at(self, path: Path) -> Checkpoint:
        """Return the checkpoint in `path`, or the latest sound one of the run folder `path`.

        Raises:
            UserError: no checkpoint is found, or the named checkpoint is damaged.
        """
        checkpoint = verify_checkpoint(path) if NAME.fullmatch(path.name) or (path / STATE).exists() else None
        if isinstance(checkpoint, str):
            raise _no_sound_checkpoint_error({path: checkpoint})
        for folder in (path / "checkpoints", path):
            if checkpoint is None:
                those = Checkpoints(folder)
                checkpoint = those.sound()
                if folder.resolve() == self.folder.resolve():
                    self.damaged |= {self.folder / damaged.name: reason for damaged, reason in those.damaged.items()}
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
        """Let `write` fill an empty folder, make the folder the checkpoint of `step`, then prune.

        Args:
            measured: validation of the saved weights.

        Raises:
            UserError: the disk is full, whatever error `write` raised; earlier checkpoints are unchanged.
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
        on = ", which resumes from the last complete checkpoint" if latest else ""
        try:
            with files.explain_write_errors(
                f"the checkpoint of step {step}", self.folder, intact=intact, room=ROOM, other_folder="", then=on
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
        outlived = self.outlived()
        if self.chain is not None:
            staying = {
                str(checkpoint.step): checkpoint.digest for checkpoint in self.all() if checkpoint not in outlived
            }
            self.chain.commit("checkpoint", step, checkpoint=staying[str(step)], kept=staying)
        self._remove_checkpoints(outlived)
        return path

    def clean(self) -> None:
        """Clean up after an interrupted `save`: restore replaced checkpoints, remove partial ones."""
        for path in self._list_matching(".step-*.replaced"):
            target = self.folder / path.name[1:].removesuffix(".replaced")
            if target.exists():
                shutil.rmtree(path)
            else:
                os.replace(path, target)
        for path in [*self._list_matching(".step-*.partial"), *self._list_matching(".step-*.pruned")]:
            shutil.rmtree(path)

    def _step_folders(self) -> list[Path]:
        return [path for path in self._list_matching("step-*") if NAME.fullmatch(path.name)]

    def _list_matching(self, pattern: str) -> list[Path]:
        return [self.folder / name for name in list_record_folder(self.folder) if fnmatch(name, pattern)]

    def _write_state(self, partial: Path, content: dict[str, Any]) -> str:
        """Write `state.json` and return its digest. Files are digested during the sync, from the page cache."""
        files = {str(path.relative_to(partial)): path.stat().st_size for path in partial.rglob("*") if path.is_file()}
        with ThreadPoolExecutor(READERS) as pool:
            digests = submit_digests(pool, partial, files)
            sync_tree(partial)
            file_digests = {name: future.result() for name, future in digests.items()}
        complete = json.loads(json.dumps({**content, "saved": time.time(), "files": files, "digests": file_digests}))
        digest = digest_state(complete)
        write_atomically(partial / STATE, json.dumps({**complete, OWN: digest}, indent=1) + "\n", sync=True)
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
        """Return the checkpoints to remove: all but the newest few and the best."""
        best = self.best() if self._keep_best else None
        return [checkpoint for checkpoint in self.all()[: -self._keep] if best is None or checkpoint.step != best.step]

    def _remove_checkpoints(self, checkpoints: Iterable[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            going = self.folder / f".{checkpoint.path.name}.pruned"
            os.replace(checkpoint.path, going)
            shutil.rmtree(going)


def _no_sound_checkpoint_error(damaged: dict[Path, str]) -> UserError:
    rows = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
    return UserError(
        f"No undamaged checkpoint is left to resume from: {rows}.",
        where=", ".join(map(str, damaged)),
        expected="a checkpoint with unchanged files",
        do=f"restore the folder from a copy; or pass an earlier checkpoint with --resume FOLDER; or {FRESH_ADVICE}",
    )


def checkpoints_of(folder: Path) -> Checkpoints:
    """Return the checkpoints of the run in `folder`, also from the place that `checkpoint_base_dir` names."""
    from ajet.config import read_recorded_tree

    file = folder / "resolved.yaml"
    value: Any = read_recorded_tree(file) if os.path.lexists(file) else {}
    for name in ("ajet", "trainer_common", "checkpoint_base_dir"):
        value = value.get(name) if isinstance(value, dict) else None
    configured = checkpoints_folder(folder, value if isinstance(value, str) else None)
    return Checkpoints(configured if configured.is_dir() else checkpoints_folder(folder, None))
