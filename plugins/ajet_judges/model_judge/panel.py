"""ModelPanel: sends a question to several models in order, until one gives a readable reply.

Invariants: a model that does not answer is retried, then the next model is asked. After a refusal or an unreadable
reply the next model is asked at once. If no model is reachable, JudgeFailure is raised and counted by the rollout's
circuit breaker. If a model was reached without a readable reply, there is no value. Requests never exceed the budget,
the rate or the concurrency.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ajet.environment.chat_model import ChatModel, ChatReply, NoAnswerError, request_completion
from ajet.environment.loop import on_tools_loop
from ajet.schema.errors import JudgeFailure
from ajet_judges.model_judge.prompt import SYSTEM, JudgeQuestion
from ajet_judges.model_judge.reply import UnreadableReplyError
from ajet_judges.model_judge.store import JudgeStore

if TYPE_CHECKING:
    from ajet_judges.config import ModelJudgeConfig

T = TypeVar("T")
FORM = 1
"""Version of the cache key; increase after a change of the request format."""
_COMPLETE_ENDS = ("}", "```", "~~~")
"""A reply cut at its length limit counts as complete if it ends so: a grammar may allow blanks after an object."""
_OPTIONAL = {
    "response_format": re.compile(r"response_format|json_schema|structured|grammar|guided", re.IGNORECASE),
    "temperature": re.compile("temperature", re.IGNORECASE),
    "seed": re.compile(r"\bseed\b", re.IGNORECASE),
    "max_completion_tokens": re.compile("max_completion_tokens", re.IGNORECASE),
}
"""Optional request field -> pattern of the server's message rejecting the field."""


@dataclass(slots=True)
class PanelMember:
    """One judging model with its prices."""

    model: ChatModel
    price_in: float = 0.0
    price_out: float = 0.0
    """Price of a million sampled tokens."""
    without: set[str] = field(default_factory=set)
    """Optional fields rejected by its server."""
    free_at: float = 0.0
    """Time of the next request allowed by the rate limit."""


@dataclass(slots=True)
class JudgeReply(Generic[T]):
    """The parsed answer to one question, with calls, cost and problems."""

    value: T | None = None
    """None: no model gave a readable reply."""
    model: str = ""
    problems: list[str] = field(default_factory=list)
    """Reasons of models without a readable reply."""
    calls: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    cached: bool = False
    refused: int = 0
    unreadable: int = 0


