"""docs/first_settings.md: each key and each metric that it names is one."""

from __future__ import annotations

import re
from pathlib import Path

from ajet.config.keys import list_dotted_keys

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_each_key_and_each_sign_exists() -> None:
    metrics, keys = (DOCS / "reference" / "metrics.md").read_text(), {*list_dotted_keys()}
    for line in (DOCS / "first_settings.md").read_text().splitlines():
        cells = line.split(" | ")
        if re.match(r"\| \d+ ", line):
            named = re.findall(r"`([a-z_]+\.[\w.]+)`", cells[1])
            assert named and all(key in keys for key in named), line
            signs = re.findall(r"`((?:train|credit|seconds)/[\w/]+|[a-z]+_[a-z_]+|kl|entropy)`", cells[2])
            known = (sign if not sign.startswith("train/failed/") else "train/failed/BOUNDARY" for sign in signs)
            assert all(f"`{sign}`" in metrics for sign in known), line
