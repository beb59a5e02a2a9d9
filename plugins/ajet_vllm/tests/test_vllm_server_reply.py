"""The wire format of vLLM's token route: what fits together is a reply, what does not is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.schema.errors import EngineFailure
from ajet_vllm.vllm_server import VllmReply, VllmWire
from tests.support.vllm_events import REQUEST, encode_array, read_recorded


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


@pytest.mark.parametrize("version", ["0.28.0", "0.32.0"])
def test_recorded_streams_are_read(version: str) -> None:
    reply = VllmReply(REQUEST, 4)
    chunks = [chunk for chunk in map(reply.read, read_recorded(version)) if chunk is not None]
    ids = [token for chunk in chunks for token in chunk.ids]
    logprobs = [value for chunk in chunks for value in chunk.logprobs]
    assert len(ids) == REQUEST.sampling.max_tokens and reply.end().finish == "length"
    for token, logprob, top in zip(ids, logprobs, [rows for chunk in chunks for rows in chunk.top], strict=True):
        assert len(top) == 2 and top[0][1] >= top[1][1] and dict(top).get(token, logprob) == logprob
    assert reply.weight_names == ({"default"} if version == "0.32.0" else None)


def spans(*edges: int) -> list[dict[str, Any]]:
    return [{"version": f"v{k}", "start": edges[k], "end": edges[k + 1]} for k in range(len(edges) - 1)]


def test_the_names_of_the_weights_are_read() -> None:
    reply = VllmReply(request_of(), 0)
    reply.read(event([3, 4]))
    last = event([5], "stop")
    last["choices"][0]["weight_versions"] = spans(0, 1, 3)
    reply.read(last)
    assert reply.weight_names == {"v0", "v1"}


@pytest.mark.parametrize("named", [spans(0, 1), spans(1, 2), spans(0, 1, 3), [*spans(0, 1), *spans(0, 2)]])
def test_names_of_other_tokens_are_refused(named: list[dict[str, Any]]) -> None:
    last = event([3, 4], "stop")
    last["choices"][0]["weight_versions"] = named
    with pytest.raises(EngineFailure, match="do not cover"):
        VllmReply(request_of(), 0).read(last)


def test_routed_experts_are_passed_on() -> None:
    experts = np.arange(4 * 2 * 2, dtype=np.uint8).reshape(4, 2, 2)
    reply = VllmReply(request_of(), 0)
    reply.read(event([3, 4]))
    last = event([5], "stop")
    last["choices"][0]["routed_experts"] = encode_array(experts)
    chunk = reply.read(last)
    assert chunk is not None and chunk.routed_experts is not None
    assert np.array_equal(chunk.routed_experts, experts), "of two prompt tokens and all but the last of the reply"


@pytest.mark.parametrize("sent", [encode_array(np.zeros((5, 2, 2))), encode_array(np.zeros(4)), "AAAA"])
def test_other_routed_experts_are_refused(sent: str) -> None:
    last = event([3, 4, 5], "stop")
    last["choices"][0]["routed_experts"] = sent
    with pytest.raises(EngineFailure, match="experts of the shape|does not belong to this route"):
        VllmReply(request_of(), 0).read(last)


def test_a_greedy_reply_is_certain() -> None:
    chunk = VllmReply(request_of(temperature=0.0), 0).read(event([8]))
    assert chunk is not None and chunk.logprobs == [0.0] and chunk.logprobs_unit == [-1.0]


def test_the_body_says_all_that_bears_on_the_reply() -> None:
    body = VllmWire().build_body(request_of(top_p=0.5, top_k=7, stop_ids=(5,), top_logprobs=2, seed=11), 9, "salt-3")
    assert body["token_ids"] == [1, 2] and body["cache_salt"] == "salt-3"
    assert body["stream_options"] == {"include_usage": True}
    expected = {"max_tokens": 9, "temperature": 1.0, "top_p": 0.5, "top_k": 7, "stop_token_ids": [5], "logprobs": 3}
    assert expected.items() <= body["sampling_params"].items()
    assert body["sampling_params"]["seed"] == 11 and body["sampling_params"]["ignore_eos"]
    asked = [
        VllmWire().build_body(request_of(top_logprobs=k), 9, "s")["sampling_params"]["logprobs"] for k in (0, 1, 20, 30)
    ]
    assert asked == [0, 2, 20, 30], "one more, as the sampled one may be none of them; a server's default limit is 20"
    held = VllmWire().build_body(request_of(json_schema='{"type": "object"}'), 9, "s")["sampling_params"]
    assert held["structured_outputs"] == {"json": {"type": "object"}} and not held["ignore_eos"] and "seed" not in held


def test_scores_are_of_the_tokens_that_were_drawn() -> None:
    rows = [None, {"2": {"logprob": -0.1}}, {"7": {"logprob": -0.5}}, {"8": {"logprob": -0.25}}]
    assert VllmWire().parse_scores({"prompt_logprobs": rows}, [7, 8]) == [-0.5, -0.25]
    for answer in ({}, {"prompt_logprobs": rows[:1]}, {"prompt_logprobs": rows[:-1]}):
        with pytest.raises(EngineFailure):
            VllmWire().parse_scores(answer, [7, 8])
