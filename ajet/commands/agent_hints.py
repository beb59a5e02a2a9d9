"""Hints of a debug run on likely mistakes in the user's agent or judge.

An agent may never send the task's question, send the task's complete row with the answer, or share messages between
attempts. A judge may compare values of different types. Invariant: a hint follows from the messages sent in an episode,
or from code whose values an episode shows. A comparison is reported only if the types of both sides are known.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.commands.episode_panel import OwnFrame
from ajet.config.plugins import list_packages
from ajet.config.references import resolve_reference
from ajet.config.schema.choices import is_reference
from ajet.record.console import counted
from ajet.schema.episode import Episode
from ajet.schema.task import extract_text

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.workflow import Workflow


_FIELD = "main_query"


def list_hints(experiment: Experiment, episodes: Sequence[Episode], workflow: type[Workflow] | None) -> list[str]:
    """Return hints on likely mistakes in the user's agent or judge, from the episodes of a debug run.

    Args:
        workflow: The agent's class, if known.
    """
    hints = [
        hint_on_printed_task(episodes),
        hint_on_missing_question(episodes, workflow) if workflow is not None else "",
        hint_on_shared_messages(episodes, workflow),
    ]
    scored_episode = next((episode for episode in episodes if episode.scored), None)
    if scored_episode is not None:
        hints += hint_on_comparisons(experiment, scored_episode, workflow)
    return [hint for hint in hints if hint]


def hint_on_missing_question(episodes: Sequence[Episode], workflow: type[object]) -> str:
    """Return a hint if episodes did not send the task's question, because the agent reads an empty `main_query`.

    "" if each question was sent.
    """
    unasked = [episode for episode in episodes if is_question_missing(episode)]
    if not unasked:
        return ""
    task = unasked[0].task
    cure = (
        "the question is in `task.init_messages`: pass `messages=task.init_messages` to the model, or set "
        "ajet.task_reader.columns.main_query to the column that contains the question"
        if task.init_messages
        else f"the row's columns are in `task.metadata` ({', '.join(task.metadata) or 'none'})"
    )
    location = _find_field_use(workflow)
    location_text = f" (read at {location})" if location else ""
    count_text = f"{len(unasked)} of {counted(len(episodes), 'episode')}"
    return f"{count_text} did not send the task's question: `task.{_FIELD}` is empty{location_text}; {cure}"


def hint_on_printed_task(episodes: Sequence[Episode]) -> str:
    """Return a hint if a prompt contains the task's complete row, and so its answer, else ""."""
    printing = [episode for episode in episodes if _is_printed(episode)]
    if not printing:
        return ""
    return (
        f"{len(printing)} of {counted(len(episodes), 'episode')} put the complete task into a prompt, including "
        f"its metadata, which contain the answer: write `task.{_FIELD}` to send the question only"
    )


def _is_printed(episode: Episode) -> bool:
    """Return True if a request contains a task formatted as text, as by `f"{task}"`."""
    printed_start = f"{_FIELD}={episode.task.main_query!r}"
    message_indices = {index for call in episode.calls for index in call.messages}
    texts = [extract_text(episode.messages[index]) for index in message_indices]
    return any(printed_start in text and "init_messages=[" in text for text in texts)


def is_question_missing(episode: Episode) -> bool:
    """Return True if the task has no `main_query`, and no request contains the task's other questions either.

    False for tasks of an environment, which asks the questions itself.
    """
    task = episode.task
    if task.main_query.strip() or task.env_type != "no_env" or not episode.calls:
        return False
    sent_messages = [episode.messages[index] for call in episode.calls for index in call.messages]
    sent_texts = [_normalize_space(extract_text(message)) for message in sent_messages]
    if not task.init_messages:
        questions_sent = [
            text for message, text in zip(sent_messages, sent_texts, strict=True) if message.get("role") == "user"
        ]
        return not any(questions_sent)
    questions = [
        _normalize_space(extract_text(message)) for message in task.init_messages if message.get("role") == "user"
    ]
    questions = [question for question in questions if question]
    return bool(questions) and not any(question in text for question in questions for text in sent_texts)


def find_source_file(workflow: type[object]) -> Path:
    """Return the file that defines the workflow, or an empty path without one, as in a notebook."""
    return Path(getattr(sys.modules.get(workflow.__module__), "__file__", None) or "")


def _is_shipped(workflow: type[object]) -> bool:
    """Return True if the workflow comes with ajet, so that hints on its code would not help the user."""
    return workflow.__module__.partition(".")[0] in list_packages()


def _normalize_space(text: str) -> str:
    return " ".join(text.split())


def _find_field_use(workflow: type[object]) -> str:
    """Return file:line of the first line that reads `main_query` in the file of the user's workflow, or ""."""
    file = find_source_file(workflow)
    if not file.is_file() or _is_shipped(workflow):
        return ""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    line_number = next((number for number, line in enumerate(lines, 1) if f".{_FIELD}" in line), None)
    return "" if line_number is None else OwnFrame(str(file), line_number, "", "").place


