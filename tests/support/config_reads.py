"""What of a configuration a run reads: every key by its name, and who reads it.

Invariant: an attribute of a typed section counts, a key of the view that users' code gets counts, and an interpolation
of verl's layers counts when it is resolved. What looks at every key alike (to write the resolved YAML, to compare two
runs) counts as nothing: it would make every key a key that is read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from omegaconf import base

from ajet.config.schema import AjetConfig
from ajet.config.schema.base import Section, walk_keys
from ajet.config.schema.extended import config_model
from ajet.config.view import View

KEYS = {".".join(path): notes for path, _, notes in walk_keys(config_model(shipped=True))}
"""Every plain key below `ajet`, with its notes."""
ALL_ALIKE = {
    "ajet.config.readiness.get_setting",
    "ajet.config.readiness._refuse_out_of_reach",
    "ajet.config.experiment.settle_values",
    "ajet.config.experiment._affects_training",
    "ajet.config.experiment.list_training_settings",
    "ajet.config.experiment.replace_defaults",
    "ajet.config.idle.find_idle_reason",
    "ajet.config.idle._get_setting",
    "ajet.record.run_directory.redactor_of",
}
LAYER = "plugins/ajet_verl/layers"
"""The reader of what verl's layers interpolate."""
OF_THE_CONFIG = ("ajet.config.schema", "ajet.config.view", __name__)
"""Modules whose code reads for whoever calls it."""


class Reads(dict[str, set[str]]):
    """key -> the functions that read it."""

    def note(self, path: tuple[str, ...], frame: FrameType | None) -> None:
        while frame is not None and frame.f_globals.get("__name__", "").startswith(OF_THE_CONFIG):
            frame = frame.f_back
        assert frame is not None
        reader = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
        if reader not in ALL_ALIKE and (key := ".".join(path)) in KEYS:
            self.setdefault(key, set()).add(reader)


@contextmanager
def recorded_reads() -> Iterator[Reads]:
    """All that is read within the block, in this process, of configurations that are made in it."""
    reads = Reads()
    places: dict[int, tuple[object, tuple[str, ...]]] = {}
    """Of each section and view: itself, so that no other gets its id, and its path. One without is a root."""
    names: dict[type, frozenset[str]] = {}

    def of_section(section: Any, name: str) -> Any:
        value = object.__getattribute__(section, name)
        kind = type(section)
        if kind not in names:
            names[kind] = frozenset(kind.__pydantic_fields__)
        if name in names[kind]:
            known = places.get(id(section))
            assert known is not None or issubclass(kind, AjetConfig), f"{kind.__name__} was reached past the root"
            path = (*(known[1] if known else ()), name)
            if isinstance(value, Section):
                places[id(value)] = (value, path)
            else:
                if isinstance(value, list):
                    places.update((id(each), (each, path)) for each in value if isinstance(each, Section))
                reads.note(path, sys._getframe(1))
        return value

    of_mapping = View.__getitem__

    def of_view(view: View, name: str) -> Any:
        value = of_mapping(view, name)
        known = places.get(id(view))
        path = (*(known[1] if known else ()), name)
        if isinstance(value, View):
            places[id(value)] = (value, path)
        if path[0] == "ajet":
            reads.note(path[1:], sys._getframe(1))
        return value

    of_node = base.Container._resolve_node_interpolation

    def of_interpolation(node: base.Container, inter_key: str, memo: Any) -> Any:
        key = inter_key.partition("[")[0].removeprefix("ajet.")
        if key in KEYS and "ajet_verl.config.layer.compose_verl_config" in _callers(sys._getframe(1)):
            reads.setdefault(key, set()).add(LAYER)
        return of_node(node, inter_key, memo)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Section, "__getattribute__", of_section)
        patch.setattr(View, "__getitem__", of_view)
        patch.setattr(base.Container, "_resolve_node_interpolation", of_interpolation)
        yield reads


def _callers(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"
        frame = frame.f_back
