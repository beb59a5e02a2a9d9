"""Row: numbers of a batch in one dimension, in double precision. What they are of stands in a name's last letter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.float64]
