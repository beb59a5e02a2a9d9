"""verl on Ray: so far what verl's trainer would be given, checked.

In: an experiment. Out: verl's whole config. Invariant: nothing is started, downloaded or imported for it; a run on
this backbone is refused until the backbone is here (`ajet.backbone.open_backbone`).
"""

from __future__ import annotations

from ajet.backbone.verl.settings import verl_settings

__all__ = ["verl_settings"]
