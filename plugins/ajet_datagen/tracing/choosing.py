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
from ajet_datagen.alike import Measure, apart_from, by_letters, first_of_each, may_be_alike, numbers_of
from ajet_datagen.tracing.trace import Trace

if TYPE_CHECKING:
    from ajet_datagen.config import Tracing


def taken(traces: Sequence[Trace], settings: Tracing, left: Counter[str]) -> list[Trace]:
    """The traces that the settings want."""
    found = []
    for trace in traces:
        why = _why_not(trace, settings)
        if why:
            left[why] += 1
        else:
            found.append(trace)
    return found


def split(traces: Sequence[Trace], settings: Tracing, seed: int, left: Counter[str]) -> Mapping[TaskSplit, list[Trace]]:
    """Split by question: all that are asked alike go together, and what is trained on and is like a held-out one
    nevertheless is left out. Neither side is empty where there are two questions. What a longer conversation begins
    with is not held out, for that conversation has its answer."""
    questions = list(dict.fromkeys(asked(trace) for trace in traces))
    differ = settings.numbers == "differ"
    groups = _groups(questions, settings.similarity_threshold, differ)
    names = sorted(set(groups.values()), key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    count = round(len(names) * settings.validation_share)
    if settings.validation_share > 0 and len(names) > 1:
        count = min(max(count, 1), len(names) - 1)
    begun = _begun(traces, groups)
    held_out = set([name for name in names if name not in begun][:count])
    found: dict[TaskSplit, list[Trace]] = {"train": [], "validation": []}
    for trace in traces:
        found["validation" if groups[asked(trace)] in held_out else "train"].append(trace)
    if settings.similarity_threshold < 1 and found["validation"]:
        here, there = ([asked(trace) for trace in found[side]] for side in ("train", "validation"))
        numbers = numbers_of([*here, *there]) if differ else None
        apart = apart_from(by_letters(here), by_letters(there), settings.similarity_threshold, numbers)
        left["too like a held-out one"] += len(found["train"]) - len(apart)
        found["train"] = [found["train"][at] for at in apart]
    return found


def best_of_each(traces: Sequence[Trace], left: Counter[str]) -> list[Trace]:
    """One trace of each question: the best one, the latest of equals."""
    best: dict[str, Trace] = {}
    for trace in traces:
        name = asked(trace)
        if name in best:
            left["asked again"] += 1
        if name not in best or _rank(trace) >= _rank(best[name]):
            best[name] = trace
    return list(best.values())


def asked(trace: Trace) -> str:
    """The letters by which two questions are the same: theirs, and those of what was said before them."""
    return _settled(_said(trace))


def _said(trace: Trace) -> list[str]:
    return [str(each.get("content")) for each in trace.messages if each.get("role") == "user"]


def _settled(said: Sequence[str]) -> str:
    return re.sub(r"\s+", " ", "\n".join(said).casefold()).strip()


def _begun(traces: Sequence[Trace], groups: Mapping[str, str]) -> set[str]:
    """Groups with a question that a conversation of another group goes on from."""
    found = set()
    for trace in traces:
        said = _said(trace)
        earlier = {groups.get(_settled(said[:count])) for count in range(1, len(said))}
        found |= {name for name in earlier if name is not None and name != groups[_settled(said)]}
    return found


def _groups(questions: Sequence[str], threshold: float, differ: bool) -> dict[str, str]:
    """Each question's group, named by its first one. `differ`: other numbers make another question."""
    if threshold >= 1 or len(questions) < 2:
        return {question: question for question in questions}
    vectors, numbers = by_letters(questions), numbers_of(questions) if differ else None
    firsts = first_of_each(Measure(vectors, threshold), numbers=numbers)
    cosines = vectors @ vectors[firsts].T
    if numbers is not None:
        cosines[~may_be_alike(numbers[:, None], numbers[None, firsts])] = -1
    nearest = cosines.argmax(axis=1)
    return {question: questions[firsts[int(at)]] for question, at in zip(questions, nearest, strict=True)}


def _rank(trace: Trace) -> tuple[bool, float]:
    worth = trace.rating.worth
    return trace.rating.corrected is not None, -1.0 if worth is None else worth


def _why_not(trace: Trace, settings: Tracing) -> str:
    rating = trace.rating
    rated = rating.worth is not None or rating.corrected is not None
    if not trace.question.strip():
        return "no question"
    if settings.agents and trace.agent not in settings.agents:
        return "another agent"
    if settings.models and trace.model not in settings.models:
        return "another model"
    if settings.only != "any" and not rated:
        return "not rated"
    if settings.only == "liked" and rating.corrected is None and (rating.worth or 0.0) < settings.liked_from:
        return "not liked"
    if settings.only == "corrected" and rating.corrected is None:
        return "not corrected"
    if settings.longest is not None and len(asked(trace)) > settings.longest:
        return "too long"
    return ""
