"""Shared code of the three servers with a second model.

Invariant: the caller's text is quoted as the question; only sentences of this file instruct the model.
"""

from __future__ import annotations

from collections.abc import Mapping

from .model import Model
from .settings import Settings


def ask_model(service: str, settings: Settings, role: str, parts: Mapping[str, str], temperature: float) -> str:
    """Return a model's answer to the non-empty parts of a question, each under its name."""
    question = "\n\n".join(f"{name}:\n{text}" for name, text in parts.items() if text)
    messages = [{"role": "system", "content": role}, {"role": "user", "content": question}]
    return Model(service, settings).chat(messages, temperature)
