"""Trinity-RFT for tests: where it is installed, and launches on it."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from ajet.backbone.trinity.package import require_trinity
from ajet.schema.errors import UserError


def skip_without_trinity() -> None:
    """Also without the engine and the trainer that it drives."""
    try:
        require_trinity()
    except UserError as lacking:
        pytest.skip(str(lacking))
    if find_spec("verl") is None or find_spec("vllm") is None:
        pytest.skip('verl and vLLM are not installed: pip install "ajet[verl]"')


def import_trinity() -> None:
    """From here on this process finds it, as Trinity's own do."""
    skip_without_trinity()
    folder = require_trinity()
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))
