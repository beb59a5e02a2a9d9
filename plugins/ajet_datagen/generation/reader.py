"""The task reader `data_generation`.

Invariant: validation tasks are written first and from documents only. A task similar to an earlier task, to a shown
example, or (in training) to a validation task is left out and counted. Equal settings, documents and examples give
equal tasks in equal order. Cost and refusals are logged in every case.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.config.locations import find_cache_root
from ajet.config.other_models import find_other_server
from ajet.environment.chat_model import ChatModel, list_configured, model_at
from ajet.record.progress import Progress, ProgressBar
from ajet.schema.errors import TaskError
from ajet.schema.settled import repair_text
from ajet.schema.task import Task, extract_text
from ajet.task_reader.contract import TaskSplit, require_place
from ajet_datagen.alike import SimilarityMeasure, count_letter_runs, index_numbers, select_distinct
from ajet_datagen.config import ReaderKeys
from ajet_datagen.generation.cost import GenerationCost, TokenPrice
from ajet_datagen.generation.documents import KEY, Passage, list_documents, read_passages
from ajet_datagen.generation.embedding import embed_texts, find_embedding_server, open_embedder
from ajet_datagen.generation.failover import ModelFailover
from ajet_datagen.generation.kept import GenerationStore
from ajet_datagen.generation.patience import run_on_tools_loop
from ajet_datagen.generation.refusals import PromptRefusals, PromptRefusedError
from ajet_datagen.generation.writer import FORM, TaskWriter, WrittenTask, build_knowledge_prompt, build_variation_prompt

if TYPE_CHECKING:
    from ajet.config import Experiment

SECTION = "ajet.task_reader.data_generation"
A_CALL = 10
"""Questions requested for a passage at once."""
EXAMPLES = 3
ROUNDS = 3
"""Maximum rounds of requests for missing tasks."""


@dataclass(frozen=True, slots=True)
class WritingPrompt:
    """One prompt for the writing model, with its name and the number of requested tasks."""

    name: str
    prompt: str
    count: int  # number of requested tasks
    passage: Passage | None = None
    """The passage of the prompt."""
    shown: tuple[str, ...] = ()  # examples in the prompt

    @property
    def title(self) -> str:
        """The prompt's name in messages."""
        return f"{self.name} ({self.passage.source})" if self.passage else self.name


Found = Sequence[tuple[WrittenTask, WritingPrompt]]


