"""An algorithm of the user's own that raises or answers wrongly: one screen with its line, before a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ajet.algorithm.registry import explain_failures, require_finite
from ajet.cli import launcher
from ajet.schema.errors import UserError
from tests.algorithm.test_credit_assignment import algorithm

YAML = """
ajet:
  model: {path: "embedded:tiny-tools"}
  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: rows.jsonl}}}
  rollout: {user_workflow: agent.py->agent}
  trainer_common: {algorithm: {adv_estimator: own.py->Own}}
"""
SOURCE = (
    "import numpy as np\nfrom ajet import Algorithm\n\n\nclass Own(Algorithm):\n    def of_group(self, returns_G):\n"
)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("returns_G - returns_G.meen()", ("own.py:7", "AttributeError", "meen")),
        ("returns_G / 0.0 * 0.0", ("NaN", "4 of 4", "finite")),
        ("returns_G[:1]", ("shape (1,)", "4 returns")),
        ("1.0", ("shape ()", "4 returns")),
        ("None", ("shape ()",)),
        ("returns_G\n\n    of_groups, of_group = of_group, Algorithm.of_group", ("neither of_group nor advantages",)),
    ],
)
def test_validate_tries_the_algorithm(
    line: str,
    shown: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(f"{SOURCE}        return {line}\n")
    (tmp_path / "x.yaml").write_text(YAML)
    (tmp_path / "agent.py").write_text("def agent(task, tuner):\n    return 1.0\n")
    (tmp_path / "rows.jsonl").write_text('{"question": "q"}\n')
    with pytest.raises(SystemExit) as ended:
        launcher.main(["config", "validate", "--conf", "x.yaml", "--backbone", "local"])
    printed = "".join(capsys.readouterr())
    assert ended.value.code == 2
    assert all(each in printed for each in shown), printed
    assert "Traceback" not in printed


def test_failures_of_shipped_algorithms_are_bugs() -> None:
    with pytest.raises(ZeroDivisionError), explain_failures(algorithm("grpo")):
        raise ZeroDivisionError


def test_numbers_that_are_none_are_counted() -> None:
    rows = [np.ones(2), np.array([np.nan, 1.0]), np.array([np.inf])]
    with pytest.raises(UserError) as refused:
        require_finite(algorithm("grpo"), rows, np.array([0.0, 0.0, 1.0]))
    assert "2 of 3" in refused.value.what
    assert "0.0, 0.0, 1.0" in refused.value.where
