"""InflightCall: one request for replies, from arrival to delivery, and the retries that join it.

A request is a retry of an earlier request if three conditions hold: key, path and body are equal; it declares itself a
retry (`x-stainless-retry-count` above 0, or an equal `Idempotency-Key`); and no client has received the earlier
replies. A retry joins the running call, reads the sampled tokens from the beginning, or resumes an aborted call after
its last token: in each case the call stays the same. Any other request is a new call.

Invariant: each reply occupies one of the `gateway.max_calls` concurrency slots from the moment its client joins until
its task has ended. All code here runs on the gateway's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ajet.gateway.recorder import CLIENT_LEFT
from ajet.gateway.reply import Reply
from ajet.gateway.request import ParsedRequest, Refused
from ajet.schema.call import Call, FinishReason

EPISODE_ENDED = "the episode ended"
ENGINE_FAILED = "engine_failure"
"""Error code of a reply to the client if the engine failed."""
_MAX_ABANDONED = 64
"""Limit on stored requests without a client, per session."""


class CallLimit:
    """Counts the occupied concurrency slots of one gateway, and refuses calls above the limit."""

    def __init__(self, limit: int) -> None:
        self.reserved, self._max_calls = 0, limit

    def reserve(self, calls: int) -> None:
        """Reserve a slot for each call. Raises Refused if there are not enough."""
        if self.reserved + calls > self._max_calls:
            raise Refused(
                f"{self.reserved} model calls are in flight, and this gateway's limit is {self._max_calls}; "
                "retry later.",
                status=429,
                code="overloaded",
                retry_after=1,
            )
        self.reserved += calls


@dataclass(frozen=True, slots=True)
class RetryHint:
    """The retry headers of a request."""

    count: int = 0
    idempotency_key: bytes | None = None

    def __bool__(self) -> bool:
        return self.count > 0 or self.idempotency_key is not None


NO_RETRY = RetryHint()


class LostReply(NamedTuple):
    """A reply that no client received: its call, and the finish reason and error to record."""

    call: Call
    finish: FinishReason
    error: str


class InflightCall:
    """One request for replies, with its replies and the clients waiting for them (the first one and its retries).

    Each client calls `join` once, and later `leave`.
    """

    def __init__(
        self,
        request: ParsedRequest,
        limit: CallLimit,
        make_reply: Callable[[Reply], Coroutine[Any, Any, None]],
        check_prompts: Callable[[ParsedRequest], Coroutine[Any, Any, None]],
        *,
        digest: bytes = b"",
        hint: RetryHint = NO_RETRY,
    ) -> None:
        """Prepare the replies. `join` starts them.

        Args:
            request: The request.
            limit: Counts the calls of the gateway.
            make_reply: Samples a reply, or resumes a reply after its client came back.
            check_prompts: Raises Refused if one of several prompts cannot be answered.
            digest: Equal for retries of this request.
            hint: The retry headers of the request.
        """
        self.request = request
        self.digest = digest
        self.hint = hint
        self._limit = limit
        self._make_reply = make_reply
        self._check_prompts = check_prompts
        self.retry_count = hint.count
        """The largest retry count among the joined requests."""
        self.clients = 0
        self.deliveries = 0
        """Number of clients that received the replies."""
        self.refusal: Refused | None = None
        """The error sent instead of replies; also `None` if the gateway itself failed."""
        self.failure: Exception | None = None
        """The first error of a reply. A retry after an error is a new call."""
        self._is_interrupted = False
        """True if the shutdown of the server has cancelled a reply."""
        self.listeners: list[Callable[[], None]] = []
        """Functions to call when a reply has ended."""
        self._check: asyncio.Future[None] | None = None
        is_single = request.replies_per_prompt == 1 and len(request.prompts) < 2
        self.replies = [Reply(request)] if is_single else [Reply(choice) for choice in request.list_choices()]

    @property
    def is_settled(self) -> bool:
        """True if the call has its outcome: all replies are complete, or one reply has failed."""
        if self.failure is not None or self._is_interrupted:
            return True
        return all([reply.message is not None for reply in self.replies])

    def find_refusal(self) -> Refused | None:
        """Return the refusal that answers a call with an outcome, or None if all replies are complete.

        Raises any other error of a reply.
        """
        failure = self.failure
        if isinstance(failure, Refused):
            return failure
        if failure is not None:
            raise failure
        if self._is_interrupted:
            raise asyncio.CancelledError
        return None

    def join(self) -> None:
        """Add a client, and start or resume every reply that no task is sampling.

        Raises Refused above the limit of calls. Slots are reserved before the first await, so that two requests cannot
        take the same slot.
        """
        idle_replies = [reply for reply in self.replies if reply.needs_task]
        if idle_replies:
            self._limit.reserve(sum([not reply.has_place for reply in idle_replies]))
        self.clients += 1
        if len(self.request.prompts) > 1 and self._check is None:
            self._check = asyncio.ensure_future(self._check_prompts(self.request))
            self._check.add_done_callback(_retrieve_error)
        for reply in idle_replies:
            reply.has_place, reply.needs_task = True, False
            if reply.maker is None and self._check is None:
                reply.task = reply.maker = asyncio.ensure_future(self._make_reply(reply))
            else:
                reply.task = asyncio.ensure_future(self._make_later(reply))
            reply.task.add_done_callback(partial(self._handle_task_end, reply))

    async def _make_later(self, reply: Reply) -> None:
        """Make a reply after its prompt is checked and the earlier task for the reply has ended.

        The earlier task may have completed the reply. Then nothing is left to do.
        """
        if (earlier_task := reply.maker) is not None:
            if not earlier_task.done():
                await asyncio.wait([earlier_task])
            if not earlier_task.cancelled():
                return earlier_task.result()
        if self._check is not None:
            await asyncio.wait([self._check])
            self._check.result()
        reply.maker = asyncio.current_task()
        await self._make_reply(reply)

    def _handle_task_end(self, reply: Reply, task: asyncio.Task[None]) -> None:
        """Release the reply's concurrency slot and notify the clients after its task has ended."""
        if reply.task is task:  # a newer task that resumes the reply would keep the slot
            self._limit.reserved -= 1
            reply.has_place = False
        if task.cancelled():
            # `leave` sets `needs_task` before it cancels a task; any other cancellation comes from the shutdown.
            self._is_interrupted = self._is_interrupted or (reply.task is task and not reply.needs_task)
        elif isinstance(error := task.exception(), Exception):
            self.failure = self.failure or error
        for listen in self.listeners:
            listen()

    def leave(self) -> list[asyncio.Task[None]]:
        """Remove a client. If no client is left, cancel the sampling tasks and return them."""
        self.clients -= 1
        if self.clients:
            return []
        running = [reply for reply in self.replies if reply.task is not None and not reply.task.done()]
        for reply in running:
            assert reply.task is not None
            # Before `cancel`: `_handle_task_end` takes a cancellation without this mark for the server's shutdown.
            reply.needs_task = True
            if reply.stream is None:  # a chat engine starts over: a returning client must not read the old beginning
                reply.is_readable = False
            reply.task.cancel()
        return [reply.task for reply in running if reply.task is not None]

    def list_lost(self, *, has_episode_ended: bool = False) -> list[LostReply]:
        """Return the replies that no client received, with the finish reason and error to record. [] if a client
        received them.

        Args:
            has_episode_ended: True if no client can come back for its replies.
        """
        if self.deliveries:
            return []
        finish: FinishReason = "aborted"
        if self.failure is not None or self.refusal is not None:
            # An error of the request itself leaves the call aborted; an engine's or the gateway's is a failed call.
            if self.refusal is None or self.refusal.code == ENGINE_FAILED:
                finish = "error"
            reason = f"the client got an error instead of this reply: {self.refusal or 'an internal error'}"
        else:
            reason = EPISODE_ENDED if has_episode_ended and self.clients else CLIENT_LEFT
        return [LostReply(reply.call, finish, reason) for reply in self.replies if reply.call is not None]


