"""Build prompts for writing models, and parse their replies.

Invariant: documents and examples stand between marks that their text cannot contain; a reply is parsed as a complete
list of tasks or rejected. A model that does not answer is retried, then replaced by the next one (`failover`). If no
model answers, TaskError is raised and earlier replies stay stored. A single refused prompt does not end generation
(`refusals`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from loguru import logger

from ajet.environment.chat_model import ChatModel, ChatReply, NoAnswerError, request_completion
from ajet.schema.errors import TaskError
from ajet.schema.settled import repair_text
from ajet_datagen.generation.cost import GenerationCost, TokenPrice
from ajet_datagen.generation.failover import REST_S, ModelFailover
from ajet_datagen.generation.patience import request_with_retries
from ajet_datagen.generation.refusals import HARMLESS, IN_A_ROW, STATUSES, PromptRefusedError

FORM = 2
"""Version of the prompts; increase after a change of wording."""
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
class WrittenTask:
    """A task as written by the model."""

    query: str
    answer: str


def build_knowledge_prompt(passage: str, count: int, number: int, earlier_questions: Sequence[str] = ()) -> str:
    """Return a prompt that requests questions about a passage.

    Args:
        count: number of questions.
        number: makes repeated requests on one passage different.
        earlier_questions: questions written earlier, to be avoided.
    """
    earlier = (
        "\n\nAsked already, not to be asked again:\n" + mark_text("\n".join(earlier_questions))
        if earlier_questions
        else ""
    )
    request = f"{KNOWLEDGE % count} {SET % number}"
    return f"{request}\n\nThe passage:\n{mark_text(passage)}{earlier}\n\n{SHAPE % count}"


def build_variation_prompt(examples: Sequence[tuple[str, str]], passage: str, count: int, number: int) -> str:
    """Return a prompt that requests tasks similar to the examples.

    Args:
        examples: (query, answer) pairs.
        passage: text whose subject the tasks get, or "".
        count: number of tasks.
        number: makes repeated requests different.
    """
    examples_text = "\n\n".join(
        f"Example {number}:\n{mark_text(query)}" + (f"\nIts answer:\n{mark_text(answer)}" if answer else "")
        for number, (query, answer) in enumerate(examples, 1)
    )
    passage_text = f"\n\nTheir content comes from this passage:\n{mark_text(passage)}" if passage else ""
    return f"{VARIATION % count} {SET % number}\n\n{examples_text}{passage_text}\n\n{SHAPE % count}"


def mark_text(text: str) -> str:
    """Return the text between marks that contain its digest, so the text cannot contain its own end mark."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return f"<text-{digest}>\n{text}\n</text-{digest}>"


