"""Which code a record may name without its YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.commands.recorded_run import require_own_code
from ajet.config import load_experiment
from ajet.schema.errors import UserError


@pytest.mark.parametrize(
    ("workflow", "is_own"),
    [
        ("ajet.workflow->CommandWorkflow", True),
        ("ajet_command.workflow->CommandWorkflow", True),
        ("ajet_verifiers.workflow:VerifiersWorkflow", True),
        ("ajet_unknown.workflow->Agent", False),
        ("json.decoder->JSONDecoder", False),
    ],
)
def test_a_record_may_name_code_that_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workflow: str, is_own: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(
        f"ajet: {{rollout: {{user_workflow: '{workflow}'}}, task_reader: {{type: gsm8k}}}}"
    )
    experiment = load_experiment(tmp_path / "x.yaml", exp_dir=tmp_path)
    if is_own:
        require_own_code(experiment, tmp_path / "record", otherwise="ajet eval x.yaml")
    else:
        with pytest.raises(UserError) as error:
            require_own_code(experiment, tmp_path / "record", otherwise="ajet eval x.yaml")
        assert workflow in error.value.what
