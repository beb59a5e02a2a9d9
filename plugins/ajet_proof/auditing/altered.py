"""Episodes that changed while they waited in a run's store.

Invariant: the code only reads. No step trained on such an episode, so a listed episode is not a change of the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ajet.record.chain import METRICS
from ajet.record.files import read_rows
from ajet.schema.errors import UserError
from ajet.store.digest import ALTERED
from ajet.store.run_store import find_changed_episodes
from ajet_proof.auditing.chain_state import Change


def list_altered_episodes(run: Path) -> list[str]:
    """List the episodes that were altered while they waited in the store, so that no step trained them.

    They are read from `given_up` in metrics.jsonl (tasks given up by their place in the training order), up to the
    first damaged row.
    """
    step_by_reason: dict[str, object] = {}
    with suppress(UserError):
        for row in read_rows(run / METRICS):
            given_up = row.get("given_up")
            for reasons in given_up.values() if isinstance(given_up, dict) else ():
                for reason in reasons if isinstance(reasons, list) else ():
                    if isinstance(reason, str) and reason.startswith(ALTERED):
                        step_by_reason.setdefault(reason, row.get("step"))  # a resumed trainer records the reason again
    return [f"step {step}: {reason}" for reason, step in step_by_reason.items()]


def find_waiting_changes(run: Path) -> Iterator[Change]:
    """Yield a change for each altered episode in the store below the run's folder."""
    try:
        for path, line, altered in find_changed_episodes(run / "pending"):
            yield Change(f"pending/{path.name}", str(altered), line)
    except UserError as damage:  # a line cannot be read at all
        yield Change("pending", f"{damage.what} ({damage.where})")
