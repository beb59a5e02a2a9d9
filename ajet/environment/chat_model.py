"""A model of any OpenAI-compatible server that stands beside the one that is trained, and questions to it, on the
tools' loop; such models of AgentRL's `agent_config.yml`, by section.

Invariant: one question is one request, within its seconds; what goes wrong is `NoAnswer`, which says whether it could
go well another time, and never holds the key. What cannot be used is one ConfigError before anything is asked.
"""

from __future__ import annotations

import asyncio
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
from ajet.environment.files import expanded, file_for, read_yaml, refused, said
from ajet.environment.loop import at_end, of_this_process
from ajet.record.seldom import Seldom
from ajet.schema.addresses import is_loopback, parse_address
from ajet.schema.bounded_json import load_json
from ajet.schema.errors import AjetError, ConfigError

if TYPE_CHECKING:
    import aiohttp

    from ajet.config.schema.model import JudgeModelConfig


ANSWER_BYTES = 4 << 20
VECTOR_BYTES, VECTOR_VALUES = 1 << 20, 20_000
"""Of a text's vector, as a server writes its numbers."""
KEPT_S = 4.0
AGAIN = (408, 409, 425, 429)
LONGEST_WAIT_S = 60.0
"""That a server may ask for before the next request."""
MOST_TOKENS = 1 << 53
"""That a reply may be said to have; what says more says nothing."""
SAID_AGAIN_S = 60.0
"""Before it is said again that one hangs."""
_hung = Seldom(SAID_AGAIN_S)
"""By server."""
_sessions: dict[bool, aiohttp.ClientSession] = of_this_process({})
"""By whether the machine's proxy is used. On the tools' loop."""


class Model(BaseModel):
    """A model that may be asked: server, name, key."""

    model_config = ConfigDict(extra="forbid")

    base_url: str = Field(min_length=1)
    model: str = Field(min_length=1)
    api_key: SecretStr = SecretStr("")

    @field_validator("base_url")
    @classmethod
    def _an_address(cls, value: str) -> str:
        parts = parse_address(value)
        if parts is None:
            raise ValueError("expected an address, as http://HOST:PORT/v1")
        return value.rstrip("/") if parts.path.strip("/") else f"{value.rstrip('/')}/v1"

    @property
    def place(self) -> str:
        """The model's server, without user and password."""
        parts = urlsplit(self.base_url)
        return parts.netloc.rpartition("@")[2]


def model_at(url: str, name: str, key: str, *, where: str) -> Model:
    """The model of that name at an address; `key`: a secret, "" for none. Raises ConfigError, which names `where`."""
    try:
        return Model(base_url=url, model=name, api_key=SecretStr(key))
    except ValidationError as error:
        raise ConfigError(f"{url} is no address: {said(error)}.", where=where) from None


def configured(models: Sequence[JudgeModelConfig], key: str) -> list[Model]:
    """The models a YAML lists under `key`, in order, with their secrets from the environment. Raises ConfigError."""
    return [
        model_at(
            each.base_url or read_outside_variable("OPENAI_BASE_URL") or OPENAI,
            each.model,
            read_api_key(each.api_key_env),
            where=f"{key}[{place}].base_url",
        )
        for place, each in enumerate(models)
    ]


class NoAnswer(AjetError):
    """Why a model gave none."""

    def __init__(self, message: str, *, again: bool, status: int = 0, after: float = 0.0) -> None:
        """`again`: it could go well another time, after so many seconds. `status`: of the server's refusal."""
        super().__init__(message)
        self.again, self.status, self.after = again, status, after


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer, and its tokens."""

    text: str
    """Without its thoughts."""
    whole: str = ""
    """With them, as it came."""
    cut: bool = False
    """Whether it was cut off at its length."""
    refused: str = ""
    """Why it would not answer, in its own words or its server's."""
    prompt_tokens: int = 0
    reply_tokens: int = 0
    """As its server counts them; 0 where it does not say."""


async def asked(model: Model, prompt: str, seconds: float, more: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The model's answer to one message; `more`: further fields of the request. Raises NoAnswer."""
    answer = await completion(model, {**more, "messages": [{"role": "user", "content": prompt}]}, seconds)
    if not answer.text:
        raise NoAnswer("it answered nothing", again=True)
    return answer.text


async def completion(model: Model, body: Mapping[str, Any], seconds: float) -> Answer:
    """Its reply to a request of Chat Completions. Raises NoAnswer."""
    whole = await _posted(model, "chat/completions", body, seconds, ANSWER_BYTES)
    try:
        return _answer(whole)
    except NoAnswer as problem:
        raise NoAnswer(f"{problem}: {_shown(model, whole)}", again=problem.again) from None


async def embeddings(model: Model, texts: Sequence[str], seconds: float) -> list[list[float]]:
    """A vector for each text, all of one length. Raises NoAnswer."""
    body = await _posted(model, "embeddings", {"input": list(texts)}, seconds, VECTOR_BYTES * (len(texts) + 1))
    try:
        rows = sorted(load_json(body, most=VECTOR_VALUES * (len(texts) + 1))["data"], key=lambda row: row["index"])
        found = [[float(number) for number in row["embedding"]] for row in rows]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise NoAnswer(f"it answered what are no embeddings: {_shown(model, body)}", again=False) from None
    if len(found) != len(texts) or len({len(row) for row in found}) != 1 or not all(map(_finite, found)):
        raise NoAnswer("it answered not one vector a text", again=False)
    return found


def _finite(row: Sequence[float]) -> bool:
    return bool(row) and all(map(math.isfinite, row))


async def _posted(model: Model, path: str, body: Mapping[str, Any], seconds: float, most: int) -> bytes:
    """The body of the server's answer, of `most` bytes at most. Raises NoAnswer."""
    import aiohttp

    key = model.api_key.get_secret_value()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    proxied = not is_loopback(urlsplit(model.base_url).hostname)
    try:
        async with _session(proxied).post(
            f"{model.base_url}/{path}",
            json={"model": model.model, **body},
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=seconds),
        ) as reply:
            whole = await _bounded(reply, most)
            if reply.status >= 400:
                raise NoAnswer(
                    f"it refused with status {reply.status}: {_shown(model, whole, 300)}",
                    again=reply.status >= 500 or reply.status in AGAIN,
                    status=reply.status,
                    after=_seconds(reply.headers.get("Retry-After")),
                )
    except asyncio.TimeoutError:
        _say_that_it_hangs(model, seconds)
        raise NoAnswer(f"it did not answer within {seconds:g} s", again=True) from None
    except (aiohttp.ClientError, OSError) as problem:
        raise NoAnswer(f"it did not answer: {type(problem).__name__}", again=True) from None
    return whole


