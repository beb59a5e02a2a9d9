"""Which checkpoint a new start continues from (DESIGN decision 11).

Invariant: a run is continued only with the same backbone, the same training-relevant configuration, the same code and
from the same project, or because the person named the checkpoint; a key that nobody set keeps the default that the run
began with; nothing that an earlier run wrote is removed or overwritten unasked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.code_digests import CodeDigests, changed_files
from ajet.config.resolution import is_secret
from ajet.record.bounded_json import read_json
from ajet.record.files import write_atomically
from ajet.schema.commands import ANEW, short_path
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment

FILE = "run.json"
CHAINED = "chained"
"""The key in it that claims that the run has a chain; runs of earlier versions lack it."""
SHOWN = 12
EARLIER_DEFAULTS: dict[str, Any] = {"ajet.trainer_common.algorithm.is_cap": None}
"""Of keys whose default has changed: the one of versions that did not write which keys were given."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The settings that make two starts the same run."""

    run_id: str
    """With the step it names a policy version."""
    backbone: str
    training: dict[str, Any]
    """`Experiment.training_relevant()`: flat, key -> plain value, without secrets."""
    given: list[str] | None = None
    """The keys of it that the person set; the others had the defaults of the version that began the run. None: an
    earlier version did not write it."""
    base: str | None = None
    """The checkpoint of another run that it began from, and begins from again where it has none of its own: below the
    folder of the runs, or in full. None: it began from its model."""
    yaml: str | None = None
    """The absolute path of the YAML. None: it was composed in Python, or an earlier version did not write it."""
    place: str | None = None
    """The absolute path of the run's folder; another one now: the record was copied or moved."""
    code: CodeDigests = field(default_factory=dict)
    """`digest_code` of the last start."""
    judge: str = ""
    """`digest_judge` of the last start."""
    changes: list[dict[str, Any]] = field(default_factory=list)
    """Each change between two starts: `step`, the last one before it; `files`, each with the keys that name it;
    `settings`; and `judge`, true where what scores changed."""

    def write(self, folder: Path) -> None:
        """Keep it in the run folder, with the claim that the run has a chain."""
        content = {**asdict(self), CHAINED: True}
        write_atomically(folder / FILE, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, folder: Path) -> RunIdentity | None:
        """The identity of the run in `folder`; None where no run ever started. Raises UserError for a damaged one."""
        try:
            content = read_json(folder / FILE)
            given, base = content.get("given"), content.get("base")
            training, given = dict(content["training"]), None if given is None else list(given)
            base, yaml, place = (
                None if each is None else str(each) for each in (base, content.get("yaml"), content.get("place"))
            )
            code = {str(key): dict(files) for key, files in dict(content.get("code") or {}).items()}
            changes = [dict(each) for each in content.get("changes") or ()]
            if not all(isinstance(each["step"], int) and isinstance(each["judge"], bool) for each in changes):
                raise ValueError("a change without its step")
            names, judge = (str(content["run_id"]), str(content["backbone"])), str(content.get("judge", ""))
            return cls(*names, training, given, base, yaml, place, code, judge, changes)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"What tells which run is in {folder} is damaged ({type(error).__name__}: {error}).",
                where=str(folder / FILE),
                expected="the JSON object that ajet wrote there: run_id, backbone, training",
                do=f"restore the file from a copy; or {ANEW}",
            ) from error

    def differences(self, backbone: str, now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
        """(key, then, now) of everything that differs. Keys of ajet's own sections that only one side knows are
        skipped: they come from another version of ajet. So do absolute paths where now is one within the project."""
        rows = [] if self.backbone == backbone else [("ajet.backbone", self.backbone, backbone)]
        for key in sorted({*self.training, *now}):
            missing = key not in self.training or key not in now
            if key == "ajet.backbone" or (missing and key.startswith("ajet.")):
                continue
            if missing and is_secret(tuple(key.split("."))):
                continue
            if missing or (self.training[key] != now[key] and not _blotted(self.training[key], now[key])):
                rows.append((key, self.training.get(key, "(not set)"), now.get(key, "(not set)")))
        project = {_project(then, at) for _, then, at in rows} - {None}
        if len(project) == 1:  # an earlier version wrote where the project lay; all of it lay in one place
            rows = [row for row in rows if _project(row[1], row[2]) is None]
        return rows

    def defaults(self, differences: list[tuple[str, Any, Any]], given: Collection[str]) -> dict[str, Any]:
        """The values, of what differs, that the run began with of keys that nobody set, then or now: this version of
        ajet has another default, and the run keeps its own. `given`: the keys that are set now."""
        untouched = [key for key, then, _ in differences if key not in given and not self._set(key, then)]
        return {key: self.training[key] for key in untouched if key != "ajet.backbone" and key.startswith("ajet.")}

    def _set(self, key: str, then: Any) -> bool:
        """Whether the person set it when the run began; where that was not written, whether they may have."""
        if self.given is None:
            return key not in EARLIER_DEFAULTS or then != EARLIER_DEFAULTS[key]
        return key in self.given

    def changed_code(self, now: CodeDigests) -> dict[str, list[str]]:
        """The files that the last start had with other contents, each with the keys that name it."""
        return changed_files(self.code, now)

    def is_of_other_yaml(self, now: str | None, folder: Path) -> bool:
        """True if a YAML in another folder than `now` began it, and not because all was copied or moved together."""
        if self.yaml is None or now is None or Path(self.yaml).parent.resolve() == Path(now).parent.resolve():
            return False
        if self.place is None or Path(self.place) == folder:
            return True
        return os.path.relpath(self.yaml, self.place) != os.path.relpath(now, folder)


def last_judge_change(folder: Path) -> int | None:
    """The last step that an earlier judge scored in the run in `folder`; None if its judge never changed."""
    try:
        identity = RunIdentity.read(folder)
    except (UserError, OSError):
        return None
    steps = [each["step"] for each in identity.changes if each["judge"]] if identity else []
    return steps[-1] if steps else None


def yaml_path_of(experiment: Experiment, folder: Path) -> str | None:
    """The absolute path of the YAML; None if there is no such file, or it is the run's own record."""
    path = experiment.yaml_path
    own = path.parent.resolve() == folder.resolve()
    return None if own or not path.is_file() else str(path.absolute())


def refuse_other_project(folder: Path, then: str, now: str) -> UserError:
    """The error for a folder whose run belongs to a YAML of another project."""
    return UserError(
        f'Two projects use the run name "{folder.name}": the run in {short_path(folder)} is of {short_path(then)}, and '
        f"you started {short_path(now)}.",
        where=short_path(now),
        expected="another ajet.experiment_name for each project",
        do=(
            "one of three:\n"
            f"  name this one: ajet.experiment_name: {Path(now).parent.name}-{folder.name} in {short_path(now)}\n"
            f"  a new run: --fresh (in Python fresh=True); the old folder is kept as {folder.name}.old-N\n"
            f"  continue that run with this YAML: --resume {short_path(folder)} (in Python resume=)"
        ),
    )


def refuse_changed_code(folder: Path, changed: Mapping[str, list[str]]) -> UserError:
    """The error for a run whose code has changed since its last start."""
    rows = [f"{file} ({', '.join(keys)})" for file, keys in changed.items()]
    return UserError(
        f"Files of the run in {folder} changed since its last start; it is not continued with these:\n"
        + _format_rows(rows),
        where=str(folder),
        expected="the same code, to continue it (comments and layout may differ)",
        do=f"--resume {folder} (in Python resume=) continues it with the changed files; {_describe_fresh(folder)}",
    )


def _format_rows(rows: list[str]) -> str:
    """Return the first of the rows, a line each, and how many more there are."""
    more = [f"and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    return "\n".join(f"  {row}" for row in [*rows[:SHOWN], *more])


def _describe_fresh(folder: Path) -> str:
    return f"--fresh (in Python fresh=True) begins a new run (the old folder is kept as {folder.name}.old-N)"


def _blotted(then: Any, now: Any) -> bool:
    """Whether the values may be the same, one written with a secret blotted out and the other not."""
    if not (isinstance(then, str) and isinstance(now, str)):
        return False
    parts = re.split(r"\[redacted [\w.-]+\]", then)
    return len(parts) > 1 and re.fullmatch(".*".join(map(re.escape, parts)), now, re.DOTALL) is not None


def refuse(folder: Path, differences: list[tuple[str, Any, Any]]) -> UserError:
    """The error for a folder whose run was another one."""
    rows = [f"{key}: {_short(then)} then, {_short(now)} now" for key, then, now in differences]
    return UserError(
        f"The run in {folder} had another configuration; it is not continued with this one:\n{_format_rows(rows)}",
        where=str(folder),
        expected="the same values, to continue it",
        do=(
            f"{_describe_fresh(folder)}; --resume {folder} continues it with the new values; "
            "another ajet.experiment_name keeps both"
        ),
    )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"


def _project(then: Any, now: Any) -> str | None:
    """The folder that `now`, a path within the project (or a list of them), lay in if `then` is the same path in
    full; None if it is not."""
    if isinstance(then, list) and isinstance(now, list) and then and len(then) == len(now):
        found = {_project(*pair) for pair in zip(then, now, strict=True)}
        return found.pop() if len(found) == 1 else None
    if not isinstance(then, str) or not isinstance(now, str) or now.startswith("/"):
        return None
    return then.removesuffix(now) if then.startswith("/") and then.endswith(f"/{now}") else None
