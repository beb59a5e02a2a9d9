"""The HTTP routes of the episode registry: /episodes, with JSON requests and replies, for programs in any language.

Invariants: no request is served without the admin key. Non-finite numbers are refused. Every refusal is an error object
with a status, a code and the field at fault. A request repeated after the end of an episode gets the same reply.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ajet._version import __version__
from ajet.gateway import Refused
from ajet.gateway.limits import BodyBytes, after_wrong_key, welcome
from ajet.record.tool_uses import bound_tool_use, decode_uses
from ajet.rollout.served.episode import EpisodeRequest
from ajet.rollout.served.registry import EpisodeRegistry
from ajet.schema.bounded_json import LONG_BYTES, TooManyNodesError, load_json, may_hold_surrogates
from ajet.schema.episode import Failure, Status
from ajet.schema.task import Task, WorkflowOutput, find_non_finite
from ajet.schema.tool_use import ToolUse, compute_digest
from ajet.task_reader.rows import BadRowError, ColumnNames, assign_ids, task_of

MAX_BODY_BYTES = 16 << 20
T = TypeVar("T")
Handler = Callable[[Request], Awaitable[dict[str, Any]]]


def make_routes(registry: EpisodeRegistry, admin_key: str) -> list[Route]:
    """Return the HTTP routes of a registry. Clients need the admin key."""

    async def open_episode(request: Request) -> dict[str, Any]:
        return await registry.open(await _parse_body(request, _parse_request))

    async def finish_episode(request: Request) -> dict[str, Any]:
        outcome, uses = await _parse_body(request, _parse_outcome)
        return await registry.finish(request.path_params["name"], outcome, uses)

    async def delete_episode(request: Request) -> dict[str, Any]:
        return await registry.delete(request.path_params["name"])

    async def show_episode(request: Request) -> dict[str, Any]:
        return await registry.get_state(request.path_params["name"])

    async def list_episodes(request: Request) -> dict[str, Any]:
        return await registry.get_overview()

    async def show_openapi(request: Request) -> dict[str, Any]:
        return build_openapi()

    def make_route(path: str, method: str, handler: Handler, status: int = 200) -> Route:
        async def guarded(request: Request) -> Response:
            try:
                _check_key(request, admin_key)
                welcome(request.scope)
                return JSONResponse(await handler(request), status_code=status)
            except Refused as refused:
                if refused.status == 401:
                    await after_wrong_key(request.scope)
                return _build_error(refused)

        return Route(path, guarded, methods=[method])

    return [
        make_route("/episodes", "POST", open_episode, 201),
        make_route("/episodes", "GET", list_episodes),
        make_route("/episodes/{name}", "GET", show_episode),
        make_route("/episodes/{name}", "DELETE", delete_episode),
        make_route("/episodes/{name}/finish", "POST", finish_episode),
        make_route("/openapi.json", "GET", show_openapi),
    ]


def _check_key(request: Request, admin_key: str) -> None:
    """Raise Refused unless the request has the admin key, as a bearer token or in `x-api-key`."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    key = secret.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")
    if not hmac.compare_digest(key.encode(), admin_key.encode()):
        raise Refused("Incorrect admin key.", status=401, code="invalid_admin_key")


def _parse_request(fields: dict[str, Any]) -> EpisodeRequest:
    """Return the request for an episode from the body of POST /episodes. A held-out episode never trains."""
    body = _validate_body(Open, fields)
    targets = None if body.trainable_targets is None else tuple(body.trainable_targets)
    trains = body.train and not body.held_out
    return EpisodeRequest(_parse_task(body.task), body.agent, targets, trains, body.held_out)


def _parse_outcome(fields: dict[str, Any]) -> tuple[WorkflowOutput | Failure, list[ToolUse]]:
    """Return the reported output or failure, and the tool uses, from the body of a finish request."""
    body = _validate_body(Finish, fields)
    outcome: WorkflowOutput | Failure
    if body.error is not None:
        message = body.error or "the client reported that its agent failed"
        # Only failures outside of the agent may be played again, and only the agent's own count against the policy.
        outcome = Failure(body.boundary, "client", message, body.boundary != "agent", policy=body.boundary == "agent")
    else:
        outcome = WorkflowOutput(
            reward=body.reward, is_success=body.success, metadata=body.metadata, log_metrics=body.metrics
        )
    return outcome, _parse_uses(body.tool_uses)


