"""Chooses and locks the folder of a run, and decides from which checkpoint the run continues.

Invariant: data of an earlier run is never removed or overwritten without a request. An earlier run continues with its
own settings, is archived under another name, or makes the start fail; only a run without any result (such as one with
wrong data) takes new settings.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.code_digests import digest_code, digest_judge
from ajet.record.archived_run import MARK_FILE, ArchivedRun
from ajet.record.chain import FILE as CHAIN_FILE
from ajet.record.chain import Chain, chain_key, has_saved_checkpoint
from ajet.record.chain_starts import SETTLED
from ajet.record.checkpoint import Checkpoint, verify_checkpoint
from ajet.record.checkpoints import Checkpoints, checkpoints_folder, checkpoints_of
from ajet.record.lock import FILE as LOCK_FILE
from ajet.record.lock import GUARD, RunLock
from ajet.record.logs import log_name
from ajet.record.plain_json import dumps
from ajet.record.resume import (
    RunIdentity,
    refuse_changed_code,
    refuse_changed_settings,
    refuse_other_project,
    yaml_path_of,
)
from ajet.record.secrets import SHAPES_ONLY, Redactor
from ajet.record.status import read_status
from ajet.schema.commands import FRESH_ADVICE
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment

START_FILES = {*SETTLED, CHAIN_FILE, LOCK_FILE, GUARD, MARK_FILE, "command", "status.json", "logs", "services"}
"""Files that a start writes before it loads anything. A folder with only these files has no data of a run."""
OTHER_RUN_FOLDERS = {"debug", "eval", "prompt", "serve"}
"""Folders of untrained runs of the same name."""


class RunPlace:
    """A run's folder with its lock, and the decision from which checkpoint the run continues."""

    def __init__(self, folder: Path, name: str, lock: RunLock | None) -> None:
        """Args:
        folder: The run's folder.
        name: Its path below the folder of all runs.
        lock: The taken lock of the folder. None: the kind of run needs no lock.
        """
        self.folder = folder
        self.name = name
        self.lock = lock
        self.notes: list[str] = []
        self.resumed: Checkpoint | None = None
        self.run_id = uuid.uuid4().hex
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.chain: Chain | None = None
        """Chain of a training run."""
        self._archived_run: ArchivedRun | None = None
        """The replaced run, until this run has a result."""
        self._restored_moves: list[tuple[Path, Path]] = []
        """(current path, restored path) of restored folders."""
        self.is_new_folder = False
        """True if the folder held no run of this name before this start."""
        self.judge = ""  # `digest_judge` of a training run
        self.judge_change: int | None = None
        """Resumed step, if earlier records were scored by another judge."""

    @classmethod
    def create_folder(cls, root: Path, name: str, kind: str) -> RunPlace:
        """Create a folder named by the time for a run that does not train, and lock it for an evaluation.

        Args:
            root: Folder of all runs.
            name: Name of the experiment.
            kind: debug, eval, prompt or serve: the subfolder of the experiment's folder.
        """
        timestamp = time.strftime("%Y%m%d-%H%M%S")
        number = 1
        while True:
            folder = root / name / kind / (timestamp if number == 1 else f"{timestamp}-{number}")
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                number += 1
                continue
            lock = RunLock(folder) if kind == "eval" else None  # runs of other kinds are never resumed
            if lock is not None:
                lock.take()
            return cls(folder, str(folder.relative_to(root)), lock)

    @classmethod
    def reopen_evaluation(cls, folder: Path, root: Path) -> RunPlace:
        """Lock the folder of an unfinished evaluation to continue it.

        Raises:
            UserError: Another process holds the folder.
        """
        lock = RunLock(folder)
        if (holder := lock.take()) is not None:
            raise UserError(
                f"{holder} is running this evaluation already.",
                where=str(folder),
                do="wait until it ends; or run the evaluation again in a new folder with --fresh",
            )
        run_place = cls(folder, str(folder.relative_to(root)), lock)
        run_place.run_id = str((read_status(folder) or {}).get("run_id", run_place.run_id))
        return run_place

    @classmethod
    def lock_folder(cls, root: Path, name: str) -> RunPlace:
        """Lock the folder of the experiment, or NAME-2, NAME-3 and so on if a live run holds it.

        Args:
            root: Folder of all runs.
            name: Name of the experiment.
        """
        number = 1
        holders: list[str] = []
        while True:
            folder_name = name if number == 1 else f"{name}-{number}"
            lock = RunLock(root / folder_name)
            is_new = not lock.folder.exists() or {path.name for path in lock.folder.iterdir()} <= OTHER_RUN_FOLDERS | {
                GUARD
            }
            holder = lock.take()
            if holder is None:
                run_place = cls(root / folder_name, folder_name, lock)
                run_place.is_new_folder = is_new
                if holders:
                    run_place.notes.append(
                        f"{', '.join(holders)}; this run writes to {folder_name} (if the other run has ended, delete "
                        f"its {LOCK_FILE})"
                    )
                return run_place
            holders.append(f"{holder} is writing to {folder_name}")
            number += 1

    def prepare_run(self, experiment: Experiment, root: Path, resume: str, redact: Redactor) -> Experiment:
        """Decide whether the run in the folder is continued, replaced or refused, and write the identity of this run.

        Args:
            experiment: The present configuration.
            root: Folder of all runs.
            resume: "auto", "never", or the folder of a checkpoint or run.
            redact: Removes secrets from the recorded settings.

        Returns:
            The experiment. For a continued run, keys that the YAML does not set have the defaults of the run's start.

        Raises:
            UserError: The run cannot be continued; the message says why and what to do.
        """
        backbone, set_keys = experiment.ajet.backbone, experiment.list_set_keys()
        training_settings = _without_secrets(experiment.list_training_settings(), redact)
        self._restore_archived_run()
        # A start that was killed as it wrote a file left a partial copy. Only the lock's holder writes these files.
        for name in START_FILES:
            for partial in self.folder.glob(f".{name}.*.aside"):
                partial.unlink()
        self._open_checkpoints(experiment)
        earlier = self._read_earlier_run(anew=resume == "never")
        differences = earlier.differences(backbone, training_settings) if earlier else []
        old_defaults = earlier.defaults(differences, set_keys) if earlier and resume != "never" else {}
        differences = [row for row in differences if row[0] not in old_defaults]
        base = earlier.base if earlier and not self._is_unused() else None
        code_digests, yaml = digest_code(experiment), yaml_path_of(experiment, self.folder)
        changed_files = earlier.changed_code(code_digests) if earlier and self.checkpoints.all() else {}
        if resume == "auto":
            if earlier and not self._is_unused():
                self._require_own_project(earlier, yaml)
                if differences:
                    raise refuse_changed_settings(self.folder, differences)
            if earlier:
                self._refuse_moved_checkpoints()
            if changed_files:
                raise refuse_changed_code(self.folder, changed_files)
            self.resumed = self.checkpoints.sound()
            if self.resumed is None and earlier and has_saved_checkpoint(self.folder):
                self.notes.append(f"the checkpoints of {self.name} are missing: a new run starts")
                self._archive_run()
                earlier = None
            if self.resumed is None and base is not None:
                self.resumed = self._read_base_checkpoint(root / base)
        elif resume == "never":
            if earlier:
                self._archive_run()
                earlier = None
            base = None
        else:
            checkpoint = self._find_checkpoint(resume, root)
            sound_steps = [saved.step for saved in self.checkpoints.all() if saved.path not in self.checkpoints.damaged]
            is_own = checkpoint.path.parent.resolve() == self.checkpoints.folder.resolve()
            if is_own and checkpoint.step == max(sound_steps):
                self.resumed = checkpoint
                if changed_names := [*(key for key, _, _ in differences), *changed_files]:
                    self.notes.append(
                        f"continuing {self.name} after step {checkpoint.step} with changed {', '.join(changed_names)}"
                    )
            else:
                if earlier:
                    checkpoint = self._archive_run_except(checkpoint)
                    earlier = None
                self.resumed, base = checkpoint, _path_below(root, checkpoint.path.absolute())
                self.notes.append(f"{self.name} starts from {checkpoint.path} (step {checkpoint.step})")
        for path, reason in self.checkpoints.damaged.items():
            after = f"after step {self.resumed.step}" if self.resumed else "anew"
            self.notes.append(f"the checkpoint {path} is damaged ({reason}): the run resumes {after}")
        if earlier and differences and self._is_unused():
            self.run_id, earlier = earlier.run_id, None
        changes: list[dict[str, Any]] = []
        if earlier:
            self.run_id = earlier.run_id
            set_keys = sorted({*earlier.given, *(key for key, _, _ in differences)})
            experiment = self._apply_old_defaults(experiment, old_defaults)
            training_settings |= old_defaults
            yaml = yaml or earlier.yaml
        self.judge = digest_judge(experiment, code_digests)
        if earlier and self.resumed is not None:
            changes = self._all_changes(earlier, changed_files, [key for key, _, _ in differences])
            rejudged = [change["step"] for change in changes if change["judge"]]
            self.judge_change = self.resumed.step if self.resumed.step in rejudged else None
        self.chain = Chain(self.folder, key=chain_key())
        folder_path, judge = str(self.folder.absolute()), self.judge
        RunIdentity(
            self.run_id, backbone, training_settings, set_keys, base, yaml, folder_path, code_digests, judge, changes
        ).write(self.folder)
        return experiment

    def _all_changes(
        self, earlier: RunIdentity, changed: Mapping[str, list[str]], settings: list[str]
    ) -> list[dict[str, Any]]:
        """Return the recorded changes of code, settings and judge between starts, with those of this start appended.

        Args:
            earlier: Identity of the run at its last start.
            changed: Files whose content changed, each with the keys that name it.
            settings: Keys whose value changed.
        """
        assert self.resumed is not None, "only a run resumed from a checkpoint gets here"
        step, is_rejudged = self.resumed.step, bool(earlier.judge) and earlier.judge != self.judge
        if is_rejudged:
            self.notes.append(
                f"the judge of {self.name} changed after step {step}: held-out numbers before and after cannot "
                "be compared"
            )
        if not changed and not settings and not is_rejudged:
            return earlier.changes
        return [*earlier.changes, {"step": step, "files": changed, "settings": settings, "judge": is_rejudged}]

    def _require_own_project(self, earlier: RunIdentity, yaml: str | None) -> None:
        """Raise UserError if the run in the folder belongs to a YAML of another project, which still exists.

        A moved project is accepted, with a notice.

        Args:
            earlier: Identity of the run at its last start.
            yaml: Path of the present YAML.
        """
        if yaml is None or earlier.yaml is None or not earlier.is_of_other_yaml(yaml, self.folder):
            return
        if Path(earlier.yaml).exists():
            raise refuse_other_project(self.folder, earlier.yaml, yaml)
        self.notes.append(
            f"the YAML {earlier.yaml} of the run {self.name} does not exist any more: the run continues with {yaml}"
        )

    def _read_base_checkpoint(self, path: Path) -> Checkpoint:
        """Return the checkpoint of another run from which this one started, because it has none of its own yet.

        Raises:
            UserError: That checkpoint is missing or damaged.
        """
        checkpoint = verify_checkpoint(path)
        if isinstance(checkpoint, str):
            raise UserError(
                f"The run {self.name} has saved no checkpoint yet, and the one that it started from cannot be used: "
                f"{checkpoint}.",
                where=str(path),
                expected="that checkpoint, to start from it again",
                do=f"restore the checkpoint there; or pass another with --resume FOLDER; or {FRESH_ADVICE}",
            )
        self.notes.append(f"{self.name} has saved no checkpoint: it starts again from {path} (step {checkpoint.step})")
        return checkpoint

    def _is_unused(self) -> bool:
        """Return True if no start in this folder has played, scored or saved anything."""
        return self._holds_only(START_FILES | OTHER_RUN_FOLDERS) and not self.checkpoints.all()

    def _holds_only(self, names: Collection[str]) -> bool:
        """True if the folder is missing or contains no entries other than `names`."""
        return not self.folder.exists() or {path.name for path in self.folder.iterdir()} <= {*names}

    def _apply_old_defaults(self, experiment: Experiment, old_defaults: Mapping[str, Any]) -> Experiment:
        """Return the experiment with the given defaults of the run's start, and add a notice for each.

        Raises:
            UserError: This version of ajet does not accept such a value any more.
        """
        for key, value in old_defaults.items():
            self.notes.append(
                f"{key} stays {json.dumps(value)}: the YAML does not set it, and this was the default when the "
                "run started"
            )
        try:
            return experiment.replace_defaults(old_defaults)
        except ValueError as error:
            raise UserError(
                f"The run in {self.folder} started with a default value that this version of ajet does not "
                f"accept: {error}",
                where=str(self.folder),
                do=f"set the key in the YAML; or {FRESH_ADVICE}",
            ) from error

    def _read_earlier_run(self, *, anew: bool) -> RunIdentity | None:
        """Return the identity of the run in the folder, or None without a run.

        Args:
            anew: True if a new run is requested: for a damaged identity, an empty one is returned instead of an error.
        """
        try:
            return RunIdentity.read(self.folder)
        except UserError:
            if not anew:
                raise
            return RunIdentity("", "", {})

    def release_lock(self) -> None:
        """Release the lock of the folder."""
        if self.lock is not None:
            self.lock.release()

    def _open_checkpoints(self, experiment: Experiment) -> None:
        """Open the configured checkpoint folder, and clean up after an interrupted save."""
        trainer = experiment.ajet.trainer_common
        folder = checkpoints_folder(self.folder, trainer.checkpoint_base_dir)
        self.checkpoints = Checkpoints(folder, keep=trainer.max_checkpoints_to_keep, keep_best=trainer.keep_best)
        self.checkpoints.clean()

    def _find_checkpoint(self, resume: str, root: Path) -> Checkpoint:
        """Return the checkpoint that the option --resume names.

        Args:
            resume: Folder of a checkpoint or of a run, relative to the working directory or to `root`. It may be a path
                from before this start restored an archived run.
            root: Folder of all runs.
        """
        path = Path(resume)
        for named_path in (path, root / path):
            for old_path, new_path in self._restored_moves:
                if named_path.absolute().is_relative_to(old_path):
                    return self.checkpoints.at(new_path / named_path.absolute().relative_to(old_path))
        existing = path if path.exists() or not (root / path).exists() else root / path
        # The run's checkpoints are in another folder.
        if (existing / "resolved.yaml").exists() and not (existing / "checkpoints").exists():
            existing = checkpoints_of(existing).folder
        return self.checkpoints.at(existing)

    def _refuse_moved_checkpoints(self) -> None:
        """Raise UserError if the configured checkpoint folder differs from that of the last start.

        The run would otherwise begin anew over existing records.
        """
        last_checkpoints, checkpoints = checkpoints_of(self.folder), self.checkpoints.folder
        if last_checkpoints.folder.resolve() != checkpoints.resolve() and last_checkpoints.all():
            raise UserError(
                f"The checkpoints of {self.name} are in {last_checkpoints.folder}, but this command looks for them in "
                f"{checkpoints}.",
                where="ajet.trainer_common.checkpoint_base_dir",
                expected="the same folder as before",
                do=f"set the key as before; or move that folder to {checkpoints}; or {FRESH_ADVICE}",
            )

    def _archive_run_except(self, chosen: Checkpoint) -> Checkpoint:
        """Archive the run, and return the checkpoint `chosen`, at its new path if it was in an archived folder."""
        path = chosen.path.resolve()
        resolved_paths = {folder: folder.resolve() for folder in (self.folder, *self._checkpoint_folders())}
        for old_path, new_path in self._archive_run().moves:
            if (
                path.is_relative_to(resolved_paths[old_path])
                and (new_path / path.relative_to(resolved_paths[old_path])).exists()
            ):
                return self.checkpoints.at(new_path / path.relative_to(resolved_paths[old_path]))
        return chosen

    def _checkpoint_folders(self) -> list[Path]:
        """Return the checkpoint folders of the present configuration and of the last start."""
        try:
            return [self.checkpoints.folder, checkpoints_of(self.folder).folder]
        except UserError:  # a damaged record can still be archived
            return [self.checkpoints.folder]

    def _archive_run(self) -> ArchivedRun:
        """Rename the run's folder to EXPERIMENT.old-N and lock a new, empty one. Return the archived run."""
        self._archived_run = archived = ArchivedRun.archive_run(self.folder, self._checkpoint_folders())
        (archived.old / LOCK_FILE).unlink(missing_ok=True)
        if self.lock is not None:
            self.lock.release()
        self.lock = RunLock(self.folder)
        if (holder := self.lock.take()) is not None:
            raise self._race_error(holder)
        self.notes.append(f"the folder of the earlier run of {self.name} was kept as {archived.old.name}")
        return archived

    def _restore_archived_run(self) -> None:
        """Restore the earlier run if the start that archived it was killed before it had any result.

        The kill may have come between two renames. If other data occupies the original path, the archive stays, with a
        notice.
        """
        (self.folder / MARK_FILE).unlink(missing_ok=True)  # a start killed before its first rename left the file
        if (archived := ArchivedRun.find_archived(self.folder)) is None:
            return
        if not (self._holds_only(START_FILES) and archived.is_restorable):
            self._archived_run = archived
            self.notes.append(f"the folder of the earlier run of {self.name} was kept as {archived.old.name}")
            return
        earlier_run_lock, ended_path = RunLock(archived.old), None
        if (holder := earlier_run_lock.take()) is not None:
            raise self._race_error(holder)
        # The killed start's own folder makes room: it stays under another name if it has a log to read, else it goes.
        if (self.folder / "logs").exists() and (read_status(self.folder) or {}).get("outcome") != "interrupted":
            ended_path = archived.next_ended_path()
        try:
            archived.restore_run(ended_path)
        except OSError:
            earlier_run_lock.release()
            raise self._race_error("another start") from None
        earlier_run_lock.moved(self.folder)
        if self.lock is not None:
            self.lock.moved(ended_path or archived.removal_path)
            self.lock.release()
        # If this start fails as well, the moves back into the archive are made once more.
        self.lock = earlier_run_lock
        self._restored_moves = [(archived_path, path) for path, archived_path in archived.moves]
        self.notes.append(
            f"the new run of {self.name} ended before it had a result, so the earlier run was restored: "
            f"{archived.old.name} is {self.name} again"
            + (f", and the log of the new run is in {ended_path.name}" if ended_path else "")
        )

    def _race_error(self, holder: object) -> UserError:
        """Return the error for a folder that another process took between two steps of this start."""
        return UserError(
            f"{holder} started to write to {self.folder} at the same moment.",
            where=str(self.folder),
            do="start the same command again: the new run will get a separate folder",
        )

    def confirm_start(self) -> None:
        """Note that this run has a result, so that the archived earlier run keeps its new name."""
        if self._archived_run is not None:
            self._archived_run.remove_mark()

    def remove_unused_folder(self) -> None:
        """Remove the files of a start without a result.

        The folder stays if another run holds it, or if other programs left logs.
        """
        if (
            not self.is_new_folder
            or self._archived_run is not None
            or not self._holds_only((START_FILES | OTHER_RUN_FOLDERS) - {"services"})
        ):
            return
        if any(path.name != log_name(self.folder, "trainer") for path in (self.folder / "logs").glob("*")):
            return
        lock = RunLock(self.folder)
        if lock.take() is not None:
            return
        try:
            if str((read_status(self.folder) or {}).get("run_id")) != self.run_id:
                return
            for path in self.folder.iterdir():
                if path.name in OTHER_RUN_FOLDERS | {LOCK_FILE, GUARD}:
                    continue
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if self._holds_only({LOCK_FILE, GUARD}):
                trash = self.folder.with_name(f".{self.folder.name}.gone")
                os.replace(self.folder, trash)
                lock.moved(trash)
                shutil.rmtree(trash, ignore_errors=True)
                self.folder.parent.rmdir()
        except (OSError, UserError):  # it is listed as one that failed
            pass
        finally:
            lock.release()

    def restore_archived_run(self) -> str | None:
        """Undo the archiving of this start if the run has no result. Return the name that the archive had.

        Returns:
            None if nothing is restored: without an archived run, with further files in the folder, or if another
                process holds the folder.
        """
        archived = self._archived_run
        if (
            archived is None
            or not self._holds_only(START_FILES)
            or self.checkpoints.all()
            or not archived.is_restorable
        ):
            return None
        lock = RunLock(self.folder)
        if lock.take() is not None:
            return None
        try:
            archived.restore_run()
        except OSError:  # another start created the folder again: the earlier run stays in the archive
            return None
        finally:
            lock.moved(archived.removal_path)
            lock.release()
        return archived.old.name


def _path_below(root: Path, path: Path) -> str:
    """Return the path relative to `root` if it lies inside, so that all runs can be moved together, else unchanged."""
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def _without_secrets(training: dict[str, Any], redact: Redactor) -> dict[str, Any]:
    """Return the settings as JSON values without secrets.

    Under ajet's own keys a value is redacted only if its key or its form looks like a secret. Equality with an
    environment variable is not enough, because e.g. LICENSE_KEY may hold the name of the model.
    """
    plain_settings = json.loads(dumps(training))
    return {
        key: redact.tree(value) if not key.startswith("ajet.") else SHAPES_ONLY.tree(value)
        for key, value in plain_settings.items()
    }