MIN_QUESTION_CHARS = 8
"""Fewest characters of a question unlikely to occur by chance."""


def hint_on_shared_messages(episodes: Sequence[Episode], workflow: type[object] | None) -> str:
    """Return a hint if a request contains the question of another attempt, else "".

    It contains another task's question, or its own twice. A question that the task itself contains, for example as a
    worked example, does not count.
    """
    prompts = [_remove_question(episode) for episode in episodes if episode.calls]
    # Equal prompts apart from the question are a fixed text, which may quote a question.
    if all(prompt == prompts[0] for prompt in prompts):
        return ""
    questions = {episode.task.main_query.strip() for episode in episodes}
    questions = {question for question in questions if len(question) >= MIN_QUESTION_CHARS}
    sharing = [episode for episode in episodes if _has_foreign_question(episode, questions)]
    if not sharing:
        return ""
    file = find_source_file(workflow).name if workflow is not None else ""
    return (
        f"{counted(len(sharing), 'episode')} sent the question of another attempt, because attempts share a list "
        f"of messages{(f' ({file})' if file else '')}; create the list inside the agent, once per attempt"
    )


def _has_foreign_question(episode: Episode, questions: set[str]) -> bool:
    """Return True if the first request contains a question of another attempt, or its own question twice.

    Args:
        questions: The questions of all episodes.
    """
    if not episode.calls:
        return False
    sent_texts, own_question = _first_request(episode), episode.task.main_query.strip()
    if len(own_question) >= MIN_QUESTION_CHARS and sent_texts.count(own_question) > 1:
        return True
    return any(question in sent_texts and question not in episode.task.model_dump_json() for question in questions)


def _first_request(episode: Episode) -> list[str]:
    """Return the texts of the messages in the episode's first request."""
    return [extract_text(episode.messages[index]).strip() for index in episode.calls[0].messages]


def _remove_question(episode: Episode) -> list[str]:
    """Return the texts of the first request without one occurrence of the task's question."""
    sent_texts, own_question = _first_request(episode), episode.task.main_query.strip()
    if own_question in sent_texts:
        sent_texts.remove(own_question)
    return sent_texts


_KINDS_OF_CALLS = {
    "str": "text",
    "repr": "text",
    **dict.fromkeys(("int", "float", "round", "abs", "len", "sum"), "a number"),
}
_KINDS_OF_VALUES: Mapping[type, str] = {
    **dict.fromkeys((bool, int, float), "a number"), str: "text", list: "a list", dict: "an object"
}  # fmt: skip
_TEXT_METHODS = frozenset(
    ("strip", "lstrip", "rstrip", "lower", "upper", "casefold", "title", "replace", "removeprefix", "removesuffix")
)
_TEXT_ATTRIBUTES = frozenset({"content", "output_text", "main_query"})
"""Attributes of a reply and of a task with text values."""
_KINDS_OF_ROLES = {
    "task": 'a task; its columns are in `metadata["…"]`',
    "output": 'an output; its answer is in `metadata["final_answer"]`',
}
_MAX_ASSIGNMENTS = 8


def hint_on_comparisons(experiment: Experiment, episode: Episode, workflow: type[Workflow] | None = None) -> list[str]:
    """Return a hint for each `==` or `!=` in the user's judge or agent whose sides have different types.

    A number compared with text is never equal, for example. The types follow from the code and the episode's values.
    """
    hints: list[str] = []
    judge = experiment.ajet.task_judge.judge_protocol
    if judge is not None and is_reference(judge):
        judge_code = resolve_reference(judge, base=experiment.base)
        function = getattr(judge_code, "compute_reward", None) if isinstance(judge_code, type) else judge_code
        if callable(function):
            hints += _find_comparison_hints(function, isinstance(judge_code, type), ("task", "output"), episode)
    if workflow is not None and not _is_shipped(workflow):
        function = getattr(workflow, "function", None)
        hints += _find_comparison_hints(function or workflow.execute, function is None, ("task", "tuner"), episode)
    return hints


