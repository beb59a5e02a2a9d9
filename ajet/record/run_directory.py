"""launcher_record/EXPERIMENT/: the folder of one run and its single writer.

Invariant: one live process writes a folder (the lock). A folder continues a run or starts a new one by DESIGN decision
11. Records after the resumed step stay until the checkpoint is loaded (`take_up`), and are removed before new records
are written. User text and environment pass the redactor before writing.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import psutil
from loguru import logger

from ajet.config.record_file import open_record_file
from ajet.config.resolution import HIDDEN, is_secret_name
from ajet.config.why import list_origins
from ajet.record import files
from ajet.record.chain_starts import resume_facts, start_facts
from ajet.record.checkpoint import Checkpoint
from ajet.record.episodes import EpisodeFiles
from ajet.record.files import read_rows, write_atomically
from ajet.record.lock import RunLock
from ajet.record.logs import LogFile, log_name
from ajet.record.metrics import Metrics
from ajet.record.processors import usable_cpus
from ajet.record.resume import RecoveryCounts
from ajet.record.retention import RetentionBounds, find_files_to_remove, remove_files
from ajet.record.run_place import RunPlace
from ajet.record.secrets import Redactor, literal_secrets
from ajet.record.status import StatusFile
from ajet.record.trackers import TrackedRun, open_trackers
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment

CONFIG = "resolved.yaml"
ORIGINS = "origins.json"
"""File with the source of each set key."""
Kind = Literal["train", "debug", "eval", "prompt", "serve"]


class RunDirectory:
    """An open run folder, created by `RunDirectory.open` and released by `close`."""

    path: Path
    name: str
    """The folder below the root: what `ajet stop` and `ajet chat` are given."""
    run_id: str
    resumed: Checkpoint | None
    """Checkpoint to continue from; None for a new run."""
    experiment: Experiment
    """Configuration of the run, with defaults of the run's start for unset keys."""
    redact: Redactor
    """Redactor for text written to the folder."""
    goes_on: bool
    """True if recorded attempts in the folder belong to this run; False for a fresh start without a checkpoint."""
    judge_change: int | None
    """Resumed step, if earlier records were scored by another judge."""
    notes: list[str]
    """Notices on the choice of the folder, already logged."""

    def __init__(self, experiment: Experiment, place: RunPlace, kind: Kind, redact: Redactor) -> None:
        """Open the files of a chosen and locked folder; use `RunDirectory.open`.

        Args:
            experiment: Configuration of the run.
            place: The folder with its lock, and the checkpoint to continue from.
            kind: What the run does.
            redact: Removes secrets from what is written.
        """
        self.path = place.folder
        self.name = place.name
        self.resumed = place.resumed
        self.notes = place.notes
        self.experiment = experiment
        self._run_place = place
        self._lock: RunLock | None = place.lock
        self.run_id = place.run_id
        self.redact = redact
        self._closed = self._taken_up = False
        self._own_folder = kind != "train"
        self.goes_on = self._own_folder or self.resumed is not None
        role = "trainer" if kind == "train" else kind
        self.log_file = LogFile(self.path / "logs" / log_name(self.path, role), redact)
        try:
            self._open_files(experiment, place, kind)
        except BaseException:
            self.log_file.close()
            raise

    def _open_files(self, experiment: Experiment, place: RunPlace, kind: Kind) -> None:
        """Open the files of the run's record, and write the link for the start of this process."""
        redact, trainer = self.redact, experiment.ajet.trainer_common
        self.status = StatusFile(self.path / "status.json", redact, run_id=self.run_id, name=self.name, kind=kind)
        self.episodes = EpisodeFiles(self.path / "episodes", redact)
        self.checkpoints = place.checkpoints
        self.chain = place.chain
        self.episodes.chain = self.checkpoints.chain = self.chain
        self.metrics = Metrics(self.path / "metrics.jsonl", redact, every=trainer.log_freq)
        self.metrics.chain = self.chain
        self.metrics.judge, self.judge_change = place.judge, place.judge_change
        self.episodes.on_written = self.metrics.track_episodes
        self._write_description(experiment, redact)
        self._retention = RetentionBounds(None, None)
        if self.chain is not None:
            self._retention = RetentionBounds(trainer.keep_episodes, trainer.keep_arrays)
            self._had_links = self.chain.has_links
            start_link = start_facts(self.path, self.run_id, experiment, self.resumed, self.checkpoints.folder)
            self.chain.commit("start", self.resumed.step if self.resumed else 0, **start_link)
        self._tracks_from_take_up = kind == "train"
        if kind == "eval":
            self._open_trackers(None)
        for note in self.notes:
            logger.warning(note)

    @classmethod
    def open(
        cls,
        experiment: Experiment,
        *,
        root: Path,
        kind: Kind = "train",
        resume: str = "auto",
        fresh: bool = False,
        again: Path | None = None,
    ) -> RunDirectory:
        """Find, lock and prepare the folder of a run.

        Args:
            root: Folder of all runs.
            kind: What the run does. All kinds except "train" get a new subfolder of the run's folder.
            resume: "auto" continues a run of the same configuration; "never" starts a new run; any other value is the
                folder of a checkpoint or run.
            fresh: True to start a new run, as with `resume` "never".
            again: Folder of an evaluation to continue (kind "eval").

        Raises:
            UserError: The folder's run had another configuration, or the checkpoint does not exist.
        """
        root = Path(root).absolute()
        redact = redactor_of(experiment)
        with files.explain_write_errors(
            files.RECORD, root, intact="the run was not started", other_folder=files.EXP_DIR
        ):
            if kind != "train":
                run_place = (
                    RunPlace.reopen_evaluation(again, root)
                    if again
                    else RunPlace.create_folder(root, experiment.name, kind)
                )
                try:
                    return cls(experiment, run_place, kind, redact)
                except BaseException:
                    run_place.release_lock()
                    if again is None:
                        _remove_own_folder(run_place.folder)
                    raise
            run_place = RunPlace.lock_folder(root, experiment.name)
            try:
                experiment = run_place.prepare_run(experiment, root, "never" if fresh else resume, redact)
                return cls(experiment, run_place, kind, redact)
            except BaseException:
                run_place.release_lock()
                raise

    def take_up(self) -> None:
        """Remove the records of steps after the resumed step, because the run plays these steps again.

        Called once the checkpoint is loaded and before a step is recorded, so that a start which fails earlier removes
        nothing.
        """
        if self._taken_up:
            return
        self._taken_up = True
        self._run_place.confirm_start()
        step = self.resumed.step if self.resumed else None
        with files.explain_write_errors("the record of the run", self.path, intact="its checkpoints are unchanged"):
            self._forget_later(step)

    def _forget_later(self, step: int | None) -> None:
        """Remove records of steps after `step` (None: all), rename damaged checkpoints, and open the trackers."""
        if self.chain is not None and self._had_links:
            after = -1 if step is None else step
            self.chain.commit("resume", after, **resume_facts(self.path, after))
        self.episodes.truncate(-1 if step is None else step)
        self.metrics.truncate(-1 if step is None else step)
        self.checkpoints.set_damaged_aside()
        if self._tracks_from_take_up:
            self._open_trackers(step)

    def _open_trackers(self, resumed_step: int | None) -> None:
        """Open the trackers that `trainer_common.logger` names.

        Args:
            resumed_step: Step to continue from. None: a new run.
        """
        config = self.experiment.ajet
        run = TrackedRun(config.project_name, self.name, self.run_id, self.path, resumed_step, self.redact)
        self.metrics.trackers.opened += open_trackers(config.trainer_common.logger, run, base=self.experiment.base)

    def retain(self) -> None:
        """Remove old episodes and arrays as `keep_episodes` and `keep_arrays` say, after a checkpoint was saved."""
        if self.chain is None or self._retention == RetentionBounds(None, None):
            return
        if removable := find_files_to_remove(self.path, self.checkpoints, self._retention):
            remove_files(self.path, self.chain, removable, step=self.status.get("step"), why="the run's own bounds")

    def recovery(self, begun: Iterable[int], left: Sequence[int] = (), *, dead: Iterable[int] = ()) -> str:
        """Return a text on the tasks of a resumed run: consumed, unfinished, skipped, doubled and given up.

        "" if the run to resume has no metrics file.

        Args:
            begun: Positions in the training order that are started and unfinished, by the store at the checkpoint.
            left: Finished positions without a metrics row.
            dead: Positions that the store leases no more after failures.
        """
        assert self.resumed is not None, "only a resumed run is recovered"
        is_own = self.resumed.path.parent.resolve() == self.checkpoints.folder.resolve()
        path = self.metrics.path if is_own else self.resumed.path.parents[1] / self.metrics.path.name
        rows = [*read_rows(path), {"discarded": left}]
        return f": {RecoveryCounts.of(rows, begun, step=self.resumed.step, dead=dead)}" if path.exists() else ""

    def close(self, outcome: str) -> None:
        """Record the outcome (finished, interrupted, failed) and release the folder. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.metrics.close(outcome)
        self._commit_end_link(outcome)
        self.status.set(phase=outcome, outcome=outcome, ended=time.time(), processes=[])
        self.log_file.close()
        if self._lock is not None:
            self._lock.release()

    def _commit_end_link(self, outcome: str) -> None:
        """Link records after the last metrics row, such as a server's, and the end of the process, in the chain.

        A start that did not load its run links no end, because unlinked data of a killed process may still be present.
        """
        if self.chain is None or not self._taken_up:
            return
        try:
            self.chain.commit_end(self.status.get("step"), outcome)
        except UserError as error:
            logger.warning("{}", error)

    def discard(self) -> None:
        """Close and remove the folder of a failed start, unless it holds results.

        A folder of debug, eval or serve is removed if it holds no episodes. A training's folder is removed if it holds
        only files of the start and no earlier run was continued in it. An earlier run that the start had archived gets
        its name back.
        """
        self.close("failed")
        if not self._own_folder:
            if (archived_name := self._run_place.restore_archived_run()) is not None:
                logger.warning("the run ended without a result, so {} is {} again", archived_name, self.name)
            if not self._taken_up:
                self._run_place.remove_unused_folder()
        elif not self.episodes.folder.exists():
            _remove_own_folder(self.path)

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.close("interrupted" if interrupted else "failed" if kind else "finished")

    def _write_description(self, experiment: Experiment, redact: Redactor) -> None:
        """Write the files that describe the run: YAML, resolved settings with their sources, command, environment."""
        write_atomically(self.path / "given.yaml", redact(experiment.yaml_text))
        write_atomically(self.path / CONFIG, experiment.dump_resolved(redact.interpolated))
        write_atomically(self.path / ORIGINS, json.dumps(redact.tree(list_origins(experiment)), indent=1) + "\n")
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        with open_record_file(self.path / "command", "ab") as file:
            file.write(redact(f"# {started} in {os.getcwd()}\n{_format_command(sys.argv)}\n").encode())
        folders = {Path(experiment.yaml_path).absolute().parent, Path(__file__).parent} if experiment.yaml_path else ()
        environment_text = json.dumps(redact.tree(environment(*folders)), indent=1, ensure_ascii=False)
        write_atomically(self.path / "environment.json", environment_text + "\n")


def _remove_own_folder(folder: Path) -> None:
    """Remove the folder of a start without results, and its two parent folders if they are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    for parent in folder.parents[:2]:
        with suppress(OSError):  # others' runs are in it
            parent.rmdir()


