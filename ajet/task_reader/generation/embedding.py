"""Vectors of questions, by the embedding model that `deduplication_filter.params` names: one of a server, one of this
machine (`embedded:NAME`), or none.

Invariant: a text is embedded once for one set of settings; all vectors that are compared come of one model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ajet.config.handed import known
from ajet.config.other_models import key_in
from ajet.config.references import load_code
from ajet.environment.chat_model import NoAnswer, embeddings, model_at
from ajet.record.progress import Progress
from ajet.schema.errors import ConfigError, TaskError
from ajet.task_reader.alike import Vectors, normed
from ajet.task_reader.generation.cost import Cost
from ajet.task_reader.generation.failover import Failover
from ajet.task_reader.generation.kept import Kept
from ajet.task_reader.generation.patience import on_loop, patiently

if TYPE_CHECKING:
    from ajet.config.schema.task_reader import DeduplicationParams

WHERE = "ajet.task_reader.data_generation.deduplication_filter.params"
LOCAL = "embedded:"
AT_ONCE = 64
"""Texts of a request."""
Embed = Callable[[Sequence[str]], list[list[float]]]


def embedder(params: DeduplicationParams) -> Embed | None:
    """The model that is named; None where none is. Raises ConfigError; nothing is asked or loaded yet."""
    if not params.model.startswith(LOCAL):
        return ServerEmbedder(params, params.base_url) if params.base_url is not None else None
    found = known().embedders.get(params.model.removeprefix(LOCAL))
    if found is None or params.base_url is not None:
        raise ConfigError(
            f"There is no embedding model {params.model}" + (" at a server." if found else "."),
            where=f"{WHERE}.model",
            expected=" or ".join(f"{LOCAL}{name}" for name in known().embedders) + ", without base_url, or the name of "
            "a model at the server that base_url names",
        )
    local: Embed = load_code(found.code)()
    return local


def vectors_of(texts: Sequence[str], embed: Embed, model: str, kept: Kept, rows: dict[str, Any], cost: Cost) -> Vectors:
    """[N, ·] of length 1, N > 0; what is not in `rows` is embedded, counted and kept. `model`: as messages name it.
    Raises TaskError."""
    names = {text: f"vector {hashlib.sha256(text.encode()).hexdigest()[:24]}" for text in texts}
    new = [text for text, name in names.items() if name not in rows]
    with Progress() as progress, progress.bar("embedding questions", len(new)) as bar:
        for start in range(0, len(new), AT_ONCE):
            part = new[start : start + AT_ONCE]
            cost.embedded += len(part)
            for text, vector in zip(part, embed(part), strict=True):
                rows[names[text]] = vector
                kept.add(names[text], vector)
            bar.advance(len(part))
    widths = sorted({len(value) for name, value in rows.items() if name.startswith("vector ")})
    if len(widths) > 1:
        raise TaskError(
            f"{model} gives vectors of different lengths ({', '.join(map(str, widths))} numbers), also as "
            "it gave them before: they cannot be compared.",
            where=WHERE,
            expected="one embedding model, as it was when the first tasks were embedded",
            do=f"give the model a name of its own, or delete {kept.path}",
        )
    return normed(np.asarray([rows[names[text]] for text in texts], np.float32))


class ServerEmbedder:
    """Embeds by one model at a server. It is asked again as models that write are (`patience`); nobody can be asked in
    its place, since another model's vectors say nothing beside its own."""

    def __init__(self, params: DeduplicationParams, url: str) -> None:
        key = params.api_key.get_secret_value() if params.api_key else key_in("OPENAI_API_KEY")
        self._model = model_at(url, params.model, key, where=f"{WHERE}.base_url")
        self._failover = Failover(1)

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """[N, ·]. Raises TaskError."""

        async def once(seconds: float) -> list[list[float]]:
            return await embeddings(self._model, texts, seconds)

        try:
            found = on_loop(patiently(once, self._failover, 0, last=True, counted=lambda: None))
        except NoAnswer as problem:
            self._failover.gave_up(0, problem)
            raise TaskError(
                f"{self._model.model} at {self._model.place} gives no embeddings: {problem}",
                where=WHERE,
                expected="an OpenAI-compatible server with /embeddings",
                do="mend the server or base_url, name a model of this machine instead "
                f"(model: {LOCAL}{next(iter(known().embedders))}), or leave both out: tasks are then compared by their "
                "letters alone; what was written and embedded so far is kept",
            ) from None
        self._failover.answered(0)
        return found
