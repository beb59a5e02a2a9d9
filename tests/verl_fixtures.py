"""Experiments for the verl backbone, and whether its package is here (without importing it, which takes seconds)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ajet.config import Experiment

without_verl = pytest.mark.skipif(find_spec("verl") is None, reason='verl is not installed: pip install "ajet[verl]"')
BASE = Path("/somewhere")


def experiment(ajet: dict[str, Any] | None = None, **roots: Any) -> Experiment:
    """An experiment on eight GPUs; dotted keys are set below `ajet`, `roots` are further root names of the YAML."""
    tree: dict[str, Any] = {"backbone": "verl", "model": {"path": "some/model"}}
    for key, value in (ajet or {}).items():
        *parents, name = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return Experiment.from_dict({"ajet": tree, **roots}, base=BASE)


def nested(dotted: str, value: Any) -> dict[str, Any]:
    """`{"a": {"b": value}}` for "a.b"."""
    for name in reversed(dotted.split(".")):
        value = {name: value}
    return value