def redactor_of(experiment: Experiment) -> Redactor:
    """Return a redactor for all secrets in the configuration and in the environment variables."""
    tree = {"ajet": experiment.ajet.model_dump(), **experiment.sections, **experiment.backbone_overrides}
    return Redactor(literals=literal_secrets(tree))


def _format_command(arguments: Sequence[str]) -> str:
    """Return the command line without values of secret options, such as Ray's --redis-password."""
    words = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = equals and name.startswith("--") and is_secret_name(name)
        words.append(f"{name}={HIDDEN}" if secret else argument)
    return shlex.join(words)


RECORDED_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "PYTHONHASHSEED")
"""Environment variables in environment.json."""


def environment(*folders: Path) -> dict[str, Any]:
    """Return versions, machine, and the git commit of each of `folders`, for repeating a run.

    The result holds no secrets, and only environment variables that change numbers.
    """
    return {
        "python": sys.version,
        "executable": sys.executable,
        "platform": platform.platform(),
        "host": platform.node(),
        "cpu": {"model": _cpu_model(), "logical": os.cpu_count(), "usable": usable_cpus()},
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpu_names(),
        "variables": {name: os.environ[name] for name in RECORDED_VARIABLES if name in os.environ},
        "git": {str(folder): commit for folder in folders if (commit := git_commit(folder))},
        "packages": _installed_packages(),
    }


