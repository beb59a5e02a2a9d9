"""The proof: what was captured passes, and each way of getting a token wrong is found and named."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.context_tracker import pack
from ajet.context_tracker.matching import Conversations, Match
from ajet.engine.contract import TokenChunk, TokenRequest
from ajet.schema.call import Call, full_ids
from ajet.schema.endpoint import Endpoint
from ajet_proof.tokens.proof import Proof, build_full_timelines, build_samples, compare_logprobs, prove
from ajet_proof.tokens.proof_lines import prove_accounting, prove_rows, prove_structure, prove_timelines
from tests.support.chat_templates import made, tokenizer
from tests.support.context_tracker_fixtures import episodes
from tests.support.gateways import (
    ADD,
    ASK,
    Capture,
    Renderer,
    RunningGateway,
    ScriptedEngine,
    ScriptedReply,
    client_of,
    renderer_of_style,
    spelled_out,
    start_gateway,
    timelines,
)

ARRAYS = ("suffix_ids", "response_ids", "logprobs", "logprobs_unit")
SPELLED = '<tool_call>\n{"arguments": {"a": 1}, "name": "add"}\n</tool_call>'
"""A tool call with its keys in another order than the template would put them."""


async def ask(endpoint: Endpoint, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """One reply of an unmodified client, as the message it would send back."""
    client = client_of(endpoint)
    done = await client.chat.completions.create(model="ajet", messages=messages, **more)
    return done.choices[0].message.model_dump(exclude_none=True)


async def tool_episode(b: RunningGateway) -> Capture:
    """Two turns with a tool, then a client that changes what was said, then one without tools."""
    session = b.open()
    endpoint = session.endpoint("solver", "")
    messages = [*ASK]
    reply = await ask(endpoint, messages, tools=[ADD])
    result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "3"}
    messages += [reply, result]
    messages += [await ask(endpoint, messages, tools=[ADD]), {"role": "user", "content": "Sure?"}]
    await ask(endpoint, messages, tools=[ADD])
    await ask(endpoint, [messages[0], {"role": "user", "content": "What is 1 + 3?"}, *messages[2:]], tools=[ADD])
    await ask(endpoint, messages)
    return session.close()


def captured(style: str = "qwen25", script: Any = None, play: Callable[..., Any] = tool_episode) -> Capture:
    """What a session of that play leaves behind; every reply is spelled one character a token."""
    with start_gateway(lambda _: next(replies), style=style) as b:
        said = script or [SPELLED, "It is 3.", "Yes.", "No: 4.", "I think so."]
        replies = iter([spelled_out(b, text) for text in said])
        return asyncio.run(play(b))


def proven(capture: Capture, style: str = "qwen25", **more: Any) -> Proof:
    return prove(capture.calls, capture.messages, capture.tools, Renderer(tokenizer(style)), episode="e", **more)


@pytest.fixture(scope="module")
def tools_played() -> Capture:
    return captured()


@pytest.fixture
def capture(tools_played: Capture) -> Capture:
    """A copy to spoil."""
    calls = [replace(call, **{name: getattr(call, name).copy() for name in ARRAYS}) for call in tools_played.calls]
    return Capture(calls, [dict(message) for message in tools_played.messages], list(tools_played.tools))


def size_of(capture: Capture, index: int) -> tuple[int, int]:
    """Where a call's reply begins and ends."""
    whole = full_ids(capture.calls, index).size
    return whole - capture.calls[index].response_ids.size, whole


def test_tool_without_parameters_is_proven():
    async def play(b: RunningGateway) -> Capture:
        session = b.open()
        await ask(session.endpoint("solver"), [*ASK], tools=[{"type": "function", "function": {"name": "look"}}])
        return session.close()

    capture = captured(script=["Yes."], play=play)
    proof = proven(capture)
    assert proof.ok, str(proof)
    shown = Renderer(tokenizer("qwen25")).decode(capture.calls[0].suffix_ids)
    assert '"name": "look", "parameters": {"type": "object", "properties": {}}' in shown


def test_thoughts_sent_back_in_the_text_are_proven():
    async def play(b: RunningGateway) -> Capture:
        session = b.open()
        endpoint, messages = session.endpoint("solver"), [*ASK]
        for _ in range(2):
            reply = await ask(endpoint, messages, tools=[ADD])
            thought = reply.pop("reasoning_content")
            folded = {**reply, "content": f"<think>\n{thought}\n</think>\n\n{reply.get('content') or ''}"}
            messages += [folded, {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "3"}]
        await ask(endpoint, messages, tools=[ADD])
        return session.close()

    thoughtful = f"<think>\nadd  them\n</think>\n\nSo.\n{SPELLED}"
    capture = captured("qwen3", [thoughtful, thoughtful.replace("So.\n", ""), "<think>\nok\n</think>\n\n3"], play)
    proof = proven(capture, "qwen3")
    assert proof.ok and not proof.forks and proof.timelines == 1, str(proof)


