"""Runs a command that runs tests and says what it cost; `make test-times` and .ci/run use it. Only the stdlib is used.

    python scripts/suite_costs.py --name test --seconds 900 --cpu 1500 --ray 1 --vllm 2 -- make test

Invariant: everything that the command starts is counted, also what outlives its parent (this process adopts it): at the
end nothing of it may live, and its CPU-seconds are the kernel's own sum over all processes that ended. A command that
takes twice its seconds hangs: it is interrupted, then killed. Exit code: the command's; 1 where a budget is passed by
more than a third, or a process was left behind.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
TOLERANCE = 4 / 3
"""A budget is for a quiet machine; what is more than a third above it is no noise."""
HANGS = 2
"""How many times its seconds a command may take before it is broken off."""
LAST_WORDS_S = 60.0
"""How long one that was interrupted may take to say where it was."""
LOOK_S = 0.5
BOOTS = {"gcs_server": "ray", "VLLM::EngineCor": "vllm"}
"""Processes of which there is one a boot, by the name that the kernel keeps (15 letters)."""


@dataclass
class Row:
    """What one test cost."""

    seconds: float = 0.0
    cpu: float = 0.0
    ajet: int = 0
    ray: int = 0
    vllm: int = 0

    def add(self, other: Row) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Watch:
    """The processes below this one: which boots there were, for which test, and what orphans cost."""

    boots: list[tuple[str, str]] = field(default_factory=list)
    orphans: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    tests: dict[int, str] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def look(self) -> None:
        """Note the processes that are new, and those that have got another name since."""
        for pid in descendants(os.getpid()):
            if pid not in self.tests:
                self.tests[pid] = test_of(pid)
            kind = BOOTS.get(name_of(pid))
            if kind and pid not in self.seen:
                self.seen.add(pid)
                if kind == "ray" or not self.belongs(pid):
                    self.boots.append((kind, self.tests[pid]))

    def belongs(self, pid: int) -> bool:
        """Whether it is of a boot that was counted: a child that has its parent's name yet, or verl's server."""
        parent = parent_of(pid)
        while parent > 1:
            if parent in self.seen or name_of(parent).startswith("ray::"):
                return True
            parent = parent_of(parent)
        return False

    def reap(self, command: int) -> int | None:
        """Take leave of the orphans that ended; the command's exit status once it has."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            if pid == command:
                return os.waitstatus_to_exitcode(status)
            self.orphans[self.tests.get(pid, "")] += usage.ru_utime + usage.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="tests")
    for budget in ("seconds", "cpu"):
        parser.add_argument(f"--{budget}", type=float, help=f"the budget of {budget}")
    for budget in ("ray", "vllm"):
        parser.add_argument(f"--{budget}", type=int, help=f"how often {budget} may be started")
    parser.add_argument("--table", type=int, default=0, metavar="N", help="the N dearest tests and files")
    parser.add_argument("--rows", type=Path, help="where to keep a row a test, as JSON Lines")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        costs = Path(folder) / "costs.jsonl"
        began = time.perf_counter()
        longest = HANGS * options.seconds if options.seconds else float("inf")
        code, watch = run(options.command, {**os.environ, "AJET_TEST_COSTS": str(costs)}, longest)
        seconds = time.perf_counter() - began
        left = end_the_rest(watch)
        rows = rows_of(costs, watch)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = Row(seconds, used.ru_utime + used.ru_stime, sum(row.ajet for row in rows.values()))
    total.ray, total.vllm = (sum(kind == name for kind, _ in watch.boots) for name in ("ray", "vllm"))
    if options.table:
        print_table(rows, options.table)
    if options.rows:
        options.rows.write_text("".join(json.dumps({"test": t, **vars(row)}) + "\n" for t, row in rows.items()))
    print(f"{options.name}: {line(total)}", flush=True)
    passed = over(total, vars(options), watch)
    for sentence in [*passed, *(f"left behind: {what}" for what in left)]:
        print(f"{options.name}: {sentence}", flush=True)
    return code or int(bool(passed or left))