def git_commit(folder: Path) -> str | None:
    """Return the commit of the git repository around `folder`, or None outside a repository.

    "+changes" is appended if tracked files are modified.
    """
    head = _run_git(folder, "rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+changes" if _run_git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def _run_git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command in `folder`, or None if it fails or takes more than 5 seconds."""
    try:
        result = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _installed_packages() -> dict[str, str]:
    """Return the version of each installed package, sorted by name."""
    versions = dict(filter(None, (_name_and_version(package) for package in metadata.distributions())))
    return dict(sorted(versions.items(), key=lambda item: item[0].lower()))


def _name_and_version(package: metadata.Distribution) -> tuple[str, str] | None:
    """Return (name, version) from the head of a package's metadata, or None if either is missing.

    Parsing the complete metadata of all packages takes longer than a debug run.
    """
    head = (package.read_text("METADATA") or package.read_text("PKG-INFO") or "").partition("\n\n")[0]
    name, version = (re.search(rf"^{field}: *(\S+)", head, re.MULTILINE) for field in ("Name", "Version"))
    return (name[1], version[1]) if name and version else None


def _cpu_model() -> str:
    """Return the processor's model name, or its architecture if the system does not tell it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _gpu_names() -> list[str]:
    """Return GPU names from NVIDIA's driver, without importing torch."""
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text().splitlines()
        names += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model")]
    return names
