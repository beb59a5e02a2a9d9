"""Builds the links of a start: the process, the base checkpoint and data of an earlier process.

Invariant: data written but not linked by a killed process is linked by the next process and marked as such. Otherwise a
process links only its own data.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet._version import __version__
from ajet.config.record_file import has_record_file, list_record_folder, open_record_file
from ajet.record.chain import FILE, METRICS, digest_of, stray_lines
from ajet.record.files import read_rows
from ajet.record.process_identity import ProcessIdentity

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record.checkpoint import Checkpoint

SETTLED = ("given.yaml", "resolved.yaml", "origins.json", "run.json", "environment.json")
"""Files written by each start and never changed afterwards."""
PACKAGES = ("torch", "transformers", "vllm", "verl", "ray")
"""Packages that sample and train."""


def start_facts(
    folder: Path, run_id: str, experiment: Experiment, base: Checkpoint | None, checkpoints: Path
) -> dict[str, Any]:
    """Return what the link of a start records: process, versions, digests of the settings, and the base checkpoint.

    Args:
        folder: The run's folder.
        run_id: Identity of the run.
        base: Checkpoint to continue from. None: no checkpoint.
        checkpoints: Checkpoint folder of the run.
    """
    process, settings = ProcessIdentity.of(os.getpid()), experiment.ajet
    facts: dict[str, Any] = {
        "run": run_id,
        "process": {"pid": process.pid, "host": process.host, "started": process.started},
        "backbone": settings.backbone,
        "engine": settings.rollout.engine,
        "versions": {"ajet": __version__, **_package_versions()},
        "files": {name: digest_of(_read_bytes(folder / name)) for name in SETTLED if has_record_file(folder / name)},
    }
    if base is not None:
        is_own = base.path.parent.resolve() == checkpoints.resolve()
        facts["from"] = {"step": base.step, "digest": base.digest, "head": base.chain, "own": is_own}
    return facts


def resume_facts(folder: Path, step: int) -> dict[str, Any]:
    """Return what the link of a resume after `step` records: lines and rows that no link lists yet.

    A killed process wrote them after its last link. They are linked before later records are removed.
    """
    facts: dict[str, Any] = {}
    with _open_digest_lookup(folder) as is_linked:
        names = [name for name in list_record_folder(folder / "episodes") if fnmatch(name, f"step-{step}.*jsonl")]
        files = [folder / "episodes" / name for name in names]
        strays = [stray for path in files if (stray := _stray_lines(folder, path, is_linked)) is not None]
        if strays:
            facts["episodes"] = [stray_lines.as_json() for stray_lines in strays]
        if rows := _stray_rows(folder / METRICS, step, is_linked):
            facts["rows"] = rows
    return facts


def _package_versions() -> dict[str, str]:
    """Return the installed versions of the packages that sample and train; missing packages are left out."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


@contextmanager
def _open_digest_lookup(folder: Path) -> Iterator[Callable[[str], bool]]:
    """Yield a function that returns True if a digest occurs in the chain of the run in `folder`."""
    with open_record_file(folder / FILE) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        yield lambda digest: text.find(json.dumps(digest).encode()) >= 0


def _stray_lines(folder: Path, path: Path, is_linked: Callable[[str], bool]) -> Any:
    """Return the lines at the end of an episode file whose digests are in no link. None: no such line.

    A crash between writing and linking leaves such lines.

    Args:
        is_linked: Returns True for the digest of a linked line.
    """
    data = _read_bytes(path)
    end = start = data.rfind(b"\n") + 1
    while start > 0:
        line_start = data.rfind(b"\n", 0, start - 1) + 1
        if is_linked(digest_of(data[line_start:start])):
            break
        start = line_start
    if start == end:
        return None
    linked_lines = data[:start].splitlines()
    blob = json.loads(linked_lines[-1])["blob"] if linked_lines else {"offset": 0, "length": 0}
    file = f"{path.parent.name}/{path.name}"
    return stray_lines(folder, file, len(linked_lines) + 1, start, blob["offset"] + blob["length"])


def _read_bytes(path: Path) -> bytes:
    with open_record_file(path) as file:
        return file.read()


def _stray_rows(path: Path, step: int, is_linked: Callable[[str], bool]) -> list[str]:
    """Return the digests of the last metrics rows up to `step` that no link of the chain lists, in file order.

    Args:
        path: The file `metrics.jsonl`.
        step: Rows of later steps are removed at the resume.
        is_linked: Returns True for the digest of a linked row.
    """
    if not has_record_file(path):
        return []
    with open_record_file(path) as file:
        lines = file.readlines()
    unlinked = [line for line, row in zip(lines, read_rows(path), strict=False) if row.get("step", -1) <= step]
    digests: list[str] = []
    while unlinked and not is_linked(digest := digest_of(unlinked.pop())):
        digests.insert(0, digest)
    return digests
