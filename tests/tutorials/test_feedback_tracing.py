"""tutorial/example_feedback_tracing, the whole way: what users corrected is answered right afterwards."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ajet_process import environment

ROOT = Path(__file__).resolve().parents[2]
LOOP = ROOT / "tutorial" / "example_feedback_tracing" / "loop.py"


@pytest.mark.extra_slow
def test_what_users_corrected_is_learned(tmp_path):
    done = subprocess.run(
        [sys.executable, str(LOOP)], cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT)), timeout=1200, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    before, after = (int(count) for count in re.findall(r"^right: (\d+) of 40$", done.stdout, re.MULTILINE))
    rows = {path.name: len(path.read_text().splitlines()) for path in (tmp_path / "taught").iterdir()}
    assert rows["tasks.train.jsonl"] == rows["rows.train.jsonl"] == 32 and rows["tasks.validation.jsonl"] == 8
    assert rows["pairs.train.jsonl"] + rows["pairs.validation.jsonl"] == 40 - before  # a correction is a pair
    assert after >= before + 20, done.stdout
    assert "# desk-taught, step" in (tmp_path / "launcher_record" / "desk-taught" / "model_card.md").read_text()
