"""Compares model calls, timelines and packed rows of an episode with each other.

A timeline is one token sequence of an episode; its leaf is its last call. Invariant: each check compares two records of
the same fact (ids of calls and timelines, masks and replies, targets and masks), so that a shifted, dropped, doubled or
uncounted token is found. Each `prove_*` function returns the wrong tokens, and an empty list if there are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, get_args

import numpy as np

from ajet.context_tracker.packing import PackedRow, Tree
from ajet.schema.batch import Sample
from ajet.schema.call import Call, FinishReason, Ids, PromptReader
from ajet.schema.episode import Timeline
from ajet_proof.tokens.proof_findings import WrongToken, count_prompt_tokens, find_first_difference, get_token

SAME = 1e-3
"""Allowed nats between two records of one log-probability."""


def prove_structure(
    calls: Sequence[Call],
    messages: Sequence[dict[str, Any]],
    tools: Sequence[Any],
    lines: Sequence[Timeline],
    episode: str,
) -> list[WrongToken]:
    """Check that all referenced calls, messages and tools exist, and that arrays of a call have equal lengths."""
    missing_references = [
        _find_missing_reference(calls, call_index, call, messages, tools) for call_index, call in enumerate(calls)
    ]
    wrong_tokens = [
        WrongToken(episode, call_index, 0, problem_text)
        for call_index, problem_text in enumerate(missing_references)
        if problem_text
    ]
    if wrong_tokens:
        return wrong_tokens[:1]
    for call in calls:
        problem = _find_array_problem(call)
        if problem is not None:
            wrong_tokens.append(WrongToken(episode, call.index, count_prompt_tokens(call) + problem[0], problem[1]))
    referenced = {index for call in calls for index in (*call.messages, call.reply)}
    orphan_message = next((index for index in range(len(messages)) if index not in referenced), None)
    if orphan_message is not None:
        wrong_tokens.append(
            WrongToken(episode, len(calls), 0, f"message {orphan_message} belongs to no call: a call is missing")
        )
    for line in lines:
        call_indices = [line.leaf, *(span.call for span in line.spans)]
        absent_call = next((index for index in call_indices if not 0 <= index < len(calls)), None)
        if absent_call is not None:
            problem_text = "a timeline refers to this call, which is missing"
            wrong_tokens.append(WrongToken(episode, absent_call, min(span.start for span in line.spans), problem_text))
    return wrong_tokens


def _find_missing_reference(
    calls: Sequence[Call], call_index: int, call: Call, messages: Sequence[dict[str, Any]], tools: Sequence[Any]
) -> str | None:
    """Describe a call's reference to a missing call, message or tool list, or return None.

    Args:
        call_index: index at which the call stands in `calls`.
    """
    if call.index != call_index:
        return f"this call is missing: the record continues with call {call.index}"
    if call.parent is None and call.prefix:
        return f"it shares {call.prefix} tokens with no call"
    if call.parent is not None:
        if not 0 <= call.parent < call_index:
            return f"it shares its beginning with call {call.parent}, which is not earlier"
        parent = calls[call.parent]
        if call.prefix > count_prompt_tokens(parent) + parent.response_ids.size:
            return f"it shares {call.prefix} tokens with call {call.parent}, which has fewer"
    referenced = [*call.messages, *([call.reply] if call.reply is not None else [])]
    if any(not 0 <= index < len(messages) for index in referenced):
        return "it refers to a message that is missing"
    if call.tools is not None and not 0 <= call.tools < len(tools):
        return "it refers to a tool list that is missing"
    return None


def _find_array_problem(call: Call) -> tuple[int, str] | None:
    """Return (index in the reply, problem) if the arrays of a call's reply contradict each other, else None."""
    size = int(call.response_ids.size)
    for name in ("logprobs", "logprobs_unit"):
        values = getattr(call, name)
        if values.size != size:
            return min(values.size, size), f"{values.size} {name} for {size} tokens"
        # Log-probabilities are at most 0, up to rounding. `~(<=)` instead of `>` also finds NaN.
        bad_positions = np.flatnonzero(~(values <= 1e-3))
        if bad_positions.size:
            return int(bad_positions[0]), f"{values[bad_positions[0]]:g} is no log-probability"
    first_tokens = [run.first for run in call.versions]
    if call.terms.written:
        is_sampled = bool(first_tokens) or call.logprobs.any() or call.logprobs_unit.any()
        return (0, "a given reply has log-probabilities or versions of sampling") if is_sampled else None
    if size and (first_tokens[:1] != [0] or first_tokens != sorted(set(first_tokens)) or first_tokens[-1] >= size):
        return 0, f"no policy version is known for some of its tokens: {list(call.versions)}"
    if call.temperature == 1 and (lower_positions := np.flatnonzero(call.logprobs < call.logprobs_unit - 1e-3)).size:
        position = int(lower_positions[0])  # truncation by top_p or top_k can only raise it
        return (
            position,
            f"log-probability {call.logprobs[position]:g} does not go with {call.logprobs_unit[position]:g} at "
            "temperature 1",
        )
    return None


