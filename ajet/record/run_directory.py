"""launcher_record/EXPERIMENT/: everything one run leaves behind, and who may write it.

Invariants: one live process writes a folder (the lock). A folder continues a run or starts one, as DESIGN decision 11
says. What an earlier process recorded after the step that the run continues from stays until that has been loaded
(`take_up`), and is gone before anything new is recorded. What it writes of the person's text and of the environment has
passed the redactor.
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
from ajet.record import write_errors
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
"""Of each key that somebody set, where."""
Kind = Literal["train", "debug", "eval", "serve"]


class RunDirectory:
    """An open run folder; made by `RunDirectory.open`, given back by `close`."""

    path: Path
    name: str
    """The folder below the root: what `ajet stop` and `ajet chat` are given."""
    run_id: str
    resumed: Checkpoint | None
    """What the run continues from; None: from nothing."""
    experiment: Experiment
    """What the run is made from: as given, but for defaults that an earlier version began it with."""
    redact: Redactor
    """What text must pass before it is written into the folder."""
    goes_on: bool
    """Whether what its folder has of attempts belongs to it: not where it begins anew, for want of a checkpoint."""
    judge_change: int | None
    """The step that the run continues from, if what an earlier process recorded of it is another judge's."""
    notes: list[str]
    """What the person should know about the choice of folder; logged already."""

    def __init__(self, experiment: Experiment, place: RunPlace, kind: Kind, redact: Redactor) -> None:
        self.path, self.name, self.resumed, self.notes = place.folder, place.name, place.resumed, place.notes
        self.experiment = experiment
        self._place = place
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
        self._bounds = RetentionBounds(None, None)
        if self.chain is not None:
            self._bounds = RetentionBounds(trainer.keep_episodes, trainer.keep_arrays)
            self._had_links = self.chain.has_links
            facts = start_facts(self.path, self.run_id, experiment, self.resumed, self.checkpoints.folder)
            self.chain.commit("start", self.resumed.step if self.resumed else 0, **facts)
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
        """Find, lock and prepare the folder.

        `again`: of the kind eval, the folder of an evaluation that goes on. `resume`: "auto" continues a run of the
        same configuration; "never", like `fresh`, starts anew; anything else is the folder of a checkpoint or run to
        continue from. Raises UserError when the folder's run had another configuration, or the named checkpoint does
        not exist.
        """
        root = Path(root).absolute()
        redact = redactor_of(experiment)
        with write_errors.explain_write_errors(
            write_errors.RECORD, root, intact="nothing was begun", other_folder=write_errors.EXP_DIR
        ):
            if kind != "train":
                place = (
                    RunPlace.reopen_evaluation(again, root)
                    if again
                    else RunPlace.create_folder(root, experiment.name, kind)
                )
                try:
                    return cls(experiment, place, kind, redact)
                except BaseException:
                    place.release_lock()
                    if again is None:
                        _remove_own_folder(place.folder)
                    raise
            place = RunPlace.lock_folder(root, experiment.name)
            try:
                experiment = place.prepare_run(experiment, root, "never" if fresh else resume, redact)
                return cls(experiment, place, kind, redact)
            except BaseException:
                place.release_lock()
                raise

    def take_up(self) -> None:
        """What the run continues from is loaded: forget what is recorded of later steps, as they are played again.
        Once; before anything is recorded of a step."""
        if self._taken_up:
            return
        self._taken_up = True
        self._place.confirm_start()
        step = self.resumed.step if self.resumed else None
        with write_errors.explain_write_errors(
            "the record of the run", self.path, intact="its checkpoints are as they were"
        ):
            self._forget_later(step)

    def _forget_later(self, step: int | None) -> None:
        if self.chain is not None and self._had_links:
            after = -1 if step is None else step
            self.chain.commit("resume", after, **resume_facts(self.path, after))
        self.episodes.truncate(-1 if step is None else step)
        self.metrics.truncate(-1 if step is None else step)
        self.checkpoints.set_damaged_aside()
        if self._tracks_from_take_up:
            self._open_trackers(step)

    def _open_trackers(self, resumed_step: int | None) -> None:
        config = self.experiment.ajet
        run = TrackedRun(config.project_name, self.name, self.run_id, self.path, resumed_step, self.redact)
        self.metrics.trackers.opened += open_trackers(config.trainer_common.logger, run, base=self.experiment.base)

    def retain(self) -> None:
        """A checkpoint was saved: let go of what lies beyond `keep_episodes` and `keep_arrays`."""
        if self.chain is None or self._bounds == RetentionBounds(None, None):
            return
        if found := find_files_to_remove(self.path, self.checkpoints, self._bounds):
            remove_files(self.path, self.chain, found, step=self.status.get("step"), why="the run's own bounds")

    def recovery(self, begun: Iterable[int], left: Sequence[int] = (), *, dead: Iterable[int] = ()) -> str:
        """What of the run that goes on is consumed, under way, skipped, doubled and given up, in words; "" where its
        rows of metrics are gone. `begun`, `dead`: as the store says it at the checkpoint; `left`: what is over and in
        no row."""
        assert self.resumed is not None, "it goes on from something"
        own = self.resumed.path.parent.resolve() == self.checkpoints.folder.resolve()
        path = self.metrics.path if own else self.resumed.path.parents[1] / self.metrics.path.name
        rows = [*read_rows(path), {"discarded": left}]
        return f": {RecoveryCounts.of(rows, begun, step=self.resumed.step, dead=dead)}" if path.exists() else ""

    def close(self, outcome: str) -> None:
        """Say how the run ended (finished, interrupted, failed) and give the folder back. Idempotent."""
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
        """Link what was recorded after the last row, as a server does at its end, and that nothing comes after it. A
        start that did not load its run does not say so: what a killed process left unlinked may still be there."""
        if self.chain is None or not self._taken_up:
            return
        try:
            self.chain.commit_end(self.status.get("step"), outcome)
        except UserError as error:
            logger.warning("{}", error)

    def discard(self) -> None:
        """Nothing came of it: a folder of its own (debug, eval, serve) goes if it has no episode, that of a training if
        it was not taken up and holds no more than a start writes; an earlier run that it took the place of is put
        back."""
        self.close("failed")
        if not self._own_folder:
            if (meanwhile := self._place.restore_archived_run()) is not None:
                logger.warning("nothing came of this run: {} is {} again", meanwhile, self.name)
            if not self._taken_up:
                self._place.remove_unused_folder()
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
        """The files that say what this run is."""
        write_atomically(self.path / "given.yaml", redact(experiment.yaml_text))
        write_atomically(self.path / CONFIG, experiment.dump_resolved(redact.interpolated))
        write_atomically(self.path / ORIGINS, json.dumps(redact.tree(list_origins(experiment)), indent=1) + "\n")
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        with open_record_file(self.path / "command", "ab") as file:
            file.write(redact(f"# {started} in {os.getcwd()}\n{_format_command(sys.argv)}\n").encode())
        folders = {Path(experiment.yaml_path).absolute().parent, Path(__file__).parent} if experiment.yaml_path else ()
        text = json.dumps(redact.tree(environment(*folders)), indent=1, ensure_ascii=False)
        write_atomically(self.path / "environment.json", text + "\n")


