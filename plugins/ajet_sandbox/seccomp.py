"""Builds the seccomp filter (BPF bytecode) of system calls for code in a sandbox, without a package.

Invariants: all unlisted system calls pass. A process that uses calls of another architecture (32 bit, x32) is killed.
`clone3` has flags that a filter cannot read, and fails with ENOSYS, so libc uses `clone`. The numbers are from Linux's
syscall tables.
"""

from __future__ import annotations

import errno
import platform
import struct

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_CALLS: dict[str, tuple[int | None, int | None]] = {
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "move_pages": (279, 239), "migrate_pages": (256, 238),
    # much kernel for little use
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262), "quotactl": (179, 60), "quotactl_fd": (443, 443), "lookup_dcookie": (212, 18),
    "vmsplice": (278, 75), "modify_ldt": (154, None), "uselib": (134, None), "personality": (135, 92),
    # the machine
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "syslog": (103, 116), "acct": (163, 89), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "iopl": (172, None), "ioperm": (173, None),
    "nfsservctl": (180, 42), "vhangup": (153, 58),
}  # fmt: skip
_SHARED: dict[str, tuple[int | None, int | None]] = {
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "socket": (41, 198),
    "setpriority": (141, 140), "ioprio_set": (251, 30),
}  # fmt: skip
"""Further refused calls without a separate namespace to contain their effects."""
_OF_ITSELF: dict[str, tuple[int, int]] = {
    "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274),
}  # fmt: skip
"""Allowed without namespaces only with process 0 (the caller itself)."""
_UNSEEN: dict[str, tuple[int, int]] = {"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194)}
"""Calls creating memory outside of any process, answered as unknown unless a control group counts the memory."""
_SETSOCKOPT, _FCNTL, _PRCTL = (54, 208), (72, 25), (157, 167)
_SOL_SOCKET, _BUFFERS = 1, (7, 8, 18, 32, 33)
"""SO_SNDBUF, SO_RCVBUF, SO_RCVLOWAT, SO_SNDBUFFORCE, SO_RCVBUFFORCE."""
_SET_PIPE_SIZE, _SET_DUMPABLE = 1031, 4
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SOCKET = (41, 198)
_IOCTL = (16, 29)
_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEW* of user, process, network, IPC, names, mount, cgroup and time namespaces."""
_FAMILIES = (1, 2, 10, 16)
"""Socket families of a network namespace: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Others (AF_VSOCK) ignore namespaces.
"""
_PUSH_INPUT = (0x5412, 0x541C)
"""The terminal requests TIOCSTI and TIOCLINUX."""
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_ANSWER = 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER = 0
_ARCHITECTURE = 4
_FIRST = 16
_SECOND = 24
_THIRD = 32
_X32 = 0x40000000


def seccomp_filter(*, namespaces: bool, counted: bool = False) -> bytes:
    """Return the filter's bytecode, or b"" on an unknown processor architecture.

    Args:
        namespaces: True if the sandbox has separate process, network and IPC namespaces. Otherwise sockets and shared
            memory are refused too.
        counted: True if memory is measured per process. Ways to hold memory outside of processes, growing buffers and
            hidden processes are then refused.
    """
    supported = _ARCHITECTURES.get(platform.machine())
    if supported is None:
        return b""
    architecture, column = supported
    program: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), (_ANSWER, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER),
    ]  # fmt: skip
    if column == 0:  # x86-64: system calls of x32 have a high bit in their number
        program += [(_AT_LEAST, 0, 1, _X32), (_ANSWER, 0, 0, _KILL)]
    refused: dict[str, tuple[int | None, int | None]] = dict(_CALLS)
    if not namespaces:
        refused |= _SHARED
    for numbers in refused.values():
        number = numbers[column]
        if number is not None:
            program += [(_EQUAL, 0, 1, number), _answer_with(errno.EPERM)]
    program += [(_EQUAL, 0, 1, _CLONE3[column]), _answer_with(errno.ENOSYS)]
    if counted:
        for numbers in _UNSEEN.values():
            program += [(_EQUAL, 0, 1, numbers[column]), _answer_with(errno.ENOSYS)]
        program += _check_call(
            _FCNTL[column], [(_LOAD, 0, 0, _SECOND), (_EQUAL, 0, 1, _SET_PIPE_SIZE), _answer_with(errno.EPERM)]
        )
        program += _check_call(
            _PRCTL[column], [(_LOAD, 0, 0, _FIRST), (_EQUAL, 0, 1, _SET_DUMPABLE), _answer_with(errno.EPERM)]
        )
        # The call reports success without an effect.
        buffers = [instruction for buffer in _BUFFERS for instruction in ((_EQUAL, 0, 1, buffer), _answer_with(0))]
        program += _check_call(
            _SETSOCKOPT[column],
            [(_LOAD, 0, 0, _SECOND), (_EQUAL, 1, 0, _SOL_SOCKET), (_ANSWER, 0, 0, _ALLOW), (_LOAD, 0, 0, _THIRD)]
            + buffers,
        )
    program += _check_call(
        _CLONE[column], [(_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _answer_with(errno.EPERM)]
    )
    terminal_tests = [(_EQUAL, 0, 1, request) for request in _PUSH_INPUT]
    program += _check_call(
        _IOCTL[column],
        [
            (_LOAD, 0, 0, _SECOND),
            *(
                instruction
                for terminal_test in terminal_tests
                for instruction in (terminal_test, _answer_with(errno.EPERM))
            ),
        ],
    )
    if namespaces:
        checks: list[tuple[int, int, int, int]] = [(_LOAD, 0, 0, _FIRST)]
        for family in _FAMILIES:
            checks += [(_EQUAL, 0, 1, family), (_ANSWER, 0, 0, _ALLOW)]
        program += _check_call(_SOCKET[column], [*checks, _answer_with(errno.EAFNOSUPPORT)])
    else:
        for numbers in _OF_ITSELF.values():
            program += _check_call(
                numbers[column], [(_LOAD, 0, 0, _FIRST), (_EQUAL, 1, 0, 0), _answer_with(errno.EPERM)]
            )
    program.append((_ANSWER, 0, 0, _ALLOW))
    # `struct sock_filter`: operation, jump if true, jump if false, operand.
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _answer_with(error_number: int) -> tuple[int, int, int, int]:
    """Return the instruction that ends a system call with this error number; 0 reports success without an effect."""
    return (_ANSWER, 0, 0, _FAIL | error_number)


def _check_call(number: int, rows: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Return instructions that apply `rows` only to the system call `number`.

    The rows overwrite the register with an argument, so an allowed call must return at once.
    """
    return [(_EQUAL, 0, len(rows) + 1, number), *rows, (_ANSWER, 0, 0, _ALLOW)]
