"""Supervisor of one command: a standard-library program between ajet and the command.

Invariants: the supervisor ends only after the complete process tree, including daemons outside the process group
(Linux; elsewhere only the group). The tree ends when standard input closes, also if ajet is killed. No other program is
run. On Linux two processes guard each other: each ends the tree if the other is killed. Usage: `python -I -S keeper.py
REPORT_FD`; one line of JSON in, one line out after the end.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time

LOOK_EVERY = 0.2
"""Seconds between two looks at what the tree uses."""
GRACE = 2.0
"""Seconds between asking a tree to end and ending it, at a timeout."""
PATIENCE = 10.0
"""Seconds to wait for killed processes before leaving them to the kernel."""
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: orphans of the tree become the keeper's children."""
DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG: signal sent when the parent process ends."""
FROM_OUTSIDE = "another process ended the process that supervises the command"
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
LINUX = sys.platform.startswith("linux")


class ProcessTree:
    """Descendants of the supervisor; `first` is the pid of the command."""

    def __init__(self) -> None:
        self.first = 0
        self.status: int | None = None
        """Exit status of the command from `os.waitpid`; None while running."""

    def start(self, order: dict) -> str:
        """Fork and run the command of an order.

        Returns:
            "", or why the command could not be started.
        """
        read_end, write_end = os.pipe()
        self.first = os.fork()
        if self.first == 0:
            _exec_command(order, write_end)
        os.close(write_end)
        with open(read_end, "rb") as report:
            problem = report.read().decode()  # executing the command closes the pipe, without a text
        return problem

    def members(self) -> list[int]:
        """Return the process ids of all descendants, parents before children.

        Elsewhere than on Linux only the command's own id is known.
        """
        if not LINUX:
            return [self.first] if self.status is None else []
        pids = []
        unvisited = [os.getpid()]
        while unvisited:
            children = _child_pids(unvisited.pop())
            pids += children
            unvisited += children
        return pids

    def reap(self) -> None:
        """Wait for all children that have ended, so that none stays a zombie, and store the command's exit status."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.first:
                self.status = status

    def send(self, number: int) -> None:
        """Send a signal to all descendants; elsewhere than on Linux to the command's process group.

        Args:
            number: Number of the signal.
        """
        for pid in self.members():
            _send_signal(pid, number)
        if not LINUX and self.first:
            _send_signal(-self.first, number)

    def end(self) -> int:
        """Stop all processes, so that none starts another, then kill them.

        Returns:
            The number of processes that are not dead after PATIENCE seconds.
        """
        stopped: set[int] = set()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            running = [pid for pid in self.members() if pid not in stopped]
            for pid in running:
                _send_signal(pid, signal.SIGSTOP)
            stopped.update(running)
            if not running:
                break
        while True:
            self.send(signal.SIGKILL)
            self.reap()
            remaining = self.members()
            if not remaining or time.monotonic() > deadline:
                return len(remaining)
            time.sleep(0.005)

    def use(self) -> dict:
        """Return the present usage of the tree.

        Returns:
            `processes`: number; `memory`: resident bytes; `cpu`: seconds, including ended processes.
        """
        ended_usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        usage = {"processes": 0, "memory": 0, "cpu": ended_usage.ru_utime + ended_usage.ru_stime}
        for pid in self.members() if LINUX else []:
            try:
                # Fields after the command's name in brackets: 21 is resident pages, 11 to 14 are CPU ticks.
                with open(f"/proc/{pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            usage["processes"] += 1
            usage["memory"] += int(fields[21]) * PAGE
            usage["cpu"] += sum(map(int, fields[11:15])) / TICKS
        return usage

    def exact_memory(self) -> int | None:
        """Return the memory in bytes, counting shared pages once; slower than `use`. None if unknown."""
        total = 0
        for pid in self.members():
            try:
                with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                    total += sum(int(line.split()[1]) for line in file if line.startswith(b"Pss:"))
            except OSError:
                continue
        return total * 1024 or None


def run_order(order: dict, guard: int) -> dict:
    """Run a command until its end, a limit, or the end of the process `guard`, and end its process tree.

    Args:
        order: `command`, `folder`, `input`, `limits`, `timeout`, `grace` (seconds between SIGTERM and SIGKILL) and
            `measured` (False: the tree is not polled and has no limits).
        guard: Id of the parent process. 0: none.

    Returns:
        The report: exit `code`, `ended_by` (a limit, "timeout", "stopped" or ""), `problem`, seconds, usage, and the
            number of processes `left`.
    """
    tree = ProcessTree()
    started = time.monotonic()
    ended_by, peak = "", {"processes": 0, "memory": 0, "cpu": 0.0}
    wake_reader, wake_writer = os.pipe()
    # A signal writes to this pipe, which ends the `select` below.
    for end in (wake_reader, wake_writer):
        os.set_blocking(end, False)
    for number in (signal.SIGCHLD, signal.SIGTERM) if guard else (signal.SIGCHLD,):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    problem = tree.start(order)
    limits, timeout, measured = order["limits"], order["timeout"], order.get("measured", True)
    term_sent_at, grace, watched_descriptors = 0.0, order.get("grace") or 0.0, [0, wake_reader]
    while not problem and tree.status is None:
        if guard and os.getppid() != guard:
            ended_by, problem = "stopped", FROM_OUTSIDE
            break
        now = time.monotonic()
        if timeout and now - started >= timeout and not term_sent_at:
            ended_by, term_sent_at = "timeout", now
            tree.send(signal.SIGTERM)
        if term_sent_at and now - term_sent_at >= max(GRACE, grace):
            break
        poll_interval = LOOK_EVERY if measured or term_sent_at else None
        time_to_look = started + timeout - now if timeout and not term_sent_at else poll_interval
        wait = (
            None
            if time_to_look is None
            else max(0.0, time_to_look if poll_interval is None else min(poll_interval, time_to_look))
        )
        ready, _, _ = select.select(watched_descriptors, [], [], wait)
        if 0 in ready and not os.read(0, 1):  # standard input is closed: the caller has ended or wants the end
            ended_by = "stopped"
            if not grace:
                break
            # A new time: `now` was taken before `select`, which may have waited long.
            term_sent_at, watched_descriptors = term_sent_at or time.monotonic(), [wake_reader]
            tree.send(signal.SIGTERM)
        if wake_reader in ready:
            os.read(wake_reader, 4096)
        if measured:
            usage = tree.use()
            peak = {name: max(peak[name], usage[name]) for name in usage}
            exceeded = _exceeded_limit(tree, usage, limits)
            if exceeded:
                ended_by = exceeded
                break
        tree.reap()
    remaining = tree.end()
    done = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = None if tree.status is None else os.waitstatus_to_exitcode(tree.status)
    return {
        "problem": problem,
        "code": code,
        "ended_by": ended_by,
        "seconds": time.monotonic() - started,
        "cpu": done.ru_utime + done.ru_stime,
        "memory": max(peak["memory"], done.ru_maxrss * 1024 if LINUX else 0),
        "processes": peak["processes"],
        "left": remaining,
    }


def _exceeded_limit(tree: ProcessTree, used: dict, limits: dict) -> str:
    """Return the name of an exceeded limit of the tree: "processes", "cpu" or "memory"; "" without one.

    Pages shared by processes count several times in `used`, so an exceeded memory limit is checked exactly.
    """
    for name in ("processes", "cpu"):
        if limits.get(name) and used[name] > limits[name]:
            return name
    memory_limit = limits.get("memory")
    if memory_limit and used["memory"] > memory_limit and (tree.exact_memory() or used["memory"]) > memory_limit:
        return "memory"
    return ""


def _exec_command(order: dict, report: int) -> None:
    """Turn the forked process into the command of an order; never returns.

    An error before the command starts is written to the file descriptor `report`.
    """
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(order["folder"])
        os.dup2(_standard_input(order), 0)
        limits = order["limits"]
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if limits.get("file"):
            _set_limit(resource.RLIMIT_FSIZE, int(limits["file"]))
        if limits.get("memory") and LINUX:
            _set_limit(resource.RLIMIT_DATA, 2 * int(limits["memory"]))
        os.execvp(order["command"][0], order["command"])
    except BaseException as error:  # noqa: BLE001 - this process is a copy of the keeper and must not go on
        os.write(report, f"{type(error).__name__}: {error}".encode(errors="replace")[:2000])
        os._exit(127)


def _set_limit(what: int, limit: int) -> None:
    """Set a resource limit of this process, at most to the hard limit.

    Args:
        what: A constant such as RLIMIT_DATA.
    """
    _, hard = resource.getrlimit(what)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(what, (limit, limit))


def _standard_input(order: dict) -> int:
    """Return a file descriptor for the command's standard input: an unlinked file with the text, or /dev/null."""
    if order.get("input") is None:
        return os.open(os.devnull, os.O_RDONLY)
    path = os.path.join(order["folder"], f".standard-input-{os.getpid()}")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    unwritten = order["input"].encode(errors="replace")
    while unwritten:
        unwritten = unwritten[os.write(descriptor, unwritten) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _child_pids(pid: int) -> list[int]:
    """Return the ids of a process's children, of all its threads; [] for a process that has ended."""
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                pids += map(int, file.read().split())
    except OSError:
        if pid == os.getpid():  # this process exists, so the kernel does not list children
            return pids or _scan_descendants(pid)
    return pids


def _scan_descendants(parent: int) -> list[int]:
    """Return the ids of all descendants of a process, for kernels without `/proc/PID/task/TID/children`."""
    parent_by_pid: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent_by_pid[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
    descendants = {parent}
    has_grown = True
    while has_grown:
        new_descendants = {pid for pid, parent_pid in parent_by_pid.items() if parent_pid in descendants} - descendants
        descendants |= new_descendants
        has_grown = bool(new_descendants)
    return sorted(descendants - {parent})


def _send_signal(pid: int, number: int) -> None:
    """Send a signal to a process, or to the group -pid; without effect if it has ended or belongs to another user."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def fork_guarded(report: int) -> int:
    """Fork a child that supervises the command; in the child, return the parent's pid. The parent never returns.

    The parent waits. If the child is killed, it ends the child's process tree and writes the report.
    """
    tree = ProcessTree()
    own_pid = os.getpid()
    if (child := os.fork()) == 0:
        prctl = ctypes.CDLL(None).prctl
        os.setpgid(0, 0)  # a signal to the group of one process must not end the other
        prctl(SUBREAPER, 1, 0, 0, 0)
        prctl(DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
        return own_pid
    for standard in (0, 1, 2):
        os.close(standard)
    status = os.waitpid(child, 0)[1]
    if status:
        remaining = tree.end()
        result = {"problem": FROM_OUTSIDE, "code": None, "ended_by": "stopped", "left": remaining}
        os.write(report, json.dumps(result).encode())
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def main() -> None:
    """Read an order from standard input, run its command, and write the report to the descriptor in argument 1."""
    report = int(sys.argv[1])
    os.set_inheritable(report, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard = 0
    if LINUX:
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        guard = fork_guarded(report)
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1 << 16)
        if not chunk:  # the caller ended before it sent an order
            return
        line += chunk
    result = json.dumps(run_order(json.loads(line), guard)).encode()
    os.write(report, result)
    os._exit(0)  # exits at once: if it were killed after its report, the guard would report, too


if __name__ == "__main__":
    main()
