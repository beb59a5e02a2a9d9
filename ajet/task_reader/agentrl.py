"""Reads AgentRL task files: JSON lines with `id`, `query`, `answer`, `scorer` and `answer_schema`.

Invariant: a row without an answer is a valid task. Missing fields get AgentRL's defaults (`answer_schema`: answer)
unless configured otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ajet.schema.task import Task
from ajet.task_reader.column_names import RowColumns
from ajet.task_reader.jsonl import JsonlReader
from ajet.task_reader.rows import BadRowError

if TYPE_CHECKING:
    from ajet.config import Experiment

COLUMNS = ("answer_schema", "scorer")
SCHEMAS = ("answer", "boxed")


class AgentrlReader(JsonlReader):
    """`agentrl`: the row is the task's metadata."""

    section = "agentrl"

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self._schema = experiment.ajet.task_judge.answer_schema or SCHEMAS[0]

    def task_of(self, row: dict[str, Any]) -> Task:
        """Return the task of a row, with the configured `answer_schema` unless the row has one. Raises BadRowError."""
        row = RowColumns(row).rename(COLUMNS)
        schema, scorer = row.get("answer_schema"), row.get("scorer")
        if schema is not None and schema not in SCHEMAS:
            raise BadRowError(f"answer_schema is {schema!r}, expected {' or '.join(SCHEMAS)}")
        if scorer is not None and not isinstance(scorer, str):
            raise BadRowError(f"the scorer is {type(scorer).__name__}, expected the name of a scorer")
        task = super().task_of(row)
        return task.model_copy(update={"metadata": task.metadata | {"answer_schema": schema or self._schema}})
