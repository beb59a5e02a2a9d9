"""The section `model`: the model to tune; and `JudgeModelConfig`, a remote model that keys of plug-ins list."""

from __future__ import annotations

from typing import Any, Literal

from ajet.config.schema.base import Section, key


class ModelConfig(Section):
    """The model to tune and its options."""

    path: str | None = key(
        None,
        "A Hugging Face name, a local folder, a `.gguf` file, or `embedded:NAME` (smollm2-135m, tiny-tools).",
        kind="path",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = key(
        "auto", "Number format of the weights; auto is bfloat16 if the machine computes it well, else float32."
    )
    chat_template_kwargs: dict[str, Any] = key(
        {}, "Options of the model's chat template, such as `{enable_thinking: false}` (Qwen3)."
    )
    trust_remote_code: bool = key(
        False,
        "Run Python code that the model's folder brings. It can do anything that you can; false refuses such a model.",
        training=False,
    )


class JudgeModelConfig(Section):
    """A model on a remote server."""

    model: str = key("", "Its name at its server.", min_length=1)
    base_url: str | None = key(
        None, "Its OpenAI-compatible server, `http://HOST:PORT/v1`; null: the one that OPENAI_BASE_URL names."
    )
    api_key_env: str = key("OPENAI_API_KEY", "Environment variable that holds its key.", training=False)
    price_in: float = key(0.0, "Money for a million tokens of the prompt.", training=False, ge=0)
    price_out: float = key(0.0, "Money for a million tokens of the reply.", training=False, ge=0)
