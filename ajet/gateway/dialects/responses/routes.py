"""Routes of stored responses: reading and deleting them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ajet.gateway.dialects.fields import invalid_value, unsupported_value
from ajet.gateway.dialects.responses.stored import find_stored_responses, item_list
from ajet.gateway.request import Refused

_PAGE = 20


def response_routes(find_state: Callable[[Request], dict[str, Any]]) -> list[Route]:
    """Return the routes. `find_state` returns the memory of the session of a request's key, or raises Refused."""

    async def response(request: Request) -> Response:
        stored = find_stored_responses(find_state(request))
        name = request.path_params["name"]
        if request.method == "DELETE":
            return JSONResponse(stored.delete(name))
        if request.query_params.get("stream", "false") != "false":
            raise unsupported_value(
                "stream", "the response has ended and can be read only as one JSON object; leave 'stream' out."
            )
        return JSONResponse(stored.get(name).response)

    async def items(request: Request) -> Response:
        stored = find_stored_responses(find_state(request)).get(request.path_params["name"])
        query = request.query_params
        order, limit = query.get("order", "desc"), query.get("limit", str(_PAGE))
        if order not in ("asc", "desc"):
            raise invalid_value("order", "'asc' or 'desc'")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:4]) <= 100):
            raise invalid_value("limit", "an integer from 1 to 100")
        return JSONResponse(item_list(stored, order=order, limit=int(limit), after=query.get("after")))

    async def cancel(request: Request) -> Response:
        find_stored_responses(find_state(request)).get(request.path_params["name"])
        raise Refused("Only responses created with 'background': true can be cancelled.", code="invalid_value")

    return [
        Route("/v1/responses/{name}", response, methods=["GET", "DELETE"]),
        Route("/v1/responses/{name}/input_items", items, methods=["GET"]),
        Route("/v1/responses/{name}/cancel", cancel, methods=["POST"]),
    ]
