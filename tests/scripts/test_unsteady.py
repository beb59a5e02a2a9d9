"""What .ci/run forgives: a test that fails once and then passes alone, by name; nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "unsteady.py"
ONCE = """
from pathlib import Path

def test_once():
    before = Path("seen").exists()
    Path("seen").touch()
    assert before

def test_always_passes():
    pass
"""
SKIPS = "import pytest" + ONCE.replace(
    "    assert before", "    pytest.skip('not here') if before else pytest.fail('once')"
)
ENDED = "import pytest" + ONCE.replace(
    "def test_always_passes", "def test_b():\n    pytest.exit('enough')\n\ndef test_c"
)
UNREADABLE = "from pathlib import Path\nbefore = Path('seen').exists()\nPath('seen').touch()\nassert before"
HANGS = "import time\ndef test_a(): time.sleep(60)"
LEFT = ONCE + "    print('\\nleft behind: a process')\n    assert False"
ITS = ONCE.replace(
    "    assert", "    print('' if before else '\\nleft behind: a file, within test_once, which failed')\n    assert"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "files, said, code",
    [
        ({"test_a.py": ONCE}, "unsteady: test_a.py::test_once failed, and passed 2 times", 0),
        ({"test_a.py": ONCE, "test_b.py": "def test_b():\n    assert False"}, "failed again: test_b.py", 1),
        ({"test_a.py": ITS}, "unsteady: test_a.py::test_once failed, and passed 2 times", 0),
        ({"test_a.py": LEFT}, "not tried again: left behind: a process", 1),
        ({"test_a.py": "".join(f"def test_{n}(): assert False\n" for n in range(3))}, "3 tests failed", 1),
        ({"test_a.py": "def test_a(): pass"}, "1 passed", 0),
        ({"test_a.py": ENDED}, "not tried again: !!!", 2),
        ({"test_a.py": UNREADABLE, "test_b.py": "def test_b(): assert False"}, "not tried again: !!!", 2),
        ({"test_a.py": HANGS}, "not tried again: E   Failed: Timeout (>2", 1),
        ({"test_a.py": SKIPS}, "failed again: test_a.py (it was skipped)", 1),
    ],
)
def test_a_failure_is_forgiven_only_where_it_does_not_come_back(
    tmp_path: Path, files: dict[str, str], said: str, code: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p xdist.plugin -p pytest_timeout\n")
    longest = {} if "sleep" not in str(files) else {"PYTEST_TIMEOUT": "2"}
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **longest}
    command = [sys.executable, str(SCRIPT), "--", sys.executable, "-m", "pytest", "-n0", "-s"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, said in ended.stdout) == (code, True), ended.stdout + ended.stderr
    assert ("unsteady: " in ended.stdout) == said.startswith("unsteady")