async def _parse_body(request: Request, parse: Callable[[dict[str, Any]], T]) -> T:
    """Return the body parsed by `parse`, in a thread if the body is long. An empty body is {}. Raises Refused."""
    raw = bytearray()
    try:
        with BodyBytes(request.scope) as buffered:
            async for chunk in request.stream():
                buffered.add(len(chunk))
                raw += chunk
                if len(raw) > MAX_BODY_BYTES:
                    raise Refused(f"The body exceeds {MAX_BODY_BYTES >> 20} MiB.", status=413, code="request_too_large")
    except ClientDisconnect:
        raise Refused("The client disconnected.", status=400, code="client_left") from None
    try:
        if len(raw) > LONG_BYTES:
            return await asyncio.to_thread(lambda: parse(_parse_object(raw)))
        return parse(_parse_object(raw))
    except TooManyNodesError as error:
        raise Refused(f"The body is too large: {error}.", status=413, code="request_too_large") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"The body is not valid JSON: {error}", code="invalid_json") from None


def _parse_object(raw: bytes | bytearray) -> dict[str, Any]:
    """Parse a JSON object with finite numbers. Raises Refused, ValueError and RecursionError."""
    value = load_json(raw or b"{}")
    if may_hold_surrogates(raw):
        json.dumps(value, ensure_ascii=False).encode()
    if not isinstance(value, dict):
        raise Refused("The body must be a JSON object.", code="invalid_json")
    if (bad := find_non_finite(value)) is not None:
        raise Refused(f"{bad[0]}: {json.dumps(bad[1])} is not a finite number.", param=bad[0], code="invalid_value")
    return value


def _validate_body(model: type[Any], body: dict[str, Any]) -> Any:
    """Return the body as an instance of the model. Raises Refused with the first invalid field."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(key) for key in first["loc"][:1])
        fields = f" (the fields are {', '.join(model.model_fields)})" if first["type"] == "extra_forbidden" else ""
        raise Refused(
            f"{field}: {first['msg'].removeprefix('Value error, ')}{fields}", param=field, code="invalid_value"
        ) from None


def _parse_uses(rows: list[dict[str, Any]]) -> list[ToolUse]:
    """Return the tool uses of a request, with missing digests computed from the results. Raises Refused."""
    try:
        complete = [
            use_fields if "digest" in use_fields else use_fields | {"digest": compute_digest(use_fields["result"])}
            for use_fields in rows
        ]
        return [bound_tool_use(use) for use in decode_uses(complete)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused(f"The tool use is invalid: {error}.", param="tool_uses") from error


def _parse_task(value: str | dict[str, Any] | None) -> Task | None:
    """Return the task of a text, or of a row of a task file."""
    if value is None:
        return None
    try:
        (task,), _ = assign_ids([task_of({"main_query": value} if isinstance(value, str) else value, ColumnNames())])
    except BadRowError as error:
        raise Refused(f"task: {error}", param="task", code="invalid_value") from None
    if not task.main_query.strip() and not task.init_messages:  # a client's own task; a data set's may have neither
        raise Refused("task: it contains neither a question nor messages", param="task", code="invalid_value")
    return task


def _build_error(refused: Refused) -> Response:
    """Return a refusal as an error object of OpenAI's form. Statuses that are worth a retry get a
    `Retry-After` header.
    """
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    body = {"message": refused.message, "type": kind, "code": refused.code, "param": refused.param}
    headers = {"Retry-After": "1"} if refused.status in (429, 503) else {}
    return JSONResponse({"error": body}, status_code=refused.status, headers=headers)


# Models of requests and replies of the episode registry: parsed by the routes, published as an OpenAPI document.
# Invariant: a request's body has exactly the model's fields. A reply has at least the model's fields.
# docs/openapi.json is the output of `openapi()`, and `make check` compares the two. The names of the models are
# part of the document.
Boundary = Literal["agent", "tool", "environment", "sandbox"]


class Open(BaseModel):
    """The body of POST /episodes. All fields are optional."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task: str | dict[str, Any] | None = Field(
        None, description="A question, or a row of a task file. null: the next task of the server's task reader."
    )
    agent: str = Field("default", min_length=1, description="The agent name for the episode's key.")
    trainable_targets: list[str] | None = Field(None, description="Names of the targets to train. null: all targets.")
    train: bool = Field(
        True,
        description="False: the episode is only recorded, with the client's sampling settings, and in no group.",
    )
    held_out: bool = Field(
        False,
        description="True: the episode is only recorded, and its task is held out (null: the next one of the server's "
        "held-out tasks). Its outcome counts in the validation numbers of the next step.",
    )


