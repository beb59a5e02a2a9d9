"""`ajet runs`: which runs the table holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ajet.cli import launcher


def test_debug_runs_can_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place, kind in (("trained", "train"), ("trained/debug/played", "debug"), ("trained/eval/measured", "eval")):
        (tmp_path / place).mkdir(parents=True)
        status = {"kind": kind, "outcome": "finished", "updated": 1.0}
        (tmp_path / place / "status.json").write_text(json.dumps(status))
    for more, shown in (((), True), (("--no-debug",), False)):
        with pytest.raises(SystemExit):
            launcher.main(["runs", "--exp-dir", str(tmp_path), *more])
        said = capsys.readouterr().out
        assert ("played" in said) is shown and "measured" in said and "trained" in said