def parse_tasks(reply: str, count: int) -> list[WrittenTask] | None:
    """Return at most `count` tasks of a reply; None for an unreadable reply."""
    start = reply.find("{")
    if start < 0:
        return None
    try:
        parsed: Any = json.JSONDecoder().raw_decode(reply, start)[0]
        tasks = [
            WrittenTask(_clean_text(entry["query"]), _clean_text(entry.get("answer"))) for entry in parsed["tasks"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    nonempty = [task for task in tasks if task.query]
    return nonempty[:count] or None


def _clean_text(value: Any) -> str:
    """Return a value of a reply as stripped text without lone surrogates."""
    return "" if value is None else repair_text(str(value)).strip()


class TaskWriter:
    """Requests tasks from models on the tools' event loop, with at most `at_once` requests at a time."""

    def __init__(
        self, models: Sequence[ChatModel], failover: ModelFailover, prices: Sequence[TokenPrice] = (), *,
        temperature: float, tokens: int, at_once: int,
    ) -> None:  # fmt: skip
        """Create the writer.

        Args:
            models: models in the order of their use.
            failover: order of models after failures.
            prices: one per model, or empty.
            tokens: largest number of tokens of a reply.
            at_once: largest number of concurrent requests.
        """
        self.models, self.cost = models, GenerationCost()
        self.wrote: dict[str, None] = {}
        """Names of models that wrote tasks, in the order of their first task."""
        self._failover, self._prices = failover, prices or [TokenPrice()] * len(models)
        self._settings = {"temperature": temperature, "max_tokens": tokens}
        self._request_slots = asyncio.Semaphore(at_once)
        self._failure: TaskError | None = None
        self._under_way = self._in_a_row = 0
        self._go_on = asyncio.Event()
        self._go_on.set()

    @property
    def names(self) -> str:
        """The names of the models, in order."""
        return ", ".join(dict.fromkeys(model.model for model in self.models))

    async def request_tasks(
        self, prompt: str, count: int, keep: Callable[[list[WrittenTask]], Awaitable[None]]
    ) -> list[WrittenTask]:
        """Send a prompt and return the tasks in the reply, or [] if no reply could be parsed.

        Args:
            keep: stores the tasks before the next request starts, so a kill loses only running requests.

        Raises:
            PromptRefusedError: the models refuse this prompt.
            TaskError: no model answers; later calls fail too.
        """
        async with self._request_slots:
            await self._go_on.wait()
            if self._failure is not None:
                raise self._failure
            self._under_way += 1
            try:
                tasks = await self._request_from_models(prompt, count)
                self._in_a_row = 0
            except PromptRefusedError as refusal:
                self._in_a_row += 1
                # Checked only without other running requests, whose answers would end the row of refusals.
                if self._in_a_row >= IN_A_ROW and self._under_way == 1:
                    self._go_on.clear()
                    if await self._is_any_model_answering():
                        self._in_a_row = 0
                    else:
                        problem = f"{self._in_a_row} prompts in a row and a harmless one were refused"
                        self._failure = _make_no_model_error(f"{problem}; the last: {refusal}")
                raise
            except TaskError as failure:
                self._failure = failure
                raise
            finally:
                self._under_way -= 1
                if self._in_a_row < IN_A_ROW or not self._under_way:
                    self._go_on.set()
                else:  # refusals arrive faster than answers, so running requests are awaited first
                    self._go_on.clear()
            if tasks:
                await keep(tasks)
            return tasks

    async def _is_any_model_answering(self) -> bool:
        """True if a model answers a harmless prompt, which no content filter refuses."""
        for index in self._failover.rank_models():
            try:
                await self._request_completion(index, HARMLESS, is_last=True)
            except NoAnswerError:
                continue
            return True
        return False

    async def _request_from_models(self, prompt: str, count: int) -> list[WrittenTask]:
        """Request tasks from the models in order, until a reply can be parsed. Return [] if no reply can be.

        Raises:
            PromptRefusedError: no model answered, and at least one refused the prompt.
            TaskError: no model answered.
        """
        problems: list[str] = []
        refused_count = 0
        order = self._failover.rank_models()
        for index, next_index in zip(order, [*order[1:], None], strict=True):
            model = self.models[index]
            try:
                reply = await self._request_completion(index, prompt, is_last=next_index is None)
            except NoAnswerError as problem:
                problems.append(f"{model.model} at {model.place}: {problem}")
                refused_count += problem.status in STATUSES
                if self._failover.note_failure(index, problem) and next_index is not None:
                    logger.warning(
                        "{}; for {:.0f} s {} is used first", problems[-1], REST_S, self._name_model(next_index)
                    )
                continue
            self._failover.note_answer(index)
            if (tasks := parse_tasks(reply.text, count)) is not None:
                self.wrote[model.model] = None
                return tasks
            self.cost.unreadable += 1
        if len(problems) == len(self.models):
            if refused_count:
                raise PromptRefusedError("; ".join(problems), by_all=refused_count == len(problems))
            raise _make_no_model_error("; ".join(problems))
        return []

    async def _request_completion(self, model_index: int, prompt: str, *, is_last: bool) -> ChatReply:
        """Send the prompt to one model with retries, count its cost, and return the reply. Raises NoAnswerError."""
        body = {"messages": [{"role": "user", "content": prompt}], **self._settings}

        async def send_request(seconds: float) -> ChatReply:
            return await request_completion(self.models[model_index], body, seconds)

        reply = await request_with_retries(
            send_request, self._failover, model_index, is_last=is_last, count_request=self.cost.count_request
        )
        self.cost.count_reply(reply.prompt_tokens, reply.reply_tokens, self._prices[model_index])
        return reply

    def _name_model(self, model_index: int) -> str:
        """Return the model's name and server, for messages."""
        return f"{self.models[model_index].model} at {self.models[model_index].place}"


def _make_no_model_error(reason: str) -> TaskError:
    """Return the error for models that do not answer, with the reason and advice."""
    return TaskError(
        f"No model writes tasks: {reason}",
        where="ajet.task_reader.data_generation",
        do="correct the server or use another one; tasks written so far are stored and not requested again",
    )
