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
        "auto", "Number format of the weights; auto: bfloat16 if the machine supports it well, else float32."
    )
    chat_template_kwargs: dict[str, Any] = key(
        {}, "Options of the model's chat template, such as `{enable_thinking: false}` (Qwen3)."
    )
    trust_remote_code: bool = key(
        False,
        "Run Python code from the model's folder. The code can do anything that you can; false refuses a model "
        "with such code.",
        training=False,
    )


class JudgeModelConfig(Section):
    """A model on a remote server."""

    model: str = key("", "Name of the model on the server.", min_length=1)
    base_url: str | None = key(
        None, "URL of an OpenAI-compatible server, `http://HOST:PORT/v1`; null: the server that OPENAI_BASE_URL names."
    )
    api_key_env: str = key("OPENAI_API_KEY", "Environment variable that contains the API key.", training=False)
    price_in: float = key(0.0, "Price of a million tokens of prompts.", training=False, ge=0)
    price_out: float = key(0.0, "Price of a million tokens of replies.", training=False, ge=0)
