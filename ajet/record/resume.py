"""Decides if a start may continue the run in its folder (DESIGN decision 11), and counts recovered tasks
(`RecoveryCounts`).

Invariant: a run continues only with the same backbone, training configuration, code and project, or if the user names
the checkpoint. An unset key keeps the default of the run's start. Data of an earlier run is never removed or
overwritten without a request. Consumed positions come from metrics rows, positions in flight from the store at the
checkpoint: two files of two writers.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.code_digests import CodeDigests, list_changed_files
from ajet.record.files import read_json, write_atomically
from ajet.schema.commands import FRESH_ADVICE, shorten_path
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment


FILE = "run.json"
SHOWN = 12


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The settings, code and paths of a run's last start, which decide whether another start continues the run."""

    run_id: str
    """Names a policy version together with the step."""
    backbone: str
    training: dict[str, Any]
    """`Experiment.list_training_settings()`: flat, key -> plain value, without secrets."""
    given: list[str] = field(default_factory=list)
    """Keys set by the user; the others had the defaults of the ajet version at the run's start."""
    base: str | None = None
    """Base checkpoint of another run, relative to the folder of runs or absolute; used again without own checkpoints.
    None: the run began from its model."""
    yaml: str | None = None
    """Absolute path of the YAML. None: composed in Python."""
    place: str = ""
    """Absolute path of the run's folder at the last start; differs after a copy or move."""
    code: CodeDigests = field(default_factory=dict)  # `digest_code` of the last start
    judge: str = ""  # `digest_judge` of the last start
    changes: list[dict[str, Any]] = field(default_factory=list)
    """Changes between starts: `step`, the last step before the change; `files` with the keys that name each file;
    `settings`; `judge`, true if the judge changed."""

    def write(self, folder: Path) -> None:
        """Write the identity to `run.json` in the run's folder."""
        write_atomically(folder / FILE, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, folder: Path) -> RunIdentity | None:
        """Read the identity of the run in `folder`, or None if no run ever started. Raises UserError for damage."""
        try:
            content = read_json(folder / FILE)
            training, given_keys = dict(content["training"]), list(content["given"])
            base, yaml = (None if content[name] is None else str(content[name]) for name in ("base", "yaml"))
            code = {str(key): dict(files) for key, files in content["code"].items()}
            changes = [dict(change) for change in content["changes"]]
            if not all(isinstance(change["step"], int) and isinstance(change["judge"], bool) for change in changes):
                raise ValueError("a recorded change has no step")
            run_id, backbone, folder_path, judge = (
                str(content[name]) for name in ("run_id", "backbone", "place", "judge")
            )
            return cls(run_id, backbone, training, given_keys, base, yaml, folder_path, code, judge, changes)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"The file that identifies the run in {folder} is damaged ({type(error).__name__}: {error}).",
                where=str(folder / FILE),
                expected="the JSON object that ajet wrote there: run_id, backbone, training",
                do=f"restore the file from a copy; or {FRESH_ADVICE}",
            ) from error

    def differences(self, backbone: str, now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
        """Return (key, earlier value, present value) of each setting that differs from the run's last start.

        A key of ajet's own sections that only one side has is skipped, because it comes from another version of ajet.
        """
        changes = [] if self.backbone == backbone else [("ajet.backbone", self.backbone, backbone)]
        for key in sorted({*self.training, *now}):
            is_one_sided = key not in self.training or key not in now
            if key == "ajet.backbone" or (is_one_sided and key.startswith("ajet.")):
                continue
            if is_one_sided or (self.training[key] != now[key] and not _matches_redacted(self.training[key], now[key])):
                changes.append((key, self.training.get(key, "(not set)"), now.get(key, "(not set)")))
        return changes

    def defaults(self, differences: list[tuple[str, Any, Any]], given: Collection[str]) -> dict[str, Any]:
        """Return those differing settings that neither start has set, with the defaults of the run's start.

        ajet's defaults have changed since, and the run keeps the earlier values.

        Args:
            differences: As returned by `differences`.
            given: Keys set now.
        """
        unset_keys = [key for key, _, _ in differences if key not in given and key not in self.given]
        return {key: self.training[key] for key in unset_keys if key != "ajet.backbone" and key.startswith("ajet.")}

    def changed_code(self, now: CodeDigests) -> dict[str, list[str]]:
        """Return the code files whose content changed since the last start, each with the keys that name it."""
        return list_changed_files(self.code, now)

    def is_of_other_yaml(self, now: str | None, folder: Path) -> bool:
        """Return True if the YAML that began the run lies in another folder than the YAML `now`.

        False if the run's folder and the YAML were copied or moved together.
        """
        if self.yaml is None or now is None or Path(self.yaml).parent.resolve() == Path(now).parent.resolve():
            return False
        if Path(self.place) == folder:
            return True
        return os.path.relpath(self.yaml, self.place) != os.path.relpath(now, folder)


def last_judge_change(folder: Path) -> int | None:
    """Return the last step scored by an earlier judge, or None if the judge never changed."""
    try:
        identity = RunIdentity.read(folder)
    except (UserError, OSError):
        return None
    steps = [change["step"] for change in identity.changes if change["judge"]] if identity else []
    return steps[-1] if steps else None


def yaml_path_of(experiment: Experiment, folder: Path) -> str | None:
    """Return the absolute path of the experiment's YAML.

    None if the experiment was composed in Python, or if the YAML is the copy in the run's own folder.
    """
    path = experiment.yaml_path
    is_record = path.parent.resolve() == folder.resolve()
    return None if is_record or not path.is_file() else str(path.absolute())


def refuse_other_project(folder: Path, then: str, now: str) -> UserError:
    """Return the error for a folder whose run belongs to a YAML of another project."""
    return UserError(
        f'Two projects use the run name "{folder.name}": the run in {shorten_path(folder)} belongs to '
        f"{shorten_path(then)}, but you started {shorten_path(now)}.",
        where=shorten_path(now),
        expected="a different ajet.experiment_name in each project",
        do=f"one of three:\n  rename this run: ajet.experiment_name: {Path(now).parent.name}-{folder.name} in "
        f"{shorten_path(now)}\n  start a new run: --fresh (in Python fresh=True); the old folder is kept as "
        f"{folder.name}.old-N\n  continue that run with this YAML: --resume {shorten_path(folder)} (in "
        "Python resume=)",
    )


def refuse_changed_code(folder: Path, changed: Mapping[str, list[str]]) -> UserError:
    """Return the error for a run whose code changed since the last start."""
    rows = [f"{file} ({', '.join(keys)})" for file, keys in changed.items()]
    return UserError(
        f"The code of the run in {folder} changed since its last start, so ajet does not continue the run "
        "automatically:\n" + _format_rows(rows),
        where=str(folder),
        expected="unchanged code (comments and layout may differ)",
        do=f"--resume {folder} (in Python resume=) continues the run with the changed code; {_describe_fresh(folder)}",
    )


def _format_rows(rows: list[str]) -> str:
    """Return the first `SHOWN` texts, one on each line, and how many more there are."""
    rest_note = [f"and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    return "\n".join(f"  {row}" for row in [*rows[:SHOWN], *rest_note])


def _describe_fresh(folder: Path) -> str:
    """Return the sentence that explains --fresh."""
    return f"--fresh (in Python fresh=True) starts a new run (the old folder is kept as {folder.name}.old-N)"


def _matches_redacted(then: Any, now: Any) -> bool:
    """Return True if a recorded value with redacted secrets may equal the present value.

    Args:
        then: The recorded value, in which `[redacted NAME]` stands for a secret.
        now: The present value.
    """
    if not (isinstance(then, str) and isinstance(now, str)):
        return False
    parts = re.split(r"\[redacted [\w.-]+\]", then)
    return len(parts) > 1 and re.fullmatch(".*".join(map(re.escape, parts)), now, re.DOTALL) is not None


def refuse_changed_settings(folder: Path, differences: list[tuple[str, Any, Any]]) -> UserError:
    """Return the error for a start whose settings differ from those of the run in the folder.

    Args:
        differences: (key, earlier value, present value).
    """
    rows = [f"{key}: {_shorten_value(then)} before, {_shorten_value(now)} now" for key, then, now in differences]
    return UserError(
        f"The run in {folder} had other settings, so ajet does not continue it automatically:\n{_format_rows(rows)}",
        where=str(folder),
        expected="the same values as before",
        do=f"{_describe_fresh(folder)}; --resume {folder} continues the run with the new values; another "
        "ajet.experiment_name keeps both runs",
    )


def _shorten_value(value: Any) -> str:
    """Return a setting's value as JSON of at most 80 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"


@dataclass(frozen=True, slots=True)
class RecoveryCounts:
    """The numbers of positions of the training order that are trained, unfinished, skipped, doubled or given up.

    Printed when a run resumes. A position is a task's place in the order over all epochs; it is consumed if a step
    trained or discarded it.
    """

    consumed: int
    under_way: int
    skipped: int
    """Neither consumed nor under way, though later ones are."""
    doubled: int
    """Consumed more than once, or consumed and about to be played again."""
    given_up: int = 0
    """Not consumed and not leased again; the store or a metrics row has the reason."""

    @classmethod
    def of(
        cls, rows: Sequence[Mapping[str, Any]], begun: Iterable[int], *, step: int, dead: Iterable[int] = ()
    ) -> RecoveryCounts:
        """Count positions for a run that resumes at a checkpoint.

        Args:
            rows: metrics rows.
            begun: positions that are started and unfinished according to the store.
            step: step of the checkpoint.
            dead: positions that the store leases no more after failures.
        """
        times_consumed: Counter[int] = Counter()
        given_up_before = {*dead}
        for row in rows:
            if row.get("step", 0) <= step:
                times_consumed.update({*row.get("tasks", ()), *row.get("discarded", ())})
                given_up_before.update(int(order) for order in row.get("given_up", ()))
        unfinished = {*begun}
        given_up = given_up_before - times_consumed.keys() - unfinished
        accounted = times_consumed.keys() | unfinished | given_up
        from_start = any(row.get("step") == 1 for row in rows)  # other runs began from another run's checkpoint
        positions = range(0 if from_start else min(accounted, default=0), max(accounted, default=-1) + 1)
        return cls(
            consumed=sum(position >= 0 for position in times_consumed),
            under_way=len(unfinished),
            skipped=sum(position not in accounted for position in positions),
            doubled=sum(count - 1 for count in times_consumed.values()) + len(unfinished & times_consumed.keys()),
            given_up=len(given_up),
        )

    def __str__(self) -> str:
        """Return the counts as part of the resume message."""
        given_up = (
            f", given up {self.given_up} (the reasons are under `given_up` in metrics.jsonl)" if self.given_up else ""
        )
        return (
            f"{self.consumed} tasks consumed, {self.under_way} unfinished ones come first; skipped "
            f"{self.skipped}, doubled {self.doubled}{given_up}"
        )
