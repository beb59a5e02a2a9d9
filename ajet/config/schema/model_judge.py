"""JudgeModel: a model of another server, as keys of plug-ins list them."""

from __future__ import annotations

from ajet.config.schema.base import Section, key


class JudgeModel(Section):
    """A model of another server."""

    model: str = key("", "Its name at its server.", min_length=1)
    base_url: str | None = key(
        None, "Its OpenAI-compatible server, `http://HOST:PORT/v1`; null: the one that OPENAI_BASE_URL names."
    )
    api_key_env: str = key("OPENAI_API_KEY", "Environment variable that holds its key.", training=False)
    price_in: float = key(0.0, "Money for a million tokens of the prompt.", training=False, ge=0)
    price_out: float = key(0.0, "Money for a million tokens of the reply.", training=False, ge=0)
