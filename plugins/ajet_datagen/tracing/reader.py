"""The task reader `tracing`, and the files of `ajet traces`.

Invariant: sources are read once, masked before selection, and split by the run's seed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.record.console import counted
from ajet.record.files import write_atomically
from ajet.record.write_errors import convert_os_errors, require_folder
from ajet.schema.errors import TaskError
from ajet.schema.task import Task
from ajet.task_reader.contract import TaskSplit, require_place
from ajet.task_reader.rows import row_of
from ajet_datagen.config import ReaderKeys
from ajet_datagen.tracing.choosing import select_best, select_traces, split_traces
from ajet_datagen.tracing.masking import mask_traces
from ajet_datagen.tracing.rows import build_learned_rows, build_pairs, build_task
from ajet_datagen.tracing.sources import KEY, SourceContent, read_sources
from ajet_datagen.tracing.trace import AgentTrace

if TYPE_CHECKING:
    from ajet.config import Experiment

SPLITS: tuple[TaskSplit, ...] = ("train", "validation")
NAMED = 3
"""Maximum bad rows named in a message."""


class TracingReader:
    """Reads traces, and returns tasks or writes files."""

    judge = None

    def __init__(self, experiment: Experiment) -> None:
        self._settings = ReaderKeys.of(experiment.ajet).tracing
        self._skip = experiment.ajet.task_reader.on_bad_row == "skip"
        self._base, self._seed = experiment.base, experiment.ajet.seed
        self._traces_by_split: Mapping[TaskSplit, list[AgentTrace]] | None = None
        self.left: Counter[str] = Counter()  # dropped traces, by reason

    def has(self, split: TaskSplit) -> bool:
        """True for training, and for validation with a `validation_share`."""
        return split == "train" or self._settings.validation_share > 0

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Return one task for each question. Raises TaskError, UserError."""
        return self._build_tasks(split, self.left)

    def traces(self, split: TaskSplit) -> Sequence[AgentTrace]:
        """Return all traces of a split. Raises TaskError, UserError."""
        if self._traces_by_split is None:
            self._traces_by_split = self._read_traces()
        return self._traces_by_split[split]

    def write(self, folder: Path) -> dict[str, int]:
        """Write tasks, rows and pairs of each split as JSON lines. Returns file name -> number of lines. Raises
        TaskError, UserError."""
        require_folder(folder, "--out")
        counts: dict[str, int] = {}
        left: Counter[str] = Counter()
        if not any(self.traces(side) for side in SPLITS):
            raise TaskError(
                f"All traces are dropped: {'; '.join(f'{n} {why}' for why, n in sorted(self.left.items()))}.",
                where=KEY,
                expected="settings of task_reader.tracing that match some replies",
                do="loosen the settings named above",
            )
        with convert_os_errors(folder, "--out"):
            folder.mkdir(parents=True, exist_ok=True)
        for side in SPLITS:
            traces = self.traces(side)
            made: dict[str, Iterable[Any]] = {
                "tasks": (row_of(task) for task in self._build_tasks(side, left)),
                "rows": build_learned_rows(traces, self._settings, left),
                "pairs": build_pairs(traces, left),
            }
            for kind, rows in made.items():
                lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
                counts[f"{kind}.{side}.jsonl"] = len(lines)
                with convert_os_errors(folder / f"{kind}.{side}.jsonl", "--out"):
                    write_atomically(folder / f"{kind}.{side}.jsonl", "".join(lines))
        if left:
            logger.info("{}", "; ".join(f"{count} {why}" for why, count in sorted(left.items())))
        return counts

    def _build_tasks(self, split: TaskSplit, left: Counter[str]) -> list[Task]:
        return [build_task(trace, self._settings) for trace in select_best(self.traces(split), left)]

    def _read_traces(self) -> Mapping[TaskSplit, list[AgentTrace]]:
        settings = self._settings
        found = read_sources(
            self._find_places(settings.sources, "sources"), self._find_places(settings.feedback, "feedback")
        )
        self._report_bad_rows(found)
        traces = mask_traces(found.traces, settings.mask, base=self._base)
        sides = split_traces(select_traces(traces, settings, self.left), settings, self._seed, self.left)
        self._report_result(found, sides)
        return sides

    def _find_places(self, named: str | list[str], key: str) -> list[Path]:
        places = [named] if isinstance(named, str) else named
        if not places and key == "sources":
            raise TaskError(
                "No traces are configured.",
                where=KEY,
                expected="files of spans, or folders of observed runs",
                do=f"set {KEY}",
            )
        what = "recording" if key == "sources" else "feedback"
        return [require_place(each, self._base, key=f"ajet.task_reader.tracing.{key}", what=what) for each in places]

    def _report_bad_rows(self, found: SourceContent) -> None:
        if not found.bad:
            return
        first = "; ".join(f"{where}: {why}" for where, why in found.bad[:NAMED])
        if not self._skip:
            raise TaskError(
                f"{len(found.bad)} rows cannot be read: {first}.",
                where=KEY,
                do="correct them, or set ajet.task_reader.on_bad_row=skip to skip them",
            )
        self.left["could not be read"] += len(found.bad)
        logger.warning("{} rows of traces are skipped; {}", len(found.bad), first)

    def _report_result(self, found: SourceContent, sides: Mapping[TaskSplit, Sequence[AgentTrace]]) -> None:
        parts = [f"{len(found.traces)} replies in traces: {len(sides['train'])} to train on, "
                f"{len(sides['validation'])} held out"]  # fmt: skip
        parts += [f"{count} {why}" for why, count in sorted(self.left.items())]
        parts += [f"{found.silent} spans without messages"] if found.silent else []
        parts += [f"{counted(found.failed, 'call')} without a reply"] if found.failed else []
        parts += [f"{counted(found.loose, 'feedback row')} without a matching trace"] if found.loose else []
        logger.info("{}", "; ".join(parts))
        if not found.traces and found.failed:
            raise TaskError(
                f"There are no replies in these traces: {counted(found.failed, 'call')} failed.",
                where=KEY,
                expected="observed episodes with replies",
                do="see the failures with `ajet episodes` or `ajet view`",
            )
        if not found.traces:
            raise TaskError(
                "There are no replies in these traces.",
                where=KEY,
                expected="spans with gen_ai.input.messages and gen_ai.output.messages, or observed episodes",
                do="enable content capture in the traced agent (OpenTelemetry: "
                "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT)",
            )
