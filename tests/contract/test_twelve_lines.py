"""The twelve lines of the README, run as they stand, where a notebook would: in `__main__`, within an event loop."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT, blocks

MODEL, SMALLER = "smollm2-135m", "tiny-tools"
STEPS, FEWER = "steps=20", "steps=1, settings=small"
SMALL = 'small = {"rollout.num_repeat": 2, "data.train_batch_size": 1, "rollout.max_model_len": 200}'


@pytest.mark.slow
def test_twelve_lines_are_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = (block.text.rstrip() for block in blocks(ROOT / "README.md") if "ajet.tune(" in block.text)
    assert len([line for line in text.splitlines() if line.strip()]) <= 12
    assert MODEL in text and text.endswith(f"{STEPS})")
    text = text.replace(MODEL, SMALLER).replace(STEPS, FEWER)
    small = text.replace("    ajet.tune(", f"    {SMALL}\n    tuned = ajet.tune(")
    (tmp_path / "script.py").write_text(small)
    monkeypatch.chdir(tmp_path)

    async def cell() -> None:
        tuned = runpy.run_path("script.py", run_name="__main__")["tuned"]
        assert tuned.path == tmp_path / "launcher_record" / "tune"
        assert tuned.checkpoint == tuned.path / "checkpoints" / "step-1"
        assert (tuned.checkpoint / "config.json").is_file()
        assert len(tuned.rewards) == 1 and 0.0 <= tuned.rewards[0] <= 1.0

    asyncio.run(cell())
    screen = capsys.readouterr().out
    assert "step    1/1  reward " in screen
    assert [line.split()[1] for line in screen.splitlines() if "held out:" in line] == ["0/1", "1/1"]
