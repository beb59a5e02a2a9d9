"""docs/models.md: which architectures train, tried on a tiny random model of each.

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

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- the table, written by tests/docs/test_models_page.py -->\n", "<!-- its end -->\n"


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
    _, rest = PAGE.read_text().split(BEGIN)
    assert rest.split(END)[0] == table(), "`python -m tests.docs.test_models_page` writes it anew"


def written() -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.split(END)[1])


if __name__ == "__main__":
    written()
