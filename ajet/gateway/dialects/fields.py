"""Request fields shared by several dialects, each checked and converted to Chat Completions' shape.

Invariants: an unfitting value is refused with the name of its field. Text contents are strings; a content with images
is a list of parts. The images' places are stored until the engine is known: a chat engine gets the images unchanged, a
text model refuses the request and names the place. No URL is fetched here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ajet.gateway.request import Refused
from ajet.schema.json_schema import find_schema_problem

IMAGE_BLOCKS = ("image_url", "input_image", "image")
"""The types of image blocks of Chat Completions, Responses and Messages."""
_IMAGE_DETAILS = ("auto", "low", "high", "original")
_SAMPLING = frozenset({"temperature", "top_p", "top_k"})


def invalid_value(param: str, expected: str) -> Refused:
    """Return the refusal (400) of a field's value that is not what the field takes.

    Args:
        param: The field, as the client wrote it.
        expected: What it takes, after "expected".
    """
    return Refused(f"Invalid value for '{param}': expected {expected}.", param=param, code="invalid_value")


def unsupported_value(param: str, why: str) -> Refused:
    """Return the refusal (400) of a field's value that the protocol allows, but this server does not support.

    Args:
        param: The field, as the client wrote it.
        why: The reason, and what to do instead.
    """
    return Refused(f"Unsupported value for '{param}': {why}", param=param, code="unsupported_value")


def unsupported_tool(param: str, kind: Any, runs: str = "type 'function'") -> Refused:
    """Return the refusal of a tool that the server would have to run.

    Args:
        param: The field at fault.
        kind: The tool's type.
        runs: The supported tools, in words.
    """
    return unsupported_value(
        param,
        f"this server has no tools of type {kind!r}, only of {runs}. Remove the tool, or let "
        "ajet.gateway.leave_out_tools name its type.",
    )


def refuse_unknown(body: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise Refused for the first field that is not in `known` and not null."""
    for name in body:
        if name not in known and body[name] is not None:
            raise Refused(f"Unrecognized request argument supplied: {name}", param=name, code="unknown_parameter")


def read_integer(body: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """Return an integer within bounds, or `None` if absent or null."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise invalid_value(name, f"an integer from {low} to {high}")
    return value


def read_number(body: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """Return a number within bounds, or `None` if absent or null."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise invalid_value(name, f"a number from {low:g} to {high:g}")
    return float(value)


def read_boolean(body: Mapping[str, Any], name: str, default: bool, where: str = "") -> bool:
    """Return a boolean field of a request, or its default if absent.

    Args:
        where: The place of `body` in the request, for an error. "": the body is the request itself.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid_value(f"{where}.{name}" if where else name, "a boolean")
    return value


def check_text(value: Any, param: str) -> str:
    """Return a non-empty string, or raise Refused."""
    if not isinstance(value, str) or not value:
        raise invalid_value(param, "a non-empty string")
    return value


def read_sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return `temperature`, `top_p` and `top_k`, or {} if the request sets no sampling field."""
    if _SAMPLING.isdisjoint(body):  # most requests
        return {}
    temperature, top_p = read_number(body, "temperature", 0, 2), read_number(body, "top_p", 0, 1)
    if top_p == 0:
        raise invalid_value("top_p", "a number above 0 and at most 1")
    top_k = read_integer(body, "top_k", -1, 1 << 31)
    return {"temperature": temperature, "top_p": top_p, "top_k": -1 if top_k == 0 else top_k}


def read_stop(value: Any, where: str = "stop") -> tuple[str, ...]:
    """Return the stop sequences of a string or a list of at most 16 strings, () for null. Raises Refused."""
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or len(value) > 16:
        raise invalid_value(where, "a string or a list of at most 16 strings")
    return tuple([check_text(stop, where) for stop in value])


def read_seed(body: Mapping[str, Any]) -> int | None:
    """Return the seed, or `None` if absent or null."""
    return read_integer(body, "seed", -(1 << 63), (1 << 63) - 1)


def read_include_usage(body: Mapping[str, Any], is_streamed: bool) -> bool:
    """Return True if a stream ends with its usage."""
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict) or not is_streamed:
        raise invalid_value("stream_options", "an object, together with 'stream': true")
    return read_boolean(options, "include_usage", False)


def read_model(body: Mapping[str, Any]) -> str | None:
    """Return the model's name, or `None` if absent or empty."""
    value = body.get("model")
    if value is not None and not isinstance(value, str):
        raise invalid_value("model", "a string")
    return value or None