def test_what_was_captured_is_proven(capture):
    proof = proven(capture)
    assert proof.ok, str(proof)
    assert [call.fork for call in capture.calls] == [None, None, None, "compaction", "tools"]
    distinct = sum(call.suffix_ids.size + call.response_ids.size for call in capture.calls)
    assert sum(tally.tokens for tally in proof.counts.values()) == distinct
    for tally in proof.counts.values():
        assert tally.tokens == tally.checked == tally.equal > 0
    assert proof.forks == {"compaction": 1, "tools": 1} and proof.timelines == 3 and proof.rows == 1
    assert not proof.unchecked


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("changed", [{"finish": "length"}, {"reply": None}, {"reply": None, "finish": "length"}])
def test_another_end_of_a_reply_is_found(capture, changed, index):
    capture.calls[index] = replace(capture.calls[index], **changed)
    assert not proven(capture).ok


def test_a_reply_that_was_cut_is_proven():
    async def play(b: RunningGateway) -> Capture:
        session = b.open()
        await ask(session.endpoint("solver", ""), ASK, max_tokens=4)
        return session.close()

    capture = captured(script=["It is 3, I think."], play=play)
    assert [call.finish for call in capture.calls] == ["length"]
    assert proven(capture).ok


class LengthFirst(ScriptedEngine):
    """Says "length" also of an end token, as SGLang does where it is the last token that was allowed."""

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        async for chunk in super().generate(request):
            yield replace(chunk, finish=chunk.finish and "length")


def test_an_end_token_ends_a_reply_whatever_the_engine_says():
    words = renderer_of_style()
    engine = LengthFirst(["Yes."], encode=lambda text: words.encode(text).tolist(), end_id=words.end_ids[0])
    with start_gateway(words=words, engine=engine) as b:
        session = b.open()
        asyncio.run(ask(session.endpoint("solver", ""), ASK))
        capture = session.close()
    assert [call.finish for call in capture.calls] == ["stop"]
    assert proven(capture).ok


@pytest.mark.parametrize("style", ["smollm2", "qwen3", "llama3"])
def test_other_templates(style):
    async def play(b: RunningGateway) -> Capture:
        session = b.open()
        messages = [*ASK]
        for text in ("Sure?", "Why?", "Thanks."):
            reply = await ask(session.endpoint("solver", ""), messages)
            messages += [reply, {"role": "user", "content": text}]
        return session.close()

    thought = "<think>\nOne and two.\n</think>\n\nIt is 3." if style == "qwen3" else "It is 3."
    capture = captured(style, [thought, "Yes.", "By counting."], play)
    proof = proven(capture, style)
    assert proof.ok and not proof.unchecked, str(proof)
    assert proof.forks == ({"template": 1} if style == "qwen3" else {})


def reordered(value: Any) -> Any:
    """An equal JSON value with each object's keys in the opposite order."""
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("style", ["qwen25", "qwen3", "llama3"])
def test_tools_are_recorded_in_the_order_shown(style):
    orders = [[ADD], reordered([ADD]), [ADD]]

    async def play(b: RunningGateway) -> Capture:
        session = b.open()
        endpoint, messages = session.endpoint("solver", ""), [*ASK]
        for tools in orders:
            messages = [*messages, await ask(endpoint, messages, tools=tools), {"role": "user", "content": "Sure?"}]
        return session.close()

    capture = captured(style, ["It is 3.", "Yes.", "So I think."], play)
    proof = proven(capture, style)
    assert proof.ok and not proof.unchecked, str(proof)
    assert [call.tools for call in capture.calls] == [0, 1, 0]
    assert list(map(repr, capture.tools)) == list(map(repr, orders[:2]))
    assert proof.forks["tools"] == 2
    swapped = replace(capture, tools=capture.tools[::-1])
    assert not proven(swapped, style).ok