def run(command: Sequence[str], environment: dict[str, str], longest: float) -> tuple[int, Watch]:
    """Run it to its end while looking on, `longest` seconds at most; its exit code."""
    watch, stop = Watch(), threading.Event()
    process = subprocess.Popen(command, env=environment)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: pass_on(number, process.pid))
    code, end, number = None, time.monotonic() + longest, signal.SIGINT
    while code is None:
        watch.look()
        code = watch.reap(process.pid)
        if code is None and time.monotonic() > end:
            print(f"broken off: not done after {longest:.0f} s", flush=True)
            pass_on(number, process.pid)
            end, number = time.monotonic() + LAST_WORDS_S, signal.SIGKILL
        stop.wait(LOOK_S)
    process.returncode = code  # it was waited for above
    return code, watch


def pass_on(number: int, pid: int) -> None:
    """A signal to the command. Not by Popen.send_signal, which may take in the exit status that `reap` waits for."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def end_the_rest(watch: Watch, patience_s: float = 10.0) -> list[str]:
    """What still lives a while after the command's end, by command line; it is killed."""
    deadline = time.monotonic() + patience_s
    while (alive := list(descendants(os.getpid()))) and time.monotonic() < deadline:
        watch.look()
        watch.reap(0)
        time.sleep(0.1)
    left = [f"process {pid} ({command_of(pid)[:200]}) of {watch.tests.get(pid) or 'no test'}" for pid in alive]
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    while alive and list(descendants(os.getpid())):
        watch.reap(0)
        time.sleep(0.05)
    return left


def rows_of(costs: Path, watch: Watch) -> dict[str, Row]:
    """A row a test, boots and orphans added to it."""
    rows: dict[str, Row] = defaultdict(Row)
    for text in costs.read_text().splitlines() if costs.exists() else []:
        raw = json.loads(text)
        rows[raw.pop("test")].add(Row(**raw))
    for kind, test in watch.boots:
        setattr(rows[test], kind, getattr(rows[test], kind) + 1)
    for test, cpu in watch.orphans.items():
        rows[test].cpu += cpu
    return rows


def print_table(rows: dict[str, Row], most: int) -> None:
    files: dict[str, Row] = defaultdict(Row)
    for test, row in rows.items():
        files[test.split("::")[0]].add(row)
    for title, table in (("file", files), ("test", rows)):
        print(f"\n{'seconds':>9} {'CPU-s':>9} {'ajet':>5} {'Ray':>4} {'vLLM':>5}  {title}")
        for name, row in sorted(table.items(), key=lambda entry: -entry[1].cpu)[:most]:
            print(f"{row.seconds:9.1f} {row.cpu:9.1f} {row.ajet:5} {row.ray:4} {row.vllm:5}  {name or '(no test)'}")
    print()


def line(total: Row) -> str:
    boots = f"Ray started {total.ray} times, vLLM {total.vllm}, ajet {total.ajet}"
    return f"{total.seconds:.0f} s, {total.cpu:.0f} CPU-seconds with children; {boots}"


def over(total: Row, budgets: dict[str, object], watch: Watch) -> list[str]:
    """A sentence for each budget that is passed by more than a third; a boot too many is one too many, and who started
    one is said."""
    sentences = []
    for name in ("seconds", "cpu", "ray", "vllm"):
        budget, used = budgets[name], getattr(total, name)
        if budget is not None and used > budget * (TOLERANCE if name in ("seconds", "cpu") else 1):  # type: ignore[operator]
            who = ", ".join(test or "no test" for kind, test in watch.boots if kind == name)
            sentences.append(f"over budget: {name} {used:.0f} of {budget:.0f}" + (f" ({who})" if who else ""))
    return sentences


def descendants(root: int) -> Iterator[int]:
    """The living processes below this one."""
    children = defaultdict(list)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text()
            except OSError:
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                children[int(parent)].append(int(entry.name))
    waiting = [root]
    while waiting:
        below = children[waiting.pop()]
        yield from below
        waiting += below


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def test_of(pid: int) -> str:
    """The test that started it, as pytest wrote it into the environment."""
    found = re.search(r"(?:^|\0)PYTEST_CURRENT_TEST=(.*?) \((?:setup|call|teardown)\)", environment_of(pid))
    return found[1] if found else ""


def environment_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
