"""What a model is asked to write, and what it wrote.

Invariant: documents and examples stand between marks that nothing in them can close; a reply is a list of tasks as a
whole or it is none. A model that does not answer is asked again, then the next one is (`failover`); where none answers
that is a TaskError, and what was written before is kept. One prompt that is refused is no such end (`refusals`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loguru import logger

from ajet.environment.chat_model import Answer, Model, NoAnswer, completion
from ajet.schema.errors import TaskError
from ajet.schema.settled import repair_text
from ajet_datagen.generation.cost import Cost, Price
from ajet_datagen.generation.failover import REST_S, Failover
from ajet_datagen.generation.patience import patiently
from ajet_datagen.generation.refusals import HARMLESS, IN_A_ROW, STATUSES, PromptRefused

FORM = 2
"""Of the prompts: grows where the same is asked otherwise."""
SHAPE = (
    'Reply with one JSON object and nothing else: {"tasks": [{"query": "…", "answer": "…"}]}, with exactly %d in the '
    "list. An answer is as short as it can be."
)
KNOWLEDGE = (
    "Write %d questions that the passage answers. Each names what it is about, so that somebody who knows the subject "
    "understands it without the passage, and has one right answer, which stands in the passage. No two ask the same."
)
VARIATION = (
    "Write %d new tasks of the kind of the examples: the same form, the same difficulty, another content. None repeats "
    "an example."
)
SET = "This is set number %d; it differs from every other set."


@dataclass(frozen=True, slots=True)
class Written:
    """A task as the model wrote it."""

    query: str
    answer: str


def knowledge_prompt(passage: str, count: int, number: int, before: Sequence[str] = ()) -> str:
    """Questions on a passage; `number`: of the request, so that no two are the same; `before`: those that were asked
    already."""
    asked = "\n\nAsked already, not to be asked again:\n" + marked("\n".join(before)) if before else ""
    told = f"{KNOWLEDGE % count} {SET % number}"
    return f"{told}\n\nThe passage:\n{marked(passage)}{asked}\n\n{SHAPE % count}"


def variation_prompt(examples: Sequence[tuple[str, str]], passage: str, count: int, number: int) -> str:
    """Tasks like the examples (query, answer), on the subject of the passage, if there is one; `number`: as above."""
    shown = "\n\n".join(
        f"Example {number}:\n{marked(query)}" + (f"\nIts answer:\n{marked(answer)}" if answer else "")
        for number, (query, answer) in enumerate(examples, 1)
    )
    about = f"\n\nTheir content comes from this passage:\n{marked(passage)}" if passage else ""
    return f"{VARIATION % count} {SET % number}\n\n{shown}{about}\n\n{SHAPE % count}"


def marked(text: str) -> str:
    """Between marks that it cannot hold, for they are made of it."""
    mark = hashlib.sha256(text.encode()).hexdigest()[:32]
    return f"<text-{mark}>\n{text}\n</text-{mark}>"


def written(reply: str, count: int) -> list[Written] | None:
    """The tasks of a reply, `count` at most; None where it is none."""
    start = reply.find("{")
    if start < 0:
        return None
    try:
        told: Any = json.JSONDecoder().raw_decode(reply, start)[0]
        found = [Written(_short(each["query"]), _short(each.get("answer"))) for each in told["tasks"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    good = [each for each in found if each.query]
    return good[:count] or None


def _short(said: Any) -> str:
    return "" if said is None else repair_text(str(said)).strip()


class Writer:
    """Asks on the tools' loop, at most `at_once` questions at a time."""

    def __init__(
        self, models: Sequence[Model], failover: Failover, prices: Sequence[Price] = (), *, temperature: float,
        tokens: int, at_once: int,
    ) -> None:  # fmt: skip
        """`prices`: one a model; none at all where nobody named any."""
        self.models, self.cost = models, Cost()
        self.wrote: dict[str, None] = {}
        """Names of the models that gave tasks, in the order of their first ones."""
        self._failover, self._prices = failover, prices or [Price()] * len(models)
        self._settings = {"temperature": temperature, "max_tokens": tokens}
        self._free = asyncio.Semaphore(at_once)
        self._failure: TaskError | None = None
        self._under_way = self._in_a_row = 0
        self._go_on = asyncio.Event()
        self._go_on.set()

    @property
    def names(self) -> str:
        """The names of the models, in their order."""
        return ", ".join(dict.fromkeys(model.model for model in self.models))

    async def ask(self, prompt: str, count: int, keep: Callable[[list[Written]], Awaitable[None]]) -> list[Written]:
        """[] where no reply could be read; what could is kept before another question takes its place, so that a kill
        loses no more answers than are asked for at once. Raises PromptRefused; TaskError where no model answers, and
        after that for all that is asked."""
        async with self._free:
            await self._go_on.wait()
            if self._failure is not None:
                raise self._failure
            self._under_way += 1
            try:
                found = await self._asked(prompt, count)
                self._in_a_row = 0
            except PromptRefused as refusal:
                self._in_a_row += 1
                if self._in_a_row >= IN_A_ROW and self._under_way == 1:
                    self._go_on.clear()
                    if await self._answers():
                        self._in_a_row = 0
                    else:
                        told = f"{self._in_a_row} prompts in a row were refused, and a harmless one"
                        self._failure = _no_model(f"{told}; the last: {refusal}")
                raise
            except TaskError as failure:
                self._failure = failure
                raise
            finally:
                self._under_way -= 1
                if self._in_a_row < IN_A_ROW or not self._under_way:
                    self._go_on.set()
                else:  # refusals come fast: an answer may be on its way
                    self._go_on.clear()
            if found:
                await keep(found)
            return found

    async def _answers(self) -> bool:
        """Whether a model answers what nobody refuses for what it says."""
        for place in self._failover.order():
            try:
                await self._answer(place, HARMLESS, last=True)
            except NoAnswer:
                continue
            return True
        return False

    async def _asked(self, prompt: str, count: int) -> list[Written]:
        problems: list[str] = []
        refused = 0
        order = self._failover.order()
        for place, next_one in zip(order, [*order[1:], None], strict=True):
            model = self.models[place]
            try:
                answer = await self._answer(place, prompt, last=next_one is None)
            except NoAnswer as problem:
                problems.append(f"{model.model} at {model.place}: {problem}")
                refused += problem.status in STATUSES
                if self._failover.gave_up(place, problem) and next_one is not None:
                    logger.warning("{}; for {:.0f} s {} is asked first", problems[-1], REST_S, self._named(next_one))
                continue
            self._failover.answered(place)
            if (found := written(answer.text, count)) is not None:
                self.wrote[model.model] = None
                return found
            self.cost.unreadable += 1
        if len(problems) == len(self.models):
            if refused:
                raise PromptRefused("; ".join(problems), by_all=refused == len(problems))
            raise _no_model("; ".join(problems))
        return []

    async def _answer(self, place: int, prompt: str, *, last: bool) -> Answer:
        body = {"messages": [{"role": "user", "content": prompt}], **self._settings}

        async def once(seconds: float) -> Answer:
            return await completion(self.models[place], body, seconds)

        answer = await patiently(once, self._failover, place, last=last, counted=self.cost.called)
        self.cost.answered(answer.prompt_tokens, answer.reply_tokens, self._prices[place])
        return answer

    def _named(self, place: int) -> str:
        return f"{self.models[place].model} at {self.models[place].place}"


def _no_model(why: str) -> TaskError:
    return TaskError(
        f"No model writes tasks: {why}",
        where="ajet.task_reader.data_generation",
        do="mend the server or name another; what was written so far is kept, and nothing of it is asked again",
    )
