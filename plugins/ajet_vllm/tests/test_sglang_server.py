"""An SGLang server's wire: what fits together is a reply, whether an event bears all of it so far or what is new; what
does not is refused; and who it is and whose weights it has is asked of it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.remote_server import RemoteServer
from ajet.schema.errors import EngineFailure, UserError
from ajet_vllm.server_detection import open_remote
from ajet_vllm.server_weights import CHANGING, ConcurrentLoadError
from ajet_vllm.sglang_server import SglangReply, SglangWeights, SglangWire
from ajet_vllm.vllm_server import VllmWeights
from tests.support.local_fixtures import config_of

STOP = {"type": "stop", "matched": 5}


def request_of(**sampling: Any) -> TokenRequest:
    return TokenRequest(np.array([1, 2], np.int32), Sampling(9, **sampling), DrawKey(0, 0, 0, 0))


def event(ids: list[int], count: int, finish: Any = None) -> dict[str, Any]:
    rows = [[-token / 8, token, None] for token in ids]
    told = {"finish_reason": finish, "completion_tokens": count, "output_token_logprobs": rows}
    return {"text": None, "output_ids": ids, "meta_info": told}


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4), min_size=1, max_size=5), st.booleans())
def test_chunks_concatenate_to_what_was_streamed(pieces: list[list[int]], incremental: bool) -> None:
    reply, known = SglangReply(request_of(), 4), list[int]()
    chunks = []
    for k, ids in enumerate(pieces):
        known += ids
        finish = STOP if k == len(pieces) - 1 else None
        chunks.append(reply.read(event(ids if incremental else list(known), len(known), finish)))
        assert reply.read(event([] if incremental else list(known), len(known))) is None, "nothing new"
    found = [chunk for chunk in [*chunks, reply.end()] if chunk is not None]
    assert [token for chunk in found for token in chunk.ids] == known
    assert [p for chunk in found for p in chunk.logprobs_unit] == [-token / 8 for token in known]
    assert {chunk.version for chunk in found} == {4}
    assert [chunk.finish for chunk in found] == [None] * len(pieces) + ["stop"]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([event([3], 1)], "after 1 tokens"),
        ([event([3], 2, STOP)], "counts 2 new tokens, but sent 1"),
        ([event([3], 1), event([], 0, STOP)], "streamed 1 tokens"),
        ([event([3], 1, {"type": "abort", "message": "gone"})], "ended its reply"),
        ([event([3], 1, {"type": "stop", "matched": "NaN happened"})], "NaN happened"),
        ([{"meta_info": {}}], "does not belong to this route"),
        ([{"text": "hello"}], "does not belong to this route"),
        ([{**event([3], 1), "output_ids": [4]}], "belongs to id 3"),
    ],
)
def test_what_does_not_fit_together_is_refused(events: list[dict[str, Any]], words: str) -> None:
    reply = SglangReply(request_of(), 0)
    with pytest.raises(EngineFailure, match=words):
        for each in events:
            reply.read(each)
        reply.end()


def test_an_alternative_that_a_schema_ruled_out_is_none() -> None:
    said = event([3], 1, STOP)
    said["meta_info"]["output_top_logprobs"] = [[[-0.375, 3, None], [None, 9, None]]]
    chunk = SglangReply(request_of(top_logprobs=2), 0).read(said)
    assert chunk is not None and chunk.top == [[(3, -0.375)]]


@pytest.mark.parametrize(
    ("error", "again"),
    [({"code": 400, "retryable": False}, False), ({"code": 503}, True), ({"code": 429}, True), ("out of memory", True)],
)
def test_what_it_refuses_within_a_stream_is_not_asked_for_again(error: Any, again: bool) -> None:
    with pytest.raises(EngineFailure, match="failed during its reply") as said:
        RemoteServer("http://server", None).parse_event(json.dumps({"error": error}))
    assert said.value.retryable is again


def test_a_score_is_of_the_ids_that_were_asked_for() -> None:
    def answer(*rows: list[Any]) -> dict[str, Any]:
        return {"meta_info": {"input_token_logprobs": list(rows)}}

    assert SglangWire().parse_scores(answer([None, 3, None], [-0.5, 4, None], [-1.0, 5, None]), [4, 5]) == [-0.5, -1.0]
    for wrong in (answer([-0.5, 4, None], [-1.0, 6, None]), answer([None, 5, None]), {}, answer()):
        with pytest.raises(EngineFailure, match="of other tokens than it sampled"):
            SglangWire().parse_scores(wrong, [4, 5])


def test_without_stop_ids_it_goes_on_past_its_own_end_and_a_schema_is_sent() -> None:
    plain = [SglangWire().build_body(request_of(), 9, "s")["sampling_params"] for _ in range(8)]
    assert plain[0]["ignore_eos"] and len({each["sampling_seed"] for each in plain}) > 1, "no two attempts draw alike"
    held = SglangWire().build_body(request_of(stop_ids=(7,), json_schema="{}", seed=3), 9, "s")
    params = held["sampling_params"]
    assert (params["min_p"], params["repetition_penalty"]) == (0.0, 1.0), "whatever the server was told to prefer"
    assert params["stream_interval"] > 1, "each event bears all of the reply so far"
    assert (params["ignore_eos"], params["stop_token_ids"], params["sampling_seed"]) == (False, [7], 3)
    assert json.loads(params["json_schema"]) == {"type": "object"} and held["extra_key"] == "s"


class Weights:
    """A server of either kind that is given weights. `beside`: what somebody else does after its next load."""

    def __init__(self) -> None:
        self.name, self.weights, self.asked = "default", "first", list[str]()
        self.beside: Any = None

    def answer(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(request.content or b"{}")
        self.asked.append(path)
        if path in ("/model_info", "/weight_info"):
            return httpx.Response(200, json={"weight_version": self.name})
        if path == "/update_weight_version":
            self.name = body["new_version"]
        elif path in ("/update_weights_from_disk", "/collective_rpc"):
            self.weights = body.get("model_path") or body["kwargs"]["weights_path"]
            self.name = body.get("weight_version", self.name)
            if self.beside is not None:
                beside, self.beside = self.beside, None
                beside()
        return httpx.Response(200, json={})


@pytest.mark.parametrize("kind", [SglangWeights, VllmWeights])
def test_a_load_that_another_one_crossed_leaves_the_server_without_a_name(
    kind: type[SglangWeights] | type[VllmWeights], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a leader that was stopped in the middle and goes on after its successor."""
    server = Weights()
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(server.answer)))
    old, new = kind("http://server", {}), kind("http://server", {})
    old.give(Path("step-1"), "ajet-1")
    assert (server.name, server.weights) == ("ajet-1", "step-1")
    server.beside = lambda: new.give(Path("step-3"), "ajet-3")
    with pytest.raises(ConcurrentLoadError, match="ajet-3"):
        old.give(Path("step-2"), "ajet-2")
    assert server.name.startswith(CHANGING), "nobody's reply bears a version until it is given weights again"
    new.give(Path("step-3"), "ajet-3")
    assert (server.name, server.weights) == ("ajet-3", "step-3")


