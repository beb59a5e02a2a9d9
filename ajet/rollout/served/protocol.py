"""Models of requests and replies of the episode registry: parsed by the routes, published as an OpenAPI document.

Invariant: a request's body has exactly the model's fields. A reply has at least the model's fields. docs/openapi.json
is the output of `openapi()`, and `make check` compares the two. The names of the models are part of the document.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from ajet._version import __version__
from ajet.schema.episode import Status

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
    used = sorted({model for route in ROUTES for model in (*route.replies, route.body, Problem) if model},
                  key=lambda model: model.__name__)  # fmt: skip
    places = "#/components/schemas/{model}"
    _, schemas = models_json_schema([(model, "validation") for model in used], ref_template=places)
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
    yield "summary", route.summary
    if "{episode}" in route.path:
        yield "parameters", [{"name": "episode", "in": "path", "required": True, "schema": {"type": "string"}}]
    if route.body is not None:
        yield "requestBody", {"content": _describe_content(route.body)}
    answers = {str(route.status): {"description": route.summary, "content": _describe_content(*route.replies)}}
    refusals = {
        str(status): {"description": why, "content": _describe_content(Problem)} for status, why in _REFUSALS.items()
    }
    yield "responses", answers | refusals


def _describe_content(*models: type[BaseModel]) -> dict[str, Any]:
    found = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
    return {"application/json": {"schema": found[0] if len(found) == 1 else {"anyOf": found}}}