def _find_comparison_hints(
    function: Callable[..., Any], method: bool, roles: tuple[str, str], episode: Episode
) -> list[str]:
    """Return a hint for each comparison of different types in a function of the user.

    Args:
        method: True if the first parameter is `self`.
        roles: What the parameters stand for: "task" and "output" or "tuner".
        episode: An episode, whose values have the types of the tasks' columns.
    """
    code = inspect.unwrap(function)
    try:
        lines, first_line = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # the source is in no file, or is a lambda within a line
        return []
    body = tree.body[0]
    if not isinstance(body, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    parameters = [argument.arg for argument in (*body.args.posonlyargs, *body.args.args)][method:]
    values = {"task": episode.task.metadata, "output": episode.metadata}
    finder = _KindFinder(dict(zip(parameters, roles, strict=False)), _find_assignments(body), values)
    hints = []
    for left, right, line in _find_comparisons(body):
        left_kind, right_kind = finder.find_kind(left), finder.find_kind(right)
        if left_kind is not None and right_kind is not None and left_kind.kind != right_kind.kind:
            cure = "Convert one of them, as in str(…) or float(…)"
            if "\\boxed" in f"{left_kind} {right_kind}":
                cure = "Extract the number from \\boxed{…} first, then convert it, as in float(…)"
            location = OwnFrame(code.__code__.co_filename, first_line + line - 1, "", "").place
            hints.append(
                f"{location} compares `{ast.unparse(left)}` ({left_kind}) with `{ast.unparse(right)}` ({right_kind}): "
                f"they are never equal. {cure}"
            )
    return hints


def _find_comparisons(body: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, int]]:
    """Yield (left, right, line) of each == and != between expressions that are not constants.

    A comparison with a constant may be a guard for other rows.
    """
    for node in ast.walk(body):
        if isinstance(node, ast.Compare):
            left = node.left
            for operator, right in zip(node.ops, node.comparators, strict=True):
                has_constant = isinstance(left, ast.Constant) or isinstance(right, ast.Constant)
                if isinstance(operator, ast.Eq | ast.NotEq) and not has_constant:
                    yield left, right, node.lineno
                left = right


def _find_assignments(body: ast.AST) -> dict[str, ast.expr]:
    """Return the assigned expression of each name that is assigned exactly once."""
    values: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(body):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            values.setdefault(node.id, []).append(None)
    for node in ast.walk(body):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id].append(node.value)
    return {name: assigned[1] for name, assigned in values.items() if len(assigned) == 2 and assigned[1] is not None}


@dataclass(frozen=True)
class _ComparedSide:
    """The type of one side of a comparison, in words, and its value in the episode, or "" if unknown."""

    kind: str
    shown: str = ""

    def __str__(self) -> str:
        return f"{self.kind}, as {self.shown}" if self.shown else self.kind


@dataclass(frozen=True)
class _KindFinder:
    """Finds the types of expressions in a function, from the roles of its parameters and the values in an episode."""

    roles: Mapping[str, str]
    assigned: Mapping[str, ast.expr]
    values: Mapping[str, Mapping[str, Any]]

    def find_kind(self, side: ast.expr) -> _ComparedSide | None:
        """Return the type of one side of a comparison, or None if it is not sure."""
        side = self._resolve_name(side)
        if isinstance(side, ast.JoinedStr):
            return _ComparedSide("text")
        if isinstance(side, ast.Name):
            role = self.roles.get(side.id)
            return _ComparedSide(_KINDS_OF_ROLES[role]) if role in _KINDS_OF_ROLES else None
        if isinstance(side, ast.Attribute):
            return _ComparedSide("text") if side.attr in _TEXT_ATTRIBUTES else None
        if isinstance(side, ast.Call):
            if isinstance(side.func, ast.Name):
                return _ComparedSide(_KINDS_OF_CALLS[side.func.id]) if side.func.id in _KINDS_OF_CALLS else None
            if isinstance(side.func, ast.Attribute) and side.func.attr in _TEXT_METHODS:
                return _ComparedSide("text")
        return self._find_column_kind(side)

    def _find_column_kind(self, side: ast.expr) -> _ComparedSide | None:
        """Return the type of a column such as `task.metadata["x"]`, by its value in the episode, or None if unknown."""
        if isinstance(side, ast.Subscript):
            owner, key = side.value, side.slice
        elif (
            isinstance(side, ast.Call)
            and isinstance(side.func, ast.Attribute)
            and side.func.attr == "get"
            and side.args
        ):
            owner, key = side.func.value, side.args[0]
        else:
            return None
        owner = self._resolve_name(owner)
        if not (isinstance(owner, ast.Attribute) and owner.attr == "metadata" and isinstance(key, ast.Constant)):
            return None
        root: ast.expr = owner
        while isinstance(root, ast.Attribute):
            root = self._resolve_name(root.value)
        role = self.roles.get(root.id) if isinstance(root, ast.Name) else None
        value = self.values.get(role or "", {}).get(str(key.value))
        kind = _KINDS_OF_VALUES.get(type(value))
        return None if kind is None else _ComparedSide(kind, f"{value!r:.40}")

    def _resolve_name(self, side: ast.expr) -> ast.expr:
        """Return the expression behind a name that is assigned once, through several assignments if needed."""
        for _ in range(_MAX_ASSIGNMENTS):
            if not (isinstance(side, ast.Name) and side.id in self.assigned):
                break
            side = self.assigned[side.id]
        return side
