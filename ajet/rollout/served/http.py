"""The HTTP side of the desk: /episodes, JSON in and out, for programs in any language.

Invariant: nothing is answered without the admin key; no number that is not finite gets in; every refusal is an error
object with a status, a code and the field at fault; a request that is repeated after its end gets the same answer.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ajet.gateway import Refused
from ajet.gateway.limits import Held, after_wrong_key, welcome
from ajet.record.tool_uses import decode_uses, kept
from ajet.rollout.served.desk import Desk
from ajet.rollout.served.episode import Opening
from ajet.rollout.served.protocol import Finish, Open, openapi
from ajet.schema.bounded_json import LONG_BYTES, TooManyNodesError, load_json, may_hold_surrogates
from ajet.schema.episode import Failure
from ajet.schema.task import Task, WorkflowOutput, non_finite
from ajet.schema.tool_use import ToolUse, digest_of
from ajet.task_reader.rows import BadRow, Columns, task_of, with_ids

MAX_BODY = 16 << 20
"""Bytes."""
T = TypeVar("T")
Handler = Callable[[Request], Awaitable[dict[str, Any]]]


def routes(desk: Desk, admin_key: str) -> list[Route]:
    """The routes, for the holder of the key."""

    async def opened(request: Request) -> dict[str, Any]:
        return await desk.open(await _parsed_body(request, _parse_opening))

    async def finished(request: Request) -> dict[str, Any]:
        outcome, uses = await _parsed_body(request, _parse_outcome)
        return await desk.finish(request.path_params["name"], outcome, uses)

    async def deleted(request: Request) -> dict[str, Any]:
        return await desk.delete(request.path_params["name"])

    async def shown(request: Request) -> dict[str, Any]:
        return await desk.state(request.path_params["name"])

    async def listed(request: Request) -> dict[str, Any]:
        return await desk.overview()

    async def told(request: Request) -> dict[str, Any]:
        return openapi()

    def route(path: str, method: str, handler: Handler, status: int = 200) -> Route:
        async def guarded(request: Request) -> Response:
            try:
                _refuse_strangers(request, admin_key)
                welcome(request.scope)
                return JSONResponse(await handler(request), status_code=status)
            except Refused as refused:
                if refused.status == 401:
                    await after_wrong_key(request.scope)
                return _build_error(refused)

        return Route(path, guarded, methods=[method])

    return [
        route("/episodes", "POST", opened, 201),
        route("/episodes", "GET", listed),
        route("/episodes/{name}", "GET", shown),
        route("/episodes/{name}", "DELETE", deleted),
        route("/episodes/{name}/finish", "POST", finished),
        route("/openapi.json", "GET", told),
    ]


def _refuse_strangers(request: Request, admin_key: str) -> None:
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    given = secret.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")
    if not hmac.compare_digest(given.encode(), admin_key.encode()):
        raise Refused("Incorrect admin key.", status=401, code="invalid_admin_key")


def _parse_opening(given: dict[str, Any]) -> Opening:
    """Raises Refused."""
    body = _validate_body(Open, given)
    targets = None if body.trainable_targets is None else tuple(body.trainable_targets)
    trains = body.train and not body.held_out
    return Opening(_parse_task(body.task), body.agent, targets, trains, body.held_out)


def _parse_outcome(given: dict[str, Any]) -> tuple[WorkflowOutput | Failure, list[ToolUse]]:
    """Raises Refused."""
    body = _validate_body(Finish, given)
    outcome: WorkflowOutput | Failure
    if body.error is not None:
        said = body.error or "the client says that its agent failed"
        outcome = Failure(body.boundary, "client", said, body.boundary != "agent", policy=body.boundary == "agent")
    else:
        outcome = WorkflowOutput(
            reward=body.reward, is_success=body.success, metadata=body.metadata, log_metrics=body.metrics
        )
    return outcome, _parse_uses(body.tool_uses)


async def _parsed_body(request: Request, parse: Callable[[dict[str, Any]], T]) -> T:
    """The body as `parse` reads it, on a thread if it is long; an empty one is {}. Raises Refused."""
    raw = bytearray()
    try:
        with Held(request.scope) as held:
            async for part in request.stream():
                held.add(len(part))
                raw += part
                if len(raw) > MAX_BODY:
                    raise Refused(f"The body exceeds {MAX_BODY >> 20} MiB.", status=413, code="request_too_large")
    except ClientDisconnect:
        raise Refused("The client left.", status=400, code="client_left") from None
    try:
        if len(raw) > LONG_BYTES:
            return await asyncio.to_thread(lambda: parse(_parse_object(raw)))
        return parse(_parse_object(raw))
    except TooManyNodesError as error:
        raise Refused(f"The body is too large: {error}.", status=413, code="request_too_large") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"The body is not valid JSON: {error}", code="invalid_json") from None


def _parse_object(raw: bytes | bytearray) -> dict[str, Any]:
    """Raises Refused, ValueError and RecursionError."""
    value = load_json(raw or b"{}")
    if may_hold_surrogates(raw):
        json.dumps(value, ensure_ascii=False).encode()
    if not isinstance(value, dict):
        raise Refused("The body must be a JSON object.", code="invalid_json")
    found = non_finite(value)
    if found is not None:
        raise Refused(f"{found[0]}: {json.dumps(found[1])} is no finite number.", param=found[0], code="invalid_value")
    return value


def _validate_body(model: type[Any], body: dict[str, Any]) -> Any:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][:1])
        known = f" (there are {', '.join(model.model_fields)})" if first["type"] == "extra_forbidden" else ""
        raise Refused(
            f"{field}: {first['msg'].removeprefix('Value error, ')}{known}", param=field, code="invalid_value"
        ) from None


def _parse_uses(rows: list[dict[str, Any]]) -> list[ToolUse]:
    """Raises Refused."""
    try:
        told = [row if "digest" in row else row | {"digest": digest_of(row["result"])} for row in rows]
        return [kept(use) for use in decode_uses(told)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused(f"A tool use is none: {error}.", param="tool_uses") from error


def _parse_task(given: str | dict[str, Any] | None) -> Task | None:
    """A task as text, or as a row of a task file."""
    if given is None:
        return None
    try:
        (task,), _ = with_ids([task_of({"main_query": given} if isinstance(given, str) else given, Columns())])
    except BadRow as error:
        raise Refused(f"task: {error}", param="task", code="invalid_value") from None
    if not task.main_query.strip() and not task.init_messages:  # a client's own; a data set's may have none
        raise Refused("task: no question, and no messages", param="task", code="invalid_value")
    return task


def _build_error(refused: Refused) -> Response:
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    body = {"message": refused.message, "type": kind, "code": refused.code, "param": refused.param}
    headers = {"Retry-After": "1"} if refused.status in (429, 503) else {}
    return JSONResponse({"error": body}, status_code=refused.status, headers=headers)