def test_called_functions_are_recorded_in_the_order_shown():
    mistral = (
        "{% for m in messages %}{{ '[' + m.role + ']' }}{{ m.content or '' }}"
        "{% for each in m.tool_calls or [] %}{{ '<tool_call>' + (each.function | tojson) + '</tool_call>' }}"
        "{% endfor %}"
        "{{ '<|end|>' }}{% endfor %}{% if tools %}{{ '' }}{% endif %}"
        "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
    )
    words = Renderer(made(mistral, ("<|end|>",), "<|end|>"))
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    result = {"role": "tool", "tool_call_id": "c", "content": "3"}
    with start_gateway(lambda _: "Yes.", words=words) as b:
        session = b.open()
        for each in (call, reordered(call)):
            told = [*ASK, {"role": "assistant", "content": None, "tool_calls": [each]}, result]
            asyncio.run(ask(session.endpoint("solver", ""), told, tools=[ADD]))
        capture = session.close()
    proof = prove(capture.calls, capture.messages, capture.tools, words, episode="e")
    assert proof.ok, str(proof)


def test_choices_that_change_a_prompt_or_its_reading():
    async def play(b: RunningGateway) -> Capture:
        endpoint = (session := b.open()).endpoint("solver", "")
        named = {"type": "function", "function": {"name": "add"}}
        await ask(endpoint, ASK, tools=[ADD], tool_choice=named)
        await ask(endpoint, ASK, tools=[ADD], tool_choice="required")
        await ask(endpoint, ASK, tools=[ADD], tool_choice="none")
        await ask(endpoint, ASK, tools=[ADD], parallel_tool_calls=False)
        await ask(endpoint, ASK, stop=["3", "4"])
        return session.close()

    script = ['{"a": 1}}\n</tool_call>', 'add", "arguments": {"a": 1}}\n</tool_call>', SPELLED, SPELLED * 2, "It is 3."]
    capture = captured(script=script, play=play)
    assert ["tool_calls" in capture.messages[call.reply] for call in capture.calls] == [True, True, False, True, False]
    proof = proven(capture)
    assert proof.ok and not proof.unchecked, str(proof)


def test_parallel_calls_that_said_the_same_in_other_tokens():
    async def play(b: RunningGateway) -> Capture:
        session = b.open()
        endpoint = session.endpoint("solver", "")
        for _ in range(4):
            replies = await asyncio.gather(*[ask(endpoint, ASK) for _ in range(4)])
            more = [*ASK, replies[0], {"role": "user", "content": "Sure?"}]
            await asyncio.gather(ask(endpoint, ASK), *[ask(endpoint, more) for _ in range(3)])
        return session.close()

    with start_gateway(lambda _: next(replies), latency=0.002) as b:
        said = [ScriptedReply(ids=b.ids("It is 3."), ended=False), spelled_out(b, "It is 3.")]
        replies = itertools.cycle([said[0], said[1], said[1]])
        capture = asyncio.run(play(b))
    proof = proven(capture)
    assert proof.ok and not proof.unchecked and not proof.forks, str(proof)
    spellings = {call.response_ids.size for call in capture.calls}
    assert len(capture.calls) == 32 and len(spellings) == 2
    kept = [call for call in capture.calls if len(call.messages) > len(ASK)]
    assert all(call.prefix == size_of(capture, call.parent)[1] for call in kept)


def test_what_cannot_be_checked_is_counted(capture):
    capture.calls[4] = replace(capture.calls[4], reply=None, finish="aborted")
    del capture.messages[-1]
    capture.messages[capture.calls[3].reply] = {"role": "assistant", "content": "[redacted API_KEY]"}
    proof = proven(capture)
    hidden = capture.calls[3].suffix_ids.size + capture.calls[3].response_ids.size
    assert proof.ok and proof.unchecked == {"redacted": hidden, "no reply": capture.calls[4].response_ids.size}
    counted = sum(tally.tokens - tally.checked for tally in proof.counts.values())
    assert counted == sum(proof.unchecked.values())


# What the code must do: each of these takes verbatim extension away, in the gateway and in the proof alike.


def _re_render(self, before, reply_ids, finish, messages, tools=None, *, verbatim=True):
    return self.render(messages, tools)


def _never(self, before, reply_ids, finish, messages, tools=None, *, verbatim=True):
    return None


def _all_open(self, agent, messages):
    return Match(tuple(str(message) for message in messages), None, None)


