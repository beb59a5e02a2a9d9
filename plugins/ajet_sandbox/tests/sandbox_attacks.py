"""Attacks on a sandbox, each a piece of code that runs inside it and says what it could do.

As a program, `python sandbox_attacks.py MECHANISM WITH_CGROUPS`, it prints what came of each, as JSON. It imports no
more than a sandbox needs, so that any user of the machine can run it.

Invariant: an attack that succeeds harms nothing: it reads a secret made for it, calls a socket made for it, asks the
kernel whether it might, or uses a little more than it may.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ajet.schema.errors import SandboxFailure
from ajet.schema.sandbox import Limits, Result, UnsafePathError
from ajet_sandbox.choose import open_sandbox
from ajet_sandbox.tests.attack_targets import SECRET, Targets, targets
from ajet_sandbox.warm import WarmSandbox

MIB = 1 << 20
LIMITS = Limits(wall=4, cpu=1, memory=96 * MIB, processes=24, files=64, disk=16 * MIB, output=64 * 1024)
"""Small, so that a table takes seconds."""
SLACK = 24 * MIB
"""By how much a memory limit may be passed where a look every 100 ms holds it, and still count as held."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of an attack. `held_within`: bytes that were used of what is limited, where it was not held exactly."""

    attack: str
    outcome: Literal["held", "got through", "held within"]
    detail: str = ""

    @property
    def held(self) -> bool:
        """Whether the sandbox held."""
        return self.outcome != "got through"


Attack = Callable[[WarmSandbox, Targets], Verdict]
ATTACKS: dict[str, Attack] = {}
REACHES: dict[str, Callable[[Targets], str]] = {}
"""Those of them that reach for what is outside, as programs: each prints what it got hold of (`reached`)."""
_TELL = "\nexcept BaseException as error:\n    print('held', type(error).__name__, error)\n"


def attack(name: str) -> Callable[[Attack], Attack]:
    """Put it in the table, under this name."""

    def keep(found: Attack) -> Attack:
        ATTACKS[name] = found
        return found

    return keep


def run_attacks(box: WarmSandbox, targets: Targets, names: list[str] | None = None) -> list[Verdict]:
    """Run all attacks, one after the other, on one sandbox that was opened with LIMITS."""
    return [ATTACKS[name](box, targets) for name in names or ATTACKS]


def reached(text: str) -> bool:
    """Whether the program that printed this got through."""
    return SECRET in text or "THROUGH" in text


def _reaches(name: str, code: Callable[[Targets], str]) -> None:
    """An attack that prints the secret where it gets through, or THROUGH and what it saw."""

    def program(targets: Targets) -> str:
        body = "\n".join(f"    {row}" for row in code(targets).strip().splitlines())
        return f"import os, sys, socket, ctypes\ntry:\n{body}{_TELL}"

    REACHES[name] = program

    @attack(name)
    def tries(box: WarmSandbox, targets: Targets) -> Verdict:
        done = box.python(program(targets))
        text = done.stdout.decode(errors="replace").strip()
        through = reached(text)
        detail = (text or done.stderr.decode(errors="replace").strip() or done.ended)[-120:]
        return Verdict(name, "got through" if through else "held", detail if through else "")


_IS_IT = """
try:
    ticks = open('/proc/PID/stat').read().rpartition(')')[2].split()[19]
except OSError:
    ticks = 'TICKS'
print('THROUGH' if ticks == 'TICKS' else '')"""
"""In a namespace of its own the number is another process's, which began at another time."""
_reaches("the users of this machine", lambda at: f"""
print('THROUGH' if any(row in open('/etc/passwd').read().splitlines() for row in {at.users!r}) else '')""")  # fmt: skip
_reaches("a file of mode 600", lambda at: f"print(open({at.file!r}).read())")
_reaches("keys in a folder that is shown", lambda at: f"print(open({at.dotenv!r}).read())")
_reaches("the locks of a run", lambda at: f"""
import fcntl
for path, how in (({at.lock!r}, fcntl.flock), ({at.shm!r}, fcntl.lockf)):
    try:
        with open(path) as file:
            how(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            print('THROUGH')
    except OSError: pass""")  # fmt: skip