class GenerationReader:
    """Writes `task_num` tasks for each split with documents or examples."""

    judge = None

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._settings = ReaderKeys.of(experiment.ajet).data_generation
        self._passages: list[Passage] | None = None
        self._examples: list[tuple[str, str]] | None = None
        self._tasks: dict[TaskSplit, list[Task]] = {}
        deduplication = self._settings.deduplication_filter
        self._embed = open_embedder(deduplication.params) if deduplication.enabled else None
        self._failover: ModelFailover | None = None

    def has(self, split: TaskSplit) -> bool:
        """True for validation with documents, and for training with documents or examples."""
        return bool(self._settings.document_reader.document_path) or (split == "train" and self._has_examples())

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Return the tasks, written now or read from the store. Raises TaskError, MissingExtraError, UserError."""
        if not self.has(split):
            raise TaskError(
                f"There are no documents or examples for {split} tasks.",
                where=f"{SECTION}.document_reader.document_path",
                expected="documents" + (", or example tasks by query_reader" if split == "train" else ""),
            )
        if split not in self._tasks:
            with self._open_store().open() as store:
                self._tasks[split] = self._write_tasks(split, store)
        return self._tasks[split]

    def _write_tasks(self, split: TaskSplit, store: GenerationStore) -> list[Task]:
        """Return the tasks of a split: stored ones, then new ones written by models until there are `task_num`.

        Validation tasks are written first, so that training tasks similar to them can be dropped.
        """
        held_out: list[Task] = []
        if split == "train" and self.has("validation"):
            held_out = self._tasks.get("validation") or self._write_tasks("validation", store)
            self._tasks["validation"] = held_out
        writer, rows = self._make_writer(), store.read_rows()
        refusals = PromptRefusals(store, rows)
        tasks: list[Task] = []
        written: list[tuple[WrittenTask, WritingPrompt]] = []
        try:
            for turn in range(ROUNDS):
                missing = self._settings.task_num - len(tasks)
                if missing <= 0:
                    break
                prompts = self._build_prompts(split, turn, missing, [written_task.query for written_task, _ in written])
                if new_count := sum(not rows.get(prompt.name) for prompt in prompts):
                    logger.info(
                        "{}: {} of {} prompts are sent to {}",
                        _name_round(split, turn),
                        new_count,
                        len(prompts),
                        writer.names,
                    )
                with Progress() as progress, progress.bar(_name_round(split, turn), len(prompts), "prompts") as bar:
                    replies = run_on_tools_loop(self._request_tasks(writer, prompts, store, rows, refusals, bar))
                count_before = len(written)
                written += [
                    (written_task, prompt)
                    for prompt, reply in zip(prompts, replies, strict=True)
                    for written_task in reply
                ]
                tasks = self._select_tasks(split, written, held_out, store, rows, writer.cost)[
                    : self._settings.task_num
                ]
                if len(written) == count_before:
                    break
        finally:
            if spent := writer.cost.describe_cost():
                logger.info("writing {} tasks took {}", split, spent)
        if not tasks:
            raise self._explain_no_tasks(split, len(written), refusals)
        run_on_tools_loop(refusals.save_refusals())
        self._log_result(split, tasks, written, writer, refusals)
        return tasks

    def _build_prompts(
        self, split: TaskSplit, turn: int, missing: int, earlier_questions: Sequence[str]
    ) -> list[WritingPrompt]:
        """Return the prompts of one round.

        With examples, a training prompt requests one variation of a few of them. Otherwise a prompt requests A_CALL
        questions about a passage. Equal seeds give equal prompts.

        Args:
            turn: index of the round.
            missing: number of tasks still to be written.
            earlier_questions: questions of earlier rounds, to be avoided.
        """
        rng = random.Random(f"{self._experiment.ajet.seed} {split} {turn}")
        passages, examples, settings = self._load_passages(), self._load_examples(), self._settings
        if split == "train" and examples:
            prompts: list[WritingPrompt] = []
            for number in range(missing):
                shown_examples = rng.sample(examples, min(EXAMPLES, len(examples)))
                passage = rng.choice(passages) if passages else None
                prompt = build_variation_prompt(
                    shown_examples, passage.text if passage else "", 1, turn * settings.task_num + number + 1
                )
                prompts.append(
                    WritingPrompt(
                        f"train {turn} {number}", prompt, 1, passage, tuple(query for query, _ in shown_examples)
                    )
                )
            return prompts
        order = list(passages)
        rng.shuffle(order)
        selected = [order[number % len(order)] for number in range(-(-missing // A_CALL))]  # rounded up
        return [
            WritingPrompt(
                f"{split} {turn} {number}",
                build_knowledge_prompt(passage.text, A_CALL, number + 1, earlier_questions),
                A_CALL,
                passage,
            )
            for number, passage in enumerate(selected)
        ]

    async def _request_tasks(
        self,
        writer: TaskWriter,
        prompts: Sequence[WritingPrompt],
        store: GenerationStore,
        rows: dict[str, Any],
        refusals: PromptRefusals,
        bar: ProgressBar,
    ) -> list[list[WrittenTask]]:
        """Return the tasks of each prompt: stored ones, or those of a new request, which are stored at once.

        Prompts that models refuse give no tasks and are noted in `refusals`.

        Args:
            rows: stored values by prompt name, extended by new ones.
        """

        async def read_or_request(prompt: WritingPrompt) -> list[WrittenTask]:
            """Return the tasks of one prompt, from the store or by a request; none for a refused prompt."""
            is_refused = refusals.is_refused(prompt.name, prompt.title)
            rows_of_prompt = [] if is_refused else rows.get(prompt.name) or await request(prompt)
            bar.advance(note=writer.cost.describe_cost())
            return [WrittenTask(*query_and_answer) for query_and_answer in rows_of_prompt]

        async def request(prompt: WritingPrompt) -> list[list[str]]:
            """Send one prompt and return its tasks as [query, answer] pairs."""

            async def save(tasks: Sequence[WrittenTask]) -> None:
                """Store the tasks of a reply. An unreadable reply is not stored, so it is requested again next time."""
                rows[prompt.name] = [[task.query, task.answer] for task in tasks]
                await asyncio.to_thread(store.append_row, prompt.name, rows[prompt.name])
                await refusals.save_refusals()

            try:
                await writer.request_tasks(prompt.prompt, prompt.count, save)
            except PromptRefusedError as refusal:
                refusals.note_refusal(prompt.name, prompt.title, refusal)
                return []
            return rows.get(prompt.name) or []

        return await _gather_all([read_or_request(prompt) for prompt in prompts])

    def _select_tasks(
        self,
        split: TaskSplit,
        written_tasks: Found,
        held_out: Sequence[Task],
        store: GenerationStore,
        rows: dict[str, Any],
        cost: GenerationCost,
    ) -> list[Task]:
        """Return the written tasks without copies of examples and without duplicates, in their order.

        A task is a duplicate if it resembles an earlier task, a held-out task, or an example that its prompt showed.

        Args:
            written_tasks: the tasks with their prompts.
            held_out: validation tasks, for training.
            store, rows, cost: for embeddings of new texts.
        """
        examples = {query for query, _ in self._load_examples()}
        written_tasks = [
            task_and_prompt for task_and_prompt in written_tasks if task_and_prompt[0].query not in examples
        ]
        if self._settings.deduplication_filter.enabled and written_tasks:
            params = self._settings.deduplication_filter.params
            shown_queries = dict.fromkeys(query for _, prompt in written_tasks for query in prompt.shown)
            texts, others = (
                [written.query for written, _ in written_tasks],
                [*(task.main_query for task in held_out), *shown_queries],
            )
            numbers = index_numbers([*texts, *others]) if params.numbers == "differ" else None
            letters, threshold = params.letters_threshold, params.similarity_threshold
            measures = [
                SimilarityMeasure(
                    count_letter_runs(texts), threshold if letters is None else letters, count_letter_runs(others)
                )
            ]
            if self._embed is not None:
                vectors = embed_texts([*texts, *others], self._embed, params.model, store, rows, cost)
                measures.append(SimilarityMeasure(vectors[: len(texts)], threshold, vectors[len(texts) :]))
            written_tasks = [written_tasks[index] for index in select_distinct(*measures, numbers=numbers)]
        return [
            _make_task(split, number, written, prompt.passage) for number, (written, prompt) in enumerate(written_tasks)
        ]

    def _load_passages(self) -> list[Passage]:
        """Return the passages of all configured documents, read once. Raises TaskError, MissingExtraError."""
        if self._passages is None:
            reader = self._settings.document_reader
            document_path = reader.document_path
            paths = [document_path] if isinstance(document_path, str) and document_path else document_path
            documents = [require_place(path, self._experiment.base, key=KEY, what="document") for path in paths]
            self._passages = [
                passage
                for document in documents
                for file in list_documents(document)
                for passage in read_passages(file, size=reader.chunk_size, split_by=reader.split_by)
            ]
        return self._passages

    def _has_examples(self) -> bool:
        """Return True if `query_reader` names a source. Raises TaskError for a reader without examples."""
        query = self._settings.query_reader
        sources = {
            "jsonl_dataset_file": query.jsonl_dataset_file.training.file_path,
            "huggingface_dat_repo": query.huggingface_dat_repo.dataset_path,
            "env_service": query.env_service.env_url,
        }
        if query.type not in sources:
            raise TaskError(
                f"{query.type} cannot read example tasks.",
                where=f"{SECTION}.query_reader.type",
                expected=", ".join(sources),
            )
        return bool(sources[query.type])

    def _load_examples(self) -> list[tuple[str, str]]:
        """Return (question, answer) of each example task, read once by the configured reader; [] without a source."""
        if self._examples is None:
            self._examples = []
            if self._has_examples():
                from ajet.task_reader.registry import open_reader

                query, reader = self._settings.query_reader, self._experiment.ajet.task_reader
                sections = {name: getattr(query, name) for name in type(query).model_fields}
                ajet = self._experiment.ajet.model_copy(update={"task_reader": reader.model_copy(update=sections)})
                tasks = open_reader(replace(self._experiment, ajet=ajet)).tasks("train")
                pairs = ((_get_question(task), _answer_text(task.metadata.get("answer"))) for task in tasks)
                self._examples = [(repair_text(query), repair_text(answer)) for query, answer in pairs]
        return self._examples

    def _list_models(self) -> list[ChatModel]:
        """Return the writing models: `models`, or `llm_model` once per key of the environment's server.

        Raises ConfigError.
        """
        settings = self._settings
        if settings.models:
            return list_configured(settings.models, f"{SECTION}.models")
        server = find_other_server()
        return [model_at(server.base_url, settings.llm_model, key, where="OPENAI_BASE_URL") for key in server.keys]

    def _make_writer(self) -> TaskWriter:
        """Return a writer for one split. Resting models are remembered across splits."""
        settings, models = self._settings, self._list_models()
        self._failover = self._failover or ModelFailover(len(models))
        return TaskWriter(
            models,
            self._failover,
            [TokenPrice(model.price_in, model.price_out) for model in settings.models],
            temperature=settings.sampling_params.temperature,
            tokens=settings.llm_response_length,
            at_once=settings.num_workers,
        )

    def _open_store(self) -> GenerationStore:
        """Return the store for these settings. Its file is named by everything that determines the tasks."""
        settings = self._settings
        is_deduplicated, dedup = settings.deduplication_filter.enabled, settings.deduplication_filter.params
        server = find_embedding_server(dedup) if is_deduplicated else None
        about: Mapping[str, Any] = {
            "form": FORM,
            "models": [(model.base_url, model.model) for model in self._list_models()],
            "temperature": settings.sampling_params.temperature,
            "tokens": settings.llm_response_length,
            "tasks": settings.task_num,
            "seed": self._experiment.ajet.seed,
            "passages": [(passage.source, passage.text) for passage in self._load_passages()],
            "examples": self._load_examples(),
            "alike": [
                is_deduplicated,
                dedup.similarity_threshold,
                server.base_url if server else dedup.base_url,
                dedup.model,
            ],
            "letters": dedup.letters_threshold,
            "numbers": dedup.numbers,
        }
        return GenerationStore(find_cache_root() / "generated", about)

    def _explain_no_tasks(self, split: TaskSplit, written_count: int, refusals: PromptRefusals) -> TaskError:
        """Return the error for a split without tasks: all were duplicates, refused, or unreadable."""
        if written_count:
            return TaskError(
                f"All {written_count} written tasks are too similar to an example, a held-out task or each other: "
                f"no {split} task is left.",
                where=f"{SECTION}.deduplication_filter",
                expected="distinct tasks",
                do="add examples or documents, raise similarity_threshold, or set enabled: false",
            )
        if refusals:
            return TaskError(
                f"No model writes {split} tasks: {refusals.describe_refusals()}",
                where=SECTION,
                expected="prompts accepted by a model",
                do="use shorter passages (document_reader.chunk_size), other documents, or another model",
            )
        return TaskError(
            f"No reply contains a {split} task.",
            where=SECTION,
            expected='replies of the form {"tasks": [{"query": …, "answer": …}]}',
            do="use a more capable model, or more tokens (llm_response_length)",
        )

    def _log_result(
        self,
        split: TaskSplit,
        tasks: Sequence[Task],
        written_tasks: Found,
        writer: TaskWriter,
        refusals: PromptRefusals,
    ) -> None:
        """Log how many tasks were written by which models, and warn of refused prompts and missing tasks."""
        source = f"by {', '.join(writer.wrote) or writer.names}" if writer.cost.calls else "from the cache"
        logger.info(
            "{} {} tasks {}; {} dropped as too similar, {} replies unreadable",
            len(tasks), split, source, len(written_tasks) - len(tasks), writer.cost.unreadable,
        )  # fmt: skip
        if refusals:
            logger.warning(
                "left out some prompts for {} tasks: {}",
                split,
                refusals.describe_refusals(),
            )
        if len(tasks) < self._settings.task_num:
            logger.warning(
                "only {} of {} {} tasks were written; add documents or examples, raise temperature or "
                "similarity_threshold",
                len(tasks), self._settings.task_num, split,
            )  # fmt: skip


def _make_task(split: TaskSplit, index: int, written_task: WrittenTask, passage: Passage | None) -> Task:
    """Return a written task as `Task`, with its answer, passage and file name in the metadata."""
    answer = {"answer": written_task.answer} if written_task.answer else {}
    passage_fields = {"source": passage.source, "related_doc": passage.text} if passage else {}
    return Task(
        main_query=written_task.query, task_id=f"generated-{split}-{index}", metadata={**answer, **passage_fields}
    )


def _name_round(split: TaskSplit, turn: int) -> str:
    """Return the name of a round of requests, for messages."""
    return f"writing {split} tasks" + (f" (round {turn + 1} of at most {ROUNDS})" if turn else "")


def _answer_text(answer: Any) -> str:
    """Return an answer as text; "" for None."""
    return "" if answer is None else str(answer)


def _get_question(task: Task) -> str:
    """Return the task's query, or the text of its last message."""
    return task.main_query if not task.init_messages else extract_text(task.init_messages[-1])


async def _gather_all(requests: Sequence[Coroutine[Any, Any, list[WrittenTask]]]) -> list[list[WrittenTask]]:
    """Return the results in order. The first failure is raised after running requests have finished and been stored."""
    results = await asyncio.gather(*requests, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
