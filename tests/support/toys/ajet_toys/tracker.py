"""A file of lines: which run, and what it is told of."""

from __future__ import annotations

import json

from ajet.record.trackers import Tracker


class ToyTracker(Tracker):
    def __init__(self, run):
        super().__init__(run)
        config = run.config["ajet"]
        self._line(run=run.name, project=run.project, id=run.run_id, backbone=config["backbone"])

    def metrics(self, step, numbers):
        self._line(step=step, numbers=dict(numbers))

    def episodes(self, step, split, episodes, outcomes):
        advantages = [outcomes[each.uuid].advantage for each in episodes if each.uuid in outcomes]
        self._line(step=step, split=split, rewards=[each.reward for each in episodes], advantages=advantages)

    def close(self):
        self._line(closed=True)

    def _line(self, **told):
        with (self.run.folder / "toy.jsonl").open("a") as file:
            file.write(json.dumps(told) + "\n")


class ToyTrackerThatFails(Tracker):
    """Its service is gone."""

    def metrics(self, step, numbers):
        raise ConnectionError("nobody is there")
