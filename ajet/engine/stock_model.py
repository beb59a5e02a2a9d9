"""Loads a model folder with transformers alone, without ajet's loader, renderer or engine.

Invariant: results equal those of any other server of the folder: same template, end tokens, and weights in the number
format of its config.
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
    """Logprobs of the tokens at temperature 1, shape [R]."""
    greedy: Ids
    """Most likely token at each position, shape [R]."""
    margins: Floats
    """Gap in nats between the most likely token and the given one, shape [R]."""


class StockModel:
    """A model from a folder in Hugging Face layout, in evaluation mode."""

    def __init__(self, folder: Path) -> None:
        """Load the folder. Errors of transformers are passed through."""
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
        """Number format of the weights."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def ends(self) -> frozenset[int]:
        """End tokens of the model's own generation settings."""
        end_ids = self.model.generation_config.eos_token_id
        return frozenset(end_ids if isinstance(end_ids, list) else [] if end_ids is None else [end_ids])

    def prompt(self, messages: list[dict[str, Any]], tools: Any, options: dict[str, Any], day: date) -> Ids:
        """Render a conversation on the given day with the folder's template, and return its ids [P]."""
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
        """Run one forward pass over a prompt [P] and a reply [R], with the given adapter if the folder has adapters."""
        if self.adapters:
            choose_adapter(self.model, adapter)
        ids = torch.from_numpy(np.concatenate([prompt, reply])).long().to(self.model.device)
        logits = self.model(input_ids=ids[None], use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        logprobs = torch.log_softmax(logits, -1)
        reply_logprobs = logprobs.gather(1, ids[len(prompt) :, None]).squeeze(1)
        best, greedy = logprobs.max(-1)
        return ReplyLogprobs(
            reply_logprobs.cpu().numpy(), greedy.int().cpu().numpy(), (best - reply_logprobs).cpu().numpy()
        )
