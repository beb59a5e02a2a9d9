"""Call models of OpenAI-compatible servers other than the trained model, on the tools' event loop.

Models of AgentRL's `agent_config.yml` are supported, too. Invariant: a call is a single request with a time limit.
Errors are `NoAnswerError` with a retry flag, never with the key. An unusable configuration raises a single ConfigError
before any call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from loguru import logger
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from ajet.config.locations import find_default_config
from ajet.config.other_models import OPENAI, read_api_key, read_outside_variable
from ajet.config.services import find_model_problem
from ajet.environment.files import expand_variables, find_named_file, first_message, invalid_section_error, read_yaml
from ajet.environment.loop import close_at_exit, process_local
from ajet.record.rate_limiter import RateLimiter
from ajet.schema.addresses import is_loopback, parse_address
from ajet.schema.bounded_json import load_json
from ajet.schema.errors import NO_COMPLETION, AjetError, ConfigError

if TYPE_CHECKING:
    import aiohttp

    from ajet.config.schema.model import JudgeModelConfig


ANSWER_BYTES = 4 << 20
VECTOR_BYTES, VECTOR_VALUES = 1 << 20, 20_000
"""Limits on the size of an embedding response: bytes and numbers per vector."""
KEEPALIVE_S = 4.0
RETRYABLE_STATUSES = (408, 409, 425, 429)
LONGEST_WAIT_S = 60.0
"""Maximum accepted Retry-After of a server."""
MOST_TOKENS = 1 << 53
"""Maximum plausible token count. Larger values count as unknown."""
HANG_WARNING_S = 60.0
"""Seconds between two warnings about a hanging server."""
hung_endpoints = RateLimiter(HANG_WARNING_S)
"""Limits the warnings about each hanging server."""
_sessions: dict[bool, aiohttp.ClientSession] = process_local({})
"""By whether the machine's proxy is used. On the tools' loop."""


class ChatModel(BaseModel):
    """Server, name and key of a callable model."""

    model_config = ConfigDict(extra="forbid")

    base_url: str = Field(min_length=1)
    model: str = Field(min_length=1)
    api_key: SecretStr = SecretStr("")

    @field_validator("base_url")
    @classmethod
    def _an_address(cls, value: str) -> str:
        """Return a valid URL without a final slash; an address without a path gets /v1. Raises ValueError."""
        address = parse_address(value)
        if address is None:
            raise ValueError("expected a URL such as http://HOST:PORT/v1")
        return value.rstrip("/") if address.path.strip("/") else f"{value.rstrip('/')}/v1"

    @property
    def place(self) -> str:
        """The model's server, without user and password."""
        parts = urlsplit(self.base_url)
        return parts.netloc.rpartition("@")[2]


def model_at(url: str, name: str, key: str, *, where: str) -> ChatModel:
    """Return the model `name` of the server at an address.

    Args:
        key: The API key, or "".
        where: Configuration key of the address, for the error.

    Raises:
        ConfigError: the address is no valid URL.
    """
    try:
        return ChatModel(base_url=url, model=name, api_key=SecretStr(key))
    except ValidationError as error:
        raise ConfigError(f"{url} is not a valid URL: {first_message(error)}.", where=where) from None


def list_configured(models: Sequence[JudgeModelConfig], key: str) -> list[ChatModel]:
    """Return the models that the configuration lists under `key`, with API keys from the environment.

    A model without `base_url` is at the server of OPENAI_BASE_URL, else at OpenAI's. Raises ConfigError.
    """
    return [
        model_at(
            settings.base_url or read_outside_variable("OPENAI_BASE_URL") or OPENAI,
            settings.model,
            read_api_key(settings.api_key_env),
            where=f"{key}[{index}].base_url",
        )
        for index, settings in enumerate(models)
    ]


class NoAnswerError(AjetError):
    """A model returned no usable answer."""

    def __init__(self, message: str, *, is_retryable: bool, status: int = 0, after: float = 0.0) -> None:
        """Create the error.

        Args:
            is_retryable: True if a repetition may succeed.
            status: HTTP status of a refusal. 0: no refusal.
            after: Seconds to wait before a repetition.
        """
        super().__init__(message)
        self.is_retryable = is_retryable
        self.status = status
        self.after = after


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A model's answer and its token counts."""

    text: str
    raw_text: str = ""  # text with thoughts, unchanged
    cut: bool = False
    """True if cut at the token limit."""
    refused: str = ""
    """Reason of a refusal by the model or its server."""
    prompt_tokens: int = 0
    reply_tokens: int = 0
    """Token count of the reply reported by the server, 0 if unknown."""


