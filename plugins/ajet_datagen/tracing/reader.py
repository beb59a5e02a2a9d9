"""TracingReader: the task reader `tracing`, which also writes the files of `ajet traces`.

Invariant: sources are read once, masked before selection, and split by the run's seed.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.config.references import resolve_reference
from ajet.record.console import counted
from ajet.record.files import convert_os_errors, require_folder, write_atomically
from ajet.schema.errors import TaskError
from ajet.schema.task import Task, extract_text
from ajet.task_reader.contract import TaskSplit, require_place
from ajet.task_reader.rows import row_of
from ajet_datagen.config import ReaderKeys
from ajet_datagen.tracing.choosing import question_key, select_best, select_traces, split_traces
from ajet_datagen.tracing.sources import KEY, SourceContent, read_sources
from ajet_datagen.tracing.trace import AgentTrace, Message, reply_key

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet_datagen.config import Tracing


SPLITS: tuple[TaskSplit, ...] = ("train", "validation")
NAMED = 3
"""Maximum bad rows named in a message."""


class TracingReader:
    """Reads traces, and returns tasks or writes files."""

    judge = None

    def __init__(self, experiment: Experiment) -> None:
        self._settings = ReaderKeys.of(experiment.ajet).tracing
        self._skips_bad_rows = experiment.ajet.task_reader.on_bad_row == "skip"
        self._base, self._seed = experiment.base, experiment.ajet.seed
        self._traces_by_split: Mapping[TaskSplit, list[AgentTrace]] | None = None
        self.left: Counter[str] = Counter()  # dropped traces, by reason

    def has(self, split: TaskSplit) -> bool:
        """True for training, and for validation with a `validation_share`."""
        return split == "train" or self._settings.validation_share > 0

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Return one task for each question of a split.

        Raises:
            TaskError, UserError: the traces or the masking function cannot be used.
        """
        return self._build_tasks(split, self.left)

    def traces(self, split: TaskSplit) -> Sequence[AgentTrace]:
        """Return all traces of a split. Raises TaskError, UserError."""
        if self._traces_by_split is None:
            self._traces_by_split = self._read_traces()
        return self._traces_by_split[split]

    def write(self, folder: Path) -> dict[str, int]:
        """Write tasks, rows and pairs of each split as JSON lines. Returns file name -> number of lines. Raises
        TaskError, UserError."""
        require_folder(folder, "--out")
        counts: dict[str, int] = {}
        skipped: Counter[str] = Counter()
        if not any(self.traces(side) for side in SPLITS):
            raise TaskError(
                f"All traces are dropped: {'; '.join(f'{n} {reason}' for reason, n in sorted(self.left.items()))}.",
                where=KEY,
                expected="settings of task_reader.tracing that match some replies",
                do="loosen the settings named above",
            )
        with convert_os_errors(folder, "--out"):
            folder.mkdir(parents=True, exist_ok=True)
        for side in SPLITS:
            traces = self.traces(side)
            rows_by_kind: dict[str, Iterable[Any]] = {
                "tasks": (row_of(task) for task in self._build_tasks(side, skipped)),
                "rows": build_learned_rows(traces, self._settings, skipped),
                "pairs": build_pairs(traces, skipped),
            }
            for kind, rows in rows_by_kind.items():
                lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
                counts[f"{kind}.{side}.jsonl"] = len(lines)
                with convert_os_errors(folder / f"{kind}.{side}.jsonl", "--out"):
                    write_atomically(folder / f"{kind}.{side}.jsonl", "".join(lines))
        if skipped:
            logger.info("{}", "; ".join(f"{count} {reason}" for reason, count in sorted(skipped.items())))
        return counts

    def _build_tasks(self, split: TaskSplit, drop_counts: Counter[str]) -> list[Task]:
        """Return a task for the best trace of each question; the other traces are counted in `drop_counts`."""
        return [build_task(trace, self._settings) for trace in select_best(self.traces(split), drop_counts)]

    def _read_traces(self) -> Mapping[TaskSplit, list[AgentTrace]]:
        """Read, mask, select and split the traces of all sources, and log the result.

        Raises:
            TaskError, UserError: a source, a row or the masking function cannot be used.
        """
        settings = self._settings
        content = read_sources(
            self._find_places(settings.sources, "sources"), self._find_places(settings.feedback, "feedback")
        )
        self._report_bad_rows(content)
        traces = mask_traces(content.traces, settings.mask, base=self._base)
        traces_by_split = split_traces(select_traces(traces, settings, self.left), settings, self._seed, self.left)
        self._report_result(content, traces_by_split)
        return traces_by_split

    def _find_places(self, named: str | list[str], key: str) -> list[Path]:
        """Return the existing paths of a setting.

        Args:
            named: value of the setting.
            key: "sources" or "feedback".

        Raises:
            TaskError: a path does not exist, or no source is set.
        """
        paths = [named] if isinstance(named, str) else named
        if not paths and key == "sources":
            raise TaskError(
                "No traces are configured.",
                where=KEY,
                expected="files of spans, or folders of observed runs",
                do=f"set {KEY}",
            )
        noun = "recording" if key == "sources" else "feedback"
        return [require_place(path, self._base, key=f"ajet.task_reader.tracing.{key}", what=noun) for path in paths]

    def _report_bad_rows(self, content: SourceContent) -> None:
        """Count and log unreadable rows. Raises TaskError unless `on_bad_row` skips them."""
        if not content.bad:
            return
        first_rows = "; ".join(f"{location}: {reason}" for location, reason in content.bad[:NAMED])
        if not self._skips_bad_rows:
            raise TaskError(
                f"{len(content.bad)} rows cannot be read: {first_rows}.",
                where=KEY,
                do="correct them, or set ajet.task_reader.on_bad_row=skip to skip them",
            )
        self.left["could not be read"] += len(content.bad)
        logger.warning("{} rows of traces are skipped; {}", len(content.bad), first_rows)

    def _report_result(self, content: SourceContent, sides: Mapping[TaskSplit, Sequence[AgentTrace]]) -> None:
        """Log how many replies each split has and why others are left out. Raises TaskError without any reply."""
        parts = [f"{len(content.traces)} replies in traces: {len(sides['train'])} to train on, "
                f"{len(sides['validation'])} held out"]  # fmt: skip
        parts += [f"{count} {reason}" for reason, count in sorted(self.left.items())]
        parts += [f"{content.silent} spans without messages"] if content.silent else []
        parts += [f"{counted(content.failed, 'call')} without a reply"] if content.failed else []
        parts += [f"{counted(content.loose, 'feedback row')} without a matching trace"] if content.loose else []
        logger.info("{}", "; ".join(parts))
        if not content.traces and content.failed:
            raise TaskError(
                f"There are no replies in these traces: {counted(content.failed, 'call')} failed.",
                where=KEY,
                expected="observed episodes with replies",
                do="see the failures with `ajet episodes` or `ajet view`",
            )
        if not content.traces:
            raise TaskError(
                "There are no replies in these traces.",
                where=KEY,
                expected="spans with gen_ai.input.messages and gen_ai.output.messages, or observed episodes",
                do="enable content capture in the traced agent (OpenTelemetry: "
                "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT)",
            )


