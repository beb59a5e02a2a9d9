"""Episodes: the workflow that Trinity calls to run a task's group of episodes behind ajet's gateway.

Invariants: an episode's failure never raises. Failed or unscored episodes are written to the run's folder, and the
others of the group are trained. A group always returns a row, since Trinity treats an empty answer as a failure: an
unscored group returns an untrained row.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
from trinity.common.experience import EID, Experience
from trinity.common.workflows.workflow import Workflow

from ajet.engine.contract import TokenChunk, TokenRequest, compute_reply_limit
from ajet.environment.pinned import ToolPins
from ajet.record.run_directory import redactor_of
from ajet.schema.episode import Group
from ajet.schema.errors import EngineFailure
from ajet_ray.cluster.ray_errors import make_engine_failure
from ajet_ray.host import Host
from ajet_ray.mailbox import Sender
from ajet_ray.rows import NO_TOKEN, build_rows
from ajet_trinity.processes.here import load_context

_lock = threading.Lock()
_host: Host | None = None


class Episodes(Workflow):
    """Trinity's `default_workflow_type` that runs a complete group with ajet's workflow."""

    is_async = True
    can_repeat = True

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Set the number of episodes of the group."""
        self._repeats = repeat_times

    async def run_async(self) -> list[Experience]:
        """Run the group of the task's ticket, and return one Experience per trainable token sequence."""
        host = _open_host(self.model)
        ticket, step = int(self.task.raw_task["ticket"]), int(self.task.batch_id)
        group = await host.play_ticket(ticket, step=step, sessions=self._repeats)
        return build_experiences(group, host.version)


def build_experiences(group: Group, version: int) -> list[Experience]:
    """Convert a group to Trinity's rows, one per trainable token sequence of a scored episode.

    Unscored episodes travel as data in the first row. A group without a scored episode gives one untrained row.

    Args:
        version: policy version of rows whose calls have no version.
    """
    unscored_episodes = [episode for episode in group.episodes if not episode.scored]
    experiences: list[Experience] = []
    for number, episode in enumerate(group.scored):
        rows = build_rows(
            episode, group_order=group.order, policy_version=version, others=unscored_episodes if number == 0 else ()
        )
        experiences += [_build_experience(row, run=episode.repeat, step=step) for step, row in enumerate(rows)]
    return experiences or [build_blank()]


def build_blank() -> Experience:
    """Return a row of two tokens that trains nothing."""
    return Experience(
        eid=EID(), tokens=[NO_TOKEN, NO_TOKEN], prompt_length=1, action_mask=[0], logprobs=[0.0], reward=0.0
    )


def _build_experience(row: dict[str, Any], *, run: int, step: int) -> Experience:
    """Convert one of ajet's rows to Trinity's row.

    Args:
        row: keyword arguments of verl's agent-loop output, from `build_rows`.
        run: number of the episode in its group.
        step: number of the row in its episode.
    """
    extra_fields = row["extra_fields"]
    return Experience(
        eid=EID(run=run, step=step),
        tokens=[*row["prompt_ids"], *row["response_ids"]],
        prompt_length=len(row["prompt_ids"]),
        action_mask=row["response_mask"],
        logprobs=row["response_logprobs"],
        reward=row["reward_score"],
        info={"ajet": extra_fields["ajet"]},
    )


def _open_host(model: Any) -> Host:
    """Return the host of this process, which runs its episodes. The first call creates it.

    Args:
        model: Trinity's wrapper of its inference engine.
    """
    global _host
    with _lock:
        if _host is None:
            sender = Sender()
            sender.introduce("explorer's runner")
            experiment, tokenizer = load_context().experiment, _load_tokenizer(load_context().experiment)
            max_length = experiment.ajet.rollout.max_model_len
            engine = RolloutEngine(model.model, max_model_len=max_length, vocabulary=len(tokenizer))
            tool_pins = ToolPins(sender.pin, redactor_of(experiment).tree)
            _host = Host(
                experiment, load_context().run_id, engine, tokenizer, sender.post_async, sender.grant, None, tool_pins
            )
            gc.collect()
            gc.freeze()  # full collections would block while they visit all objects loaded by Trinity
        return _host


def _load_tokenizer(experiment: Any) -> Any:
    """Load the tokenizer of the run's model."""
    from ajet.engine.model_source import locate_configured_model
    from ajet.engine.models import load_tokenizer

    return load_tokenizer(locate_configured_model(experiment.ajet, experiment.base))