@pytest.mark.parametrize(
    "where, name, mutant",
    [(Renderer, "extend", _re_render), (Renderer, "extend", _never), (Conversations, "match", _all_open)],
    ids=["re-rendered", "always-forked", "never-matched"],
)
def test_without_verbatim_extension_a_token_is_wrong(monkeypatch, where, name, mutant):
    monkeypatch.setattr(where, name, mutant)

    async def play(b: RunningGateway) -> Capture:
        endpoint = (session := b.open()).endpoint("solver", "")
        reply = await ask(endpoint, ASK)
        await ask(endpoint, [*ASK, reply, {"role": "user", "content": "Sure?"}])
        return session.close()

    capture = captured(script=["It is the answer.", "Yes."], play=play)
    words, sampled = renderer_of_style(), full_ids(capture.calls, 0)
    again = words.encode(words.decode(sampled))
    apart = int(np.flatnonzero(sampled[: again.size] != again)[0])
    proof = proven(capture)
    assert [(token.call, token.position) for token in proof.wrong] == [(1, apart)], str(proof)
    assert str(proof).startswith(f"episode e, call 1, position {apart}: the prompt ")
    assert {proof.wrong[0].expected, proof.wrong[0].found} == {sampled[apart], again[apart]}


# What a record must say: each of these changes one thing in it.


@pytest.mark.parametrize("call", range(5))
def test_a_swapped_id_of_a_prompt(capture, call):
    capture.calls[call].suffix_ids[-3] += 1
    position = size_of(capture, call)[0] - 3
    wrong = proven(capture).wrong
    assert [(token.call, token.position) for token in wrong] == [(call, position)], wrong


async def completing_episode(b: RunningGateway) -> Capture:
    """A text, then that text with its reply and more; then one that leaves the reply's end token out."""
    session = b.open()
    endpoint = session.endpoint("solver", "")
    text = "One plus two"
    for more in (" is", " or so.", ""):
        url, headers = f"{endpoint.base_url}/completions", {"authorization": f"Bearer {endpoint.api_key}"}
        async with httpx.AsyncClient(transport=endpoint.transport()) as client:
            answer = await client.post(url, headers=headers, json={"model": "m", "prompt": text, "max_tokens": 64})
        text += answer.json()["choices"][0]["text"] + more
    return session.close()


@pytest.mark.parametrize("call", [None, 0, 1, 2])
def test_a_swapped_id_of_a_raw_prompt(call):
    capture = captured(script=[" equals three", ", we think", "!"], play=completing_episode)
    assert [each.messages for each in capture.calls] == [()] * 3
    if call is None:
        proof = proven(capture)
        assert proof.ok and not proof.unchecked, str(proof)
        return
    capture.calls[call].suffix_ids = capture.calls[call].suffix_ids.copy()
    capture.calls[call].suffix_ids[-1] += 1
    wrong = proven(capture).wrong
    assert (wrong[0].call, wrong[0].position) == (call, size_of(capture, call)[0] - 1), wrong


@pytest.mark.parametrize("call", range(1, 5))
def test_a_swapped_id_of_a_reply(capture, call):
    capture.calls[call].response_ids[2] += 1
    begin, _ = size_of(capture, call)
    wrong = proven(capture).wrong
    assert (wrong[0].call, wrong[0].position) == (call, begin + 2), wrong
    assert {token.call for token in wrong} <= {call, call + 1}


def test_a_swapped_id_within_a_tool_call(capture):
    letter = capture.calls[0].response_ids.size - 17
    capture.calls[0].response_ids[letter] += 1
    begin, end = size_of(capture, 0)
    (wrong,) = [token for token in proven(capture).wrong if token.call == 0]
    assert begin + letter <= wrong.position < end, "a tool call is known to be another one at its end"


def test_a_reply_cut_short(capture):
    call = capture.calls[4]
    capture.calls[4] = replace(call, **{name: getattr(call, name)[:-3] for name in ARRAYS[1:]})
    (wrong,) = proven(capture).wrong
    assert (wrong.call, wrong.position) == (4, size_of(capture, 4)[1]) and "end too early" in wrong.what


@pytest.mark.parametrize("call", range(5))
def test_a_dropped_call(capture, call):
    del capture.calls[call]
    wrong = proven(capture).wrong
    assert wrong[0].call == call and "missing" in str(wrong[0]), wrong


def test_a_dropped_call_whose_words_went_with_it(capture):
    lines, untrained = timelines(capture.calls)
    last = capture.calls.pop()
    del capture.messages[-1]
    (wrong,) = proven(capture, lines=lines, untrained=untrained).wrong
    assert wrong.call == last.index == 4 and "missing" in wrong.what
    lines = [line for line in lines if line.leaf != 4]
    untrained = Counter(failed=last.response_ids.size)
    (wrong,) = proven(capture, lines=lines, untrained=untrained).wrong
    assert wrong.call == 4 and "tokens" in wrong.what


