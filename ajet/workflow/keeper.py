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
        """Run the command. An empty string, or why it could not be started."""
        read_end, write_end = os.pipe()
        self.first = os.fork()
        if self.first == 0:
            _exec_command(order, write_end)
        os.close(write_end)
        with open(read_end, "rb") as report:
            problem = report.read().decode()
        return problem

    def members(self) -> list[int]:
        """Return process ids, parents before children."""
        if not LINUX:
            return [self.first] if self.status is None else []
        pids = []
        todo = [os.getpid()]
        while todo:
            below = _child_pids(todo.pop())
            pids += below
            todo += below
        return pids

    def reap(self) -> None:
        """Reap ended children and store the command's status."""
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
        for pid in self.members():
            _send_signal(pid, number)
        if not LINUX and self.first:
            _send_signal(-self.first, number)

    def end(self) -> int:
        """Stop all processes, so none starts another, then kill them. Returns the number of survivors."""
        stopped: set[int] = set()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            fresh = [pid for pid in self.members() if pid not in stopped]
            for pid in fresh:
                _send_signal(pid, signal.SIGSTOP)
            stopped.update(fresh)
            if not fresh:
                break
        while True:
            self.send(signal.SIGKILL)
            self.reap()
            remaining = self.members()
            if not remaining or time.monotonic() > deadline:
                return len(remaining)
            time.sleep(0.005)

    def use(self) -> dict:
        """Return the usage of the tree: processes, memory in bytes, CPU seconds including ended processes."""
        done = resource.getrusage(resource.RUSAGE_CHILDREN)
        usage = {"processes": 0, "memory": 0, "cpu": done.ru_utime + done.ru_stime}
        for pid in self.members() if LINUX else []:
            try:
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
    """Run `order` until its end, a limit, or the end of the process `guard` (0: none).

    An order without `measured` has no limits on the tree and is not polled.
    """
    tree = ProcessTree()
    started = time.monotonic()
    ended_by, peak = "", {"processes": 0, "memory": 0, "cpu": 0.0}
    wake, wakened = os.pipe()
    for end in (wake, wakened):
        os.set_blocking(end, False)
    for number in (signal.SIGCHLD, signal.SIGTERM) if guard else (signal.SIGCHLD,):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
    problem = tree.start(order)
    limits, timeout, measured = order["limits"], order["timeout"], order.get("measured", True)
    term_sent, grace, watched = 0.0, order.get("grace") or 0.0, [0, wake]
    while not problem and tree.status is None:
        if guard and os.getppid() != guard:
            ended_by, problem = "stopped", FROM_OUTSIDE
            break
        now = time.monotonic()
        if timeout and now - started >= timeout and not term_sent:
            ended_by, term_sent = "timeout", now
            tree.send(signal.SIGTERM)
        if term_sent and now - term_sent >= max(GRACE, grace):
            break
        look = LOOK_EVERY if measured or term_sent else None
        due = started + timeout - now if timeout and not term_sent else look
        wait = None if due is None else max(0.0, due if look is None else min(look, due))
        ready, _, _ = select.select(watched, [], [], wait)
        if 0 in ready and not os.read(0, 1):
            ended_by = "stopped"
            if not grace:
                break
            term_sent, watched = term_sent or time.monotonic(), [wake]  # it may have waited long
            tree.send(signal.SIGTERM)
        if wake in ready:
            os.read(wake, 4096)
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
    """Return the exceeded limit; "" without one."""
    for name in ("processes", "cpu"):
        if limits.get(name) and used[name] > limits[name]:
            return name
    memory_limit = limits.get("memory")
    if memory_limit and used["memory"] > memory_limit and (tree.exact_memory() or used["memory"]) > memory_limit:
        return "memory"
    return ""


def _exec_command(order: dict, report: int) -> None:
    """Turn the forked process into the command; never returns. Errors are written to `report`."""
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
    _, hard = resource.getrlimit(what)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(what, (limit, limit))


def _standard_input(order: dict) -> int:
    """Return a file descriptor of the command's standard input: a text or nothing."""
    if order.get("input") is None:
        return os.open(os.devnull, os.O_RDONLY)
    path = os.path.join(order["folder"], f".standard-input-{os.getpid()}")
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    text = order["input"].encode(errors="replace")
    while text:
        text = text[os.write(number, text) :]
    os.lseek(number, 0, os.SEEK_SET)
    return number


def _child_pids(pid: int) -> list[int]:
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                pids += map(int, file.read().split())
    except OSError:
        if pid == os.getpid():
            return pids or _scan_descendants(pid)
    return pids


def _scan_descendants(parent: int) -> list[int]:
    """All descendants, on kernels that do not list the children of a process."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
    descendants = {parent}
    grown = True
    while grown:
        more = {pid for pid, above in parents.items() if above in descendants} - descendants
        descendants |= more
        grown = bool(more)
    return sorted(descendants - {parent})


def _send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def fork_guarded(report: int) -> int:
    """Fork a child that continues with this process' pid as guard; the parent never returns.

    The parent only ends the child's tree if the child is killed.
    """
    tree = ProcessTree()
    own_pid = os.getpid()
    if (child := os.fork()) == 0:
        call = ctypes.CDLL(None).prctl
        os.setpgid(0, 0)  # a signal to the group of one process must not end the other
        call(SUBREAPER, 1, 0, 0, 0)
        call(DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
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
    """Read an order, run the command, write the report."""
    report = int(sys.argv[1])
    os.set_inheritable(report, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    guard = 0
    if LINUX:
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        guard = fork_guarded(report)
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1 << 16)
        if not part:
            return
        line += part
    result = json.dumps(run_order(json.loads(line), guard)).encode()
    os.write(report, result)
    os._exit(0)  # exits at once: if it were killed after its report, the guard would report, too


if __name__ == "__main__":
    main()
