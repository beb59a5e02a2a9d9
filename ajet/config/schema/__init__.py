"""Every key under `ajet:`, documented once: pydantic models, importable without torch.

What enters: plain dicts. What leaves: `AjetConfig`. Invariant: a key that is not here is an error, and a key that is
here does what its description says, is refused with one sentence (`later`) or says where it does nothing, and why
(`idle`, `when`); what only older YAMLs have is a table of names and reasons (`accepted.py`).
`docs/configuration.md` and `default_config/ajet_default.yaml` are generated from these descriptions.
"""

from __future__ import annotations

from ajet.config.schema.experiment import AjetConfig

__all__ = ["AjetConfig"]
