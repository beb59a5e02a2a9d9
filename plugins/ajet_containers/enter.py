"""One operation inside the namespaces of a container: a standard-library program that the host starts by path.

Invariants: files are opened after entering the mount namespace, so a symbolic link inside cannot lead to the host.
Nothing is imported after it, because the file would be the container's. The namespaces are compared with those noted at
the container's start, because a process id may be reused.
Usage: `python -I -S enter.py PID NAMESPACES OPERATION ARGUMENTS`.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import stat
import sys
import tarfile

MISSING, UNREADABLE, GONE = 3, 4, 5
"""Exit codes: no such file; no regular file, or too large; the container has ended."""
FLAGS = {"user": 0x10000000, "mnt": 0x00020000, "net": 0x40000000, "pid": 0x20000000, "ipc": 0x08000000,
         "uts": 0x04000000}  # fmt: skip
"""Flags of setns."""
NOT_EXECUTED = "ajet cannot execute"
DROP_BOUND, NO_NEW_PRIVS, SET_SECCOMP, FILTER, CAPABILITIES_3 = 24, 38, 22, 2, 0x20080522
"""Numbers of prctl and capset."""


def enter_namespaces(pid: str, noted: dict[str, str], names: tuple[str, ...]) -> None:
    """Move this thread into namespaces of the process `pid`. Exits with GONE if they are not the noted ones.

    Args:
        noted: inode number of each namespace, noted at the container's start.
        names: namespaces to enter, such as "mnt", in this order.
    """
    setns = ctypes.CDLL(None, use_errno=True).setns
    descriptors, own_namespaces = {}, {name: os.stat(f"/proc/self/ns/{name}").st_ino for name in names}
    for name in names:
        try:
            descriptors[name] = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            sys.exit(GONE)
        if str(os.fstat(descriptors[name]).st_ino) != noted[name]:
            sys.exit(GONE)
    for name, descriptor in descriptors.items():
        is_own = os.fstat(descriptor).st_ino == own_namespaces[name]
        if not is_own and setns(descriptor, FLAGS[name]):  # entering the current user namespace is refused
            raise OSError(ctypes.get_errno(), f"setns {name}")
        os.close(descriptor)


def open_listener(port: int) -> socket.socket:
    """Return a socket that listens on the loopback of this thread's network namespace."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def send_listener(descriptor: int, port: int) -> None:
    """Send a listening socket over a Unix socket."""
    with open_listener(port) as listening, socket.socket(fileno=descriptor) as channel:
        socket.send_fds(channel, [b"listening"], [listening.fileno()])


def extract_files() -> None:
    """Extract the tar of standard input at /. Links in the way are followed inside the container only."""
    os.umask(0o022)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for entry in archive:
            path = f"/{entry.name}"
            if entry.isdir():
                os.makedirs(path, 0o755, exist_ok=True)
                os.chmod(path, entry.mode)
                continue
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            if os.path.lexists(path):
                shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
            if entry.issym():
                os.symlink(entry.linkname, path)
                continue
            content = archive.extractfile(entry)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, entry.mode), "wb") as file:
                if content is not None:
                    shutil.copyfileobj(content, file)
                os.fchmod(file.fileno(), entry.mode)


def remove_paths(paths: list[str]) -> None:
    """Remove files, links and folders."""
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.lexists(path):
            os.unlink(path)


def copy_file(path: str, most: int) -> int:
    """Write a regular file of at most `most` bytes to standard output.

    Returns:
        The exit code: 0, MISSING or UNREADABLE.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    except OSError:
        return UNREADABLE
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > most:
        return UNREADABLE
    try:
        content = os.read(descriptor, most)
    except OSError:  # a file of /proc
        return UNREADABLE
    sys.stdout.buffer.write(content)
    return 0


class SeccompFilter(ctypes.Structure):
    """The kernel's `sock_fprog`."""

    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def drop_rights(code: bytes) -> None:
    """Give up all capabilities and filter system calls, for this process and its children. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    capability = 0
    while libc.prctl(DROP_BOUND, capability, 0, 0, 0) == 0:  # it fails for the first number without a capability
        capability += 1
    header, no_capabilities = (ctypes.c_uint32 * 2)(CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    program = ctypes.byref(SeccompFilter(len(code) // 8, code))
    has_failed = libc.capset(header, no_capabilities) or libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    if has_failed or (code and libc.prctl(SET_SECCOMP, FILTER, program, 0, 0)):
        raise OSError(ctypes.get_errno(), "rights cannot be dropped")


def run_command(order: dict) -> int:
    """Run a command in the container's process namespace and return its exit code, 128 + n for signal n."""
    if (child := os.fork()) == 0:
        try:
            drop_rights(bytes.fromhex(order["filter"]))
            os.chdir(order["workdir"])
            os.execvpe(order["argv"][0], order["argv"], order["environment"])
        except OSError as error:
            os.write(2, f"{NOT_EXECUTED} {order['argv'][0]}: {error.strerror}\n".encode())
        os._exit(127)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run the operation of the command line."""
    pid, noted, operation, *arguments = sys.argv[1:]
    namespaces = dict(name_and_inode.split("=") for name_and_inode in noted.split(","))
    names = {"listen": ("user", "net"), "run": ("user", "mnt", "net", "pid", "ipc", "uts")}
    order = {}
    if operation == "run":
        with open(arguments[0]) as file:
            order = json.load(file)
        for group in order["groups"]:
            with open(f"{group}/cgroup.procs", "w") as file:
                file.write("0")  # 0 is the writing process
    sys.meta_path.clear()  # an import would run a file of the container with the rights of the host
    enter_namespaces(pid, namespaces, names.get(operation, ("user", "mnt")))
    if operation == "run":
        return run_command(order)
    if operation == "listen":
        send_listener(int(arguments[0]), int(arguments[1]))
    elif operation == "put":
        extract_files()
    elif operation == "remove":
        remove_paths(arguments)
    elif operation == "get":
        return copy_file(arguments[0], int(arguments[1]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, tarfile.TarError, shutil.Error) as error:
        sys.exit(f"{type(error).__name__}: {error}")