def select_set(body: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the fields listed in `names` that the request sets, with their values."""
    return {name: value for name, value in body.items() if name in names and value is not None}


def select_effective(body: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Return the fields whose value has an effect, with their values.

    Args:
        neutral: Field name -> the values without effect.
    """
    if neutral.keys().isdisjoint(body):  # most requests
        return {}
    effective = {}
    for name, values in neutral.items():
        value = body.get(name)
        if value is None or value in values:
            continue
        if name == "logit_bias" and isinstance(value, dict) and not any(value.values()):  # biases of 0
            continue
        effective[name] = value
    return effective


def read_content(content: Any, where: str, images: list[str] | None = None) -> Any:
    """Return a message's content as one text, or `None` for null.

    Args:
        where: The place of the content in the request.
        images: A list accepts blocks of images: their places are added, and the content becomes a list of parts.
    """
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid_value(where, "a string or a list of text blocks")
    parts: list[Any] = []
    has_images = False
    for index, block in enumerate(content):
        if isinstance(block, str):
            parts.append(block)
            continue
        if not isinstance(block, dict):
            raise invalid_value(f"{where}[{index}]", "a text block")
        kind = block.get("type")
        if kind in IMAGE_BLOCKS and images is not None:
            images.append(f"{where}[{index}].type")
            parts.append(read_image(block, f"{where}[{index}]"))
            has_images = True
            continue
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise unsupported_value(f"{where}[{index}].type", f"this model takes text only, not {kind!r} blocks.")
        value = block.get("refusal" if kind == "refusal" else "text")
        if not isinstance(value, str):
            raise invalid_value(f"{where}[{index}].text", "a string")
        parts.append(value)
    return build_parts(parts) if has_images else "".join(parts)


def build_parts(parts: list[Any]) -> list[dict[str, Any]]:
    """Return texts and image parts as a list of Chat Completions' content parts."""
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]


def read_image(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return an image block as a part of type `image_url`."""
    kind, detail = block["type"], block.get("detail")
    if kind == "image_url":
        image_url = block.get("image_url")
        url = image_url.get("url") if isinstance(image_url, Mapping) else None
        detail = image_url.get("detail") if isinstance(image_url, Mapping) else None
        where = f"{where}.image_url.url"
    elif kind == "input_image":
        if block.get("file_id") is not None:
            raise unsupported_value(
                f"{where}.file_id", "this server stores no files; send the image itself as a data: URL."
            )
        url, where = block.get("image_url"), f"{where}.image_url"
    else:
        url, where = _read_image_source(block.get("source"), f"{where}.source")
    if not isinstance(url, str) or not url.startswith(("https://", "http://", "data:image/")):
        raise invalid_value(where, "the http(s) or data: URL of an image")
    image: dict[str, Any] = {"url": url}
    if detail is not None:
        if detail not in _IMAGE_DETAILS:
            raise invalid_value(f"{where}.detail", "one of " + ", ".join(_IMAGE_DETAILS))
        image["detail"] = detail
    return {"type": "image_url", "image_url": image}


def _read_image_source(source: Any, where: str) -> tuple[Any, str]:
    """Return the URL of Anthropic's image source and its place in the request. Raises Refused."""
    if not isinstance(source, Mapping):
        raise invalid_value(where, "an object with a 'type'")
    if source.get("type") == "url":
        return source.get("url"), f"{where}.url"
    if source.get("type") != "base64":
        raise unsupported_value(f"{where}.type", "this server supports 'base64' and 'url' only.")
    kind, data = source.get("media_type"), source.get("data")
    if not isinstance(kind, str) or not kind.startswith("image/") or not isinstance(data, str):
        raise invalid_value(where, "a media_type such as image/png, and data")
    return f"data:{kind};base64,{data}", f"{where}.data"


def check_parameters(schema: Any, where: str, *, strict: bool) -> None:
    """Raise Refused for an invalid schema of a function's arguments.

    Args:
        strict: Also refuse a schema that cannot be enforced.
    """
    if schema is None:
        return
    if not isinstance(schema, dict):
        raise invalid_value(where, "a JSON schema (an object)")
    if schema.get("type", "object") != "object":
        raise invalid_value(f"{where}.type", "'object'")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(value, (dict, bool)) for value in properties.values()):
        raise invalid_value(f"{where}.properties", "an object of schemas")
    required = schema.get("required") or []
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise invalid_value(f"{where}.required", "a list of names")
    if strict:
        check_schema(schema, where)


def check_schema(schema: Any, where: str) -> Mapping[str, Any]:
    """Return a schema, or raise Refused if no reply or argument can be held to it."""
    if not isinstance(schema, dict):
        raise invalid_value(where, "a JSON schema (an object)")
    problem = find_schema_problem(schema)
    if problem is not None:
        raise unsupported_value(where, f"the server cannot check replies against this JSON schema: {problem}.")
    return schema


def read_format(value: Any, where: str, *, is_nested: bool) -> Mapping[str, Any] | None:
    """Return the schema of a response format: {} admits any JSON object, `None` any text.

    Args:
        where: Place of the format: `response_format` of Chat Completions, `text.format` of Responses.
        is_nested: True if the schema is in a separate field, as in Chat Completions.
    """
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {}
    if kind != "json_schema":
        raise unsupported_value(
            f"{where}.type" if isinstance(value, dict) else where,
            "this server supports 'text', 'json_object' and 'json_schema' only.",
        )
    if is_nested:
        where = f"{where}.json_schema"
        value = value.get("json_schema")
        if not isinstance(value, dict):
            raise invalid_value(where, "an object")
    check_text(value.get("name"), f"{where}.name")
    read_boolean(value, "strict", False, where)
    if not isinstance(value.get("description") or "", str):
        raise invalid_value(f"{where}.description", "a string")
    schema = value.get("schema")
    return {} if is_nested and schema is None else check_schema(schema, f"{where}.schema")
