"""Every key under `ajet:`, documented once in pydantic models, importable without torch.

Invariant: an undeclared key is an error. A declared key has its described effect, is refused with a sentence, or
reports where and why the key has no effect (`idle`, `when`). Keys of older YAMLs without effect are in `accepted.py`.
`docs/reference/configuration.md` and `default_config/ajet_default.yaml` are generated from the descriptions.
"""

from __future__ import annotations

from ajet.config.schema.experiment import AjetConfig

__all__ = ["AjetConfig"]
