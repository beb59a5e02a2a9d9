"""Convert exceptions of a user's algorithm into a UserError with file and line.

Invariant: exceptions of built-in algorithms pass through unchanged, because they are bugs of ajet.
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
"""Returns of the trial group for an algorithm, used before a run."""


@contextmanager
def explain_failures(algorithm: Algorithm) -> Iterator[None]:
    """Convert an exception of a user's algorithm into a UserError with the failing line."""
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
            do=f"correct the algorithm; `{format_command('config', 'validate')}` tries of_group with the "
            f"returns {list(TRIAL_RETURNS)}",
        ) from problem


def require_finite(algorithm: Algorithm, rows: Sequence[Row], rewards: Row) -> None:
    """Raise UserError for advantages with NaN or infinity. `rewards`: [E] of the same episodes."""
    wrong = [index for index, row in enumerate(rows) if not np.isfinite(row).all()]
    if wrong:
        raise UserError(
            f"{algorithm.name} returned NaN or infinite advantages for {len(wrong)} of {len(rows)} episodes.",
            where=f"rewards {np.round(rewards[:8], 4).tolist()}, "
            f"advantages {[float(row[0]) for row in rows[:8] if row.size]}",
            expected="a finite number for each trained token of each episode",
            do="avoid divisions by zero: the rewards of a group may all be equal",
        )


def try_group(algorithm: Algorithm) -> None:
    """Test a user's algorithm on a group of returns. Raise UserError if the test fails.

    Algorithms with a critic, or with their own `advantages` or `of_episodes`, are skipped.
    """
    kind = type(algorithm)
    has_own_rows = kind.advantages is not Algorithm.advantages or kind.of_episodes is not Algorithm.of_episodes
    if find_part("algorithm", algorithm.name) or has_own_rows or "critic" in algorithm.needs:
        return
    returns = np.array(TRIAL_RETURNS)
    with explain_failures(algorithm):
        rows = algorithm.advantages(returns, [np.zeros(1)] * len(TRIAL_RETURNS), [0] * len(TRIAL_RETURNS))
    require_finite(algorithm, rows, returns)


def _find_line(algorithm: Algorithm, problem: Exception) -> str:
    """Return file:line of the last traceback line in the algorithm's file, or "" if there is no match."""
    if type(algorithm).__module__.partition(".")[0] in list_packages():
        return ""
    try:
        file = inspect.getsourcefile(type(algorithm))
    except TypeError:
        return ""
    lines = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    return f"{lines[-1].filename}:{lines[-1].lineno} ({lines[-1].line})" if lines else ""
