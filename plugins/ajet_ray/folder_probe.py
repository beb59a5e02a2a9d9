"""The probe's log-probabilities by the weights in a folder, since the trained weights are in other processes.

Invariant: a model is loaded completely and into main memory, and only for a sampler that identifies a remote server by
the probe. The folder is the folder announced to samplers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.schema.trainer_common import CANARY_ROUNDED
from ajet.engine.probe import WeightsProbe, encode_probe_text

if TYPE_CHECKING:
    from ajet.config import Experiment


class FolderProbe:
    """Computes the probe of a run's weights from its checkpoints."""

    def __init__(self, experiment: Experiment, tokenizer: Any) -> None:
        self._experiment = experiment
        self._ids = encode_probe_text(tokenizer)
        self._rounded = experiment.ajet.model.dtype != "float32"

    def continue_probe(self, earlier: WeightsProbe | None, below: int) -> WeightsProbe:
        """Return the probe, the log-probabilities of a fixed text, of a trainer that resumes from version `below`.

        Args:
            earlier: The probe announced before. Its log-probabilities of versions lower than `below` are copied.
            below: The resumed version. The caller adds its log-probabilities, since the weights may differ now.
        """
        tolerance = self._experiment.ajet.trainer_common.canary_tolerance(rounded=self._rounded) or CANARY_ROUNDED
        return WeightsProbe.resume_from(earlier, self._ids, tolerance, version=below)

    def score_text(self, folder: Path | None) -> list[float]:
        """Return the text's log-probabilities by the folder's weights (None: model.path). Raises UserError."""
        import torch

        from ajet.engine.model_source import ModelSource, locate_model
        from ajet.engine.models import load_model

        config = self._experiment.ajet.model
        assert config.path is not None, "require_ready asks for it"
        trusted = config.trust_remote_code
        if folder is None:
            source = locate_model(config.path, base=self._experiment.base, trust_remote_code=trusted)
        else:
            source = ModelSource(str(folder), folder=folder, trust_remote_code=trusted)
        model = load_model(source, dtype=torch.bfloat16 if self._rounded else torch.float32)
        ids = torch.tensor(self._ids)
        with torch.inference_mode():
            logprobs = model(ids[None]).logits[0, :-1].float().log_softmax(-1)
        return [float(value) for value in logprobs[torch.arange(len(ids) - 1), ids[1:]]]
