"""bubblewrap's command line for programs with access to folders: tool servers, services, workflows.

The walls are what separates such a program from the machine. Invariant: it sees the machine's programs, the current
Python, and the shown folders, read-only. No other process, no network and no environment variable is accessible. In
shown folders key files are empty, lock files closed, and output folders of runs (records) empty, at any depth
(`inside.file_rule`). Folders can only be shown by `ShownFolders`, after a search for such files.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.schema.errors import SandboxFailure
from ajet.schema.sandbox import Limits
from ajet_sandbox.bubblewrap import (
    FOLDER,
    build_folder_args,
    build_identity_args,
    build_isolation_args,
    build_writable_args,
    drop_nested,
    find_bubblewrap,
    list_program_args,
    make_memfd,
)
from ajet_sandbox.identity import SYS_ADMIN, has_capability, has_namespace_process_count
from ajet_sandbox.inside.file_rule import ENVIRONMENT_FOLDERS, ProjectListing, is_lock, is_secret, walk_project
from ajet_sandbox.inside.kernel import read_landlock_version
from ajet_sandbox.inside.open_rule import LEAST_ABI

_WRITABLE = ("/tmp", "/dev/shm")
_START = """\
import os, sys
from importlib import import_module
here, file = os.path.split(sys.argv.pop(1))
package = "ajet_sandbox.inside"
for name in (package.partition(".")[0], package):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [here]
import_module(f"{package}.{file.removesuffix('.py')}").main()
"""
"""Starts a program of `inside` with its neighbours as modules. The rest of the package stays outside."""


@dataclass(frozen=True, slots=True)
class ShownFolders:
    """Folders that a sandbox shows read-only, and the files and folders in them to hide."""

    folders: tuple[str, ...]
    """Includes single files: a virtual environment's `pyvenv.cfg`."""
    secrets: tuple[str, ...]
    """Key files, and lock files unless closed by a Landlock rule."""
    records: tuple[str, ...] = ()
    """Folders of runs, shown empty."""
    in_records: tuple[str, ...] = ()
    """Folders within `records` shown because of an explicit name."""
    projects: tuple[str, ...] = ()
    """Folders with a rule per file: the named folders, without nested folders."""

    @classmethod
    def of(cls, folders: Iterable[Path], code: Iterable[Path] = ()) -> ShownFolders:
        """Search folders for key files, lock files and output folders of runs.

        Args:
            folders: project folders to show.
            code: folders and files shown without a search, such as Python's. Those with a home folder are dropped.
        """
        project_folders = [Path(os.path.abspath(folder)) for folder in folders if folder.exists()]
        code_folders = [path for path in (*code, *_list_own_python()) if path.exists() and not holds_home(path)]
        shown = tuple(drop_nested([*project_folders, *code_folders]))
        projects: list[str] = []
        listings: list[ProjectListing] = []
        for top in sorted(project_folders):
            records = [listing.path for listing in listings if listing.is_hidden]
            if _lies_in(top, projects) and not _lies_in(top, records):
                continue  # walked already
            projects.append(str(top))
            listings += walk_project(str(top))
        records = sorted({listing.path for listing in listings if listing.is_hidden})
        in_records = tuple(project for project in projects if _lies_in(Path(project), records))
        secrets = _locate_secrets(_find_secrets(listings), shown)
        return cls(shown, tuple(sorted(secrets)), tuple(records), in_records, tuple(projects))


@dataclass(frozen=True, slots=True)
class ConfinedProgram:
    """The command line that starts a sandboxed program, with the descriptors it inherits."""

    argv: list[str]
    descriptors: tuple[int, ...]
    """To be inherited, and closed afterwards."""
    user: int | None
    """The user of the started process."""


