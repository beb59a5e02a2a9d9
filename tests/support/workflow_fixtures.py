"""A tuner over a real gateway; only the model is a script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ajet.engine.contract import Sampling
from ajet.engine.scripted import ScriptedEngine
from ajet.gateway import Gateway, Session
from ajet.tokens import Renderer
from ajet.workflow import ModelTuner
from tests.support.chat_templates import tokenizer

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 40, "b": 2}}\n</tool_call>'


@dataclass
class Scene:
    """One episode."""

    tuner: ModelTuner
    session: Session
    gateway: Gateway
    engine: ScriptedEngine


@contextmanager
def scene(
    *script: str,
    style: str = "qwen25",
    trainable: list[str] | None = None,
    config: Any = None,
    **gateway_options: Any,
) -> Iterator[Scene]:
    """An episode whose model says the texts of `script`, one after the other."""
    renderer = Renderer(tokenizer(style))
    engine = ScriptedEngine(list(script), encode=renderer.encode, end_id=renderer.end_ids[0], chunk=3)
    gateway = Gateway(engine, renderer, max_model_len=8000, max_response_tokens=500, **gateway_options).start()
    try:
        session = gateway.open("episode", key=(0, 0, 0), sampling=Sampling(max_tokens=500), trainable=trainable)
        yield Scene(ModelTuner(config, session, trainable=trainable), session, gateway, engine)
        session.close()
    finally:
        gateway.close()
