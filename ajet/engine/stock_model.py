"""A model folder as a stranger loads it: by transformers alone, with nothing of ajet's loader, renderer or engine.

Invariant: what is found here is what whoever serves the folder will find: its own template, its own end tokens, its own
weights in the number format that its config names.
"""

from __future__ import annotations

from datetime import date, datetime, time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ajet.engine.adapters import Adapters, attach_adapters, choose_adapter
from ajet.engine.model_cache import quiet_transformers
from ajet.schema.call import Floats, Ids


class ReplyLogprobs(NamedTuple):
    """A model's log-probabilities at each of R tokens."""

    logprobs: Floats
    """[R] of the tokens, at temperature 1."""
    greedy: Ids
    """[R] the likeliest instead."""
    margins: Floats
    """[R] by how many nats that one is likelier."""


class StockModel:
    """A model out of a folder in Hugging Face layout, in evaluation mode."""

    def __init__(self, folder: Path) -> None:
        """Raises what transformers raises for a folder that it cannot load."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        with quiet_transformers():
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
            self.model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
            self.adapters = Adapters.from_folder(folder).names
            if self.adapters:
                self.model = attach_adapters(self.model, folder, self.adapters).eval()
        if torch.cuda.is_available():
            self.model.cuda()

    @property
    def dtype(self) -> str:
        """The number format of the weights."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def ends(self) -> frozenset[int]:
        """Tokens after which whoever generates with its own settings stops."""
        end_ids = self.model.generation_config.eos_token_id
        return frozenset(end_ids if isinstance(end_ids, list) else [] if end_ids is None else [end_ids])

    def prompt(self, messages: list[dict[str, Any]], tools: Any, options: dict[str, Any], day: date) -> Ids:
        """[P] the ids of a conversation on that day, by the folder's template."""
        ids = self.tokenizer.apply_chat_template(
            messages,
            tools=tools,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **{"strftime_now": datetime.combine(day, time()).strftime, **options},
        )
        return np.asarray(ids, np.int32)

    @torch.no_grad()
    def read(self, prompt: Ids, reply: Ids, adapter: str | None = None) -> ReplyLogprobs:
        """One forward pass over a prompt [P] and a reply [R], by this one of several adapters."""
        if self.adapters:
            choose_adapter(self.model, adapter)
        ids = torch.from_numpy(np.concatenate([prompt, reply])).long().to(self.model.device)
        logits = self.model(input_ids=ids[None], use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        logprobs = torch.log_softmax(logits, -1)
        own = logprobs.gather(1, ids[len(prompt) :, None]).squeeze(1)
        best, greedy = logprobs.max(-1)
        return ReplyLogprobs(own.cpu().numpy(), greedy.int().cpu().numpy(), (best - own).cpu().numpy())
