"""The scorer `json_schema`: is the reply JSON of the right shape?

Invariant: nothing is fetched, and neither schema nor reply can hold the reader up (`ajet.schema.json_schema`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ajet.schema.episode import Verdict
from ajet.schema.errors import ConfigError, JudgeFailure
from ajet.schema.fenced import read_fenced_blocks
from ajet.schema.json_schema import find_reply_problem, find_schema_problem

IN_ROW = ("json_schema", "schema")
"""Row fields with a schema."""


class JsonSchemaScorer:
    """Scores 1 if the reply, or its only fenced block, is JSON valid under `schema`, else under the row's schema."""

    def __init__(self, config: Any, schema: Any = None) -> None:
        """Check the schema, a mapping or JSON text. Raises ConfigError for an invalid one."""
        self._schema = _parse_schema(schema)
        schema_problem = None if self._schema is None else find_schema_problem(self._schema)
        if schema is not None and (self._schema is None or schema_problem is not None):
            raise ConfigError(f"The scorer json_schema: {schema_problem or 'the schema is not a mapping'}.",
                              where="ajet.task_judge.scorers", expected="a JSON schema")  # fmt: skip

    def __call__(self, reply: str, metadata: dict[str, Any]) -> Verdict:
        """Score a reply; no score without a schema. Raises JudgeFailure for an invalid schema in the row."""
        schema = self._schema
        if schema is None:
            row_schema = next((metadata[name] for name in IN_ROW if metadata.get(name) is not None), None)
            if row_schema is None:
                return Verdict(None, None, "no score: neither the scorer's arguments nor the row contain a schema")
            schema = _parse_schema(row_schema)
            schema_problem = "the schema is not a mapping" if schema is None else find_schema_problem(schema)
            if schema is None or schema_problem is not None:
                raise JudgeFailure(f"the row's schema is invalid: {schema_problem}")
        # Fenced blocks that are JSON; a reply with several or none is read as a whole.
        json_blocks = read_fenced_blocks(reply, lambda text: find_reply_problem(text, {}) is None)
        reply_problem = find_reply_problem(json_blocks[0].content if len(json_blocks) == 1 else reply.strip(), schema)
        return Verdict(
            float(reply_problem is None), reply_problem is None, reply_problem or "the answer matches the schema"
        )


def _parse_schema(schema: Any) -> Mapping[str, Any] | None:
    """Return a schema from a mapping or JSON text; None for other values."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            return None
    return dict(schema) if isinstance(schema, Mapping) else None
