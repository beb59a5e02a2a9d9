"""Credit by rank: the best attempt gets 1, the worst -1."""

from __future__ import annotations

import numpy as np

from ajet import Algorithm


class ToyAlgorithm(Algorithm):
    def of_group(self, returns_G):
        ranks = np.argsort(np.argsort(returns_G, kind="stable"), kind="stable")
        return 2.0 * ranks / max(1, ranks.size - 1) - 1.0
