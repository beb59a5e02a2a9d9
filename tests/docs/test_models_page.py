"""docs/reference/models.md: which architectures train, tried on a tiny random model of each.

`python -m tests.docs.test_models_page` writes the table anew.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from ajet.backbone.local.packed_forward import PackedForward
from ajet.engine.models import freeze_rope
from ajet.engine.transformers import TransformersEngine
from ajet.schema.errors import UserError
from tests.support.tiny_models import FAMILIES, tiny

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "models.md"


def row(family: str) -> str:
    """What becomes of a model of the family, as a line of the table."""
    model = tiny(family)
    freeze_rope(model, 512)
    packed = PackedForward(copy.deepcopy(model)).packed
    try:
        TransformersEngine(model).close()
        sampled = "yes"
    except UserError as error:
        sampled = "no: " + re.sub(r"^.*transformers engine: |^.*sample this model: |\.$", "", error.what)
    kind, _ = FAMILIES[family]
    return f"| {family} | `{kind}` | {sampled} | {'packed rows' if packed else 'one sample at a time'} |\n"


def table() -> str:
    """All of it."""
    head = "| family | `model_type` | the transformers engine samples it | the trainer computes |\n|---|---|---|---|\n"
    return head + "".join(row(family) for family in FAMILIES)


def test_the_table_says_what_becomes_of_each_architecture():
    _, written = read_page()
    assert written == table(), "`python -m tests.docs.test_models_page` writes it anew"


def read_page() -> tuple[str, str]:
    """The text before the table, and the table."""
    text = PAGE.read_text()
    start = text.index("| family ")
    return text[:start], text[start:]


def write_table() -> None:
    before, _ = read_page()
    PAGE.write_text(before + table())


if __name__ == "__main__":
    write_table()
