"""Walls: bubblewrap's command line for everything of this machine that runs behind them and is shown folders of it: a
tool server, a service, a workflow.

Invariant: inside are this machine's programs, this Python, and the folders that are shown, read-only; no other process,
no network, and no variable of this environment. In these folders files of keys and locks are empty, and so are records
of runs, however deep they lie (`inside.file_rule`). There is no other way to show a folder than `Shown`, which finds
them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.environment.sandbox.bubblewrap import (
    FOLDER,
    bubblewrap_program,
    confined,
    filled,
    folders_shown,
    identity_files,
    outermost,
    programs_shown,
    writable,
)
from ajet.environment.sandbox.contract import Limits
from ajet.environment.sandbox.identity import SYS_ADMIN, counts_by_namespace, has_capability
from ajet.environment.sandbox.inside.file_rule import is_lock, is_secret, walk_project
from ajet.schema.errors import SandboxFailure


@dataclass(frozen=True, slots=True)
class Shown:
    """Folders that are seen inside, and what of them is empty there."""

    folders: tuple[str, ...]
    secrets: tuple[str, ...]
    """Files of keys and locks."""
    records: tuple[str, ...] = ()
    """Folders of runs."""
    in_records: tuple[str, ...] = ()
    """Folders within `records` that are seen, since they were named."""

    @classmethod
    def of(cls, folders: Iterable[Path], code: Iterable[Path] = ()) -> Shown:
        """Looked for now. `code`: folders and files that are not searched: a Python's. Those that hold a person's whole
        home are left out of them."""
        wanted = [Path(os.path.abspath(each)) for each in folders if each.exists()]
        also = [each for each in (*code, *_own_python()) if each.exists() and not holds_more(each)]
        shown = tuple(outermost([*wanted, *also]))
        records: set[str] = set()
        in_records: list[str] = []
        files: list[Path] = []
        for top in sorted(wanted):
            inside_record = any(top.is_relative_to(each) for each in records)
            if inside_record:
                in_records.append(str(top))
            elif any(top != other and top.is_relative_to(other) for other in wanted):
                continue  # walked with the other
            for listing in walk_project(str(top)):
                if listing.record:
                    records.add(listing.path)
                files += [Path(each.path) for each in listing.files if is_secret(each.name) or is_lock(each.name)]
        return cls(shown, tuple(sorted(_secrets(files, shown))), tuple(sorted(records)), tuple(in_records))


@dataclass(frozen=True, slots=True)
class Walled:
    """How a program behind walls is started."""

    argv: list[str]
    descriptors: tuple[int, ...]
    """To hand on, and to close then."""
    user: int | None
    """Who to start it as."""


def walled(
    program: str,
    command: Sequence[str],
    shown: Shown,
    limits: Limits,
    uid: int | None,
    *,
    more: Sequence[str] = (),
    ways: Sequence[str] = (),
    told: Mapping[str, Any] | None = None,
) -> Walled:
    """`program`: of `sandbox.inside`, which takes on user and limits and becomes `command`; `told`: what it is told
    beside. `uid`: of a sandbox's own (`fresh_uid`). `more`: further words for bubblewrap; `ways`: places of the
    root that they need a folder for. Raises SandboxFailure."""
    bubblewrap = bubblewrap_program()
    if bubblewrap is None:
        raise SandboxFailure("bubblewrap is not installed", retryable=False)
    as_root = uid is not None and has_capability(SYS_ADMIN)
    descriptors: list[int] = []
    try:
        argv = [bubblewrap, "--die-with-parent", *confined(as_root, descriptors), *programs_shown()]
        argv += [*identity_files(uid if as_root else None, descriptors), *writable(limits.disk)]
        argv += folders_shown(shown.folders, *ways)
        argv += _hide_records(shown)
        for secret in shown.secrets:
            descriptors.append(filled(b""))
            argv += ["--perms", "0444", "--ro-bind-data", str(descriptors[-1]), secret]
    except OSError as error:
        _close(descriptors)
        raise SandboxFailure(f"a sandbox cannot be prepared: {error.strerror}") from error
    except BaseException:
        _close(descriptors)
        raise
    inside = {
        "uid": uid if as_root else None,
        "files": limits.files,
        "processes": limits.processes if uid is not None or counts_by_namespace() else 0,
        "folder": FOLDER,
        "command": list(command),
        **(told or {}),
    }
    # root without its rights may not enter another's folder: the program inside does, once it is somebody else
    argv += [*more, "--remount-ro", "/", "--chdir", "/", "--"]
    argv += [sys.executable, "-I", "-S", program, json.dumps(inside)]
    return Walled(argv, tuple(descriptors), None if as_root else uid)


def holds_more(folder: Path) -> bool:
    """Whether it is a home folder, or holds one."""
    whole = Path(os.path.abspath(folder))
    return Path.home().is_relative_to(whole) or whole in (Path("/"), Path("/tmp"))


def _hide_records(shown: Shown) -> Iterator[str]:
    """Yield the arguments that cover records with empty folders, and show again the folders in them that were named."""
    for record in shown.records:
        yield from ("--perms", "0555", "--size", "65536", "--tmpfs", record)
    yield from folders_shown(shown.in_records)
    for record in shown.records:
        yield from ("--remount-ro", record)


def _secrets(files: Iterable[Path], shown: Sequence[str]) -> set[str]:
    """Where files to be empty are inside. A link is as empty as what it leads to, if that is shown."""
    real = {Path(each): Path(each).resolve() for each in (*shown, "/usr")}
    found: set[str] = set()
    for file in files:
        if not file.is_file():
            continue
        if not file.is_symlink():
            found.add(str(file))
            continue
        target = file.resolve()
        found |= {str(top / target.relative_to(there)) for top, there in real.items() if target.is_relative_to(there)}
    return found


def _own_python() -> Iterator[Path]:
    """Folders of this Python, of those that it is a link to, and what is run of ours inside."""
    yield from (Path(sys.prefix), Path(sys.base_prefix), Path(__file__).with_name("inside"))
    here = Path(sys.executable)
    for _ in range(16):
        yield here.parent.parent
        if not here.is_symlink():
            return
        here = here.parent / os.readlink(here)


def _close(descriptors: Iterable[int]) -> None:
    for each in descriptors:
        os.close(each)