# Mask personal data in traces with a function of the user.
# Invariant: the function gets every text used by later steps; ids, roles and types are unchanged.
MASK_KEY = "ajet.task_reader.tracing.mask"
NOT_TEXT = ("role", "type", "id", "tool_call_id")
"""Message fields that are never masked."""


def mask_traces(traces: Sequence[AgentTrace], reference: str | None, *, base: Path) -> list[AgentTrace]:
    """Return the traces with each text replaced by the result of the user's masking function.

    Args:
        reference: `file.py->function` of type `(str) -> str`; None keeps the texts and logs a warning.
        base: folder of the reference.

    Raises:
        UserError: the reference names no function.
        TaskError: the function raised, or returned no text.
    """
    if reference is None:
        if traces:
            logger.warning(
                "personal data in these traces is not masked; to mask it, set {} to a masking function", MASK_KEY
            )
        return list(traces)
    function = resolve_reference(reference, base=base, key=MASK_KEY)
    return [_mask_trace(trace, function) for trace in traces]


def _mask_trace(trace: AgentTrace, function: Callable[[str], str]) -> AgentTrace:
    """Return the trace with every text passed through the user's masking function, which removes personal data."""

    def mask(text: str) -> str:
        """Return the masked text. Raises TaskError if the user's function fails or returns no text."""
        try:
            masked = function(text)
        except Exception as error:  # the user's code may raise anything
            raise TaskError(
                f"The masking function failed: {type(error).__name__}: {error}", where=f"{MASK_KEY}, {trace.where}"
            ) from error
        if not isinstance(masked, str):
            raise TaskError(
                f"The masking function returned {type(masked).__name__}.",
                where=f"{MASK_KEY}, {trace.where}",
                expected="a string",
            )
        return masked

    def mask_tree(value: Any, field: str = "") -> Any:
        """Mask all texts in a nested value, except those of the fields in NOT_TEXT."""
        if isinstance(value, str):
            return value if field in NOT_TEXT else mask(value)
        if isinstance(value, Mapping):
            return {key: mask_tree(item, key) for key, item in value.items()}
        return [mask_tree(item, field) for item in value] if isinstance(value, (list, tuple)) else value

    def mask_optional(text: str | None) -> str | None:
        """Mask a text; None stays None."""
        return None if text is None else mask(text)

    rating = trace.rating
    return replace(
        trace,
        messages=tuple(mask_tree(message) for message in trace.messages),
        reply=mask_tree(trace.reply),
        tools=tuple(mask_tree(tool) for tool in trace.tools),
        session=mask(trace.session),
        rating=replace(rating, corrected=mask_optional(rating.corrected), comment=mask_optional(rating.comment)),
    )


# Convert traces to tasks, training rows (`ajet sft`) and preference pairs.
# Invariant: disliked replies are never trained on. If a reply was rated by itself, only that reply is trained; a
# corrected text replaces its reply.
WEIGHT = "weight"
"""Loss weight of an assistant message: 0 is context (docs/sft.md)."""