def prove_versions(calls: Sequence[Call], newest: int | None, episode: str) -> list[WrongToken]:
    """Check that the policy versions of each reply form valid ranges, and that none was too new.

    Args:
        newest: Highest policy version that can have sampled the episode, or None if unknown.
    """
    wrong_tokens = []
    for call in calls:
        for run in call.versions:
            position = count_prompt_tokens(call) + run.first
            if not 0 <= run.low <= run.high:
                problem = f"policy versions {run.low} to {run.high} are not a range"
                wrong_tokens.append(WrongToken(episode, call.index, position, problem))
                break
            if newest is not None and run.high > newest:
                problem = "its policy version was not there yet when it was sampled"
                wrong_tokens.append(WrongToken(episode, call.index, position, problem, newest, run.high))
                break
    return wrong_tokens


def is_untruncated(call: Call) -> bool:
    """True if the call was sampled without top_p, top_k and format constraints."""
    return not call.terms.constrained and call.terms.top_p >= 1 and call.terms.top_k <= 0


def prove_untruncated(calls: Sequence[Call], episode: str) -> list[WrongToken]:
    """Check that both log-probabilities of a token are equal where they must be.

    They are the one under the sampling distribution and the one at temperature 1, which are equal for untruncated
    trained replies at temperature 1.
    """
    wrong_tokens = []
    for call in calls:
        if call.temperature != 1 or not call.trained or not is_untruncated(call):
            continue
        differing = np.flatnonzero(~(np.abs(call.logprobs - call.logprobs_unit) <= SAME))
        if differing.size:
            position = int(differing[0])
            problem = "the log-probability sampled from is not the one at temperature 1, from which it was sampled"
            expected, actual = float(call.logprobs_unit[position]), float(call.logprobs[position])
            wrong_tokens.append(
                WrongToken(episode, call.index, count_prompt_tokens(call) + position, problem, expected, actual)
            )
    return wrong_tokens


_ENDS = ("stop", "tool_calls")
"""Finish reason of a reply without and with tool calls."""


def prove_endings(
    calls: Sequence[Call],
    messages: Sequence[dict[str, Any]],
    temperature: float | None,
    end_ids: Collection[int],
    episode: str,
) -> list[WrongToken]:
    """Check the finish reason of each call, and the temperature of trained calls.

    Args:
        temperature: Temperature of trained calls, or None if unknown.
        end_ids: Token ids after which no reply continues, so a reply that ends with one was not cut off.
    """
    wrong_tokens = []
    for call in calls:
        reply = messages[call.reply] if call.reply is not None else {}
        problem = None
        if call.finish not in get_args(FinishReason):
            problem = f"{call.finish!r} is not a finish reason"
        elif call.finish in _ENDS and call.reply is not None and call.finish != _ENDS[bool(reply.get("tool_calls"))]:
            problem = f"its reply does not finish with {call.finish!r}"
        elif call.is_delivered and call.reply is None and call.response_ids.size:
            problem = f"it finished with {call.finish!r} and its reply is missing"
        elif call.finish == "length" and _ends_itself(call, end_ids):
            problem = "its reply ends normally but is marked as cut off"
        if problem is None and call.error is not None and call.is_delivered:
            problem = "a finished call has an error"
        is_trained_sample = call.trained and not call.terms.written
        if problem is None and temperature is not None and is_trained_sample and call.temperature != temperature:
            problem = f"it is trained and was sampled at temperature {call.temperature:g}, not {temperature:g}"
        if problem is not None:
            wrong_tokens.append(WrongToken(episode, call.index, count_prompt_tokens(call), problem))
    return wrong_tokens


def _ends_itself(call: Call, end_ids: Collection[int]) -> bool:
    """True if a sampled reply ended at a stop string or an end token, not by its length."""
    ends = bool(call.response_ids.size) and int(call.response_ids[-1]) in end_ids
    return not call.terms.written and (ends or call.stop is not None)


