"""What a trainer's policy says of the probe, for those who must know its weights elsewhere.

Invariant: it is the trainer's own forward pass of the weights that are announced; asking changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ajet.backbone.scoring import scored
from ajet.config.schema.trainer_common import CANARY_ROUNDED
from ajet.engine.probe import Probe, tokens_of
from ajet.schema.batch import Sample
from ajet.schema.timeline import Timeline

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.train.session import Learning


def begun(parts: Learning, earlier: Probe | None) -> Probe:
    """A probe without any version from the present on. `earlier`: what was announced before, by another process."""
    backbone, trainer = parts.backbone, parts.experiment.ajet.trainer_common
    with backbone.scorer() as scorer:
        tolerance = trainer.canary_tolerance(rounded=scorer.dtype != "float32") or CANARY_ROUNDED
    return Probe.going_on(earlier, tokens_of(backbone.tokenizer), tolerance, version=backbone.version)


def asked(probe: Probe, backbone: Backbone, *, keep: int) -> Probe:
    """The probe with what the present version says. `keep`: of how many versions before it that stays known."""
    ids = np.array(probe.ids, np.int32)
    mask = np.ones(len(ids), np.bool_)
    mask[0] = False
    zeros, versions = np.zeros(len(ids), np.float32), np.where(mask, backbone.version, -1).astype(np.int32)
    line = Timeline(0, "probe", "probe", ids, mask, zeros, zeros, versions, ())
    with backbone.scorer() as scorer:
        (said,) = scored(scorer, [Sample(line, "probe", 0, zeros, 1.0)], tokens=len(ids), temperature=1.0)
    return probe.grown(backbone.version, [float(value) for value in said[1:]], keep=keep)