def build_task(trace: AgentTrace, settings: Tracing) -> Task:
    """Return the task of a trace: the messages before the reply.

    A single user message becomes the task's query. Longer conversations are in `init_messages`.
    """
    rating = trace.rating
    is_accepted = settings.answers == "any" if rating.score is None else rating.score >= settings.liked_from
    answer = rating.corrected
    if answer is None and is_accepted:
        answer = extract_text(trace.reply) or None
    metadata = {
        "answer": answer,
        "reward": rating.score,
        "corrected": True if rating.corrected is not None else None,
        "comment": rating.comment,
        "agent": trace.agent or None,
        "model": trace.model or None,
        "session": trace.session or None,
        "trace": trace.where,
        "tools": list(trace.tools) or None,
    }
    context = [dict(message) for message in _get_context(trace)]
    is_single_question = len(context) == 1 and context[0].get("role") == "user"
    return Task(
        main_query=trace.question if is_single_question else _find_last_question(context),
        init_messages=[] if is_single_question else context,
        metadata={name: value for name, value in metadata.items() if value is not None},
    )


def build_learned_rows(
    traces: Iterable[AgentTrace], settings: Tracing, drop_counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yield SFT rows (`messages`, `tools`) for replies that people liked or corrected.

    Args:
        drop_counts: counts unused traces by reason.
    """
    for trace in traces:
        score, corrected = trace.rating.score, trace.rating.corrected
        if corrected is None and (score is None or score < settings.liked_from):
            drop_counts["not used for training, because the reply is not liked"] += 1
            continue
        if corrected is None and not extract_text(trace.reply) and not trace.reply.get("tool_calls"):
            drop_counts["not used for training, because the reply is empty"] += 1
            continue
        # A rating of this reply says nothing about earlier replies, so they are context without loss.
        trains_reply_only = trace.is_rated_alone or corrected is not None
        context = [
            {**message, WEIGHT: 0} if trains_reply_only and message["role"] == "assistant" else message
            for message in trace.messages
        ]
        yield _build_row({"messages": [*context, _get_wanted_reply(trace)]}, trace.tools)


def build_pairs(traces: Iterable[AgentTrace], drop_counts: Counter[str]) -> Iterator[dict[str, Any]]:
    """Yield preference pairs (`prompt`, `chosen`, `rejected`).

    A corrected text is preferred to the reply, and the best rated reply to the worst rated reply to equal questions.

    Args:
        drop_counts: counts unused traces by reason.
    """
    traces_by_context: dict[str, list[AgentTrace]] = defaultdict(list)
    for trace in traces:
        if trace.rating.corrected is not None and trace.rating.corrected != extract_text(trace.reply):
            rows = {"prompt": list(trace.messages), "chosen": [_get_wanted_reply(trace)], "rejected": [trace.reply]}
            yield _build_row(rows, trace.tools)
        elif trace.rating.score is not None:
            traces_by_context[_context_key(trace)].append(trace)
        else:
            drop_counts["no pair, because the reply is not rated"] += 1
    for group in traces_by_context.values():
        best, worst = max(group, key=_get_score), min(group, key=_get_score)
        if _get_score(best) > _get_score(worst) and reply_key(best.reply) != reply_key(worst.reply):
            rows = {"prompt": list(best.messages), "chosen": [best.reply], "rejected": [worst.reply]}
            yield _build_row(rows, best.tools)
        else:
            drop_counts["no pair, because there is no second reply to compare with"] += len(group)


def _build_row(row: Mapping[str, Any], tools: Sequence[Message]) -> dict[str, Any]:
    """Return the row with the tools, if there are any."""
    return {**row, **({"tools": list(tools)} if tools else {})}


def _get_wanted_reply(trace: AgentTrace) -> Message:
    """Return the corrected reply, or the reply without correction."""
    corrected = trace.rating.corrected
    return trace.reply if corrected is None else {"role": "assistant", "content": corrected}


def _get_context(trace: AgentTrace) -> Sequence[Message]:
    """Return the messages up to the last user message, without the agent's own tool calls after it."""
    user_indexes = [index for index, message in enumerate(trace.messages) if message.get("role") == "user"]
    return trace.messages[: user_indexes[-1] + 1] if user_indexes else trace.messages


def _find_last_question(messages: Sequence[Message]) -> str:
    """Return the text of the last user message, or ""."""
    return next((extract_text(message) for message in reversed(messages) if message.get("role") == "user"), "")


def _context_key(trace: AgentTrace) -> str:
    """Return a key that is equal for traces with equal questions and system prompts, whose replies can be compared."""
    return (
        question_key(trace)
        + "\0"
        + "\0".join(extract_text(message) for message in trace.messages if message.get("role") == "system")
    )


def _get_score(trace: AgentTrace) -> float:
    """Return the score of a rated trace."""
    score = trace.rating.score
    assert score is not None, "only rated replies are compared"
    return score
