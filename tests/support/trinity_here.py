"""Trinity-RFT for tests: where it is installed, and launches on it."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from ajet.schema.errors import UserError
from ajet_trinity.package import require_trinity


def skip_without_trinity() -> None:
    """Also without the engine and the trainer that it drives."""
    try:
        require_trinity()
    except UserError as lacking:
        pytest.skip(str(lacking))
    if find_spec("verl") is None or find_spec("vllm") is None:
        pytest.skip('verl and vLLM are not installed: pip install "ajet[verl]"')


def import_trinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """For this test, this process finds it, as Trinity's own do. Not for longer: its plug-in ends each vLLM that finds
    it, also one of a test that comes later."""
    skip_without_trinity()
    folder = require_trinity()
    if folder is not None:
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
