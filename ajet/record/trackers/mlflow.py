"""MLflow tracker: one MLflow run per run of ajet, found by a tag after a resume.

Invariant: the client is separate from any active MLflow run of the agent's code. Data goes to `MLFLOW_TRACKING_URI`,
else to `mlflow/` in the run directory. Telemetry is off unless `MLFLOW_DISABLE_TELEMETRY` is set. A step repeated after
a resume appears twice in MLflow's history.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ajet.record.trackers.contract import TrackedRun, Tracker
from ajet.record.trackers.sample import COLUMNS, sample_rows
from ajet.schema.episode import Episode, Outcome
from ajet.schema.errors import MissingExtraError

TAG = "ajet.run_id"
AT_ONCE = 100  # maximum parameters per request
LONGEST = 500
"""Characters of a parameter's value, in each kind of store."""
_STATES = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
_NO_NAME = re.compile(r"[^\w\-./ :]")


class MlflowTracker(Tracker):
    """Sends metrics under the names of `metrics.jsonl`, the configuration as parameters, and sampled episodes as tables
    in `episodes/`."""

    def __init__(self, run: TrackedRun) -> None:
        """Continue the MLflow run with the run's id, or create one with the configuration as parameters."""
        super().__init__(run)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param, RunStatus
        except ImportError as error:
            raise MissingExtraError("mlflow", "mlflow", needed_for="The tracker mlflow") from error
        self._metric_class, self._run_status_class = Metric, RunStatus
        tracking_uri = os.environ.get("MLFLOW_TRACKING_URI")
        with _files_allowed(tracking_uri):
            self._client = MlflowClient(tracking_uri=tracking_uri or (run.folder / "mlflow").resolve().as_uri())
            experiment = self._client.get_experiment_by_name(run.project)
            number = experiment.experiment_id if experiment else self._client.create_experiment(run.project)
        existing = self._client.search_runs([number], f"tags.`{TAG}` = '{run.run_id}'", max_results=1)
        if existing:
            self._id = existing[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {TAG: run.run_id, "mlflow.source.name": "ajet"}
        self._id = self._client.create_run(number, run_name=run.name, tags=tags).info.run_id
        params = [Param(_clean_name(key), text[:LONGEST]) for key, text in _flatten_config(run.config)]
        for first in range(0, len(params), AT_ONCE):
            self._client.log_batch(self._id, params=params[first : first + AT_ONCE])

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send all numbers of the step in one request."""
        now = int(time.time() * 1000)
        metrics = [self._metric_class(_clean_name(name), value, now, step) for name, value in numbers.items()]
        if metrics:
            self._client.log_batch(self._id, metrics=metrics)

    def episodes(self, step: int, split: str, episodes: Sequence[Episode], outcomes: Mapping[str, Outcome]) -> None:
        """Send a table of sampled episodes as the file `episodes/SPLIT-STEP.json`."""
        if data := sample_rows(episodes, outcomes, self.run.redact):
            table = {"columns": list(COLUMNS), "data": data}
            self._client.log_text(self._id, json.dumps(table, ensure_ascii=False), f"episodes/{split}-{step}.json")

    def close(self) -> None:
        """Set the final state of the MLflow run: finished, killed or failed."""
        self._client.set_terminated(self._id, status=_STATES[self.outcome])


@contextmanager
def _files_allowed(place: str | None) -> Iterator[None]:
    """Within the block, allow MLflow to store runs in plain files.

    MLflow checks the permission when its store is opened. Its database store needs more than the client package.
    """
    name = "MLFLOW_ALLOW_FILE_STORE"
    previous_value = os.environ.get(name)
    if place is None and previous_value is None:
        os.environ[name] = "true"
    try:
        yield
    finally:
        if previous_value is None:
            os.environ.pop(name, None)


def _flatten_config(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key, value as text) of each setting, with keys of nested sections joined by dots."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten_config(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def _clean_name(text: str) -> str:
    """Return the name with characters that MLflow refuses replaced, and cut to its limit of 250."""
    return _NO_NAME.sub("_", text)[:250]
