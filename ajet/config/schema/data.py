"""`data`: lengths, batch size, and what happens to a prompt that is too long."""

from __future__ import annotations

from typing import Literal

from ajet.config.schema.base import Section, key


class Data(Section):
    """Lengths and batch size."""

    max_prompt_length: int = key(3000, "Tokens before the first trained token, at most.", ge=1)
    max_response_length: int = key(15000, "Tokens of a timeline after its prompt, at most.", ge=1)
    train_batch_size: int = key(
        32,
        "Tasks of one training step; each is played `rollout.num_repeat` times.",
        ge=1,
    )
    shuffle: bool = key(
        True,
        "Shuffle the training tasks, anew each epoch, by `seed`.",
    )
    on_overlong: Literal["filter", "error"] = key(
        "filter", "A task whose prompt exceeds `max_prompt_length`: left out and counted, or an error."
    )
