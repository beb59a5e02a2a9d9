"""What comes and goes over HTTP: bodies as JSON, within a size, and refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ajet.schema.errors import AjetError

BODY_LIMIT = 4 << 20


class TooLong(AjetError):
    """More than BODY_LIMIT bytes."""


async def json_body(request: Request) -> Any:
    """Raises TooLong before it is read whole; json.JSONDecodeError, for what is nested too deep, too. Nothing reads as
    an empty object."""
    if int(request.headers.get("content-length") or 0) > BODY_LIMIT:
        raise TooLong
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_LIMIT:
            raise TooLong
        parts.append(part)
    try:
        return json.loads(b"".join(parts) or b"{}")
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as problem:  # no UTF-8, a number without end, no end of brackets
        raise json.JSONDecodeError(str(problem), "", 0) from problem


def refused(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    """A reply that says why not."""
    return JSONResponse({"error": why}, status, headers=dict(headers or {}))
