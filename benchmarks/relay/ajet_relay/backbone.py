"""RelayBackbone: the local backbone, whose replies reach agent and trainer as text that is encoded anew.

Invariant: everything else is the local backbone's, so that a run differs by the re-encoding alone. Later prompts
continue the re-encoded tokens, as those of a server that gets messages do. The trainer recomputes the log-probabilities
before the update for these tokens (`algorithm.old_policy: proximal`), so the difference shows in `mismatch_kl` only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from ajet.backbone.contract import Update
from ajet.backbone.local import LocalBackbone
from ajet.config import Experiment
from ajet.engine.contract import EngineWrapper, TokenChunk, TokenEngine, TokenRequest
from ajet.schema.batch import TrainingBatch
from ajet_relay.reencoding import count_shared_ends, reencode_ids, spread_changed


class RelayBackbone(LocalBackbone):
    """Trains in this process on replies encoded anew."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self._relay = RelayEngine(self._sampler, self.tokenizer)
        self.engine = self._relay

    def update(self, batch: TrainingBatch) -> Update:
        """Train on `batch`, and add the counts of sampled and changed tokens since the last update to the metrics."""
        update = super().update(batch)
        counts, self._relay.counts = self._relay.counts, dict.fromkeys(self._relay.counts, 0)
        return replace(update, metrics=update.metrics | counts)


class RelayEngine(EngineWrapper):
    """Returns the tokens of a reply's text in place of the sampled tokens."""

    def __init__(self, engine: TokenEngine, tokenizer: Any) -> None:
        super().__init__(engine)
        self._tokenizer = tokenizer
        self.counts = {"relay_sampled_tokens": 0, "relay_changed_tokens": 0}

    def weights_changed(self, version: int) -> None:
        """Pass the new version to the inner engine."""
        self._engine.weights_changed(version)

    def close(self) -> None:
        """Close the inner engine."""
        self._engine.close()

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Sample a complete reply, and return it in one chunk of re-encoded tokens."""
        chunks = [chunk async for chunk in self._engine.generate(request)]
        ids = [token for chunk in chunks for token in chunk.ids]
        encoded = reencode_ids(ids, self._tokenizer)[: request.sampling.max_tokens]
        begin, end = count_shared_ends(ids, encoded)
        self.counts["relay_sampled_tokens"] += len(ids)
        self.counts["relay_changed_tokens"] += len(ids) - begin - end
        sampling, unit = (
            spread_changed([value for chunk in chunks for value in getattr(chunk, name)], begin, end, len(encoded))
            for name in ("logprobs", "logprobs_unit")
        )
        yield TokenChunk(encoded, sampling, unit, chunks[0].version, chunks[-1].finish)