_reaches(
    "the environment of the process outside",
    lambda at: f"""
open('/proc/{at.pid}/environ').read()
{_IS_IT}""".replace("PID", str(at.pid)).replace("TICKS", at.ticks),
)
_reaches("a secret in its own environment", lambda at: "print(dict(os.environ)); os.system('env')")
_reaches(
    "a signal to the process outside",
    lambda at: f"""
os.kill({at.pid}, 0)
{_IS_IT}""".replace("PID", str(at.pid)).replace("TICKS", at.ticks),
)
_reaches("TCP to loopback", lambda at: f"print(socket.create_connection(('127.0.0.1', {at.tcp}), 1).recv(64))")
_reaches("UDP to loopback", lambda at: f"""
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.3)
s.sendto(b'?', ('127.0.0.1', {at.udp}))
print(s.recv(64))""")  # fmt: skip
_reaches("a unix socket by its path", lambda at: f"""
s = socket.socket(socket.AF_UNIX); s.connect({at.unix!r}); print(s.recv(64))""")  # fmt: skip
_reaches("an abstract unix socket", lambda at: f"""
s = socket.socket(socket.AF_UNIX); s.connect({at.abstract!r}); print(s.recv(64))""")  # fmt: skip
_reaches("a socket to the hypervisor", lambda at: "socket.socket(40, socket.SOCK_STREAM); print('THROUGH')")
_reaches("writing outside", lambda at: f"""
for folder in ({at.folder!r}, '/usr', '/etc', '/'):
    try:
        path = folder + '/{at.name}'
        open(path, 'x').close(); os.remove(path); print('THROUGH', folder)
    except OSError: pass""")  # fmt: skip
_reaches(
    "a new user namespace",
    lambda at: (
        """
libc = ctypes.CDLL(None, use_errno=True)
print('THROUGH' if libc.unshare(0x10000000) == 0 else '')"""
    ),
)
_reaches(
    "ptrace, keyrings, io_uring, bpf",
    lambda at: (
        """
libc = ctypes.CDLL(None, use_errno=True)
import platform
calls = {'x86_64': (101, 250, 425, 321), 'aarch64': (117, 219, 425, 280)}[platform.machine()]
for number, arguments in zip(calls, ((0, 0, 0, 0), (0, -3, 0), (8, ctypes.create_string_buffer(256)), (0, 0, 0))):
    ctypes.set_errno(0)
    found = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if found >= 0 or ctypes.get_errno() not in (1, 38):
        print('THROUGH', number, ctypes.get_errno())"""
    ),
)
_reaches("what keeps the sandbox", lambda at: """
for pid in {1, os.getppid()}:
    try:
        open(f'/proc/{pid}/mem', 'r+b').close(); print('THROUGH', pid)
    except OSError: pass
    try:
        print('THROUGH' if os.listdir(f'/proc/{pid}/fd') else '')
    except OSError: pass""")  # fmt: skip
_reaches(
    "open files of the process outside",
    lambda at: (
        """
left = [n for n in range(3, 256) if os.path.exists(f'/dev/fd/{n}')]
for n in range(3, 256):
    try:
        os.fstat(n); print('THROUGH', n)
    except OSError: pass"""
    ),
)


_DAEMON = """
import os, time
for _ in range(2):
    if os.fork(): os._exit(0)
    os.setsid()
while True:
    open('beat', 'a').write('.')
    time.sleep(0.01)
"""
_FORKS = """
import os, time
made = 0
for _ in range(150):
    try:
        pid = os.fork()
    except OSError:
        break
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    made += 1
print(made)
"""
_MEMORY = """
kept = []
try:
    for n in range(30):
        kept.append(b'x' * (8 << 20))
        print(n + 1, flush=True)
except MemoryError:
    pass
"""
_MEMORIES = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        break
kept = []
for n in range(9):
    kept.append(b'x' * (8 << 20))
    os.write(1, b'8\\n')
    time.sleep(0.005)
time.sleep(0.5)
"""
_MEMFDS = """
import os, socket, sys, time
def send_away(number):
    ours, theirs = socket.socketpair()
    socket.send_fds(ours, [b'x'], [number])
    os.close(number)
    return ours, theirs
kept = []
for n in range(30):
    number = os.memfd_create('x')
    for _ in range(8):
        os.write(number, bytes(1 << 20))
    kept.append(send_away(number) if n % 2 else number)
    print(8, flush=True)
