"""Embed questions with the model of `deduplication_filter.params`: at a server, on this machine (`embedded:NAME`), or
none.

Invariant: each text is embedded once for one configuration; compared vectors come from one model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from loguru import logger

from ajet.config.other_models import OtherServer, find_other_server, read_api_key
from ajet.config.plugin import load_code
from ajet.config.plugins import find_part, find_parts
from ajet.environment.chat_model import NoAnswerError, model_at, request_embeddings
from ajet.record.progress import Progress
from ajet.schema.errors import ConfigError, TaskError, UserError
from ajet_datagen.alike import Vectors, normalize_vectors
from ajet_datagen.generation.cost import GenerationCost
from ajet_datagen.generation.failover import ModelFailover
from ajet_datagen.generation.kept import GenerationStore
from ajet_datagen.generation.patience import request_with_retries, run_on_tools_loop
from ajet_datagen.generation.refusals import STATUSES

if TYPE_CHECKING:
    from ajet_datagen.config import DeduplicationParams

WHERE = "ajet.task_reader.data_generation.deduplication_filter.params"
LOCAL = "embedded:"
AT_ONCE = 64
"""Maximum texts of a request."""
UNWELL = 3
"""Refused texts after which a server that has accepted no text is considered broken."""
Embed = Callable[[Sequence[str]], list[list[float]]]
"""Returns a vector for each text, all of one length; an empty vector for a refused text."""


def find_embedding_server(params: DeduplicationParams) -> OtherServer | None:
    """Return the server of the embedding model, or None if none is configured.

    It is `base_url` if set. Otherwise, if a key or another model than the default is configured, it is the server in
    the environment variables, as for `llm_model`. Raises ConfigError.
    """
    api_key = params.api_key.get_secret_value() if params.api_key else ""
    if params.base_url is not None:
        return OtherServer(params.base_url, (api_key or read_api_key("OPENAI_API_KEY"),))
    is_model_set = params.model != type(params).model_fields["model"].default
    if params.model.startswith(LOCAL) or not (api_key or is_model_set):
        return None
    try:
        server = find_other_server()
    except ConfigError:
        raise
    except UserError:
        raise ConfigError(
            f"The embedding model {params.model} is set" + (" with a key" if api_key else "") + ", but no server.",
            where=f"{WHERE}.base_url",
            expected="an OpenAI-compatible server, or OPENAI_BASE_URL or DASHSCOPE_API_KEY",
            do=f"set base_url; or use a local model (model: {_name_local_model()}); or remove model and api_key to "
            "compare tasks by letters only",
        ) from None
    return OtherServer(server.base_url, (api_key or server.keys[0],))


def open_embedder(params: DeduplicationParams) -> Embed | None:
    """Return the configured function that embeds texts, or None if tasks are compared by letters only.

    Nothing is sent or loaded before its first call. Raises ConfigError.
    """
    if not params.model.startswith(LOCAL):
        server = find_embedding_server(params)
        return ServerEmbedder(params.model, server) if server is not None else None
    part = find_part("embedder", params.model.removeprefix(LOCAL))
    if part is None or params.base_url is not None:
        raise ConfigError(
            f"There is no embedding model {params.model}" + (" at a server." if part else "."),
            where=f"{WHERE}.model",
            expected=" or ".join(f"{LOCAL}{name}" for name in find_parts("embedder")) + ", without base_url, or a "
            "model of the server at base_url",
        )
    local: Embed = load_code(part.code)()
    return local


def _name_local_model() -> str:
    """Return the setting that selects the first local embedding model."""
    return f"{LOCAL}{next(iter(find_parts('embedder')))}"


def embed_texts(
    texts: Sequence[str], embed: Embed, model: str, store: GenerationStore, rows: dict[str, Any], cost: GenerationCost
) -> Vectors:
    """Return [N, ·] embedding vectors of length 1, and store new ones on disk.

    A text that the model refuses gets a zero vector, similar to no other text.

    Args:
        embed: computes vectors of texts.
        model: name of the model in messages.
        rows: stored values by name, extended by new vectors.
        cost: counts the requests.

    Raises:
        TaskError: the model fails.
    """
    names = {text: f"vector {hashlib.sha256(text.encode()).hexdigest()[:24]}" for text in texts}
    new_texts = [text for text, name in names.items() if name not in rows]
    with Progress() as progress, progress.bar("embedding questions", len(new_texts)) as bar:
        for start in range(0, len(new_texts), AT_ONCE):
            batch = new_texts[start : start + AT_ONCE]
            cost.embedded += len(batch)
            for text, vector in zip(batch, embed(batch), strict=True):
                rows[names[text]] = vector
                store.append_row(names[text], vector)
            bar.advance(len(batch))
    widths = sorted({len(value) for name, value in rows.items() if value and name.startswith("vector ")})
    if len(widths) > 1:
        raise TaskError(
            f"{model} returns vectors of different lengths ({', '.join(map(str, widths))} numbers), counting "
            "stored ones, so they cannot be compared.",
            where=WHERE,
            expected="the embedding model that embedded the first tasks",
            do=f"give the model another name, or delete {store.path}",
        )
    zero_vector = [0.0] * (widths[0] if widths else 1)
    vectors = np.asarray([rows[names[text]] or zero_vector for text in texts], np.float64)
    if refused := sum(not rows[name] for name in names.values()):
        logger.warning("{} of {} questions are compared by letters only: {} refused them", refused, len(names), model)
    largest_value = np.abs(vectors).max(axis=1, keepdims=True)  # the square of a larger number could overflow
    return normalize_vectors((vectors / np.where(largest_value == 0, 1, largest_value)).astype(np.float32))


class ServerEmbedder:
    """Embeds with one model at a server, with retries like the writing models.

    No other model can replace it, because vectors of different models cannot be compared. Texts refused together are
    sent in halves: the request may be too large, or contain one refused text.
    """

    def __init__(self, model: str, server: OtherServer) -> None:
        self._model = model_at(server.base_url, model, server.keys[0], where=f"{WHERE}.base_url")
        self._failover = ModelFailover(1)
        self._batch_size = AT_ONCE
        self._refused_count = 0
        self._has_answered = False

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """Return [N, ·] vectors. Raises TaskError, also if the server has never accepted a text."""
        vectors: list[list[float]] = []
        while len(vectors) < len(texts):
            vectors += self._embed_or_split(texts[len(vectors) : len(vectors) + self._batch_size])
        return vectors

    def _embed_or_split(self, texts: Sequence[str]) -> list[list[float]]:
        """Embed the texts in one request, or in halves if the server refuses them together.

        A single refused text gets an empty vector.

        Raises:
            TaskError: the server does not answer, or has refused every text so far.
        """
        try:
            vectors = self._request_embeddings(texts)
        except NoAnswerError as problem:
            if problem.status not in STATUSES:
                raise self._make_error(problem) from None
            if len(texts) > 1:
                refused_before, half = self._refused_count, (len(texts) + 1) // 2
                halves = [*self._embed_or_split(texts[:half]), *self._embed_or_split(texts[half:])]
                if self._refused_count == refused_before:  # the server accepts each text, but not all in one batch
                    self._batch_size = min(self._batch_size, half)
                return halves
            self._refused_count += 1
            if not self._has_answered and self._refused_count >= UNWELL:
                raise self._make_error(problem) from None
            return [[]]
        self._has_answered = True
        return vectors

    def _request_embeddings(self, texts: Sequence[str]) -> list[list[float]]:
        """Send one request with retries, and return a vector per text. Raises NoAnswerError."""

        async def send_request(seconds: float) -> list[list[float]]:
            return await request_embeddings(self._model, texts, seconds)

        try:
            vectors = run_on_tools_loop(
                request_with_retries(send_request, self._failover, 0, is_last=True, count_request=lambda: None)
            )
        except NoAnswerError as problem:
            self._failover.note_failure(0, problem)
            raise
        self._failover.note_answer(0)
        return vectors

    def _make_error(self, problem: NoAnswerError) -> TaskError:
        """Return the error for a server that returns no embeddings, with advice."""
        return TaskError(
            f"{self._model.model} at {self._model.place} returns no embeddings: {problem}",
            where=WHERE,
            expected="an OpenAI-compatible server with /embeddings",
            do=f"correct the server or base_url, use a local model (model: {_name_local_model()}), or remove "
            "both to compare tasks by letters only; tasks written and embedded so far are stored",
        )
