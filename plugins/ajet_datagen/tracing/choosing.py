"""Which traces are taken, and into which split each goes.

Invariant: a question is in one split only, with everything that is asked alike; which one depends on the seed and the
questions and on nothing else. What is left out is counted by its reason.
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


def select_traces(traces: Sequence[AgentTrace], settings: Tracing, left: Counter[str]) -> list[AgentTrace]:
    """The traces that the settings want."""
    found = []
    for trace in traces:
        why = _find_exclusion(trace, settings)
        if why:
            left[why] += 1
        else:
            found.append(trace)
    return found


def split_traces(
    traces: Sequence[AgentTrace], settings: Tracing, seed: int, left: Counter[str]
) -> Mapping[TaskSplit, list[AgentTrace]]:
    """Split by question: all that are asked alike go together, and what is trained on and is like a held-out one
    nevertheless is left out. Neither side is empty where there are two questions. What a longer conversation begins
    with is not held out, for that conversation has its answer."""
    questions = list(dict.fromkeys(question_key(trace) for trace in traces))
    differ = settings.numbers == "differ"
    groups = _group_questions(questions, settings.similarity_threshold, differ)
    names = sorted(set(groups.values()), key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    count = round(len(names) * settings.validation_share)
    if settings.validation_share > 0 and len(names) > 1:
        count = min(max(count, 1), len(names) - 1)
    begun = _find_continued_groups(traces, groups)
    held_out = set([name for name in names if name not in begun][:count])
    found: dict[TaskSplit, list[AgentTrace]] = {"train": [], "validation": []}
    for trace in traces:
        found["validation" if groups[question_key(trace)] in held_out else "train"].append(trace)
    if settings.similarity_threshold < 1 and found["validation"]:
        here, there = ([question_key(trace) for trace in found[side]] for side in ("train", "validation"))
        numbers = index_numbers([*here, *there]) if differ else None
        places = select_unlike(
            count_letter_runs(here), count_letter_runs(there), settings.similarity_threshold, numbers
        )
        left["too like a held-out one"] += len(found["train"]) - len(places)
        found["train"] = [found["train"][at] for at in places]
    return found


def select_best(traces: Sequence[AgentTrace], left: Counter[str]) -> list[AgentTrace]:
    """One trace of each question: the best one, the latest of equals."""
    best: dict[str, AgentTrace] = {}
    for trace in traces:
        name = question_key(trace)
        if name in best:
            left["asked again"] += 1
        if name not in best or _rank_trace(trace) >= _rank_trace(best[name]):
            best[name] = trace
    return list(best.values())


def question_key(trace: AgentTrace) -> str:
    """The letters by which two questions are the same: theirs, and those of what was said before them."""
    return _normalize_questions(_list_questions(trace))


def _list_questions(trace: AgentTrace) -> list[str]:
    return [str(each.get("content")) for each in trace.messages if each.get("role") == "user"]


def _normalize_questions(questions: Sequence[str]) -> str:
    return re.sub(r"\s+", " ", "\n".join(questions).casefold()).strip()


def _find_continued_groups(traces: Sequence[AgentTrace], groups: Mapping[str, str]) -> set[str]:
    """Groups with a question that a conversation of another group goes on from."""
    found = set()
    for trace in traces:
        questions = _list_questions(trace)
        earlier = {groups.get(_normalize_questions(questions[:count])) for count in range(1, len(questions))}
        found |= {name for name in earlier if name is not None and name != groups[_normalize_questions(questions)]}
    return found


def _group_questions(questions: Sequence[str], threshold: float, differ: bool) -> dict[str, str]:
    """Each question's group, named by its first one. `differ`: other numbers make another question."""
    if threshold >= 1 or len(questions) < 2:
        return {question: question for question in questions}
    vectors, numbers = count_letter_runs(questions), index_numbers(questions) if differ else None
    firsts = select_distinct(SimilarityMeasure(vectors, threshold), numbers=numbers)
    cosines = vectors @ vectors[firsts].T
    if numbers is not None:
        cosines[~can_be_duplicates(numbers[:, None], numbers[None, firsts])] = -1
    nearest = cosines.argmax(axis=1)
    return {question: questions[firsts[int(at)]] for question, at in zip(questions, nearest, strict=True)}


def _rank_trace(trace: AgentTrace) -> tuple[bool, float]:
    score = trace.rating.score
    return trace.rating.corrected is not None, -1.0 if score is None else score


def _find_exclusion(trace: AgentTrace, settings: Tracing) -> str:
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
