"""How many processors a process may use, where a control group grants it less than the machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ajet.commands.doctor_checks import check_machine as checked
from ajet.record import processors
from ajet.record.processors import count_cores, used_processor_seconds
from ajet.rollout.isolation.loops import count_worker_processes
from ajet_environments.hosting.trial import measure_machine as planned

GROUP = "sys/fs/cgroup"
CPU_1 = f"{GROUP}/cpu,cpuacct"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 64 processors, all of which the affinity allows."""
    monkeypatch.setattr(processors, "ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 64 if logical else 32)
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({}, 64), ({f"{GROUP}/cpu.max": "max 100000\n"}, 64), ({f"{GROUP}/cpu.max": "200000 100000\n"}, 2),
        ({f"{GROUP}/cpu.max": "250000 100000\n"}, 2), ({f"{GROUP}/cpu.max": "50000 100000\n"}, 1),
        ({f"{GROUP}/cpu.max": "9900000 100000\n"}, 64), ({f"{GROUP}/cpu.max": "much\n"}, 64),
        ({f"{GROUP}/cpu.max": "0 0\n"}, 64),
        ({"proc/self/cgroup": "0::/a/b\n", f"{GROUP}/a/cpu.max": "300000 100000",
          f"{GROUP}/a/b/cpu.max": "max 100000"}, 3),
        ({"proc/self/cgroup": "0::/a\n", f"{GROUP}/a/cpu.max": "8 2", f"{GROUP}/cpu.max": "500000 100000"}, 4),
        ({"proc/self/cgroup": "0::/of/the/host\n", f"{GROUP}/cpu.max": "300000 100000"}, 3),
        ({"proc/self/cgroup": "0::/../../a\n", "sys/a/cpu.max": "100000 100000"}, 64),
        ({"proc/self/cgroup": "4:cpu,cpuacct:/a\n3:memory:/a\n", f"{CPU_1}/a/cpu.cfs_quota_us": "600000\n",
          f"{CPU_1}/a/cpu.cfs_period_us": "100000\n"}, 6),
        ({"proc/self/cgroup": "4:cpu,cpuacct:/of/the/host\n", f"{CPU_1}/cpu.cfs_quota_us": "600000\n",
          f"{CPU_1}/cpu.cfs_period_us": "100000\n"}, 6),
        ({"proc/self/cgroup": "4:cpu,cpuacct:/\n", f"{CPU_1}/cpu.cfs_quota_us": "-1\n",
          f"{CPU_1}/cpu.cfs_period_us": "100000\n"}, 64),
        ({"proc/self/cgroup": "nothing\n3:cpuset:/a\n", f"{GROUP}/cpuset/a/cpu.cfs_quota_us": "1"}, 64),
    ],
)  # fmt: skip
def test_a_quota_is_the_count(files: dict[str, str], usable: int, made: Path) -> None:
    write(made, files)
    assert processors.usable_cpus() == usable


def test_all_who_share_out_work_know_the_quota(made: Path) -> None:
    before = (count_worker_processes(), count_cores(), planned()[0], _said(made))
    assert before == (63, 32, 64, "64")
    write(made, {f"{GROUP}/cpu.max": "300000 100000\n"})
    assert (count_worker_processes(), count_cores(), planned()[0], _said(made)) == (2, 3, 3, "3")


def test_an_affinity_that_is_less_than_the_quota_is_the_count(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(made, {f"{GROUP}/cpu.max": "300000 100000\n"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 7}, raising=False)
    assert (processors.usable_cpus(), count_worker_processes(), count_cores()) == (2, 1, 1)


def _said(folder: Path) -> str:
    return next(found.text for found in checked(folder) if found.topic == "cores").split()[0]


def test_processor_seconds_include_ended_children() -> None:
    before = used_processor_seconds()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.4: pass"], check=True)
    assert 0.3 <= used_processor_seconds() - before < 30
