"""A world at an address that nobody serves."""

from __future__ import annotations

from ajet.environment.services import EnvService
from ajet.environment.services.chosen import ChosenEnvironment


def serve_toy(use, base):
    return ChosenEnvironment(EnvService("http://127.0.0.1:9", use.partition(":")[2]))
