"""HTTP bodies as JSON within a size limit, and refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ajet.schema.bounded_json import LONG_BYTES, load_json
from ajet.schema.errors import AjetError

BODY_LIMIT = 4 << 20


class BodyTooLongError(AjetError):
    """The body has more than BODY_LIMIT bytes."""


class EscapingJsonResponse(JSONResponse):
    """A JSON response in UTF-8, or in escaped ASCII if a text has a lone surrogate."""

    def render(self, content: Any) -> bytes:
        try:
            return super().render(content)
        except UnicodeEncodeError:
            return json.dumps(content).encode()


async def read_json_body(request: Request) -> Any:
    """Read the body as JSON; an empty body is an empty object.

    Raises BodyTooLongError before the complete body is read; json.JSONDecodeError, for too deep nesting too.
    """
    if int(request.headers.get("content-length") or 0) > BODY_LIMIT:
        raise BodyTooLongError
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_LIMIT:
            raise BodyTooLongError
        parts.append(part)
    try:
        body = b"".join(parts) or b"{}"
        return await asyncio.to_thread(load_json, body) if size > LONG_BYTES else load_json(body)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as problem:  # no UTF-8, a number without end, no end of brackets
        raise json.JSONDecodeError(str(problem), "", 0) from problem


def build_refusal(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    """Build a JSON error response with an HTTP status and a reason."""
    return EscapingJsonResponse({"error": why}, status, headers=dict(headers or {}))