def _remove_own_folder(folder: Path) -> None:
    """A folder of its own, of which nothing came, and those around it if they are empty now."""
    shutil.rmtree(folder, ignore_errors=True)
    for around in folder.parents[:2]:
        with suppress(OSError):  # others' runs are in it
            around.rmdir()


def redactor_of(experiment: Experiment) -> Redactor:
    """A redactor that knows the secrets of the configuration and of this process's environment."""
    tree = {"ajet": experiment.ajet.model_dump(), **experiment.sections, **experiment.backbone_overrides}
    return Redactor(literals=literal_secrets(tree))


def _format_command(arguments: Sequence[str]) -> str:
    """The command without values of secret options: Ray starts its workers with --redis-password."""
    shown = []
    for each in arguments:
        name, equals, _ = each.partition("=")
        secret = equals and name.startswith("--") and is_secret_name(name)
        shown.append(f"{name}={HIDDEN}" if secret else each)
    return shlex.join(shown)


RECORDED_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "PYTHONHASHSEED")
"""Environment variables in environment.json."""


def environment(*folders: Path) -> dict[str, Any]:
    """Return versions, machine, and the git commit of each of `folders` that lies in a repository.

    By these a run can be repeated. There are no secrets, and no environment variables but a few that change numbers.
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
    """The commit of the repository around `folder`, "+changes" appended when the tree differs; None outside of one."""
    head = _run_git(folder, "rev-parse", "HEAD")
    if head is None:
        return None
    return head + ("+changes" if _run_git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def _run_git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _installed_packages() -> dict[str, str]:
    found = dict(filter(None, (_name_and_version(package) for package in metadata.distributions())))
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _name_and_version(package: metadata.Distribution) -> tuple[str, str] | None:
    """Name and version by the head of its metadata alone: to parse them all, descriptions included, takes longer than a
    debug run."""
    head = (package.read_text("METADATA") or package.read_text("PKG-INFO") or "").partition("\n\n")[0]
    name, version = (re.search(rf"^{field}: *(\S+)", head, re.MULTILINE) for field in ("Name", "Version"))
    return (name[1], version[1]) if name and version else None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _gpu_names() -> list[str]:
    """Names as NVIDIA's driver lists them; asking torch would import it."""
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text().splitlines()
        names += [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model")]
    return names