def test_a_shifted_mask(capture):
    lines, untrained = timelines(capture.calls)
    lines[1] = replace(lines[1], mask=np.concatenate([[False], lines[1].mask[:-1]]))
    wrong, *_ = proven(capture, lines=lines, untrained=untrained).wrong
    span = lines[1].spans[0]
    assert (wrong.call, wrong.position, wrong.expected, wrong.found) == (span.call, span.start, 1, 0)
    assert "mask" in wrong.what


def test_a_wrong_log_probability(capture):
    proof, (line, *_) = Proof(), build_full_timelines(capture.calls)
    computed = line.logprobs_unit.copy()
    compare_logprobs(proof, capture.calls, line, computed, line.mask, tolerance=0.02, episode="e")
    assert proof.ok and proof.counts["sampled"].compared == line.sampled and proof.mismatch_kl == 0
    second = line.spans[1]
    line.logprobs_unit[second.start + 1] -= 0.5
    compare_logprobs(proof, capture.calls, line, computed, line.mask, tolerance=0.02, episode="e")
    (wrong,) = proof.wrong
    assert (wrong.call, wrong.position) == (second.call, second.start + 1)
    assert proof.counts["sampled"].gap_max == pytest.approx(0.5) and "log-probability" in wrong.what


@pytest.mark.parametrize(
    "spoil, offset, what",
    [
        (lambda call: replace(call, logprobs=call.logprobs[:-1]), -1, "logprobs for"),
        (lambda call: replace(call, logprobs_unit=np.where(np.arange(call.logprobs.size) == 1, np.nan, -1)), 1, "nan"),
        (lambda call: replace(call, logprobs=call.logprobs + 9), 0, "no log-probability"),
        (lambda call: replace(call, temperature=1.0, logprobs=call.logprobs_unit - 1), 0, "does not go with"),
        (lambda call: replace(call, versions=()), 0, "policy version"),
    ],
)
def test_arrays_that_do_not_go_together(capture, spoil, offset, what):
    capture.calls[2] = spoil(capture.calls[2])
    begin, end = size_of(capture, 2)
    (wrong,) = proven(capture).wrong
    assert (wrong.call, wrong.position) == (2, begin + offset if offset >= 0 else end + offset)
    assert what in wrong.what


# Timelines and packed rows of any episode.


@pytest.mark.slow
@given(calls=episodes())
def test_timelines_and_rows_of_any_episode_are_proven(calls):
    for lines, untrained in (timelines(calls), (build_full_timelines(calls), None)):
        assert prove_structure(calls, [], [None, None], lines, "e") == []
        assert prove_timelines(calls, lines, "e") == []
        assert untrained is None or prove_accounting(calls, lines, untrained, "e") == []
        samples = build_samples(lines, "e")
        assert prove_rows(samples, pack(samples, 12)) == []
        assert prove_rows(samples, pack(samples, 12, share_prefixes=False)) == []


@pytest.mark.slow
@given(calls=episodes(), data=st.data())
def test_any_change_of_a_timeline_is_found_where_it_is(calls: list[Call], data):
    lines = [line for line in timelines(calls)[0] if line.ids.size]
    if not lines:
        return
    at = data.draw(st.integers(0, len(lines) - 1))
    line = lines[at]
    position = data.draw(st.integers(0, line.ids.size - 1))
    name = data.draw(st.sampled_from(["ids", "mask", "logprobs", "logprobs_unit", "versions"]))
    values = getattr(line, name).copy()
    values[position] = not values[position] if name == "mask" else values[position] + 1
    lines[at] = replace(line, **{name: values})
    (wrong,) = prove_timelines(calls, lines, "e")
    assert wrong.position == position and wrong.call in {span.call for span in line.spans}
    counted = prove_accounting(calls, lines, timelines(calls)[1], "e")
    assert bool(counted) == (name == "mask")


@pytest.mark.slow
@given(calls=episodes(), data=st.data())
def test_any_change_of_a_packed_row_is_found(calls: list[Call], data):
    samples = build_samples(timelines(calls)[0], "e")
    rows = pack(samples, 12)
    targets = [(row, k) for row in rows for k in range(row.targets.token.size)]
    if not targets:
        return
    row, k = data.draw(st.sampled_from(targets))
    name = data.draw(st.sampled_from(["ids", "positions", "source", "token", "offset", "sample"]))
    array, index = (row.targets, k) if name in ("source", "token", "offset", "sample") else (row, row.targets.source[k])
    if name == "sample":
        row.targets.sample[k] = (row.targets.sample[k] + 1) % (len(samples) + 1)
        if row.targets.sample[k] == len(samples):
            return
    else:
        getattr(array, name)[index] += 1
    assert prove_rows(samples, rows)