def prove_timelines(calls: Sequence[Call], lines: Sequence[Timeline], episode: str) -> list[WrongToken]:
    """Check that each timeline has the tokens of its calls, and that no reply is trained twice.

    Mask, log-probabilities and policy versions must be set exactly at replies that were sampled in this context.
    """
    wrong_tokens: list[WrongToken] = []
    trained: set[int] = set()
    for line in lines:
        problem = next(_find_line_problems(calls, line, trained), None)
        if problem is not None:
            wrong_tokens.append(WrongToken(episode, *problem))
    return wrong_tokens


LineProblem = tuple[int, int, str, float | int | None, float | int | None]
"""(call, index in the timeline, problem, expected value, found value)."""


def _find_line_problems(calls: Sequence[Call], line: Timeline, trained: set[int]) -> Iterator[LineProblem]:
    """Yield each difference between a recorded timeline and the calls from which it was built."""
    size = line.ids.size
    reader = PromptReader(calls)
    full_ids = reader.full_ids(line.leaf)
    position = find_first_difference(line.ids, full_ids[:size])
    if position is not None:
        problem = "the timeline's ids differ from its calls' ids"
        yield (
            _find_owning_call(line, position),
            position,
            problem,
            get_token(full_ids, position),
            get_token(line.ids, position),
        )
    mask = np.zeros(size, np.bool_)
    logprobs, unit = np.zeros(size, np.float32), np.zeros(size, np.float32)
    versions = np.full(size, -1, np.int32)
    for span in line.spans:
        call = calls[span.call]
        begin, count = count_prompt_tokens(call), span.stop - span.start
        if span.start != begin or not 0 < count <= call.response_ids.size or span.stop > size:
            yield span.call, span.start, "the timeline has this reply at another place", begin, span.start
            return
        position = find_first_difference(full_ids[: span.stop], reader.full_ids(span.call)[: span.stop])
        if position is not None:
            call_ids = reader.full_ids(span.call)
            problem = "the timeline trains this reply in a context that the model did not see"
            yield span.call, position, problem, get_token(call_ids, position), get_token(full_ids, position)
        if call.terms.adapter != line.adapter:
            problem = f"a timeline of adapter {line.adapter} trains what {call.terms.adapter} sampled"
            yield span.call, span.start, problem, None, None
        if span.call in trained:
            yield span.call, span.start, "this reply is trained in two timelines", None, None
        trained.add(span.call)
        mask[span.start : span.stop] = True
        logprobs[span.start : span.stop] = call.logprobs[:count]
        unit[span.start : span.stop] = call.logprobs_unit[:count]
        for run in call.versions:
            versions[span.start + run.first : span.stop] = run.low
    for name, derived in (("mask", mask), ("logprobs", logprobs), ("logprobs_unit", unit), ("versions", versions)):
        actual = getattr(line, name)
        position = find_first_difference(actual, derived)
        if position is not None:
            problem = f"the timeline's {name} differs from its calls"
            expected, recorded = (
                float(values[position]) if position < values.size else None for values in (derived, actual)
            )
            yield _find_owning_call(line, position), position, problem, expected, recorded


def _find_owning_call(line: Timeline, position: int) -> int:
    """Return the call whose reply contains a token of a timeline, or the next call if no reply contains it."""
    return next((span.call for span in line.spans if position < span.stop), line.leaf)


def prove_same(lines: Sequence[Timeline], derived: Sequence[Timeline], episode: str) -> list[WrongToken]:
    """Check that each recorded timeline equals the one built again from the calls, or its beginning if it was cut.

    Args:
        lines: recorded timelines.
        derived: timelines built from the calls.
    """
    derived_by_leaf = {line.leaf: line for line in derived}
    wrong_tokens = []
    for line in lines:
        derived_line, span_count = derived_by_leaf.get(line.leaf), len(line.spans)
        # A cut timeline has the first spans of the derived one, of which the last may be shorter.
        is_same = (
            derived_line is not None
            and 0 < span_count <= len(derived_line.spans)
            and line.spans[:-1] == derived_line.spans[: span_count - 1]
        )
        is_same = (
            is_same
            and derived_line is not None
            and (line.agent, line.target) == (derived_line.agent, derived_line.target)
        )
        if is_same and derived_line is not None:
            last_span, full_span = line.spans[-1], derived_line.spans[span_count - 1]
            is_same = last_span[:2] == full_span[:2] and (
                line.spans == derived_line.spans or line.ids.size < derived_line.ids.size
            )
        if not is_same:
            start = line.spans[0].start if line.spans else 0
            wrong_tokens.append(WrongToken(episode, line.leaf, start, "the calls do not make this timeline again"))
    return wrong_tokens


