"""One suite over every TokenEngine: transformers, vLLM in child processes, a vLLM server, a stand-in for an SGLang
server over a real model, the scripted one. (The server itself: test_sglang_server_real.py.)"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import httpx
import numpy as np
import pytest

from ajet.engine.contract import DrawKey, Sampling, TokenChunk, TokenEngine, TokenRequest
from ajet.engine.scripted import ScriptedEngine, ScriptedReply
from ajet.schema.errors import EngineFailure
from tests.support.sglang_server import sglang_server
from tests.support.vllm_bench import AT_ONCE, PROMPT
from tests.support.vllm_events import list_fields, read_recorded, request_events
from tests.support.vllm_fixtures import VOCABULARY, unit_logprobs, vllm_engine, vllm_server

pytestmark = pytest.mark.slow

END = 2


def transformers_engine() -> TokenEngine:
    import torch

    from ajet.engine.model_source import locate_model
    from ajet.engine.models import load_model
    from ajet.engine.transformers import TransformersEngine

    model = load_model(locate_model("embedded:tiny-tools"), dtype=torch.float32)
    return TransformersEngine(model, version=3, max_num_seqs=2)


def scripted_engine() -> TokenEngine:
    def answer(request: TokenRequest) -> ScriptedReply:
        length = request.sampling.max_tokens
        if END in request.sampling.stop_ids:
            return ScriptedReply(ids=[5, 6, END], ended=False, chunk=1)
        return ScriptedReply(ids=[5] * length, ended=False, chunk=1, latency=0.0 if length < 500 else 30.0)

    return ScriptedEngine(answer, version=3, end_id=END)


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    with vllm_server("--logprobs-mode", "processed_logprobs") as url:
        yield url


@pytest.fixture(scope="module")
def sglang_url() -> Iterator[str]:
    with sglang_server() as url:
        yield url


def sglang_engine(url: str) -> TokenEngine:
    from ajet_vllm.sglang_server import RemoteSglang

    engine = RemoteSglang(url, vocabulary=VOCABULARY)
    engine.weights_changed(3)
    return engine


def remote_engine(url: str) -> TokenEngine:
    from ajet_vllm.vllm_server import RemoteVllm

    engine = RemoteVllm(url, vocabulary=VOCABULARY)
    engine.weights_changed(3)
    return engine


SERVER = pytest.param("vllm-server", marks=[pytest.mark.extra_slow, pytest.mark.boots])


@pytest.fixture(
    params=[
        "transformers",
        "scripted",
        pytest.param("vllm", marks=[pytest.mark.slow, pytest.mark.boots]),
        SERVER,
        "sglang",
    ]
)
def engine(request: Any) -> Iterator[TokenEngine]:
    if request.param == "vllm":
        yield request.getfixturevalue("bench").engine  # its owner closes it
        return
    if request.param == "vllm-server":
        made = remote_engine(request.getfixturevalue("server_url"))
    elif request.param == "sglang":
        made = sglang_engine(request.getfixturevalue("sglang_url"))
    else:
        made = transformers_engine() if request.param == "transformers" else scripted_engine()
    yield made
    made.close()


def ask(length: int, *, stop: tuple[int, ...] = (), repeat: int = 0) -> TokenRequest:
    return TokenRequest(PROMPT, Sampling(length, stop_ids=stop), DrawKey(0, 0, repeat, 0))


async def chunks(engine: TokenEngine, request: TokenRequest) -> list[TokenChunk]:
    return [chunk async for chunk in engine.generate(request)]


def ids_of(got: list[TokenChunk]) -> list[int]:
    return [token for chunk in got for token in chunk.ids]


def test_it_is_a_token_engine(engine: TokenEngine) -> None:
    assert isinstance(engine, TokenEngine)
    assert engine.max_model_len > 100


def test_only_the_last_chunk_has_a_finish_and_all_align(engine: TokenEngine) -> None:
    got = asyncio.run(chunks(engine, ask(90)))
    assert [chunk.finish for chunk in got] == [None] * (len(got) - 1) + ["length"]
    assert len(ids_of(got)) == 90
    for chunk in got:
        assert len(chunk.ids) == len(chunk.logprobs) == len(chunk.logprobs_unit)
        assert all(p <= 0.0 for p in [*chunk.logprobs, *chunk.logprobs_unit])
        assert chunk.version == engine.version >= 3


def test_a_stop_id_ends_the_reply_and_is_part_of_it(engine: TokenEngine) -> None:
    every_id = () if isinstance(engine, ScriptedEngine) else tuple(range(379))
    got = asyncio.run(chunks(engine, ask(60, stop=(END, *every_id))))
    assert got[-1].finish == "stop"
    assert ids_of(got)[-1] in (END, *every_id)
    assert len(ids_of(got)) < 60


def test_calls_from_many_loops_at_once(engine: TokenEngine) -> None:
    results: dict[int, list[list[TokenChunk]]] = {}

    def user(k: int) -> None:
        async def several() -> list[list[TokenChunk]]:
            return list(await asyncio.gather(*(chunks(engine, ask(7, repeat=8 * k + j)) for j in range(8))))

        results[k] = asyncio.run(several())

    threads = [threading.Thread(target=user, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert sorted(results) == list(range(6))
    assert all(len(ids_of(got)) == 7 for replies in results.values() for got in replies)


def test_closing_an_iterator_frees_its_slot(engine: TokenEngine, request: Any) -> None:
    """One that counts its steps, and stands still meanwhile, samples nothing more for them."""
    counts: dict[str, int] = getattr(engine, "counts", {}) if request.node.callspec.id == "transformers" else {}
    before = 0

    async def scenario() -> None:
        nonlocal before
        at_once = AT_ONCE if request.node.callspec.id == "vllm" else 2
        long = [engine.generate(ask(900, repeat=k)) for k in range(at_once)]  # as many as the engine runs at once
        starts = [asyncio.ensure_future(anext_of(stream)) for stream in long]
        if isinstance(engine, ScriptedEngine):
            await until(lambda: engine.running == 2)
        else:
            await asyncio.gather(*starts)
        with engine.paused() if counts else nullcontext():  # type: ignore[attr-defined]
            before = counts.get("sampled_tokens", 0)
            for start, stream in zip(starts, long, strict=True):
                start.cancel()
                await asyncio.gather(start, return_exceptions=True)
                await stream.aclose()  # type: ignore[attr-defined]
        short = await chunks(engine, ask(5))
        assert len(ids_of(short)) == 5

    asyncio.run(asyncio.wait_for(scenario(), 240))
    if isinstance(engine, ScriptedEngine):
        assert (engine.running, engine.closed_early) == (0, 2)
    elif counts:
        assert counts["sampled_tokens"] - before == 5


def test_versions_go_up_only(engine: TokenEngine) -> None:
    later = engine.version + 2
    engine.weights_changed(later)
    assert engine.version == later
    assert {chunk.version for chunk in asyncio.run(chunks(engine, ask(4)))} == {later}
    with pytest.raises(ValueError, match="older"):
        engine.weights_changed(later - 1)
    assert engine.version == later
    engine.weights_changed(later)


def check_close_fails_who_waits_and_who_comes_after(engine: TokenEngine) -> None:
    async def scenario() -> list[BaseException | list[TokenChunk]]:
        calls = [asyncio.ensure_future(chunks(engine, ask(900, repeat=k))) for k in range(4)]
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, engine.close)
        return await asyncio.gather(*calls, return_exceptions=True)

    ended = asyncio.run(asyncio.wait_for(scenario(), 240))
    assert [type(end) for end in ended] == [EngineFailure] * 4
    engine.close()
    with pytest.raises(EngineFailure):
        asyncio.run(chunks(engine, ask(3)))


@pytest.mark.parametrize("engine", ["transformers", "scripted", "sglang", SERVER], indirect=True)
def test_close_fails_who_waits_and_who_comes_after(engine: TokenEngine) -> None:
    check_close_fails_who_waits_and_who_comes_after(engine)


@pytest.mark.extra_slow
@pytest.mark.boots
def test_close_fails_who_waits_for_vllm() -> None:
    """An engine of its own, as the shared one is for others too; there a dead process fails who waits."""
    check_close_fails_who_waits_and_who_comes_after(vllm_engine(version=3, max_num_seqs=2))


@pytest.mark.extra_slow
@pytest.mark.boots
@pytest.mark.parametrize("sampling", [{"temperature": 0.7, "top_k": 20}, {"temperature": 0.0}, {"top_logprobs": 2}])
def test_a_server_says_both_logprobs(server_url: str, sampling: dict[str, Any]) -> None:
    engine: Any = remote_engine(server_url)
    assert engine.reports_sampled and engine.constrains
    got = asyncio.run(chunks(engine, TokenRequest(PROMPT, Sampling(20, **sampling), DrawKey(0, 0, 0, 0))))
    unit = np.array([p for chunk in got for p in chunk.logprobs_unit])
    sampled = np.array([p for chunk in got for p in chunk.logprobs])
    assert np.abs(unit_logprobs(PROMPT, ids_of(got)) - unit).max() < 1e-4
    if sampling.get("temperature") == 0.7:
        assert np.abs(sampled - unit).max() > 0.01
    else:
        assert np.abs(sampled - (0.0 if "temperature" in sampling else unit)).max() < 1e-6
    engine.close()


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.7}, {"temperature": 0.0}, {"temperature": 1.3, "top_logprobs": 2}], ids=str
)
def test_an_sglang_server_says_both_logprobs(sglang_url: str, sampling: dict[str, Any]) -> None:
    engine: Any = sglang_engine(sglang_url)
    assert engine.reports_sampled and engine.constrains
    got = asyncio.run(chunks(engine, TokenRequest(PROMPT, Sampling(20, **sampling), DrawKey(0, 0, 0, 0))))
    unit = np.array([p for chunk in got for p in chunk.logprobs_unit])
    sampled = np.array([p for chunk in got for p in chunk.logprobs])
    assert len(ids_of(got)) == 20 and np.abs(unit_logprobs(PROMPT, ids_of(got)) - unit).max() < 1e-4
    if sampling["temperature"]:
        assert np.abs(sampled - unit).max() > 0.01
    else:
        assert not sampled.any()
    assert sum(len(chunk.top) for chunk in got) == (20 if "top_logprobs" in sampling else 0)
    cuts: list[dict[str, Any]] = [{"top_p": 0.9}, {"temperature": 0.7, "top_k": 20}]
    for cut in cuts:
        with pytest.raises(EngineFailure, match="before top_p and top_k"):
            asyncio.run(chunks(engine, TokenRequest(PROMPT, Sampling(3, **cut), DrawKey(0, 0, 0, 0))))
    longest = np.full(engine.max_model_len - 2, 5, np.int32)
    whole = asyncio.run(chunks(engine, TokenRequest(longest, Sampling(9, temperature=0.7), DrawKey(0, 0, 0, 0))))
    assert len(ids_of(whole)) <= 2 and whole[-1].finish, "what it has drawn to the end of its context it can score"
    engine.close()


def test_what_an_sglang_server_refuses_is_not_asked_again(sglang_url: str) -> None:
    """It does so within a stream that it has begun."""
    engine: Any = sglang_engine(sglang_url)
    engine.max_model_len = 10_000
    with pytest.raises(EngineFailure, match="tokens") as said:
        asyncio.run(chunks(engine, TokenRequest(np.full(600, 5, np.int32), Sampling(9), DrawKey(0, 0, 0, 0))))
    assert not said.value.retryable
    engine.close()


@pytest.mark.extra_slow
@pytest.mark.boots
def test_a_server_sends_the_recorded_fields(server_url: str) -> None:
    version = httpx.get(f"{server_url}/version").json()["version"]
    assert list_fields(request_events(server_url)) == list_fields(read_recorded(version))


def test_an_sglang_server_breaks_off_what_is_under_way_as_its_weights_get_a_name(sglang_url: str) -> None:
    engine: Any = sglang_engine(sglang_url)

    async def renamed_under_way() -> EngineFailure | None:
        """None: the reply was over before."""
        stream = engine.generate(ask(400))
        assert (await anext_of(stream)).ids
        await asyncio.to_thread(engine.weights().rename, "another")
        try:
            async for _ in stream:
                pass
        except EngineFailure as failure:
            return failure
        return None

    tries = (asyncio.run(renamed_under_way()) for _ in range(100))
    failure = next((each for each in tries if each is not None), None)
    assert failure is not None and failure.retryable and "ended its reply" in str(failure)
    assert engine.weights().name() == "another"
    engine.close()


async def anext_of(stream: Any) -> TokenChunk:
    chunk: TokenChunk = await stream.__anext__()
    return chunk


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0)
