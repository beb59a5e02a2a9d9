"""verl on Ray: what its trainer is given, its servers as our engine, our credit and loss in its steps.

In: an experiment. Out: verl's whole config, and what verl's processes need of ours. Invariants: verl's public extension
points, but for the hooks in `hooks` and `logs`, each guarded by a test; nothing of verl is changed while it runs, but
on machines without an accelerator (`cpu`). The verb that drives it is `ajet.run.verl`.
"""

from __future__ import annotations

from ajet.backbone.verl.settings import verl_settings

__all__ = ["verl_settings"]