def _say_that_it_hangs(model: Model, seconds: float) -> None:
    """Tell whoever watches, though not all the time."""
    if _hung.due(model.place):
        logger.warning("{} at {} hangs: no whole reply within {:g} s", model.model, model.place, seconds)


def _shown(model: Model, body: bytes, most: int = 120) -> str:
    """The beginning of what it answered, without its key."""
    key, said = model.api_key.get_secret_value(), body.decode("utf-8", "replace")
    line = " ".join((said.replace(key, "[redacted]") if key else said).split())
    return (line if len(line) <= most else f"{line[:most]}…") or "nothing"


def why_none(models: Sequence[Model], seconds: float, *, named: str) -> str:
    """An empty string where one of them is there, else what is wrong with each; those that are not there are said."""
    wrong: list[str] = []
    for model in models:
        key, server = model.api_key.get_secret_value(), f"{named}: {model.place}"
        said = find_model_problem(model.base_url, model.model, key, seconds / len(models), named=server)
        if not said:
            for each in wrong:
                logger.warning("{}: {}; the next one is asked in its place", named, each)
            return ""
        wrong.append(f"{model.model} at {model.place}: {said}")
    return "; ".join(wrong)


async def close_all() -> None:
    """Close all connections."""
    found = list(_sessions.values())
    _sessions.clear()
    for each in found:
        await each.close()


def _session(proxied: bool) -> aiohttp.ClientSession:
    import aiohttp

    if not _sessions:
        at_end(close_all)
    if proxied not in _sessions:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S)
        _sessions[proxied] = aiohttp.ClientSession(
            connector=connector, trust_env=proxied, cookie_jar=aiohttp.DummyCookieJar()
        )
    return _sessions[proxied]


async def _bounded(reply: aiohttp.ClientResponse, most: int) -> bytes:
    found = bytearray()
    while chunk := await reply.content.readany():
        found += chunk
        if len(found) > most:
            reply.close()
            raise NoAnswer(f"it answered with more than {most} bytes", again=True)
    return bytes(found)


def _seconds(told: str | None) -> float:
    try:
        seconds = float(told or 0)
    except ValueError:  # a date
        return 0.0
    return min(seconds, LONGEST_WAIT_S) if seconds > 0 else 0.0


def _answer(body: bytes) -> Answer:
    try:
        told: Any = load_json(body)
        choice = told["choices"][0]
        content, refusal = choice["message"].get("content"), choice["message"].get("refusal")
        filtered, used = choice.get("finish_reason") == "content_filter", told.get("usage")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise NoAnswer("it answered what is no chat completion", again=True) from None
    whole = content if isinstance(content, str) else ""
    text = whole.rpartition("</think>")[2].strip()
    refused = refusal if isinstance(refusal, str) and refusal else "its server's filter" if filtered else ""
    cut = choice.get("finish_reason") == "length"
    return Answer(text, whole, cut, refused, _tokens(used, "prompt_tokens"), _tokens(used, "completion_tokens"))


def _tokens(used: Any, name: str) -> int:
    """The tokens as `usage` says; 0 where it does not say: a reply is one whatever its server counts."""
    said = used.get(name) if isinstance(used, Mapping) else None
    if isinstance(said, (int, float)) and not isinstance(said, bool) and 0 <= said <= MOST_TOKENS:
        return int(said)
    return 0


KEY = "ajet.environment.agent_config"
EXAMPLE = find_default_config() / "agent_config_example.yml"
S = TypeVar("S", bound=BaseModel)


def plain_section(named: str, base: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """The file that the key names, and its section `name` with what `${NAME}` stands for, as it is written there.
    Raises ConfigError, also where there is none."""
    file = file_for(named, base, KEY)
    tree = read_yaml(file)
    section = tree.get(name) if isinstance(tree, dict) else None
    if not isinstance(section, dict):
        raise ConfigError(f"{file.name} has no section {name}.", where=str(file), expected=f"one as in {EXAMPLE}")
    found: dict[str, Any] = expanded(section, f"{file}: {name}")
    return file, found


def section_of(named: str, base: Path, name: str, form: type[S]) -> S:
    """The section `name` of the file that the key names, as `form`. Raises ConfigError, also where there is none."""
    file, section = plain_section(named, base, name)
    try:
        return form.model_validate(section)
    except ValidationError as error:
        part = Model if "models" in error.errors()[0]["loc"] else form
        raise refused(error, file, part.model_fields, name) from None
