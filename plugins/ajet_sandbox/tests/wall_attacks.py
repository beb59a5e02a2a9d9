"""Code behind walls against what a project holds, as a program: `python wall_attacks.py ATTACK FOLDER` prints what the
code inside got hold of, as JSON. It imports no more than walls need, so that any user of the machine can run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ajet.record.held_folder import HeldFolder, make_workdir
from ajet_sandbox.identity import choose_uid
from ajet_sandbox.program import Walls, wall_program

LOCKS = """
import fcntl, json, os, sys
taken = []
for top in sys.argv[1:]:
    for here, _, files in os.walk(top):
        for name in files:
            path = os.path.join(here, name)
            for how, take in (("flock", fcntl.flock), ("lockf", fcntl.lockf)):
                if os.stat(path).st_size == 0:
                    continue  # the project's have content; an empty one is this sandbox's own
                try:
                    with open(path) as file:
                        take(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                        taken.append(f"{os.path.relpath(path, top)} {how}")
                except OSError:
                    pass
print(json.dumps(taken))
"""


def run_inside(code: str, folders: Sequence[Path], change: Callable[[], None] | None = None) -> object:
    """Run code behind walls that show the folders, and return what it prints as JSON.

    Args:
        change: Called when the code has printed `ready`; the code then reads a line and goes on.
    """
    work = HeldFolder("walls-", mode=0o711)
    uid = choose_uid()
    command = [sys.executable, "-I", "-S", "-c", code, *map(str, folders)]
    wall = wall_program(command, Walls(make_workdir(work.path, "work", uid), tuple(folders), uid), {})
    try:
        with subprocess.Popen(
            wall.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={},
            cwd="/", pass_fds=wall.descriptors, user=wall.user, group=wall.user,
            extra_groups=None if wall.user is None else [],
        ) as guest:  # fmt: skip
            assert guest.stdin is not None and guest.stdout is not None
            if change is not None:
                assert guest.stdout.readline() == "ready\n"
                change()
            said, problem = guest.communicate("go\n", timeout=60)
    finally:
        for each in wall.descriptors:
            os.close(each)
        work.remove()
    assert guest.returncode == 0, problem
    found: object = json.loads(said)
    return found


def make_record(folder: Path) -> None:
    """Make a folder that has what a run's has."""
    folder.mkdir(parents=True)
    for name in ("run.json", ".lock", "store.db", "store.db-shm", "metrics.jsonl"):
        (folder / name).write_text("{}")


def take_locks(top: Path) -> object:
    """Make a project with records of each kind, and return the locks that code inside takes in it."""
    project, venv = top / "project", top / "project" / ".venv"
    for each in (project / "launcher_record" / "run", project / "runs" / "deep" / "run", project / "named"):
        make_record(each)
    (project / "named" / "workspace").mkdir()
    (venv / "lib").mkdir(parents=True)
    for name in ("pyvenv.cfg", ".lock", "status.json", "lib/module.py"):
        (venv / name).write_text("{}")
    (project / "code.py").write_text("pass")
    return run_inside(LOCKS, [project, project / "named"])


LOOKS = """
import json, os, sys
print("ready", flush=True)
sys.stdin.readline()
read = {}
for top in sys.argv[1:]:
    for here, _, files in os.walk(top):
        for name in files:
            path = os.path.join(here, name)
            try:
                with open(path) as file:
                    read[os.path.relpath(path, top)] = file.read()
            except OSError:
                pass
print(json.dumps(read))
"""


def read_late_keys(top: Path) -> object:
    """Change a project's keys in each way while code runs inside, and return the files that the code can read."""
    project = top / "project"
    for name in ("edited", "replaced", "removed", "moved", "linked", "hard"):
        (project / name).mkdir(parents=True)
        (project / name / ".env").write_text("SECRET early")
    (project / "hard" / "named").hardlink_to(project / "hard" / ".env")
    for name in ("code.py", ".env.example", "template"):
        (project / name).write_text("shown")

    def change() -> None:
        (project / "edited" / ".env").write_text("SECRET late")
        for name in ("replaced", "hard"):
            (project / name / "new").write_text("SECRET late")
            (project / name / "new").replace(project / name / ".env")
        (project / "removed" / ".env").unlink()
        (project / "removed" / ".env").write_text("SECRET late")
        (project / "moved").rename(project / "moved again")
        (project / "linked" / ".env").unlink()
        (project / "linked" / "target").write_text("SECRET late")
        (project / "linked" / ".env").symlink_to("target")
        (project / ".env").write_text("SECRET late")
        (project / "template").rename(project / ".env.local")
        (project / "new" / "deep").mkdir(parents=True)
        for name in (".env", ".env.production", "copied"):
            (project / "new" / "deep" / name).write_text("SECRET late")
        make_record(project / "launcher_record" / "late")

    return run_inside(LOOKS, [project], change)


def use_folders(top: Path) -> object:
    """Do what programs do: read files that were named or lie in packages, write, rename, and run; what failed."""
    project, single, venv = top / "project", top / "single.txt", top / "project" / "venv"
    (venv / "lib").mkdir(parents=True)
    for path in (single, project / "code.py", venv / "pyvenv.cfg", venv / "lib" / "module.py"):
        path.write_text("shown")
    (project / "tool").write_text(
        "#!/bin/sh\ncat /tmp/written && ln /tmp/written /tmp/linked && ls /proc/self/fd > /dev/null"
    )
    (project / "tool").chmod(0o755)
    (project / "by name").symlink_to("code.py")
    code = f"""
import json, os, subprocess, sys
problems = []
def attempt(act):
    try:
        act()
    except Exception as error:
        problems.append(repr(error))
for path in {[str(single), *(str(project / name) for name in ("code.py", "by name", "venv/lib/module.py"))]!r}:
    attempt(lambda: open(path).read())
os.makedirs("/tmp/a/b")
os.mkdir("/box/a")
attempt(lambda: open("/tmp/written", "w").write("x"))
attempt(lambda: open("/tmp/a/moved", "w").write("x"))
attempt(lambda: os.rename("/tmp/a/moved", "/tmp/a/b/moved"))
attempt(lambda: open("/box/file", "w").write("x"))
attempt(lambda: os.rename("/box/file", "/box/a/file"))
attempt(lambda: open("/box/a/file").read())
attempt(lambda: subprocess.run([{str(project / "tool")!r}], check=True, stdout=subprocess.DEVNULL))
attempt(lambda: open("/dev/urandom", "rb").read(1))
os.chdir({str(project)!r})
attempt(lambda: open("code.py").read())
print(json.dumps(problems))
"""
    return run_inside(code, [project, single])


ATTACKS: dict[str, Callable[[Path], object]] = {
    "locks": take_locks,
    "late keys": read_late_keys,
    "use": use_folders,
}

if __name__ == "__main__":
    print(json.dumps(ATTACKS[sys.argv[1]](Path(sys.argv[2]))))