async def ask_model(
    model: ChatModel, prompt: str, seconds: float, more: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Return the model's answer to a single user message.

    Args:
        seconds: Time limit of the request.
        more: Further fields of the request, such as `temperature`.

    Raises:
        NoAnswerError: no answer, or an empty one.
    """
    answer = await request_completion(model, {**more, "messages": [{"role": "user", "content": prompt}]}, seconds)
    if not answer.text:
        raise NoAnswerError("its answer was empty", is_retryable=True)
    return answer.text


async def request_completion(model: ChatModel, body: Mapping[str, Any], seconds: float) -> ChatReply:
    """Send a Chat Completions request with the fields `body` and return the reply.

    Args:
        seconds: Time limit.

    Raises:
        NoAnswerError: no answer in time, a refusal, or an answer without a completion.
    """
    content = await _post_request(model, "chat/completions", body, seconds, ANSWER_BYTES)
    try:
        return _parse_reply(content)
    except NoAnswerError as error:
        raise NoAnswerError(f"{error}: {_shorten_body(model, content)}", is_retryable=error.is_retryable) from None


async def request_embeddings(model: ChatModel, texts: Sequence[str], seconds: float) -> list[list[float]]:
    """Return the model's embedding of each text, as vectors of equal length in the order of the texts.

    Raises:
        NoAnswerError: no answer, or not one vector of finite numbers per text.
    """
    body = await _post_request(model, "embeddings", {"input": list(texts)}, seconds, VECTOR_BYTES * (len(texts) + 1))
    try:
        # The server may answer in any order.
        entries = sorted(
            load_json(body, limit=VECTOR_VALUES * (len(texts) + 1))["data"], key=lambda entry: entry["index"]
        )
        vectors = [[float(number) for number in entry["embedding"]] for entry in entries]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise NoAnswerError(
            f"its answer contains no embeddings: {_shorten_body(model, body)}", is_retryable=False
        ) from None
    are_finite = all(vector and all(map(math.isfinite, vector)) for vector in vectors)
    if len(vectors) != len(texts) or len({len(vector) for vector in vectors}) != 1 or not are_finite:
        raise NoAnswerError("its answer does not contain one vector per text", is_retryable=False)
    return vectors


async def _post_request(model: ChatModel, path: str, body: Mapping[str, Any], seconds: float, limit: int) -> bytes:
    """Return the body of the server's answer to a POST request.

    Args:
        path: Path below the model's base URL.
        body: Fields of the request besides the model's name.
        seconds: Time limit.
        limit: Maximum bytes of the answer.

    Raises:
        NoAnswerError: no connection, no answer in time, a refusal, or a longer answer.
    """
    import aiohttp

    key = model.api_key.get_secret_value()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    uses_proxy = not is_loopback(urlsplit(model.base_url).hostname)
    try:
        async with _get_session(uses_proxy).post(
            f"{model.base_url}/{path}",
            json={"model": model.model, **body},
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=seconds),
        ) as reply:
            content = await _read_bounded(reply, limit)
            if reply.status >= 400:
                raise NoAnswerError(
                    f"it refused the request with status {reply.status}: {_shorten_body(model, content, 300)}",
                    is_retryable=reply.status >= 500 or reply.status in RETRYABLE_STATUSES,
                    status=reply.status,
                    after=_retry_after_seconds(reply.headers.get("Retry-After")),
                )
    except TimeoutError:
        if hung_endpoints.is_due(model.place):
            logger.warning(
                "the model {} at {} hangs: no complete reply within {:g} s", model.model, model.place, seconds
            )
        raise NoAnswerError(f"the model did not answer within {seconds:g} s", is_retryable=True) from None
    except (aiohttp.ClientError, OSError) as error:
        raise NoAnswerError(f"the model did not answer: {type(error).__name__}", is_retryable=True) from None
    return content


def _shorten_body(model: ChatModel, body: bytes, limit: int = 120) -> str:
    """Return the first `limit` characters of a response as one line, without the API key."""
    key, text = model.api_key.get_secret_value(), body.decode("utf-8", "replace")
    line = " ".join((text.replace(key, "[redacted]") if key else text).split())
    return (line if len(line) <= limit else f"{line[:limit]}…") or "nothing"


def explain_no_model(models: Sequence[ChatModel], seconds: float, *, named: str) -> str:
    """Return "" if one of the models answers, else the problem of each; the models are tried in order.

    Problems of models before the answering one are logged.

    Args:
        seconds: Time limit of all tries.
        named: Role of the models, such as "judge", for messages.
    """
    problems: list[str] = []
    for model in models:
        key, server = model.api_key.get_secret_value(), f"{named}: {model.place}"
        problem = find_model_problem(model.base_url, model.model, key, seconds / len(models), named=server)
        if not problem:
            for failed_problem in problems:
                logger.warning("the model {} failed: {}; trying the next model", named, failed_problem)
            return ""
        problems.append(f"{model.model} at {model.place}: {problem}")
    return "; ".join(problems)


async def close_all() -> None:
    """Close the connections to all servers."""
    sessions = list(_sessions.values())
    _sessions.clear()
    for session in sessions:
        await session.close()


def _get_session(uses_proxy: bool) -> aiohttp.ClientSession:
    """Return the HTTP session of the tools' loop, with or without the machine's proxy; created on first use."""
    import aiohttp

    if not _sessions:
        close_at_exit(close_all)
    if uses_proxy not in _sessions:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)  # 0: any number of connections
        _sessions[uses_proxy] = aiohttp.ClientSession(
            connector=connector, trust_env=uses_proxy, cookie_jar=aiohttp.DummyCookieJar()
        )
    return _sessions[uses_proxy]


async def _read_bounded(reply: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body of a response. Raises NoAnswerError, and closes the connection, above `limit` bytes."""
    body = bytearray()
    while chunk := await reply.content.readany():
        body += chunk
        if len(body) > limit:
            reply.close()
            raise NoAnswerError(f"its answer is longer than {limit} bytes", is_retryable=True)
    return bytes(body)


def _retry_after_seconds(header: str | None) -> float:
    """Return the seconds in a Retry-After header, at most LONGEST_WAIT_S; 0 for none or a date."""
    try:
        seconds = float(header or 0)
    except ValueError:  # the header may be a date, which is ignored
        return 0.0
    return min(seconds, LONGEST_WAIT_S) if seconds > 0 else 0.0


def _parse_reply(body: bytes) -> ChatReply:
    """Return the reply in the body of a ChatCompletion, without thoughts. Raises NoAnswerError for another body."""
    try:
        answer: Any = load_json(body)
        choice = answer["choices"][0]
        content, refusal = choice["message"].get("content"), choice["message"].get("refusal")
        is_filtered, usage = choice.get("finish_reason") == "content_filter", answer.get("usage")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise NoAnswerError(NO_COMPLETION, is_retryable=True) from None
    raw_text = content if isinstance(content, str) else ""
    text = raw_text.rpartition("</think>")[2].strip()
    refused = refusal if isinstance(refusal, str) and refusal else "its server's filter" if is_filtered else ""
    is_cut = choice.get("finish_reason") == "length"
    return ChatReply(
        text,
        raw_text,
        is_cut,
        refused,
        _read_token_count(usage, "prompt_tokens"),
        _read_token_count(usage, "completion_tokens"),
    )


def _read_token_count(used: Any, name: str) -> int:
    """Return a token count of `usage`, or 0 if missing or implausible."""
    count = used.get(name) if isinstance(used, Mapping) else None
    if isinstance(count, (int, float)) and not isinstance(count, bool) and 0 <= count <= MOST_TOKENS:
        return int(count)
    return 0


KEY = "ajet.environment.agent_config"
EXAMPLE = find_default_config() / "agent_config_example.yml"
S = TypeVar("S", bound=BaseModel)


def plain_section(named: str, base: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Return AgentRL's configuration file and its section `name`, with environment variables (`${NAME}`) expanded.

    Args:
        named: Path of the file, the value of `environment.agent_config`.
        base: Folder of relative paths.
        name: Name of the section.

    Raises:
        ConfigError: the file or the section is missing, or a variable is not set.
    """
    file = find_named_file(named, base, KEY)
    tree = read_yaml(file)
    section = tree.get(name) if isinstance(tree, dict) else None
    if not isinstance(section, dict):
        raise ConfigError(f"{file.name} has no section {name}.", where=str(file), expected=f"a section as in {EXAMPLE}")
    expanded: dict[str, Any] = expand_variables(section, f"{file}: {name}")
    return file, expanded


def section_of(named: str, base: Path, name: str, form: type[S]) -> S:
    """Return a section of AgentRL's configuration file as an object of the class `form`.

    The other arguments are those of `plain_section`.

    Raises:
        ConfigError: the file or the section is missing, or a value is invalid.
    """
    file, section = plain_section(named, base, name)
    try:
        return form.model_validate(section)
    except ValidationError as error:
        # The valid keys to show are those of a model if the error is within the list of models.
        failed_class = ChatModel if "models" in error.errors()[0]["loc"] else form
        raise invalid_section_error(error, file, failed_class.model_fields, name) from None
