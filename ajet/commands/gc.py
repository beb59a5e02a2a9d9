"""`ajet gc RUN`: lists or removes files of a run that its retention bounds allow to remove.

Invariants: a run in progress is not changed (its lock); it applies its own bounds when saving. Without `yes` no file is
removed. `ajet.record.retention` decides which files may go, including orphaned data in the run's store.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ajet.record.chain import Chain, chain_key
from ajet.record.checkpoints import Checkpoints, checkpoints_folder
from ajet.record.find_run import require_run
from ajet.record.lock import RunLock
from ajet.record.retention import KINDS, FilesToRemove, RetentionBounds, find_files_to_remove, remove_files
from ajet.record.run_directory import CONFIG
from ajet.schema.errors import UserError
from ajet.store.opening import find_store_leftovers

STORE = "store"
"""Kind of data left in a database by killed writes."""


@dataclass(frozen=True, slots=True)
class RemovableFiles:
    """The files of a run that can be removed, or were removed, with their sizes by kind."""

    run: Path
    found: FilesToRemove
    bounds: RetentionBounds
    checkpoints: int
    """Number of newest checkpoints to retain."""
    sizes: dict[str, tuple[int, int]]
    """Number of files or folders, and bytes, by kind."""
    done: bool
    store_problem: str = ""
    """Reason why the store could not be checked, or "" after a successful check."""

    def to_json(self) -> dict[str, object]:
        """Return the result as JSON values, for `ajet gc --json`."""
        kinds = {kind: {"count": count, "bytes": size} for kind, (count, size) in self.sizes.items()}
        paths = {kind: [str(path) for path in self.found.paths[kind]] for kind in KINDS}
        return {"run": str(self.run), "done": self.done, "kinds": kinds, "paths": paths, "unasked": self.store_problem}

    @property
    def is_nonempty(self) -> bool:
        """True if the listing found files to remove, or files were removed."""
        return any(count for count, _ in self.sizes.values())


def collect_removable_files(
    run: str,
    root: Path,
    *,
    episodes: int | None = None,
    arrays: int | None = None,
    checkpoints: int | None = None,
    yes: bool = False,
) -> RemovableFiles:
    """List the files of a run beyond the retention limits, and remove them if `yes`.

    Args:
        run: Name or folder of the run.
        root: Folder of all runs.
        episodes: Number of newest steps whose episodes stay. None: the run's setting.
        arrays: Number of newest steps whose token arrays stay. None: the run's setting.
        checkpoints: Number of newest checkpoints that stay. None: the run's setting.
        yes: True to remove the files.

    Raises:
        UserError: The run is live, or has no chain to record the removal.
    """
    from ajet.config import load_recorded_experiment
    from ajet.config.dotenv import load_project_dotenv

    folder = require_run(run, root, holding="run.json", expected="the folder of a training run").absolute()
    load_project_dotenv(record=folder)
    trainer = load_recorded_experiment(folder / CONFIG).ajet.trainer_common
    bounds = RetentionBounds(
        trainer.keep_episodes if episodes is None else episodes, trainer.keep_arrays if arrays is None else arrays
    )
    checkpoint_limit = trainer.max_checkpoints_to_keep if checkpoints is None else checkpoints
    run_checkpoints = Checkpoints(
        checkpoints_folder(folder, trainer.checkpoint_base_dir), keep=checkpoint_limit, keep_best=trainer.keep_best
    )
    lock = RunLock(folder)
    if (holder := lock.take()) is not None:
        raise UserError(
            f"The run is in progress: {holder} is writing to its folder.",
            where=str(folder),
            do="wait until it ends, or stop it; a running run applies trainer_common.keep_episodes and "
            "keep_arrays itself",
        )
    try:
        removable = find_files_to_remove(folder, run_checkpoints, bounds, by_hand=True)
        sizes = {kind: (len(removable.paths[kind]), removable.size(kind)) for kind in KINDS}
        if yes and removable:
            chain = Chain(folder, key=chain_key())
            if not chain.has_links:
                raise UserError(
                    "The run has no chain file, in which the removal would be recorded.",
                    where=str(folder),
                    do="resume the run once with this version of ajet, which creates the file",
                )
            latest = run_checkpoints.latest()
            remove_files(folder, chain, removable, step=latest.step if latest else 0, why="ajet gc")
        leftovers = find_store_leftovers(folder, remove=yes)
    finally:
        lock.release()
    sizes[STORE] = leftovers.count, leftovers.size
    return RemovableFiles(
        folder,
        removable,
        bounds,
        checkpoint_limit,
        sizes,
        yes and bool(removable or leftovers.count),
        leftovers.why_not,
    )