# RolloutEngine: an inference engine of Trinity as a TokenEngine, called over Ray.
# Invariants: exact ids in, exact ids and logprobs out, without a server in between (`enable_openai_api` is off,
# since Trinity's server checks no key). Only Trinity changes weights, and each reply has the version of its
# weights. `_generate_internal` is private in Trinity 0.6.0 and covered by a test, because the public methods take
# text.
class RolloutEngine:
    """Samples from an inference engine of Trinity. Safe to use from any event loop.

    Args:
        actor: Ray handle of a `vLLMRolloutModel`.
        max_model_len: maximum tokens of prompt and reply.
        vocabulary: number of tokens of the tokenizer.
    """

    constrains = False

    def __init__(self, actor: Any, *, max_model_len: int, vocabulary: int) -> None:
        self.version = 0
        self.max_model_len = max_model_len
        self._actor, self._vocabulary = actor, vocabulary
        self._versions = _VersionReader(actor)
        self._is_closed = False

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Sample one reply and yield it in one chunk. Raises EngineFailure if the request cannot be answered."""
        limit = compute_reply_limit(request, max_model_len=self.max_model_len, vocabulary=self._vocabulary)
        sampling = request.sampling
        if self._is_closed:
            raise EngineFailure("the engine is closed", retryable=False)
        if request.images:
            raise EngineFailure("Trinity's engines do not support images", retryable=False)
        if sampling.top_logprobs:
            raise EngineFailure("Trinity's engines return no alternatives (top_logprobs)", retryable=False)
        params: dict[str, Any] = {
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k if sampling.top_k > 0 else -1,
            "stop_token_ids": list(sampling.stop_ids),
            "logprobs": 0,
            "detokenize": False,
        }
        if sampling.seed is not None:
            params["seed"] = sampling.seed
        prompt = request.prompt_ids.tolist()
        # An update may happen during the call: read the version before and after it.
        oldest_version = await self._versions.read_version()
        reply = (await self._request_reply(prompt, params)).outputs[0]
        newest_version = await self._versions.read_version()
        self.version = max(self.version, newest_version)
        ids = list(reply.token_ids)
        if not ids or reply.finish_reason == "abort":
            raise EngineFailure("Trinity's engine aborted the request")
        logprobs = _read_logprobs(zip(ids, reply.logprobs or (), strict=True))
        # A reply with the maximum number of tokens may still have ended by itself, with a stop token.
        is_truncated = len(ids) >= limit and ids[-1] not in sampling.stop_ids
        finish: Literal["stop", "length"] = "length" if is_truncated else "stop"
        is_greedy = sampling.temperature == 0.0
        logprobs_unit = logprobs if sampling.is_plain else await self._score_at_temperature_one(prompt, ids)
        # A greedily sampled token has probability 1.
        yield TokenChunk(
            ids,
            [0.0] * len(ids) if is_greedy else logprobs,
            logprobs_unit,
            oldest_version,
            finish,
            newest=newest_version,
        )

    def weights_changed(self, version: int) -> None:
        """Record that the engine has the weights of `version`. Raises ValueError if `version` is older than before."""
        if version < self.version:
            raise ValueError(f"policy version {version} is older than the engine's version {self.version}")
        self.version = version

    def close(self) -> None:
        """Refuse all further requests. Idempotent."""
        self._is_closed = True

    async def _score_at_temperature_one(self, prompt: list[int], ids: list[int]) -> list[float]:
        """Return the log-probabilities of a sampled reply at temperature 1, one per token of the reply.

        The reply is sent as part of a prompt, and is scored with the engine's current weights.

        Args:
            ids: tokens of the reply.
        """
        params = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "logprobs": 0, "detokenize": False}
        # A cached prefix would have no log-probabilities.
        output = await self._request_reply([*prompt, *ids], {**params, "skip_reading_prefix_cache": True})
        if output.prompt_logprobs is None:
            raise EngineFailure("Trinity's engine cannot return log-probabilities of prompts", retryable=False)
        return _read_logprobs(zip(ids, output.prompt_logprobs[len(prompt) :], strict=True))

    async def _request_reply(self, prompt: list[int], params: dict[str, Any]) -> Any:
        """Send one request to the engine's actor and return vLLM's output. Raises EngineFailure if the actor failed or
        died."""
        from ray.exceptions import RayError

        try:
            return await self._actor._generate_internal.remote(prompt={"prompt_token_ids": prompt}, **params)
        except RayError as error:
            raise make_engine_failure("Trinity's engine", error) from error


class _VersionReader:
    """Reads the version of an engine's weights over Ray, with one request for all waiting callers.

    Invariant: an answer goes only to callers that waited before the request was sent, so no answer is outdated.
    """

    def __init__(self, actor: Any) -> None:
        """Prepare to read the versions of the engine behind the Ray handle `actor`."""
        self._actor = actor
        self._next: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[int]] = WeakKeyDictionary()
        self._last_request: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[int]] = WeakKeyDictionary()
        """By event loop: the next request, and the last sent request."""

    async def read_version(self) -> int:
        """Return the policy version of the engine's weights. Raises EngineFailure if the engine does not answer."""
        loop = asyncio.get_running_loop()
        next_request = self._next.get(loop)
        if next_request is None:
            next_request = self._next[loop] = loop.create_task(self._read_after(self._last_request.get(loop), loop))
        return await asyncio.shield(next_request)  # a cancelled caller does not cancel the request of the others

    async def _read_after(self, before: asyncio.Task[int] | None, loop: asyncio.AbstractEventLoop) -> int:
        """Wait for the request sent before, then read the version for all callers that wait for this request."""
        from ray.exceptions import RayError

        if before is not None:
            await asyncio.wait([before])
        self._last_request[loop] = self._next.pop(loop)  # callers from now on wait for the next request
        try:
            return int(await self._actor.get_model_version.remote())
        except RayError as error:
            raise make_engine_failure("Trinity's engine", error) from error


def _read_logprobs(positions: Any) -> list[float]:
    """Return the log-probability of each token.

    Args:
        positions: pairs of a token id and vLLM's log-probabilities at its position, by token id.
    """
    return [min(float(np.float32(by_token[token].logprob)), 0.0) for token, by_token in positions]
