"""What a checkpoint of verl said before positions were leased: known here and nowhere else.

verl counted the rows that it took, in a file of its own, and kept the groups that it had played ahead; ours lay beside
them, by position and number of episodes. Which positions were over stood in the record alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ajet.record.episodes import EpisodeFiles
from ajet.store.contract import Kept, Store

FOLDER = "waiting"


def waiting(checkpoint: Path, state: Mapping[str, Any]) -> dict[int, list[Kept]]:
    """The groups that no step had trained, by position."""
    index = state.get("waiting", ())
    episodes = iter(EpisodeFiles(checkpoint / FOLDER).read(0) if index else [])
    return {order: [Kept(next(episodes)) for _ in range(count)] for order, count in index}


def state(rows: Iterable[Mapping[str, Any]], begun: Sequence[int]) -> dict[str, Any]:
    """Today's, by the rows of metrics up to the checkpoint. `begun`: positions that were, and are not over."""
    over = {order for row in rows for order in (*row.get("tasks", ()), *row.get("discarded", ()))}
    until = max((*over, *begun), default=-1) + 1
    return {"next": until, "unfinished": sorted(set(range(until)) - over)}


def take_up(store: Store, found: Mapping[int, Sequence[Kept]]) -> None:
    """Put groups that were closed into a store that was opened at `state`."""
    leases = store.lease(len(store.begun()))
    for lease in leases:
        if lease.order in found:
            store.put(lease, *found[lease.order])
            store.close(lease)
    store.give_back(lease for lease in leases if lease.order not in found)
