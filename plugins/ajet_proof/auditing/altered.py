"""Episodes that were changed while they waited in a run's store: what its steps said of them, and what waits now.

Invariant: it only reads. No step was made of such an episode; that it is named here is no change of the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ajet.record.chain import METRICS
from ajet.record.files import read_rows
from ajet.schema.errors import UserError
from ajet.store.digest import ALTERED
from ajet.store.run_store import changed_ends
from ajet_proof.auditing.chain_state import Change


def list_altered_episodes(run: Path) -> list[str]:
    """What was told of by the rows of metrics, up to one that is damaged (which is a change of its own): positions that
    were given up for it, each once."""
    found: dict[str, object] = {}
    with suppress(UserError):
        for row in read_rows(run / METRICS):
            given_up = row.get("given_up")
            for reasons in given_up.values() if isinstance(given_up, dict) else ():
                for why in reasons if isinstance(reasons, list) else ():
                    if isinstance(why, str) and why.startswith(ALTERED):
                        found.setdefault(why, row.get("step"))  # a trainer that goes on says it again
    return [f"step {step}: {why}" for why, step in found.items()]


def find_waiting_changes(run: Path) -> Iterator[Change]:
    """The changed episodes that wait in the store in the run's own folder."""
    try:
        for path, line, altered in changed_ends(run / "pending"):
            yield Change(f"pending/{path.name}", str(altered), line)
    except UserError as damage:  # of a line that can't be read at all
        yield Change("pending", f"{damage.what} ({damage.where})")
