"""The key of the toy reader."""

from __future__ import annotations

from ajet.config.schema.base import Section, key, section
from ajet.config.schema.extended import PluginKeys


class ToySums(Section):
    count: int = key(1, "Number of sums.", ge=1)


class ToyReaderKeys(PluginKeys):
    toy_sums: ToySums = section(ToySums, "`type: toy_sums`.", when=("task_reader.type", "toy_sums"))