def wall_command(
    program: str,
    command: Sequence[str],
    shown: ShownFolders,
    limits: Limits,
    uid: int | None,
    *,
    more: Sequence[str] = (),
    ways: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> ConfinedProgram:
    """Build the command line that runs `command` in a sandbox.

    Args:
        program: path of a program of `ajet_sandbox.inside` that sets user and limits, then executes `command`.
        shown: folders that the sandbox shows.
        uid: user id of the sandbox (`choose_uid`); None for the current user.
        more: further arguments for bubblewrap.
        ways: mount points in `more`, whose parent folders are created.
        settings: further settings of `program`.

    Raises:
        SandboxFailure: the sandbox cannot be prepared.
    """
    bubblewrap = find_bubblewrap()
    if bubblewrap is None:
        raise SandboxFailure("bubblewrap is not installed", retryable=False)
    as_root = uid is not None and has_capability(SYS_ADMIN)
    descriptors: list[int] = []
    try:
        argv = [bubblewrap, "--die-with-parent", *build_isolation_args(as_root, descriptors), *list_program_args()]
        argv += [*build_identity_args(uid if as_root else None, descriptors), *build_writable_args(limits.disk)]
        mounts = _MountPaths(shown)
        argv += [
            *mounts.show(),
            *build_folder_args([folder for folder in shown.folders if folder not in mounts.moved], *ways),
        ]
        argv += _hide_records(shown, mounts)
        for secret in shown.secrets:
            descriptors.append(make_memfd(b""))
            argv += ["--perms", "0444", "--ro-bind-data", str(descriptors[-1]), mounts.of(secret)]
    except OSError as error:
        _close_all(descriptors)
        raise SandboxFailure(f"the sandbox cannot be created: {error}; `ajet doctor` checks the sandbox") from error
    except BaseException:
        _close_all(descriptors)
        raise
    program_settings = {
        "uid": uid if as_root else None,
        "files": limits.files,
        "processes": limits.processes if uid is not None or has_namespace_process_count() else 0,
        "folder": FOLDER,
        "command": list(command),
        "projects": [mounts.of(project) for project in shown.projects],
        **(settings or {}),
    }
    # Root without capabilities cannot enter another user's folder. The program enters it after changing its user.
    argv += [*more, "--remount-ro", "/", "--chdir", "/", "--"]
    argv += [sys.executable, "-I", "-S", "-c", _START, program, json.dumps(program_settings)]
    return ConfinedProgram(argv, tuple(descriptors), None if as_root else uid)


def holds_home(folder: Path) -> bool:
    """Return True if the folder is or contains the user's home folder, or is / or /tmp."""
    path = Path(os.path.abspath(folder))
    return Path.home().is_relative_to(path) or path in (Path("/"), Path("/tmp"))


class _MountPaths:
    """Maps paths of shown folders to their paths inside the sandbox.

    A project below a writable folder is mounted elsewhere, with a link to it: rights on all of `/tmp` would otherwise
    include the project's keys.
    """

    def __init__(self, shown: ShownFolders) -> None:
        self.moved: dict[str, str] = {}
        for index, folder in enumerate(shown.folders):
            holds_project = any(Path(project).is_relative_to(folder) for project in shown.projects)
            if holds_project and _lies_in(Path(folder), _WRITABLE):
                self.moved[folder] = f"/shown/{index}"

    def show(self) -> Iterator[str]:
        """Yield bubblewrap's arguments that mount the moved folders and link to them."""
        for folder, mount_point in self.moved.items():
            yield from ("--perms", "0755", "--dir", "/shown", "--ro-bind", folder, mount_point)
            yield from build_folder_args((), folder)
            yield from ("--symlink", mount_point, folder)

    def of(self, path: str) -> str:
        """Return the path inside the sandbox for a path on the host."""
        for folder, mount_point in self.moved.items():
            if Path(path).is_relative_to(folder):
                return str(Path(mount_point, Path(path).relative_to(folder)))
        return path


def _hide_records(shown: ShownFolders, mounts: _MountPaths) -> Iterator[str]:
    """Yield bubblewrap's arguments that cover output folders of runs by empty folders.

    Project folders inside of them are mounted again.
    """
    records = [mounts.of(record) for record in shown.records]
    for record in records:
        yield from ("--perms", "0555", "--size", "65536", "--tmpfs", record)
    for folder in shown.in_records:
        yield from build_folder_args((), mounts.of(folder))
        yield from ("--ro-bind", folder, mounts.of(folder))
    for record in records:
        yield from ("--remount-ro", record)


def _lies_in(path: Path, folders: Iterable[str]) -> bool:
    """Return True if the path is one of the folders, or below one."""
    return any(path.is_relative_to(folder) for folder in folders)


def _find_secrets(listings: Sequence[ProjectListing]) -> Iterator[Path]:
    """Yield key files with their hard links, and lock files that no Landlock rule closes.

    SQLite's lock files are transient, and a mount over a missing file would stop the start.
    """
    without_rule = read_landlock_version() < LEAST_ABI
    linked_inodes: set[tuple[int, int]] = set()
    for entry in (file for listing in listings for file in listing.files):
        if is_secret(entry.name) or (without_rule and is_lock(entry.name)):
            yield Path(entry.path)
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if status.st_nlink > 1:
                    linked_inodes.add((status.st_dev, status.st_ino))
    inode_numbers = {inode for _, inode in linked_inodes}
    for entry in (file for listing in listings for file in listing.files if file.inode() in inode_numbers):
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if (status.st_dev, status.st_ino) in linked_inodes:
                yield Path(entry.path)


def _locate_secrets(files: Iterable[Path], shown: Sequence[str]) -> set[str]:
    """Return the paths of the files to cover by empty files.

    A symbolic link is covered by covering its target, if a shown folder contains the target.

    Args:
        files: key files and lock files, on the host.
        shown: the shown folders.
    """
    resolved_roots = {Path(root): Path(root).resolve() for root in (*shown, "/usr")}
    covered: set[str] = set()
    for file in files:
        if not file.is_file():
            continue
        if not file.is_symlink():
            covered.add(str(file))
            continue
        target = file.resolve()
        covered |= {
            str(shown_root / target.relative_to(resolved_root))
            for shown_root, resolved_root in resolved_roots.items()
            if target.is_relative_to(resolved_root)
        }
    return covered


def _list_own_python() -> Iterator[Path]:
    """Yield folders of this Python, of the Pythons it links to, and of ajet's programs inside sandboxes."""
    yield Path(__file__).with_name("inside")
    executable = Path(sys.executable)
    prefixes = [Path(sys.prefix), Path(sys.base_prefix), executable.parent.parent]
    while executable.is_symlink() and len(prefixes) < 16:  # the bound ends a loop of links
        executable = executable.parent / os.readlink(executable)
        prefixes.append(executable.parent.parent)
    for prefix in prefixes:
        if (prefix / "pyvenv.cfg").exists():  # the prefix may be a project, too: `python -m venv .`
            yield from (prefix / name for name in ("pyvenv.cfg", *sorted(ENVIRONMENT_FOLDERS)))
        else:
            yield prefix


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