class Finish(BaseModel):
    """The body of POST /episodes/{episode}/finish."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    reward: float | list[float] | None = Field(
        None, description="A number, or a list with one number per call or per agent. null: the server's judge decides."
    )
    success: bool | None = Field(None, description="null: not known.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Values for the judge and the record.")
    metrics: dict[str, float] = Field(default_factory=dict, description="Numbers for the curves.")
    error: str | None = Field(
        None, description="Reason for which the episode failed. A failed episode is not trained on."
    )
    boundary: Boundary = Field("agent", description="Component that caused `error`.")
    tool_uses: list[dict[str, Any]] = Field(
        default_factory=list,
        description="Uses of tools. `digest` may be left out if the result is complete.",
    )


class OpenEpisode(BaseModel):
    """An episode that is open."""

    episode: str = Field(description="Its name.")
    status: Literal["open", "judging", "unrecorded"]
    task_id: str
    repeat: int = Field(description="Number of this attempt at its task.")
    version: int = Field(description="Policy version of the weights at this time.")


class OpenedEpisode(OpenEpisode):
    """An opened episode, with the endpoint and the task for the agent."""

    task: dict[str, Any]
    base_url: str = Field(
        description="Base URL for clients of OpenAI's protocols. Clients of Anthropic's protocol leave out the /v1."
    )
    api_key: str = Field(description="Valid for this episode, until it ends.")
    path_base_url: str = Field(description="Base URL that contains the key, for clients that cannot set a key.")
    model: str


class EndedEpisode(BaseModel):
    """An episode that has ended."""

    episode: str
    status: Status
    task_id: str
    repeat: int
    reward: float | None
    success: bool | None
    reason: str
    boundary: str | None = Field(description="Component that caused a failure.")
    calls: int
    sampled_tokens: int
    seconds: float
    ended_by: str


class Overview(BaseModel):
    """The open episodes, and counts over all."""

    open: list[str]
    ended: dict[str, int]
    open_groups: int
    waiting_groups: int
    held_out_tasks: int = Field(description="Number of held-out tasks available to clients.")
    version: int


class Problem(BaseModel):
    """The body of every refusal."""

    class ProblemDetails(BaseModel):
        message: str
        type: Literal["invalid_request_error", "server_error"]
        code: str | None
        param: str | None = Field(description="Name of the invalid field.")

    error: ProblemDetails


class RouteSpec(NamedTuple):
    """A route of `ajet serve`, as described in the document."""

    method: str
    path: str
    summary: str
    status: int
    replies: tuple[type[BaseModel], ...]
    body: type[BaseModel] | None = None


ROUTES = (
    RouteSpec("post", "/episodes", "Begin an episode.", 201, (OpenedEpisode,), Open),
    RouteSpec("get", "/episodes", "List the open episodes, with counts.", 200, (Overview,)),
    RouteSpec("get", "/episodes/{episode}", "One episode.", 200, (OpenEpisode, EndedEpisode)),
    RouteSpec("delete", "/episodes/{episode}", "Abort the episode: it is recorded as aborted.", 200, (EndedEpisode,)),
    RouteSpec(
        "post",
        "/episodes/{episode}/finish",
        "Report the outcome. A repeated request gets the same reply.",
        200,
        (EndedEpisode,),
        Finish,
    ),
)
_REFUSALS = {
    400: "a field or the body is invalid",
    401: "the admin key",
    404: "no such episode",
    409: "the episode has ended with another outcome",
    413: "too large",
    429: (
        "too many open episodes, too many of this task, or a trainer that is behind: retry after `Retry-After` seconds"
    ),
    503: (
        "the server is starting or closing, the outcome is not recorded, the store cannot be reached, or an "
        "outage: retry after `Retry-After` seconds"
    ),
}


def build_openapi() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the routes."""
    models = sorted({model for route in ROUTES for model in (*route.replies, route.body, Problem) if model},
                  key=lambda model: model.__name__)  # fmt: skip
    places = "#/components/schemas/{model}"
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=places)
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = dict(_describe_request(route))
    return {
        "openapi": "3.1.0",
        "info": {"title": "ajet serve", "version": __version__, "description": "Episodes of external agents."},
        "security": [{"admin": []}, {"x-api-key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "admin": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _describe_request(route: RouteSpec) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a route's OpenAPI description as (key, value) pairs."""
    yield "summary", route.summary
    if "{episode}" in route.path:
        yield "parameters", [{"name": "episode", "in": "path", "required": True, "schema": {"type": "string"}}]
    if route.body is not None:
        yield "requestBody", {"content": _describe_content(route.body)}
    answers = {str(route.status): {"description": route.summary, "content": _describe_content(*route.replies)}}
    refusals = {
        str(status): {"description": reason, "content": _describe_content(Problem)}
        for status, reason in _REFUSALS.items()
    }
    yield "responses", answers | refusals


def _describe_content(*models: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI content of a body that has one of the models."""
    references = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
    return {"application/json": {"schema": references[0] if len(references) == 1 else {"anyOf": references}}}
