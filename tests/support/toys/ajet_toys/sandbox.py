"""A sandbox that runs nothing: each call says its own code."""

from __future__ import annotations

from ajet.schema.errors import Finding
from ajet.schema.sandbox import Limits, Result


class ToyMaker:
    mechanism = "toy_box"
    limits = Limits()

    @classmethod
    def of(cls, config, base):
        return cls()

    def open(self, environment=None):
        return ToyBox()


class ToyBox:
    mechanism = "toy_box"
    folder = "/toy"
    lost = ""

    def python(self, code, *, stdin=b"", environment=None, limits=None, keep=False):
        return Result(code.encode(), b"", 0, "exit", 0.0)

    def close(self):
        """A toy has nothing to end."""


def check_boxes(experiment, model):
    return [Finding("toy_box", "ok", "open" if experiment is None else experiment.name)]
