"""What scripts/suite_costs.py does with a command that does not come to an end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "suite_costs.py"
DEAF = """trap "" INT; exec "$@\""""
"""The command inherits it: it hears no interrupt from its first instruction on."""


def test_a_command_that_hangs_is_broken_off(tmp_path: Path) -> None:
    own = SCRIPT.read_text().replace("LAST_WORDS_S = 60.0", "LAST_WORDS_S = 0.5")
    (tmp_path / "costs.py").write_text(own)
    command = [sys.executable, "costs.py", "--name", "slow: it", "--seconds", "0.5", "--", "sleep", "600"]
    ended = subprocess.run(
        ["sh", "-c", DEAF, "sh", *command], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode > 0
    assert "broken off: not done after 1 s" in ended.stdout, ended.stdout + ended.stderr
    assert "slow: it: over budget: seconds" in ended.stdout
