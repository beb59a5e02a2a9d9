"""Selects traces by rating, and splits them into training and validation.

Invariant: a question and its duplicates are in one split. The split depends only on the seed and the questions. Dropped
traces are counted by reason.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ajet.task_reader.contract import TaskSplit
from ajet_datagen.alike import (
    SimilarityMeasure,
    can_be_duplicates,
    count_letter_runs,
    index_numbers,
    select_distinct,
    select_unlike,
)
from ajet_datagen.tracing.trace import AgentTrace

if TYPE_CHECKING:
    from ajet_datagen.config import Tracing


def select_traces(traces: Sequence[AgentTrace], settings: Tracing, drop_counts: Counter[str]) -> list[AgentTrace]:
    """Return the traces that the settings admit, and count the others by reason in `drop_counts`."""
    selected = []
    for trace in traces:
        exclusion = _find_exclusion(trace, settings)
        if exclusion:
            drop_counts[exclusion] += 1
        else:
            selected.append(trace)
    return selected


def split_traces(
    traces: Sequence[AgentTrace], settings: Tracing, seed: int, drop_counts: Counter[str]
) -> Mapping[TaskSplit, list[AgentTrace]]:
    """Split traces by question, with duplicates in the same split.

    Training traces similar to held-out ones are dropped. With at least two questions no split is empty. A question that
    begins a longer conversation is not held out, because that conversation contains its answer.

    Args:
        drop_counts: counts dropped traces by reason.
    """
    questions = list(dict.fromkeys(question_key(trace) for trace in traces))
    differ = settings.numbers == "differ"
    groups = _group_questions(questions, settings.similarity_threshold, differ)
    # Sorting by digest gives a random order that depends only on the seed and the questions.
    group_names = sorted(set(groups.values()), key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    held_out_count = round(len(group_names) * settings.validation_share)
    if settings.validation_share > 0 and len(group_names) > 1:
        held_out_count = min(max(held_out_count, 1), len(group_names) - 1)
    continued = _find_continued_groups(traces, groups)
    held_out = set([name for name in group_names if name not in continued][:held_out_count])
    splits: dict[TaskSplit, list[AgentTrace]] = {"train": [], "validation": []}
    for trace in traces:
        splits["validation" if groups[question_key(trace)] in held_out else "train"].append(trace)
    if settings.similarity_threshold < 1 and splits["validation"]:
        train_questions, held_out_questions = (
            [question_key(trace) for trace in splits[split]] for split in ("train", "validation")
        )
        numbers = index_numbers([*train_questions, *held_out_questions]) if differ else None
        unlike_indexes = select_unlike(
            count_letter_runs(train_questions),
            count_letter_runs(held_out_questions),
            settings.similarity_threshold,
            numbers,
        )
        drop_counts["too similar to a held-out question"] += len(splits["train"]) - len(unlike_indexes)
        splits["train"] = [splits["train"][index] for index in unlike_indexes]
    return splits


def select_best(traces: Sequence[AgentTrace], drop_counts: Counter[str]) -> list[AgentTrace]:
    """Return the best trace of each question, the latest among equals; others are counted in `drop_counts`."""
    best: dict[str, AgentTrace] = {}
    for trace in traces:
        name = question_key(trace)
        if name in best:
            drop_counts["asked again"] += 1
        if name not in best or _rank_trace(trace) >= _rank_trace(best[name]):
            best[name] = trace
    return list(best.values())


def question_key(trace: AgentTrace) -> str:
    """Return the normalised text of all user messages, equal for equal questions."""
    return _normalize_questions(_list_questions(trace))


def _list_questions(trace: AgentTrace) -> list[str]:
    """Return the contents of the user messages of a trace."""
    return [str(message.get("content")) for message in trace.messages if message.get("role") == "user"]


def _normalize_questions(questions: Sequence[str]) -> str:
    """Return questions as one text in lower case with single spaces."""
    return re.sub(r"\s+", " ", "\n".join(questions).casefold()).strip()


def _find_continued_groups(traces: Sequence[AgentTrace], groups: Mapping[str, str]) -> set[str]:
    """Return the groups of questions that a conversation of another group continues."""
    continued = set()
    for trace in traces:
        questions = _list_questions(trace)
        earlier = {groups.get(_normalize_questions(questions[:count])) for count in range(1, len(questions))}
        continued |= {name for name in earlier if name is not None and name != groups[_normalize_questions(questions)]}
    return continued


def _group_questions(questions: Sequence[str], threshold: float, differ: bool) -> dict[str, str]:
    """Map each question to the first question of its group of duplicates.

    Args:
        threshold: similarity from which two questions are duplicates.
        differ: True if different numbers make different questions.
    """
    if threshold >= 1 or len(questions) < 2:
        return {question: question for question in questions}
    vectors, numbers = count_letter_runs(questions), index_numbers(questions) if differ else None
    firsts = select_distinct(SimilarityMeasure(vectors, threshold), numbers=numbers)
    cosines = vectors @ vectors[firsts].T
    if numbers is not None:
        cosines[~can_be_duplicates(numbers[:, None], numbers[None, firsts])] = -1
    nearest = cosines.argmax(axis=1)
    return {question: questions[firsts[int(index)]] for question, index in zip(questions, nearest, strict=True)}


def _rank_trace(trace: AgentTrace) -> tuple[bool, float]:
    """Return the sort key of a trace: corrected ones are best, then by score; unrated ones are last."""
    score = trace.rating.score
    return trace.rating.corrected is not None, -1.0 if score is None else score


def _find_exclusion(trace: AgentTrace, settings: Tracing) -> str:
    """Return why a trace is not used as a task, or "" if it is used."""
    rating = trace.rating
    rated = rating.score is not None or rating.corrected is not None
    if not trace.question.strip():
        return "no question"
    if settings.agents and trace.agent not in settings.agents:
        return "another agent"
    if settings.models and trace.model not in settings.models:
        return "another model"
    if settings.only != "any" and not rated:
        return "not rated"
    if settings.only == "liked" and rating.corrected is None and (rating.score or 0.0) < settings.liked_from:
        return "not liked"
    if settings.only == "corrected" and rating.corrected is None:
        return "not corrected"
    if settings.longest is not None and len(question_key(trace)) > settings.longest:
        return "too long"
    return ""
