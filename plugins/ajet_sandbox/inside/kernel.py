"""Linux system calls missing in Python: prctl, seccomp filters and Landlock. Raises OSError."""

from __future__ import annotations

import ctypes
import os
import struct

SET_DUMPABLE = 4
NO_NEW_PRIVS = 38
SET_SECCOMP = 22
SUBREAPER = 36
_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""Landlock's system calls, with equal numbers on every architecture."""
EXECUTE = 1
WRITE_FILE = 2
READ_FILE = 4
READ_DIR = 8
REFER = 1 << 13
_FILES_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All file rights of an ABI. Later ABIs add no file right."""
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15
"""Rights allowed in a rule for a single file."""
_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    """The kernel's `struct sock_fprog`: number of instructions, and their bytes."""

    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def _check_result(value: int) -> int:
    """Return the result of a system call. Raises OSError with the C library's errno if it is negative."""
    if value < 0:
        error_number = ctypes.get_errno()
        raise OSError(error_number, os.strerror(error_number))
    return value


def prctl(option: int, value: int) -> None:
    """Set an option of this process by the system call prctl. Raises OSError."""
    _check_result(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def load_filter(code: bytes) -> None:
    """Install a seccomp filter (BPF bytecode) for this process and its children."""
    prctl(NO_NEW_PRIVS, 1)
    _check_result(_libc.prctl(SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(_Filter(len(code) // 8, code)), 0, 0))


def read_landlock_version() -> int:
    """Return the version of Landlock's interface, or 0 without Landlock."""
    version: int = _libc.syscall(ctypes.c_long(_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    return max(version, 0)


def apply_landlock(readable: list[str], writable: list[str], devices: list[str]) -> None:
    """Restrict this process and its children to these paths, by Landlock.

    TCP (from interface version 4), and signals or abstract sockets to the outside (from version 6), are denied.

    Args:
        readable: paths to read and execute.
        writable: paths with all rights.
        devices: existing files to read and write.
    """
    version = read_landlock_version()
    file_rights = _FILES_OF_ABI.get(version, _FILES_OF_ABI[5])
    ruleset = create_ruleset(file_rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    try:
        for paths, rights in (
            (readable, EXECUTE | READ_FILE | READ_DIR),
            (writable, file_rights & ~EXECUTE | EXECUTE),
            (devices, READ_FILE | WRITE_FILE),
        ):
            for path in paths:
                _allow_path(ruleset, path, rights & file_rights)
        enforce_ruleset(ruleset)
    finally:
        os.close(ruleset)


def create_ruleset(files: int, network: int = 0, scopes: int = 0) -> int:
    """Return the descriptor of a new Landlock ruleset that denies these rights unless a rule grants them.

    Args:
        files: bit set of file rights.
        network: bit set of network rights.
        scopes: bit set of what is confined to the sandbox, such as signals.
    """
    attributes = struct.pack("QQQ", files, network, scopes)
    size = 24 if scopes else 16 if network else 8
    return _check_result(_libc.syscall(ctypes.c_long(_CREATE), attributes, ctypes.c_size_t(size), ctypes.c_uint(0)))


def add_rule(ruleset: int, place: int, rights: int) -> None:
    """Grant file rights to an open file, or to everything below an open folder.

    Args:
        ruleset: descriptor of the ruleset.
        place: descriptor of the file or folder.
        rights: bit set of file rights.
    """
    rule = struct.pack("=Qi", rights, place)
    _check_result(_libc.syscall(ctypes.c_long(_ADD), ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0)))


def enforce_ruleset(ruleset: int) -> None:
    """Apply the ruleset to the current process and its children."""
    prctl(NO_NEW_PRIVS, 1)
    _check_result(_libc.syscall(ctypes.c_long(_RESTRICT), ctypes.c_int(ruleset), ctypes.c_uint(0)))


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    """Grant rights to a path, for a file only those that apply to files. A missing path is skipped."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _OF_FILES
        add_rule(ruleset, descriptor, rights)
    finally:
        os.close(descriptor)
