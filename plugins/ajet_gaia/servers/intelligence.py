"""What the three servers share that hand a question to a second model.

Invariant: what the caller wrote is quoted as the question; only this file's sentences instruct the model.
"""

from __future__ import annotations

from collections.abc import Mapping

from .model import Model
from .settings import Settings


def ask_model(service: str, settings: Settings, role: str, parts: Mapping[str, str], temperature: float) -> str:
    """A model's answer to the parts of a question that are not empty, each under its name."""
    question = "\n\n".join(f"{name}:\n{text}" for name, text in parts.items() if text)
    messages = [{"role": "system", "content": role}, {"role": "user", "content": question}]
    return Model(service, settings).chat(messages, temperature)