def test_a_server_is_asked_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, down = "sglang", False

    def answer(request: httpx.Request) -> httpx.Response:
        if down:
            raise httpx.ConnectError("refused")
        assert request.headers["authorization"] == "Bearer its-key"
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "owned_by": owner, "max_model_len": 100}]})
        if request.url.path == "/server_info":
            return httpx.Response(200, json={"max_req_input_len": 94})
        if request.url.path != "/generate":
            return httpx.Response(404, text="no such route")
        body = json.loads(request.content)
        if body["sampling_params"]["max_new_tokens"] == 0:
            rows = [[-token / 8, token, None] for token in body["input_ids"]]
            return httpx.Response(200, json={"meta_info": {"input_token_logprobs": rows}})
        return httpx.Response(200, json=event([4], 1, STOP))

    monkeypatch.setenv("VLLM_API_KEY", "its-key")
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
    server = SimpleNamespace(base_url="http://server/v1", api_key_env="VLLM_API_KEY", timeout=300.0)
    config = config_of(rollout__vllm=server)
    engine = open_remote(config, vocabulary=99)
    assert (engine.kind, engine.max_model_len, engine.reports_sampled) == ("SGLang", 93, False)
    with pytest.raises(UserError, match="SGLang server reports log-probabilities only for temperature 1") as said:
        open_remote(config_of(rollout__vllm=server, rollout__temperature=0.7), vocabulary=99)
    assert said.value.do and "SGLANG_RETURN_ORIGINAL_LOGPROB" in said.value.do
    owner = "vllm"
    with pytest.raises(UserError, match="The vLLM server does not answer"):
        open_remote(config, vocabulary=99)
    down = True
    for url in ("http://server/v1", "http://[::1"):
        server.base_url = url
        with pytest.raises(UserError, match="No inference server answers"):
            open_remote(config, vocabulary=99)


@pytest.mark.parametrize(("key", "said"), [("", "requires an API key"), ("a wrong one", "refuses this API key")])
def test_a_server_that_refuses_who_has_no_key_is_called_neither_vllm_nor_sglang(
    monkeypatch: pytest.MonkeyPatch, key: str, said: str
) -> None:
    locked = httpx.MockTransport(lambda request: httpx.Response(401, json={"error": "Unauthorized"}))
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=locked))
    monkeypatch.setenv("ITS_KEY", key)
    server = SimpleNamespace(base_url="http://server/v1", api_key_env="ITS_KEY")
    with pytest.raises(UserError, match=f"The server {said} [(]status 401[)]") as refused:
        open_remote(config_of(rollout__vllm=server), vocabulary=99)
    told = refused.value
    assert "http://server" in (told.where or "") and "ITS_KEY" in (told.expected or "")
    assert "vLLM" not in str(told) and (not key or key not in str(told))
