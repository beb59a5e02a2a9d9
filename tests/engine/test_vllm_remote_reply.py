"""The wire format of vLLM's token route: what fits together is a reply, what does not is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.vllm.remote import VllmReply, VllmWire
from ajet.schema.errors import EngineFailure


def request_of(**sampling: Any) -> TokenRequest:
    return TokenRequest(np.array([1, 2], np.int32), Sampling(9, **sampling), DrawKey(0, 0, 0, 0))


def event(ids: list[int], finish: str | None = None, *, names_ids: bool = False) -> dict[str, Any]:
    """`names_ids`: the form since vLLM 0.32, which has a field for the id."""
    names: list[dict[str, Any]] = [{"token_id": i} if names_ids else {"token": f"token_id:{i}"} for i in ids]
    content = [{**name, "logprob": -i / 8, "top_logprobs": []} for name, i in zip(names, ids, strict=True)]
    return {"choices": [{"token_ids": ids, "logprobs": {"content": content}, "finish_reason": finish}], "usage": None}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"completion_tokens": tokens}}


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4), min_size=1, max_size=5), st.booleans())
def test_chunks_concatenate_to_what_was_streamed(pieces: list[list[int]], names_ids: bool) -> None:
    reply = VllmReply(request_of(), 4)
    finishes = [None] * (len(pieces) - 1) + ["stop"]
    chunks = [reply.read(event(ids, finish, names_ids=names_ids)) for ids, finish in zip(pieces, finishes, strict=True)]
    assert reply.read(usage(sum(map(len, pieces)))) is None
    found = [chunk for chunk in [*chunks, reply.end()] if chunk is not None]
    assert [token for chunk in found for token in chunk.ids] == sum(pieces, [])
    assert [p for chunk in found for p in chunk.logprobs_unit] == [-token / 8 for token in sum(pieces, [])]
    assert {chunk.version for chunk in found} == {4}
    assert [chunk.finish for chunk in found] == [None] * len(pieces) + ["stop"]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([event([3], "stop"), usage(2)], "streamed 1 tokens, but counts 2"),
        ([event([3], "stop")], "after 1 tokens"),
        ([event([3]), usage(1)], "after 1 tokens"),
        ([event([3], "abort")], "ended its reply"),
        ([{"choices": [{"token_ids": [3]}]}], "does not belong to this route"),
        ([{"id": "chatcmpl-1"}], "does not belong to this route"),
        ([{**event([3]), "choices": [{**event([4])["choices"][0], "token_ids": [3]}]}], "belongs to id 4"),
        (
            [{**event([3]), "choices": [{**event([4])["choices"][0], "token_ids": [3, 4]}]}],
            "2 tokens, but 1 log-probabilities",
        ),
        (
            [{**event([3]), "choices": [{**event([4], names_ids=True)["choices"][0], "token_ids": [3]}]}],
            "belongs to id 4",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(events: list[dict[str, Any]], words: str) -> None:
    reply = VllmReply(request_of(), 0)
    with pytest.raises(EngineFailure, match=words):
        for each in events:
            reply.read(each)
        reply.end()


@pytest.mark.parametrize("names_ids", [False, True])
def test_alternatives_are_read_by_their_ids(names_ids: bool) -> None:
    sent = event([8], names_ids=names_ids)
    content = sent["choices"][0]["logprobs"]["content"][0]
    content["top_logprobs"] = [
        event([i], names_ids=names_ids)["choices"][0]["logprobs"]["content"][0] for i in (8, 3, 5)
    ]
    chunk = VllmReply(request_of(top_logprobs=2), 0).read(sent)
    assert chunk is not None and chunk.top == [[(3, -0.375), (5, -0.625)]]


def test_a_greedy_reply_is_certain() -> None:
    chunk = VllmReply(request_of(temperature=0.0), 0).read(event([8]))
    assert chunk is not None and chunk.logprobs == [0.0] and chunk.logprobs_unit == [-1.0]


def test_the_body_says_all_that_bears_on_the_reply() -> None:
    body = VllmWire().body(request_of(top_p=0.5, top_k=7, stop_ids=(5,), top_logprobs=2, seed=11), 9, "salt-3")
    assert body["token_ids"] == [1, 2] and body["cache_salt"] == "salt-3"
    assert body["stream_options"] == {"include_usage": True}
    expected = {"max_tokens": 9, "temperature": 1.0, "top_p": 0.5, "top_k": 7, "stop_token_ids": [5], "logprobs": 2}
    assert expected.items() <= body["sampling_params"].items()
    assert body["sampling_params"]["seed"] == 11 and body["sampling_params"]["ignore_eos"]
    held = VllmWire().body(request_of(json_schema='{"type": "object"}'), 9, "s")["sampling_params"]
    assert held["structured_outputs"] == {"json": {"type": "object"}} and not held["ignore_eos"] and "seed" not in held


def test_scores_are_of_the_tokens_that_were_drawn() -> None:
    rows = [None, {"2": {"logprob": -0.1}}, {"7": {"logprob": -0.5}}, {"8": {"logprob": -0.25}}]
    assert VllmWire().scored({"prompt_logprobs": rows}, [7, 8]) == [-0.5, -0.25]
    for answer in ({}, {"prompt_logprobs": rows[:1]}, {"prompt_logprobs": rows[:-1]}):
        with pytest.raises(EngineFailure):
            VllmWire().scored(answer, [7, 8])
