"""The border of an algorithm of the user's own: what it raises is a UserError with its file and line.

Invariant: algorithms of ajet's own pass through unchanged; what they raise is a bug.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ajet.algorithm.contract import Algorithm
from ajet.config.plugins import find_part, list_packages
from ajet.schema.commands import format_command
from ajet.schema.errors import AjetError, UserError

if TYPE_CHECKING:
    from ajet.algorithm.contract import Row

TRIAL_RETURNS = (0.0, 1.0, 0.0, 0.5)
"""Returns of the group that an algorithm is tried on before a run."""


@contextmanager
def explain_failures(algorithm: Algorithm) -> Iterator[None]:
    """Turn what a user's algorithm raises into a UserError that names its line. Raises UserError."""
    try:
        yield
    except AjetError:
        raise
    except Exception as problem:
        place = _find_line(algorithm, problem)
        if not place:
            raise
        raise UserError(
            f"{algorithm.name} raised {type(problem).__name__}: {problem}.",
            where=place,
            do="mend the algorithm; "
            f"`{format_command('config', 'validate')}` "
            f"tries of_group with the returns {list(TRIAL_RETURNS)}",
        ) from problem


def require_finite(algorithm: Algorithm, rows: Sequence[Row], rewards: Row) -> None:
    """Raise UserError for advantages that are no numbers. `rewards`: [E] of the same episodes."""
    wrong = [index for index, row in enumerate(rows) if not np.isfinite(row).all()]
    if wrong:
        raise UserError(
            f"{algorithm.name} gave NaN or infinity as advantages of {len(wrong)} of {len(rows)} episodes.",
            where=f"rewards {np.round(rewards[:8], 4).tolist()}, "
            f"advantages {[float(row[0]) for row in rows[:8] if row.size]}",
            expected="a finite number for each trained token of each episode",
            do="guard divisions: the rewards of a group may all be equal",
        )


def try_group(algorithm: Algorithm) -> None:
    """Try a user's algorithm on one group of returns, if it says advantages by `of_group` alone. Raises UserError."""
    kind = type(algorithm)
    has_own_rows = kind.advantages is not Algorithm.advantages or kind.of_episodes is not Algorithm.of_episodes
    if find_part("algorithm", algorithm.name) or has_own_rows or "critic" in algorithm.needs:
        return
    returns = np.array(TRIAL_RETURNS)
    with explain_failures(algorithm):
        rows = algorithm.advantages(returns, [np.zeros(1)] * len(TRIAL_RETURNS), [0] * len(TRIAL_RETURNS))
    require_finite(algorithm, rows, returns)


def _find_line(algorithm: Algorithm, problem: Exception) -> str:
    """Return file:line of the last line of the algorithm's own file in the traceback; "" if there is none."""
    if type(algorithm).__module__.partition(".")[0] in list_packages():
        return ""
    try:
        file = inspect.getsourcefile(type(algorithm))
    except TypeError:
        return ""
    lines = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    return f"{lines[-1].filename}:{lines[-1].lineno} ({lines[-1].line})" if lines else ""
