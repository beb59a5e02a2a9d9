"""Which run a name or a folder means."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.record.find_run import require_run
from ajet.schema.errors import UserError


@pytest.mark.parametrize("inner", ["checkpoints/step-3", "exports/step-3"])
def test_model_folder_of_a_run_names_the_run(tmp_path: Path, inner: str) -> None:
    (tmp_path / "m" / inner).mkdir(parents=True)
    (tmp_path / "m" / "run.json").touch()
    with pytest.raises(UserError) as refused:
        require_run(str(tmp_path / "m" / inner), tmp_path, holding="run.json", expected="a run")
    assert str(tmp_path / "m") in refused.value.do.split()