time.sleep(0.5)
"""
_BUFFERS = """
import os, socket, time
for _ in range(15):
    if os.fork() == 0:
        break
try:
    import ctypes
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
except OSError:
    pass
kept = []
try:
    while True:
        kept.append(socket.socketpair())
        sent = 0
        for end in kept[-1]:
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            try:
                while True:
                    sent += end.send(bytes(1 << 16))
            except BlockingIOError:
                pass
        os.write(1, b'%d\\n' % sent)
except OSError:
    pass
time.sleep(0.5)
"""
_PIPES = """
import fcntl, os, time
for _ in range(15):
    if os.fork() == 0:
        break
kept = []
try:
    while True:
        kept.append(os.pipe())
        os.set_blocking(kept[-1][1], False)
        try:
            fcntl.fcntl(kept[-1][1], 1031, 1 << 20)
        except OSError:
            pass
        sent = 0
        try:
            while True:
                sent += os.write(kept[-1][1], bytes(1 << 16))
        except BlockingIOError:
            pass
        os.write(1, b'%d\\n' % sent)
except OSError:
    pass
time.sleep(0.5)
"""
_FILE = """
import os, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
made = 0
try:
    with open('big', 'wb', 0) as file:
        for _ in range(32):
            made += file.write(bytes(1 << 20))
except OSError:
    pass
print(made)
os.remove('big')
"""
_FILES = """
import time
made = 0
try:
    for n in range(24):
        with open(f'f{n}', 'wb', 0) as file:
            made += file.write(bytes(2 << 20))
        print(made, flush=True)
        time.sleep(0.02)
    time.sleep(0.3)
except OSError:
    pass
