"""Experiments for the verl backbone, and whether its package is here (without importing it, which takes seconds)."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ajet.config import Experiment

without_verl = pytest.mark.skipif(find_spec("verl") is None, reason='verl is not installed: pip install "ajet[verl]"')
BASE = Path("/somewhere")
ROOT = Path(__file__).resolve().parents[2]


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


def through_verl(folder: Path, worlds: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What the scenarios of `tests.contract.verl_update` find, by their number of ranks: those of one, of two, ..."""
    from torch.distributed import TCPStore

    for world, made in enumerate(worlds, 1):
        (folder / f"{world}.scenarios").write_bytes(pickle.dumps(made))
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in worlds]
    own = {"VERL_PLATFORM": "cpu", "VERL_ENGINE_DEVICE": "cuda", "OMP_NUM_THREADS": "1"}
    own |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}  # the stores are ours to serve
    own |= {"VERL_USE_EXTERNAL_MODULES": "ajet_verl.cpu.platform", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.contract.verl_update", str(folder), *(str(store.port) for store in stores)]
    subprocess.run(command, cwd=ROOT, env=os.environ | own, check=True, timeout=900)
    return {world: pickle.loads((folder / f"{world}.results").read_bytes()) for world in range(1, len(worlds) + 1)}


def nested(dotted: str, value: Any) -> dict[str, Any]:
    """`{"a": {"b": value}}` for "a.b"."""
    for name in reversed(dotted.split(".")):
        value = {name: value}
    return value
