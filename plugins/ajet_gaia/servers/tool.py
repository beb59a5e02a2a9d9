"""FunctionTool: a Python function listed and called over MCP.

Invariants: the listed schema equals the schema for checking arguments, since both come from the function's annotations.
An answer never exceeds the settings' limit.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from .settings import Settings

FilePath = Annotated[str, Field(description="path of the file in the working folder")]
Format = Literal["markdown", "json", "html", "text"]
Shape = Literal["markdown", "json", "text"]


class ToolError(Exception):
    """A failure of a tool, explained for the model."""


@dataclass(frozen=True)
class Image:
    """A picture as the answer of a tool."""

    data: bytes
    mime: str


Answer = str | Image | Mapping[str, Any] | Sequence[Any]
Function = Callable[..., Answer]


class FunctionTool:
    """A Python function offered as a tool, with name, description and argument schema taken from it."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.name = function.__name__
        self.description = " ".join((inspect.getdoc(function) or "").split())

    @cached_property
    def _argument_model(self) -> type[BaseModel]:
        """Return a pydantic model of the function's parameters, which checks arguments and gives their schema."""
        parameters = inspect.signature(self.function, eval_str=True).parameters.values()
        fields: dict[str, Any] = {
            parameter.name: (parameter.annotation, ... if parameter.default is parameter.empty else parameter.default)
            for parameter in parameters
        }
        return create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments, without redundant titles."""
        schema: dict[str, Any] = _without_titles(self._argument_model.model_json_schema())
        return schema

    def call(self, arguments: Mapping[str, Any], settings: Settings) -> str | Image:
        """Check the arguments, run the function, and return its picture or its bounded text.

        Raises:
            ToolError: an argument is wrong, or the function reports a failure.
        """
        try:
            checked = self._argument_model.model_validate(arguments)
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, detail['loc'])) or 'arguments'}: {detail['msg']}" for detail in error.errors()
            ]
            problems = [problem.replace(": Value error, ", ": ", 1) for problem in problems]
            raise ToolError("wrong arguments: " + "; ".join(problems[:5])) from None
        answer = self.function(**{name: getattr(checked, name) for name in type(checked).model_fields})
        if isinstance(answer, Image):
            return answer
        text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)
        return bounded(text, settings.max_bytes)


def bounded(text: str, limit: int) -> str:
    """Cut a text to `limit` bytes and append a note about the cut."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return encoded.decode("utf-8")
    return f"{encoded[:limit].decode('utf-8', 'ignore')}\n[cut: {limit} of {len(encoded)} bytes are shown]"


def _without_titles(schema: Any) -> Any:
    """Return a JSON schema without the titles that pydantic adds, which only repeat names."""
    if isinstance(schema, list):
        return [_without_titles(subschema) for subschema in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _without_titles(subschema) for key, subschema in schema.items() if key != "properties"}
    if isinstance(result.get("title"), str):
        del result["title"]
    if "properties" in schema:  # names of parameters; "title" may be a parameter
        result["properties"] = {name: _without_titles(subschema) for name, subschema in schema["properties"].items()}
    return result