"""
_LOOP = """
import signal
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
while True: pass
"""


@attack("a link that is read from outside")
def _link(box: WarmSandbox, targets: Targets) -> Verdict:
    name = "a link that is read from outside"
    box.python(f"import os\nos.symlink({targets.file!r}, 'result')\nos.symlink({targets.folder!r}, 'results')")
    for path in ("result", f"results/{targets.file.rpartition('/')[2]}"):
        try:
            found = box.read(path, 100)
        except (UnsafePathError, FileNotFoundError):
            continue
        return Verdict(name, "got through", repr(found))
    return Verdict(name, "held")


@attack("a daemon that stays")
def _daemon(box: WarmSandbox, targets: Targets) -> Verdict:
    name = "a daemon that stays"
    box.python(_DAEMON)
    before = _size(box, "beat")
    box.python("import time; time.sleep(0.15)")
    after = _size(box, "beat")
    return Verdict(name, "held") if after == before else Verdict(name, "got through", "it still writes")


@attack("a fork bomb")
def _forks(box: WarmSandbox, targets: Targets) -> Verdict:
    done = box.python(_FORKS)
    return _within("a fork bomb", _number(done), LIMITS.processes, LIMITS.processes, "processes", done)


@attack("memory in one process")
def _memory(box: WarmSandbox, targets: Targets) -> Verdict:
    done = box.python(_MEMORY)
    used = max(map(int, done.stdout.split()), default=0) * 8 * MIB
    return _within("memory in one process", used, LIMITS.memory, LIMITS.memory + SLACK, "", done)


@attack("memory in four processes")
def _memories(box: WarmSandbox, targets: Targets) -> Verdict:
    done = box.python(_MEMORIES)
    return _added_up("memory in four processes", box, len(done.stdout.split()) * 8 * MIB, done)


def _added_up(name: str, box: WarmSandbox, used: int, done: Result) -> Verdict:
    """The verdict about memory that only a sum over the processes shows."""
    shown = f"{used >> 20} MB used of {LIMITS.memory >> 20}"
    if done.ended == "memory":  # a look may come late: more can have been used than was said
        return Verdict(name, "held") if box.is_memory_held else Verdict(name, "held within", shown)
    return Verdict(name, "held") if used <= LIMITS.memory else Verdict(name, "got through", shown)


@attack("memory in memfds")
def _memfds(box: WarmSandbox, targets: Targets) -> Verdict:
    done = box.python(_MEMFDS)
    return _added_up("memory in memfds", box, len(done.stdout.split()) * 8 * MIB, done)


@attack("memory in socket buffers")
def _buffers(box: WarmSandbox, targets: Targets) -> Verdict:
    done = box.python(_BUFFERS)
    return _added_up("memory in socket buffers", box, sum(map(int, done.stdout.split())), done)


@attack("memory in pipes")
def _pipes(box: WarmSandbox, targets: Targets) -> Verdict:
    done = box.python(_PIPES)
    return _added_up("memory in pipes", box, sum(map(int, done.stdout.split())), done)


@attack("one big file")
def _file(box: WarmSandbox, targets: Targets) -> Verdict:
    done = box.python(_FILE)
    box.run(["sh", "-c", "rm -f big"])  # what was ended for its disk has not done so
    return _within("one big file", _number(done), LIMITS.disk, LIMITS.disk, "", done)


@attack("many files")
def _files(box: WarmSandbox, targets: Targets) -> Verdict:
    name = "many files"
    done = box.python(_FILES)
    used = max(map(int, done.stdout.split()), default=0)
    box.run(["sh", "-c", "rm -f f*"])
    if used <= LIMITS.disk:
        return Verdict(name, "held")
    if done.ended == "disk":
        return Verdict(name, "held within", f"{used >> 20} MB used of {LIMITS.disk >> 20}")
    return Verdict(name, "got through", f"{used >> 20} MB of {LIMITS.disk >> 20}")


@attack("an endless loop")
def _loop(box: WarmSandbox, targets: Targets) -> Verdict:
    done = box.python(_LOOP, limits=replace(LIMITS, wall=0.6))
    held = done.ended in ("time", "signal") and done.seconds < LIMITS.wall
    return Verdict("an endless loop", "held" if held else "got through", "" if held else done.ended)


@attack("a flood of output")
def _flood(box: WarmSandbox, targets: Targets) -> Verdict:
    done = box.run(["sh", "-c", "yes"])
    size = len(done.stdout) + len(done.stderr)
    return _within("a flood of output", size, LIMITS.output, LIMITS.output, "bytes", done)


@attack("the end of what keeps the sandbox")
def _kill(box: WarmSandbox, targets: Targets) -> Verdict:
    name = "the end of what keeps the sandbox"
    try:
        # looked up once: after the first signal its parent may be whoever adopts orphans on this machine
        box.python("import os\nparent = os.getppid()\nfor n in (9, 19, 15):\n    os.kill(parent, n)")
        done = box.python("print(1)")
    except SandboxFailure:
        return Verdict(name, "got through", "the sandbox was lost, with its episode")
    return Verdict(name, "held" if done.stdout == b"1\n" else "got through")


def _within(name: str, used: int, limit: int, most: int, unit: str, done: Result) -> Verdict:
    if used < 0:
        return Verdict(name, "got through", f"it says nothing: {done.stderr[-100:]!r}")
    shown = (lambda size: f"{size} {unit}") if unit else (lambda size: f"{size >> 20} MB")
    if used <= limit:
        return Verdict(name, "held")
    return Verdict(name, "held within" if used <= most else "got through", f"{shown(used)} of {shown(limit)}")


def _number(done: Result) -> int:
    text = done.stdout.strip()
    if text.isdigit():
        return int(text)
    return 0 if done.ended in ("memory", "signal", "time", "disk") else -1


def _size(box: WarmSandbox, path: str) -> int:
    try:
        return len(box.read(path, MIB))
    except FileNotFoundError:
        return 0


def verdicts(
    mechanism: str, *, cgroups: bool = True, names: list[str] | None = None, image: str | None = None
) -> dict[str, tuple[str, str]]:
    """What came of each attack: (outcome, detail)."""
    with targets() as made:
        box = open_sandbox(mechanism, LIMITS, cgroups=cgroups, image=image)
        try:
            found = run_attacks(box, made, names)
        finally:
            box.close()
    return {each.attack: (each.outcome, each.detail) for each in found}


if __name__ == "__main__":
    done = threading.Event()
    others = [threading.Thread(target=done.wait) for _ in range(LIMITS.processes + 10)]
    for each in others:  # a user has more processes than a sandbox may
        each.start()
    try:
        print(json.dumps(verdicts(sys.argv[1], cgroups=sys.argv[2] == "True")))
    finally:
        done.set()
