"""An episode's endpoint as an AgentScope chat model, for AgentScope 1 and 2.

Invariant: messages of any AgentScope formatter reach the gateway in OpenAI's format. Replies pass AgentScope's own
OpenAI model, so tool calls, thinking and structured output behave as usual. The installed version decides which class
is built; both take the arguments of version 1. Only this file imports agentscope, inside functions.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from ajet.config.other_models import find_other_server
from ajet.schema.advice import advise_on_agentscope
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import MissingExtraError, UserError

if TYPE_CHECKING:
    from agentscope.model import ChatModelBase
    from openai import AsyncOpenAI

_SECOND_ATTRIBUTES = ("context_size", "count_tokens", "formatter", "generate_structured_output", "model")


def make_chat_model(endpoint: Endpoint, client: AsyncOpenAI, config: Any) -> ChatModelBase:
    """Return a chat model without streaming (set `stream` for chunks) that sends its requests by `client`.

    The model has the run's composed `config`, as AgentJet's does. Raises MissingExtraError without agentscope.
    """
    model = find_model_class()(
        model_name=endpoint.model,
        api_key=endpoint.api_key,
        stream=False,
        client_kwargs={"base_url": endpoint.base_url, "http_client": client._client},
    )
    model.client = client  # in place of AgentScope's own, which retries and has a timeout
    model.config = config
    if config is not None and hasattr(model, "context_size"):  # agents of version 2 compress a longer context
        model.context_size = config.ajet.rollout.max_model_len
    chat_model: ChatModelBase = model
    return chat_model


def openai_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Convert messages of any AgentScope formatter to OpenAI's format.

    DashScope's formatter writes contents such as [{"text": "…"}], and [] for empty content. Texts get their type, a
    single text becomes a string, and empty content becomes None with tool calls, else "".
    """
    return [{**message, "content": _message_content(message)} for message in messages]


def _message_content(message: dict[str, Any]) -> Any:
    """Return a message's content in OpenAI's format: a text, a list of typed parts, or None with tool calls only."""
    content = message.get("content")
    if isinstance(content, list):
        blocks = [_convert_part(block) for block in content if block]
        if len(blocks) == 1 and blocks[0].get("type") == "text":
            return blocks[0]["text"]
        content = blocks
    if not content:
        return None if message.get("tool_calls") else ""
    return content


