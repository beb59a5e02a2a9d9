"""The command line without the packages of extras."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.base_install import MODEL_PACKAGES, check_base_install, run

pytestmark = pytest.mark.slow
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({MODEL_PACKAGES})); from ajet.cli.launcher import main; main()"
AJET = (sys.executable, "-c", WITHOUT)


def test_a_remote_engine_needs_no_torch(tmp_path: Path) -> None:
    check_base_install(AJET, tmp_path)


def test_commands_on_models_name_the_extra(tmp_path: Path) -> None:
    run(AJET, tmp_path, "init", "agent", "--template", "tool")
    for command in ("plan", "sft", "serve"):
        refused = run(AJET, tmp_path, command, "agent/tool.yaml", "sft.train_files=[rows.jsonl]", code=2)
        assert "[local]" in refused.stderr and "Traceback" not in refused.stderr