class ModelPanel:
    """Requests replies from models in order, for one run in one process, on the tools' event loop."""

    def __init__(
        self, members: Sequence[PanelMember], limits: ModelJudgeConfig, store: JudgeStore | None, run: str
    ) -> None:
        """Create the panel.

        Args:
            members: models in the order of their use.
            limits: budget, rate, concurrency and retries.
            store: stored replies and spent budget; None for neither.
            run: name under which the budget is counted.
        """
        self.members = members
        self._limits = limits
        self.store = store
        self._run = run
        self._cache = limits.cache
        self._request_slots = asyncio.Semaphore(limits.max_parallel)

    async def ask(
        self,
        question: JudgeQuestion,
        schema: Mapping[str, Any],
        parse: Callable[[str], T],
        *,
        draw: int = 0,
        temperature: float = 0.0,
    ) -> JudgeReply[T]:
        """Return the first readable reply to a question.

        Args:
            schema: JSON schema of the reply.
            parse: parses a reply, or raises UnreadableReplyError.
            draw: index of the vote; each vote starts with another model.

        Raises:
            JudgeFailure: no model is reachable, or the budget is spent.
        """
        first_model = draw % len(self.members)
        order = [*self.members[first_model:], *self.members[:first_model]]
        keys: list[str] | None = None
        if self._cache and (store := self.store) is not None:
            keys = [self._make_key(member, question, schema, draw, temperature) for member in order]
            for member, key in zip(order, keys, strict=True):
                if (cached := await asyncio.to_thread(store.get, key)) is not None:
                    return JudgeReply(parse(cached), member.model.model, cached=True)
        return await on_tools_loop(self._request_in_order(order, keys, question, schema, parse, draw, temperature))

    async def check_reachable(self, question: JudgeQuestion) -> None:
        """Send a request, bypassing the cache. Raises JudgeFailure if no model answers."""
        await on_tools_loop(self._request_in_order(self.members, None, question, {"type": "object"}, str, 0, 0.0))

    async def _request_in_order(
        self,
        order: Sequence[PanelMember],
        keys: Sequence[str] | None,
        question: JudgeQuestion,
        schema: Mapping[str, Any],
        parse: Callable[[str], T],
        draw: int,
        temperature: float,
    ) -> JudgeReply[T]:
        """Request a reply from the models in order, until one gives a readable reply, and store it.

        Args:
            order: the models.
            keys: key of the cache for each model; None to store nothing.
            draw: index of the vote, sent as seed.

        Returns:
            The reply; its `value` is None if models were reached, but refused or gave no readable reply.

        Raises:
            JudgeFailure: no model is reachable, or the budget is spent.
        """
        reply: JudgeReply[T] = JudgeReply()
        was_reached = False
        for index, member in enumerate(order):
            body = {
                "messages": question.messages(),
                "temperature": temperature,
                "seed": draw,
                "max_completion_tokens": self._limits.max_tokens,
                "response_format": {
                    "type": "json_schema", "json_schema": {"name": "verdict", "schema": dict(schema), "strict": True}
                },
            }  # fmt: skip
            name = member.model.model
            try:
                chat_reply = await self._request_from_member(member, body, reply)
            except NoAnswerError as problem:
                reply.problems.append(f"{name}: {problem}")
                continue
            was_reached = True
            if chat_reply.refused:
                reply.refused += 1
                reply.problems.append(f"{name} refused: {chat_reply.refused[:200]}")
                continue
            try:
                if chat_reply.cut and not chat_reply.raw_text.rstrip().endswith(_COMPLETE_ENDS):
                    raise UnreadableReplyError("the reply was cut short by the token limit")
                reply.value, reply.model = parse(chat_reply.raw_text), name
            except UnreadableReplyError as problem:
                reply.unreadable += 1
                reply.problems.append(f"{name} returned no verdict: {problem}")
                continue
            if self._cache and self.store is not None and keys is not None:
                await asyncio.to_thread(self.store.put, keys[index], chat_reply.raw_text)
            return reply
        if not was_reached:
            raise JudgeFailure(
                f"none of the judging models answers: {'; '.join(reply.problems)}", retryable=True, own=True
            )
        return reply

    async def _request_from_member(
        self, member: PanelMember, body: Mapping[str, Any], reply: JudgeReply[T]
    ) -> ChatReply:
        """Return the reply of one model, with retries, and count its cost in `reply`.

        Raises:
            NoAnswerError: all retries failed.
            JudgeFailure: the budget is spent.
        """
        limits, retry = self._limits, 0
        while True:
            request_body = {name: value for name, value in body.items() if name not in member.without}
            async with self._request_slots:
                await self._wait_for_turn(member)
                await self._spend_budget(1, 0.0)
                reply.calls += 1
                started = time.monotonic()
                try:
                    answer = await request_completion(member.model, request_body, limits.timeout)
                except NoAnswerError as problem:
                    failure = problem
                else:
                    cost = answer.prompt_tokens * member.price_in + answer.reply_tokens * member.price_out
                    reply.cost += cost / 1e6
                    await self._spend_budget(0, cost / 1e6)
                    return answer
                finally:
                    reply.seconds += time.monotonic() - started
            if failure.status in (400, 422) and (rejected_field := _find_rejected_field(str(failure), request_body)):
                member.without.add(rejected_field)  # an optional field: the request is sent again without it
                continue
            if not failure.is_retryable or retry == limits.max_retries:
                raise failure
            await asyncio.sleep(max(failure.after, limits.retry_delay * 2**retry))
            retry += 1

    async def _wait_for_turn(self, member: PanelMember) -> None:
        """Wait until the rate limit `requests_per_minute` allows the next request to this model."""
        if (rate := self._limits.requests_per_minute) is None:
            return
        now = time.monotonic()
        starts_at = max(now, member.free_at)
        member.free_at = starts_at + 60.0 / rate
        await asyncio.sleep(starts_at - now)

    async def _spend_budget(self, calls: int, cost: float) -> None:
        """Count calls and cost in the run's budget.

        Raises:
            JudgeFailure: a new call (`calls` > 0) exceeds the budget, or the budget cannot be counted.
        """
        limits = self._limits
        if self.store is None or (limits.max_calls is None and limits.max_cost is None):
            return  # returns before a thread is used, since 64 calls in parallel would queue
        try:
            all_calls, all_cost = await asyncio.to_thread(self.store.spend, self._run, calls, cost)
        except sqlite3.Error as error:
            raise JudgeFailure(f"the judges' cost cannot be counted: {error}", retryable=True) from error
        if not calls:
            return
        if limits.max_calls is not None and all_calls > limits.max_calls:
            raise JudgeFailure(f"the judges' budget is exhausted: {limits.max_calls} calls (model_judge.max_calls)")
        if limits.max_cost is not None and all_cost >= limits.max_cost:
            raise JudgeFailure(f"the judges' budget is exhausted: {all_cost:.4g} spent (model_judge.max_cost)")

    def _make_key(
        self, member: PanelMember, question: JudgeQuestion, schema: Mapping[str, Any], draw: int, temperature: float
    ) -> str:
        """Return the cache key of a request: a digest of everything that determines the reply."""
        identity = {
            "form": FORM, "model": member.model.model, "place": member.model.place, "system": SYSTEM,
            "pieces": question.pieces, "asked": question.form, "schema": schema, "temperature": temperature,
            "draw": draw, "tokens": self._limits.max_tokens,
        }  # fmt: skip
        return JudgeStore.key(identity)


def _find_rejected_field(message: str, body: Mapping[str, Any]) -> str:
    """Return the optional field that a server's error message rejects, or ""."""
    return next((name for name, pattern in _OPTIONAL.items() if name in body and pattern.search(message)), "")


def sum_usage(replies: Sequence[JudgeReply[Any]]) -> dict[str, float]:
    """Return the usage of the replies: sums of calls, cost and failures, the share of cached ones, the longest time."""
    requested = [reply for reply in replies if not reply.cached]
    usage = {
        "calls": float(sum(reply.calls for reply in replies)),
        "cost": sum(reply.cost for reply in replies),
        "cached": sum(reply.cached for reply in replies) / len(replies),
        "refused": float(sum(reply.refused for reply in replies)),
        "unreadable": float(sum(reply.unreadable for reply in replies)),
    }
    if requested:
        usage["seconds"] = max(reply.seconds for reply in requested)
    return usage
