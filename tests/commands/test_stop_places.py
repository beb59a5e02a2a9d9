"""Folders and names as a person typed them, on a screen that has words for styles of its own: shown to the letter, on
one line, so that they can be copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.commands.stop import stop
from ajet.commands.summary import print_summary
from ajet.config import Experiment
from ajet.record import RunDirectory

NAME = "a [red] b"
LONG = "[bold] " + "long " * 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Closes a style that nobody opened, too: `[…/…]`."""
    return tmp_path / LONG.strip() / "x[" / "bold]"


def test_a_run_says_where_its_record_is(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = {"experiment_name": NAME, "backbone": "local", "model": {"path": "embedded:tiny-tools"}}
    experiment = Experiment.from_dict({"ajet": tree}, base=root)
    with RunDirectory.open(experiment, root=root) as run:
        run.take_up()
        run.metrics.log(1, {"train/reward": 0.5, "train/trained_tokens": 3}, tasks=[0])
        saved = run.checkpoints.save(1, lambda folder: (folder / "model").write_bytes(b"w"), {})
        capsys.readouterr()
        print_summary(run)
    said = capsys.readouterr().out.splitlines()
    assert f"Record: {root / NAME}" in said and f"Checkpoint: {saved}" in said
    assert stop(NAME, root) == 0
    assert f"The run {NAME} is not in progress." in capsys.readouterr().out.splitlines()
