"""`model`: what is tuned."""

from __future__ import annotations

from typing import Any, Literal

from ajet.config.schema.base import Section, key


class Model(Section):
    """The model to tune."""

    path: str | None = key(
        None,
        "A Hugging Face name, a local folder, a `.gguf` file, or `embedded:NAME` (smollm2-135m, tiny-tools).",
        kind="path",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = key(
        "auto", "Number format of the weights; auto is bfloat16 where the machine computes it well, float32 elsewhere."
    )
    chat_template_kwargs: dict[str, Any] = key(
        {}, "Options of the model's chat template, such as `{enable_thinking: false}` (Qwen3)."
    )
    trust_remote_code: bool = key(
        False,
        "Run Python code that the model's folder brings. It can do anything that you can; false refuses such a model.",
        training=False,
    )
