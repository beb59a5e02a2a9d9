"""The HTTP interfaces: paths, methods, parameters, request fields and the schemas of replies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from starlette.routing import BaseRoute, Route

from ajet.engine.scripted import ScriptedChat
from ajet.gateway import Gateway
from ajet.rollout.served.http import build_openapi, make_routes
from ajet.rollout.served.registry import EpisodeRegistry
from ajet_environments.front.app import Front, build_front
from ajet_environments.services.server import REQUESTS

DIALECTS = {
    "POST /v1/chat/completions": "ajet.gateway.dialects.chat",
    "POST /v1/completions": "ajet.gateway.dialects.completions",
    "POST /v1/responses": "ajet.gateway.dialects.responses.dialect",
    "POST /v1/messages": "ajet.gateway.dialects.anthropic.dialect",
    "POST /v1beta/models/{model}:generateContent": "ajet.gateway.dialects.gemini.dialect",
}
"""Where the request fields that a dialect knows are listed, as `TAKEN`."""


def list_serve(root: Path) -> Iterator[str]:
    """Yield the routes of `ajet serve` as they are answered, and its OpenAPI document."""
    yield from _list_routes(make_routes(cast(EpisodeRegistry, None), ""))
    yield from _list_openapi(build_openapi())


def list_gateway(root: Path) -> Iterator[str]:
    """Yield the routes of the gateway, and the request fields that each dialect knows."""
    gateway = Gateway(ScriptedChat([]), None, max_model_len=1, max_response_tokens=1)
    yield from _list_routes(gateway.app.routes)
    for route, module in DIALECTS.items():
        yield from (f"{route} field {field}" for field in import_module(module).TAKEN)


def list_tool_servers(root: Path) -> Iterator[str]:
    """Yield the routes of an environment that `ajet env up` serves."""
    yield from _list_routes(build_front(cast(Front, SimpleNamespace(episodes=None, aliases={}, access=None))).routes)


def list_environment_service(root: Path) -> Iterator[str]:
    """Yield the requests of the environment service, as `ajet env serve` answers and `gym_env` sends them."""
    yield from (f"POST /{name}" for name in REQUESTS)


def _list_routes(found: Iterable[BaseRoute]) -> Iterator[str]:
    for route in found:
        if isinstance(route, Route):
            methods = sorted((route.methods or {"POST"}) - {"HEAD"})
            yield from (f"{method} {route.path}" for method in methods)


def _list_openapi(document: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            place = f"openapi {method.upper()} {path}"
            yield f"{place} takes {_name_content(operation.get('requestBody', {})) or 'no body'}"
            for parameter in operation.get("parameters", ()):
                required = ", required" if parameter.get("required") else ""
                kind = f"{_name_type(parameter['schema'])}{required}"
                yield f"{place} parameter {parameter['name']} in {parameter['in']}: {kind}"
            answers: dict[str, list[str]] = {}
            for status, answer in operation["responses"].items():
                answers.setdefault(_name_content(answer), []).append(status)
            yield from (f"{place} answers {', '.join(statuses)}: {kind}" for kind, statuses in answers.items())
    for name, schema in document["components"]["schemas"].items():
        yield from _list_schema(name, schema)
    for name, scheme in document["components"]["securitySchemes"].items():
        yield f"openapi security {name}: " + ", ".join(f"{key} {value}" for key, value in sorted(scheme.items()))


def _list_schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for field, each in schema.get("properties", {}).items():
        end = ", required" if field in required else f" = {each['default']!r}" if "default" in each else ""
        yield f"schema {name}.{field}: {_name_type(each)}{end}"
    if "enum" in schema:
        yield f"schema {name}: {_name_type(schema)}"


def _name_content(holder: Mapping[str, Any]) -> str:
    return ", ".join(_name_type(each["schema"]) for each in holder.get("content", {}).values())


def _name_type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(map(_name_type, schema[several]))
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        return f"list of {_name_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"mapping to {_name_type(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))