def _retrieve_error(task: asyncio.Future[Any]) -> None:
    """Read the exception of a task, because asyncio logs exceptions that were never read."""
    if not task.cancelled():
        task.exception()


class InflightCalls:
    """The calls of one session that a retry may still join, by the digest of their request."""

    def __init__(self) -> None:
        self._calls: dict[bytes, list[InflightCall]] = {}
        """Digest -> the calls of equal requests."""
        self._abandoned_calls: list[InflightCall] = []
        self._lost_replies: list[LostReply] = []

    def find(self, digest: bytes, hint: RetryHint) -> InflightCall | None:
        """Return the running or abandoned call that a request repeats, or None for a new call.

        A client counts its retries, so a retry has a higher count than the call. A call whose client has gone is
        preferred.

        Args:
            digest: Digest of the request.
            hint: The retry headers of the request.
        """
        candidates = [call for call in self._calls.get(digest, ()) if call.failure is None]
        if hint.idempotency_key is not None:
            same_key_calls = [call for call in candidates if call.hint.idempotency_key == hint.idempotency_key]
            if same_key_calls:
                return same_key_calls[0]
            candidates = [call for call in candidates if call.hint.idempotency_key is None]
        repeated = [call for call in candidates if call.retry_count < hint.count]
        return min(repeated, key=lambda call: bool(call.clients), default=None)

    def list_open(self) -> Sequence[InflightCall]:
        """Return the calls open for retries."""
        return [call for calls in self._calls.values() for call in calls]

    def add(self, call: InflightCall) -> None:
        """Add a new call to the session's calls."""
        self._calls.setdefault(call.digest, []).append(call)

    def remove(self, call: InflightCall) -> None:
        """Remove a call after its replies were delivered or failed."""
        same_request = self._calls.get(call.digest, [])
        if call in same_request:
            same_request.remove(call)
            if not same_request:
                del self._calls[call.digest]
            if not call.deliveries:
                self._lost_replies += call.list_lost()

    def abandon(self, call: InflightCall) -> None:
        """Store a call whose client left without its replies, for a retry. Beyond the limit the oldest is removed."""
        if call not in self._calls.get(call.digest, ()):
            self.add(call)
        self._abandoned_calls.append(call)
        if len(self._abandoned_calls) > _MAX_ABANDONED:
            oldest = self._abandoned_calls.pop(0)
            if not oldest.clients:
                self.remove(oldest)

    def list_lost(self) -> list[LostReply]:
        """Return the replies not received by any client at the end of the episode."""
        return [
            *self._lost_replies,
            *[lost_reply for call in self.list_open() for lost_reply in call.list_lost(has_episode_ended=True)],
        ]
