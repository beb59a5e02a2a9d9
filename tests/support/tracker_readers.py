"""What a tracker wrote into its run's folder, read back by the tracker's own package."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ajet.record.trackers import TrackedRun, Tracker

Kept = list[tuple[str, int, float]]
"""(name, step, value) in the order written."""


class Toy(Tracker):
    """A file of lines, by reference."""

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self._line(id=run.run_id, config=run.config)

    def metrics(self, step: int, numbers: Any) -> None:
        self._line(step=step, numbers=dict(numbers))

    def episodes(self, step: int, split: str, episodes: Any, outcomes: Any) -> None:
        self._line(table=[each.task.main_query for each in episodes])

    def close(self) -> None:
        self._line(outcome=self.outcome)

    def _line(self, **told: Any) -> None:
        with (self.run.folder / "toy.jsonl").open("a") as file:
            file.write(json.dumps(told) + "\n")


TOY = f"{__file__}->Toy"


def toy(folder: Path) -> tuple[set[str], Kept, str]:
    lines = [json.loads(line) for line in (folder / "toy.jsonl").read_text().splitlines()]
    numbers = [(name, row["step"], value) for row in lines for name, value in row.get("numbers", {}).items()]
    return {row["id"] for row in lines if "id" in row}, numbers, json.dumps(lines, ensure_ascii=False)


def tensorboard(folder: Path) -> tuple[set[str], Kept, str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder / "tensorboard")).Reload()
    kept = [(tag, each.step, each.value) for tag in seen.Tags()["scalars"] for each in seen.Scalars(tag)]
    return {"its folder"}, kept, ""


def wandb(folder: Path) -> tuple[set[str], Kept, str]:
    from wandb.proto.wandb_internal_pb2 import Record

    ids: set[str] = set()
    kept: Kept = []
    told = ""
    for data in _log_records(folder.glob("wandb/*/*.wandb")):
        record = Record()
        record.ParseFromString(data)
        told += str(record)
        if record.run.run_id:
            ids.add(record.run.run_id)
        row = {
            item.key or item.nested_key[0]: json.loads(item.value_json)
            for item in record.history.item
            if len(item.nested_key) < 2
        }
        kept += [
            (name, row["step"], value)
            for name, value in row.items()
            if name != "step" and not name.startswith("_") and isinstance(value, float | int)
        ]
    told += "".join(path.read_text() for path in folder.glob("wandb/*/files/media/table/**/*.json"))
    return ids, kept, told


def _log_records(files: Iterable[Path]) -> Iterator[bytes]:
    """wandb's files and SwanLab's are LevelDB logs, each with a header of its own; SwanLab has a reader in Python."""
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    for file in sorted(files):
        reader = DataStoreReader()
        reader._fp = file.open("rb")
        reader._index = len(reader._fp.read(7))
        yield from reader
        reader.close()


def swanlab(folder: Path) -> tuple[set[str], Kept, str]:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record

    ids: set[str] = set()
    kept: Kept = []
    told = "".join(path.read_text() for path in folder.glob("swanlab/*/files/*"))
    for data in _log_records(folder.glob("swanlab/*/*.swanlab")):
        record = Record()
        record.ParseFromString(data)
        told += str(record)
        if record.start.id:
            ids.add(record.start.id)
        if record.scalar.key:
            kept.append((record.scalar.key, record.scalar.step, record.scalar.value.number))
    told += "".join(path.read_text() for path in folder.glob("swanlab/*/media/**/*.json"))
    return ids, kept, told


def mlflow(folder: Path) -> tuple[set[str], Kept, str]:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient((folder / "mlflow").as_uri())
    numbers = [each.experiment_id for each in client.search_experiments()]
    runs = client.search_runs(numbers)
    kept = [
        (name, each.step, each.value)
        for run in runs
        for name in run.data.metrics
        for each in client.get_metric_history(run.info.run_id, name)
    ]
    told = str(runs) + "".join(path.read_text() for path in folder.glob("mlflow/*/*/artifacts/**/*.json"))
    del os.environ["MLFLOW_ALLOW_FILE_STORE"]
    return {str(run.data.tags["ajet.run_id"]) for run in runs}, kept, told


READERS: dict[str, Callable[[Path], tuple[set[str], Kept, str]]] = {
    TOY: toy, "tensorboard": tensorboard, "wandb": wandb, "swanlab": swanlab, "mlflow": mlflow,
}  # fmt: skip
"""By the name of `trainer_common.logger`: identities that it has, numbers, and all else as text."""


def variables() -> Iterator[tuple[str, str]]:
    """Under which services write files and nothing else."""
    yield "WANDB_MODE", "offline"
    yield "WANDB_X_DISABLE_STATS", "true"  # its process for them leaves a socket behind
    yield "SWANLAB_MODE", "offline"
    yield "MLFLOW_DISABLE_TELEMETRY", "true"
