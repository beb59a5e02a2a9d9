"""TeacherEndpoint: log-probabilities of given tokens from a server with `prompt_logprobs`, such as vLLM.

Invariant: the server returns logprobs of exactly the given ids at temperature 1, otherwise TeacherFailure is raised.
Ids must mean the same on both sides: before a run the server spells a sample of ids, including all added tokens, and is
refused on a difference. The key comes from the environment and never appears in errors.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
from loguru import logger

from ajet.config.other_models import read_api_key
from ajet.config.schema.choices import is_reference
from ajet.config.services import RequiredService, find_model_problem
from ajet.engine.remote_server import MOST_VALUES, RETRYABLE
from ajet.schema.bounded_json import load_json
from ajet.schema.errors import ConfigError, TeacherFailure

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.config.schema.algorithm import TeacherConfig
    from ajet.schema.call import Floats
    from ajet.schema.episode import Timeline

KEY = "ajet.trainer_common.algorithm.teacher"
PROBED = 512
"""About this many token ids are decoded by the server before a run, to compare tokenizers."""
PAUSE = 0.5
"""Seconds before the second request; doubled before each further one."""
UNKNOWN = "�"


class TeacherEndpoint:
    """The server of `algorithm.teacher`; all its requests run on one loop.

    Raises:
        ConfigError: the key is invalid.
    """

    def __init__(self, settings: TeacherConfig) -> None:
        assert settings.base_url is not None and settings.model is not None
        self._url, self._model = settings.base_url.rstrip("/"), settings.model
        self._max_retries, self._timeout = settings.max_retries, settings.timeout
        self._key = read_api_key(settings.api_key_env) or None
        self._request_slots = asyncio.Semaphore(settings.max_parallel)
        self.client: httpx.AsyncClient | None = None

    def require_same_tokenizer(self, tokenizer: Any) -> None:
        """Check that the server spells ids like `tokenizer`.

        Raises:
            ConfigError: the spelling differs, or the server does not answer.
        """
        ids = choose_probe_ids(tokenizer)
        try:
            with httpx.Client(headers=self._build_headers(), timeout=self._timeout) as client:
                response = client.post(f"{self._url}/completions", json=self._build_body(ids))
            rows = self._parse_rows(response, ids)
        except (httpx.HTTPError, httpx.InvalidURL, TeacherFailure) as problem:
            reason = f"it {self._describe_failure(problem)}" if isinstance(problem, httpx.HTTPError) else str(problem)
            raise ConfigError(
                f"The teacher cannot be used: {reason}",
                where=f"{KEY}.base_url ({self._url})",
                expected="a server such as vLLM, whose /completions accepts token ids as the prompt and returns "
                "prompt_logprobs",
            ) from problem
        decoded = [(token, row.get("decoded_token")) for token, row in zip(ids[1:], rows, strict=True)]
        spelt = [(token, text) for token, text in decoded if text is not None]
        if not spelt:
            logger.warning(
                "ajet cannot compare the tokenizers of teacher and policy: the teacher's server returns no "
                "decoded tokens"
            )
        for token, teacher_text in spelt:
            own_text = tokenizer.decode([token])
            if UNKNOWN in own_text or UNKNOWN in teacher_text:  # a part of a character has no text to compare
                continue
            if own_text.lstrip(" ") != teacher_text.lstrip(" "):
                raise build_tokenizer_error(
                    f"token id {token} is {own_text!r} in the policy's tokenizer and {teacher_text!r} in the teacher's"
                )

    async def logprobs(self, lines: Sequence[Timeline]) -> list[Floats]:
        """Return the teacher's logprobs of recorded token sequences, one [T] row per line.

        Entries outside the mask of trained tokens are 0.

        Raises:
            TeacherFailure: the server failed or sent an invalid answer.
        """
        return list(await asyncio.gather(*(self._score_timeline(line) for line in lines)))

    async def leave(self) -> None:
        """Close the connections, on the event loop to which they belong."""
        client, self.client = self.client, None
        if client is not None:
            await client.aclose()

    def close(self) -> None:
        """Does nothing: `leave` has closed the connections."""

    async def _score_timeline(self, line: Timeline) -> Floats:
        """Return the logprobs [T] of one token sequence, 0 at tokens that are not trained."""
        ids = line.ids.tolist()
        async with self._request_slots:
            rows = await self.request_rows(ids)
        logprobs = np.zeros(len(ids), np.float32)
        for position in np.flatnonzero(line.mask).tolist():
            logprobs[position] = rows[position - 1]["logprob"]  # the first token has no row
        return logprobs

    async def request_rows(self, ids: list[int]) -> list[dict[str, Any]]:
        """Return the server's entry for each id but the first. Failures are retried after growing pauses.

        Raises:
            TeacherFailure: all tries failed, or a retry cannot help.
        """
        for number in range(self._max_retries + 1):
            try:
                return self._parse_rows(await self._post_ids(ids), ids)
            except TeacherFailure as problem:
                if not problem.retryable or number == self._max_retries:
                    raise
            await asyncio.sleep(PAUSE * 2**number)
        raise AssertionError("unreachable")

    async def _post_ids(self, ids: list[int]) -> httpx.Response:
        """Send token ids to the server, and return its response. Raises TeacherFailure if it does not answer."""
        if self.client is None:
            self.client = httpx.AsyncClient(headers=self._build_headers(), timeout=self._timeout)
        try:
            return await self.client.post(f"{self._url}/completions", json=self._build_body(ids))
        except httpx.HTTPError as problem:
            raise TeacherFailure(f"the teacher at {self._url} {self._describe_failure(problem)}", own=True) from problem

    def _describe_failure(self, problem: httpx.HTTPError) -> str:
        """Say in words how the server failed: it hangs, or it did not answer."""
        if isinstance(problem, (httpx.ReadTimeout, httpx.WriteTimeout)):
            return f"hangs: it accepted the request and sent nothing for {self._timeout:g} s ({KEY}.timeout)"
        return f"did not answer: {type(problem).__name__}: {problem}"

    def _build_body(self, ids: list[int]) -> dict[str, Any]:
        """Return the request for the logprobs of token ids.

        `prompt_logprobs: 0` requests each given id without alternatives. The one sampled token is not used.
        """
        return {"model": self._model, "prompt": ids, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}

    def _build_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def _excerpt_response(self, response: httpx.Response, limit: int) -> str:
        """Return the beginning of the response without the key."""
        text = response.text.replace(self._key, "[redacted]") if self._key else response.text
        return text[:limit] or "nothing"

    def _parse_rows(self, response: httpx.Response, ids: list[int]) -> list[dict[str, Any]]:
        """Return the server's entry for each id but the first.

        Raises:
            TeacherFailure: the response is an error or does not match the ids.
        """
        status = response.status_code
        if status >= 400:
            is_retryable = status >= 500 or status in RETRYABLE
            raise TeacherFailure(
                f"the teacher's server refused the request with status {status}: "
                f"{self._excerpt_response(response, 300)}",
                retryable=is_retryable,
                own=True,
            )
        try:
            logprobs = load_json(response.content, limit=MOST_VALUES)["choices"][0]["prompt_logprobs"]
            rows = [row[str(token)] for token, row in zip(ids[1:], logprobs[1:], strict=True)]
            # A log-probability is at most 0, apart from rounding.
            if len(logprobs) == len(ids) and all(
                math.isfinite(row["logprob"]) and row["logprob"] <= 1e-3 for row in rows
            ):
                return rows
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            pass
        raise TeacherFailure(
            "the teacher's server did not return prompt_logprobs of the token ids it was sent, but "
            f"{self._excerpt_response(response, 200)}",
            retryable=False,
            own=True,
        )


def choose_probe_ids(tokenizer: Any) -> list[int]:
    """Return the tokenizer's added ids and an even sample of the others."""
    added_ids = sorted(tokenizer.get_added_vocab().values())[:PROBED]
    plain_ids = sorted({*tokenizer.get_vocab().values()} - {*added_ids})
    return [*plain_ids[:: max(1, len(plain_ids) // PROBED)], *added_ids]


def build_tokenizer_error(why: str) -> ConfigError:
    """Return the error for a teacher with another tokenizer."""
    return ConfigError(
        f"The teacher's tokenizer differs from the policy's: {why}.",
        where=KEY,
        expected="a teacher with the policy's tokenizer: it scores the token ids that the policy sampled",
    )


def services_of(experiment: Experiment) -> Iterator[RequiredService]:
    """Yield the teacher's server for the run's list of required services."""
    if "trains" not in experiment.backbone.can:
        return
    algorithm = experiment.ajet.trainer_common.algorithm
    if algorithm.adv_estimator != "distillation" and not is_reference(algorithm.adv_estimator):
        return
    teacher = algorithm.teacher
    if teacher.base_url is None or teacher.model is None:
        return
    base_url, model, key = teacher.base_url.rstrip("/"), teacher.model, read_api_key(teacher.api_key_env) or None
    yield RequiredService(
        "teacher",
        base_url,
        f"{KEY}.base_url",
        lambda seconds: find_model_problem(base_url, model, key, seconds, named="the teacher's server"),
        f"an OpenAI-compatible server that has the model {model} and returns prompt_logprobs",
        f"start the server, or correct {KEY}.base_url and model",
    )