def prove_accounting(
    calls: Sequence[Call], lines: Sequence[Timeline], untrained: Counter[str], episode: str
) -> list[WrongToken]:
    """Check that sampled tokens = tokens with mask 1 + recorded untrained tokens.

    Args:
        untrained: recorded number of sampled tokens in no timeline, by reason.
    """
    sampled = sum(int(call.response_ids.size) for call in calls)
    masked = sum(line.sampled for line in lines)
    counted = sum(untrained.values())
    if sampled == masked + counted:
        return []
    calls_in_timelines = {span.call for line in lines for span in line.spans}
    free = next((call for call in calls if call.response_ids.size and call.index not in calls_in_timelines), None)
    problem = f"the calls sampled {sampled} tokens; {masked} are in timelines and {counted} counted as untrained"
    call_and_position = (
        (len(calls), 0) if free is None or sampled < masked + counted else (free.index, count_prompt_tokens(free))
    )
    return [WrongToken(episode, *call_and_position, problem)]


def prove_rows(samples: Sequence[Sample], rows: Sequence[PackedRow]) -> list[WrongToken]:
    """Check that packed rows train exactly the tokens of the samples.

    A row packs samples with common prefixes as a tree. Each sample's tokens must lie on one path of a tree, at their
    positions. Each token with mask 1 must be a target (a token to score) once, predicted from the previous token.
    """
    wrong_tokens: list[WrongToken] = []
    positions: list[list[int]] = [[] for _ in samples]
    for row in rows:
        for index in np.unique(row.targets.sample).tolist():
            target_indices = np.flatnonzero(row.targets.sample == index)
            target_indices = target_indices[np.argsort(row.targets.offset[target_indices], kind="stable")]
            problem = _find_row_problem(row, target_indices, samples[index].timeline.ids)
            if problem is None and row.adapter != (adapter := samples[index].timeline.adapter):
                problem = (
                    int(row.targets.offset[target_indices[0]]),
                    f"a row of adapter {row.adapter} trains what {adapter} sampled",
                )
            if problem is not None:
                wrong_tokens.append(_make_wrong_token(samples[index], *problem))
            positions[index] += row.targets.offset[target_indices].tolist()
    for index, sample in enumerate(samples):
        trained_positions = np.flatnonzero(sample.timeline.mask)
        position_index = find_first_difference(np.asarray(positions[index], np.int64), trained_positions)
        if position_index is not None:
            position = (
                int(trained_positions[position_index])
                if position_index < trained_positions.size
                else int(positions[index][position_index])
            )
            wrong_tokens.append(
                _make_wrong_token(sample, position, "the packed rows do not train exactly the tokens with mask 1")
            )
    return wrong_tokens


def _find_row_problem(row: PackedRow, target_indices: Any, ids: Ids) -> tuple[int, str] | None:
    """Find the first token of a sample that a packed row trains wrongly.

    Args:
        target_indices: indices into the row's targets that belong to the sample, ordered by position.
        ids: token ids of the sample's timeline, [T].

    Returns:
        (index in the timeline, problem), or None if the row is right.
    """
    source, offset, token = (
        row.targets.source[target_indices],
        row.targets.offset[target_indices],
        row.targets.token[target_indices],
    )
    tree = next((tree for tree in row.trees if tree.start <= source[-1] < tree.stop), None)
    if tree is None:
        return int(offset[-1]), "a target's source lies in no tree of its row"
    path = _find_path(tree, int(source[-1]))
    last_offset = int(offset[-1])
    position = find_first_difference(row.ids[path], ids[:last_offset])
    if position is not None:
        return position, "the packed row holds another token here"
    position = find_first_difference(row.positions[path], np.arange(last_offset, dtype=np.int32))
    if position is not None:
        return position, "the packed row gives this token another position"
    differing = np.flatnonzero((path[offset - 1] != source) | (ids[offset] != token))
    return (int(offset[differing[0]]), "the packed row predicts this token wrongly") if differing.size else None


def _find_path(tree: Tree, last: int) -> Any:
    """Return the row indices of all tokens on the path from a tree's root to the token at index `last`."""
    segments = [int(tree.segment_of[last - tree.start])]
    while tree.parents[segments[-1]] >= 0:
        segments.append(int(tree.parents[segments[-1]]))
    return tree.start + np.flatnonzero(np.isin(tree.segment_of[: last + 1 - tree.start], segments))


def _make_wrong_token(sample: Sample, position: int, problem: str) -> WrongToken:
    """Make a finding at a position of a sample's timeline, with the call that the token belongs to."""
    return WrongToken(sample.episode, _find_owning_call(sample.timeline, position), position, problem)
