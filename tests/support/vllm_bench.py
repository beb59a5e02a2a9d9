"""A vLLM engine and the model whose weights it is given: one for all tests that want such an engine (conftest.py)."""

from __future__ import annotations

import os

import numpy as np
import torch

from ajet.engine.model_source import locate_model
from ajet.engine.models import load_model
from tests.support.vllm_fixtures import vllm_engine

PROMPT = np.array([1, 40, 41, 42, 43], np.int32)
AT_ONCE = 4
"""Requests that the engine runs at a time."""


class Bench:
    """An engine and the model whose weights it is given."""

    def __init__(self) -> None:
        self.model = load_model(locate_model("embedded:tiny-tools"), dtype=torch.float32)
        self.environment = dict(os.environ)
        self.engine = vllm_engine(max_num_seqs=AT_ONCE, weights=self._weights, version=3)

    def _weights(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, parameter.detach()) for name, parameter in self.model.named_parameters()]

    def shake(self, seed: int) -> None:
        """Other weights for the model; the engine does not have them yet."""
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.02)

    def update(self) -> None:
        """The engine gets the model's weights."""
        self.engine.weights_changed(self.engine.version + 1)

    def logits(self, prompt: np.ndarray, reply: list[int]) -> torch.Tensor:
        """[T, V] what each token of the reply was drawn from, by the model's own forward pass."""
        with torch.no_grad():
            ids = torch.tensor([[*prompt.tolist(), *reply]])
            return self.model(ids).logits[0, len(prompt) - 1 : -1].double()

    def unit(self, prompt: np.ndarray, reply: list[int]) -> np.ndarray:
        """[T] the reply's logprobs at temperature 1."""
        rows = self.logits(prompt, reply).log_softmax(-1)
        return rows.gather(1, torch.tensor(reply)[:, None])[:, 0].numpy()