def _convert_part(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of a message's content in OpenAI's format: DashScope's text or image part gets its `type`."""
    if "type" in part:
        return part
    if "text" in part:
        return {"type": "text", "text": part["text"] or ""}
    if "image" in part:
        return {"type": "image_url", "image_url": {"url": part["image"]}}
    return part


@cache
def find_model_class() -> Any:
    """Return the chat model class for the installed version of AgentScope: 1 or 2.

    Raises:
        UserError: agentscope cannot be imported.
        MissingExtraError: agentscope is not installed.
    """
    try:
        from agentscope.model import OpenAIChatModel
    except ImportError as error:
        if advice := advise_on_agentscope(error):
            raise UserError("AgentScope cannot be imported.", do=advice) from error
        raise MissingExtraError("agentscope", "agentscope", needed_for="A model for AgentScope agents") from error
    # The constructor of version 2 takes a credential.
    is_second = "credential" in inspect.signature(OpenAIChatModel).parameters
    return _derive_second(OpenAIChatModel) if is_second else _derive_first(OpenAIChatModel)


def _derive_first(base: Any) -> Any:
    """Return a chat model class for AgentScope 1 that accepts messages of any formatter."""

    class TunedChatModel(base):
        async def __call__(self, messages: list[dict[str, Any]], *args: Any, **kwargs: Any) -> Any:
            """Answer messages of any AgentScope formatter."""
            if isinstance(messages, list):
                messages = openai_messages(messages)
            return await super().__call__(messages, *args, **kwargs)

        def _parse_openai_stream_response(
            self, start_datetime: Any, response: Any, structured_model: Any = None
        ) -> Any:
            """Parse a stream of chunks without their audio fields, which AgentScope 1 cannot read if they are None."""
            silent: Any = _AudiolessStream(response)
            return super()._parse_openai_stream_response(start_datetime, silent, structured_model)

    return TunedChatModel


def _derive_second(base: Any) -> Any:
    """Return a chat model class for AgentScope 2 whose constructor takes the arguments of version 1."""
    from agentscope.credential import OpenAICredential

    class TunedChatModel2(base):
        def __init__(
            self,
            model_name: str,
            api_key: str,
            stream: bool = False,
            client_kwargs: Mapping[str, Any] | None = None,
            generate_kwargs: Mapping[str, Any] | None = None,
            reasoning_effort: str | None = None,
        ) -> None:
            """Create the model from the arguments of a version 1 model; `generate_kwargs` become the `extra_body`."""
            client = dict(client_kwargs or {})
            body = {**(generate_kwargs or {}), "reasoning_effort": reasoning_effort}
            super().__init__(
                OpenAICredential(api_key=api_key, base_url=client.pop("base_url", None)),
                model_name,
                stream=stream,
                max_retries=0,
                client_kwargs=client,
                extra_body={name: value for name, value in body.items() if value is not None} or None,
            )

        async def __call__(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            """Answer Msg objects. Raises UserError for arguments of a version 1 model."""
            if "structured_model" in kwargs:
                raise UserError(
                    "AgentScope 2 models take no `structured_model`.",
                    do="await model.generate_structured_output(messages, structured_model=…)",
                )
            if any(isinstance(message, Mapping) for message in messages):
                raise UserError(
                    "AgentScope 2 models take Msg objects, not dictionaries.",
                    do='pass [UserMsg("user", "…")], or use tuner.as_raw_openai_sdk_client()',
                )
            return await super().__call__(messages, *args, **kwargs)

    return TunedChatModel2


@cache
def other_model_class() -> Any:
    """Return an AgentScope chat model class `(model_name, stream=False, max_try=4)` for models that are not trained.

    The environment variables that name the server (`config.other_models`) are read at each call. Messages of any
    formatter are accepted. Raises MissingExtraError without agentscope.
    """
    base = find_model_class()

    class OtherChatModel(base):  # type: ignore[misc, valid-type]
        """A model of another server, which is not trained."""

        def __init__(
            self, model_name: str = "qwen3-max", stream: bool = False, max_try: int = 4, **kwargs: Any
        ) -> None:
            """Create the model; the client is created at each call, with the server's address and key.

            Args:
                kwargs: only `generate_kwargs` and `reasoning_effort` are passed on. Others, such as client arguments,
                    are dropped, because the client is replaced.
            """
            from openai import AsyncOpenAI

            options = {name: kwargs[name] for name in ("generate_kwargs", "reasoning_effort") if name in kwargs}
            super().__init__(model_name=model_name, api_key="none", stream=stream, **options)
            self.max_try = max_try
            self._client_class = AsyncOpenAI

        async def __call__(self, messages: list[dict[str, Any]], *args: Any, **kwargs: Any) -> Any:
            """Answer by the environment's server; if a key fails, try the next one. Raises the last key's error."""
            from openai import OpenAIError

            server = find_other_server()
            for number, key in enumerate(server.keys, start=1):
                self.client = self._client_class(base_url=server.base_url, api_key=key, max_retries=self.max_try - 1)
                try:
                    return await super().__call__(messages, *args, **kwargs)
                except OpenAIError:  # try the next key
                    if number == len(server.keys):
                        raise
            return None

    return OtherChatModel


class _AudiolessStream:
    """A stream of chunks without `audio: None`.

    AgentScope 1.0.21 reads the field if present, and openai 3 always sets the field.
    """

    def __init__(self, response: Any) -> None:
        self._response = response

    async def __aenter__(self) -> AsyncIterator[Any]:
        return self._drop_audio(await self._response.__aenter__())

    async def __aexit__(self, *problem: Any) -> Any:
        return await self._response.__aexit__(*problem)

    @staticmethod
    async def _drop_audio(stream: Any) -> AsyncIterator[Any]:
        """Yield the items of a stream, with the field `audio` deleted from their chunks where it is None."""
        async for item in stream:
            for choice in getattr(getattr(item, "chunk", item), "choices", None) or ():
                if getattr(choice.delta, "audio", ...) is None:
                    del choice.delta.audio
            yield item


def is_model_attribute(name: str) -> bool:
    """Return True if agents of AgentScope 2 read this attribute of their model, and AgentScope 2 is imported."""
    if name not in _SECOND_ATTRIBUTES or "agentscope" not in sys.modules:
        return False
    return hasattr(find_model_class(), "generate_structured_output")


def chat_model_type(kind: type) -> type:
    """Return `kind`. Once agentscope is imported: a subclass of `kind` and ChatModelBase, for isinstance checks."""
    module = sys.modules.get("agentscope.model")
    base = getattr(module, "ChatModelBase", None)
    return kind if base is None else _derive_chat_model(kind, base)


@cache
def _derive_chat_model(kind: type, base: type) -> type:
    """Return a subclass of `kind` and `base` with the name and module of `kind`, created once."""
    return type(kind.__name__, (kind, base), {"__module__": kind.__module__})
