"""OpenGroups: who closes the desk knows of every group, also of one that was about to leave."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from ajet.rollout.served.groups import OpenGroups
from ajet.schema.task import Task
from ajet.store import Lease, RunStore


class SlowStore(RunStore):
    """Notes that a group is complete once it may."""

    def __init__(self) -> None:
        super().__init__(None)
        self.asked, self.may = threading.Event(), threading.Event()

    def close(self, lease: Lease) -> None:
        self.asked.set()
        assert self.may.wait(60)
        super().close(lease)


def test_a_group_whose_leaving_was_cut_short_is_there_once_all_is_settled() -> None:
    store = SlowStore()

    async def cut_short() -> None:
        groups = OpenGroups(store, None, 1)
        group = await groups.find_or_make(Task(main_query="q", task_id="q"), lambda _: True)
        leaving = asyncio.create_task(groups.remove(group, report=True))
        assert await asyncio.to_thread(store.asked.wait, 60)
        assert group not in groups, "it is on its way"
        leaving.cancel()
        await groups.wait_settled()
        assert group in groups, "nobody has handed it over"
        store.may.set()
        with suppress(asyncio.CancelledError):
            await leaving

    asyncio.run(cut_short())
