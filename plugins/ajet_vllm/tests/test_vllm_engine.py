"""What the vLLM engine promises beyond the contract, against the model's own forward pass in transformers.

One engine for this file and test_token_engines.py: it takes half a minute to start. The tests change its weights, each
to its own; the last one kills it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from ajet.config.schema.algorithm import TeacherConfig
from ajet.engine.contract import DrawKey, Sampling, TokenChunk, TokenRequest
from ajet.engine.model_source import locate_model
from ajet.engine.teacher_endpoint import TeacherEndpoint
from ajet.schema.errors import EngineFailure, UserError
from tests.support.local_fixtures import timeline_of
from tests.support.vllm_bench import PROMPT, Bench
from tests.support.vllm_fixtures import (
    VOCABULARY,
    list_engine_processes,
    tiny_folder,
    unit_logprobs,
    vllm_engine,
    vllm_server,
)

pytestmark = [pytest.mark.slow, pytest.mark.boots]

LONG = np.random.default_rng(3).integers(10, VOCABULARY, 300).astype(np.int32)
"""More than two blocks of the prefix cache."""


def request_of(length: int, prompt: np.ndarray = PROMPT, *, repeat: int = 0, **sampling: Any) -> TokenRequest:
    return TokenRequest(prompt, Sampling(length, **sampling), DrawKey(0, 0, repeat, 0))


async def reply_of(engine: Any, request: TokenRequest) -> TokenChunk:
    """The whole reply as one chunk."""
    whole = TokenChunk([], [], [], -1)
    async for chunk in engine.generate(request):
        whole.ids += chunk.ids
        whole.logprobs += chunk.logprobs
        whole.logprobs_unit += chunk.logprobs_unit
        whole.top += chunk.top
        whole.version, whole.finish = chunk.version, chunk.finish
    return whole


def ask(engine: Any, request: TokenRequest) -> TokenChunk:
    return asyncio.run(reply_of(engine, request))


def test_starting_it_leaves_our_environment_as_it_was(bench: Bench) -> None:
    assert {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"} == {
        k: v for k, v in bench.environment.items() if k != "PYTEST_CURRENT_TEST"
    }


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"temperature": 1.3, "top_k": 5}, {"top_p": 0.6}])
def test_both_logprobs_are_the_models(bench: Bench, sampling: dict[str, Any]) -> None:
    reply = ask(bench.engine, request_of(40, top_logprobs=3, **sampling))
    rows = bench.logits(PROMPT, reply.ids)
    assert np.abs(bench.unit(PROMPT, reply.ids) - reply.logprobs_unit).max() < 1e-4
    likeliest = rows.log_softmax(-1).topk(3)
    assert [[token for token, _ in row] for row in reply.top] == likeliest.indices.tolist()
    assert np.abs(likeliest.values.numpy() - np.array([[p for _, p in row] for row in reply.top])).max() < 1e-4
    shaped = rows / sampling.get("temperature", 1.0)
    if "top_k" in sampling:
        shaped[shaped < shaped.topk(5).values[:, -1:]] = -torch.inf
    if "top_p" in sampling:
        ordered = shaped.softmax(-1).sort(-1, descending=True)
        outside = ordered.values.cumsum(-1) - ordered.values >= sampling["top_p"]
        shaped.scatter_(1, ordered.indices, shaped.gather(1, ordered.indices).masked_fill(outside, -torch.inf))
    as_sampled = shaped.log_softmax(-1).gather(1, torch.tensor(reply.ids)[:, None])[:, 0].numpy()
    assert np.abs(as_sampled - reply.logprobs).max() < 1e-4


def test_a_reply_depends_on_its_key_and_not_on_its_neighbours(bench: Bench) -> None:
    from ajet.engine.transformers import TransformersEngine

    alone = ask(bench.engine, request_of(50, repeat=4)).ids

    async def crowd() -> list[TokenChunk]:
        others = [request_of(30, LONG, repeat=k, temperature=0.5 * (k % 3)) for k in range(10)]
        return list(
            await asyncio.gather(*(reply_of(bench.engine, each) for each in [*others, request_of(50, repeat=4)]))
        )

    replies = asyncio.run(crowd())
    assert replies[-1].ids == alone
    assert len({tuple(reply.ids) for reply in replies[1:10:3]}) == 3, "other keys, other draws"
    inside = TransformersEngine(bench.model)
    try:
        assert ask(inside, request_of(50, repeat=4)).ids == alone, "the transformers engine draws with the same numbers"
    finally:
        inside.close()


def test_greedy_is_the_likeliest_and_certain(bench: Bench) -> None:
    reply = ask(bench.engine, request_of(30, temperature=0.0))
    assert reply.ids == bench.logits(PROMPT, reply.ids).argmax(-1).tolist()
    assert reply.logprobs == [0.0] * 30
    assert np.abs(bench.unit(PROMPT, reply.ids) - reply.logprobs_unit).max() < 1e-4


def test_all_weights_are_handed_over_and_no_cached_prefix_survives(bench: Bench) -> None:
    before = ask(bench.engine, request_of(10, LONG))
    assert np.abs(bench.unit(LONG, before.ids) - before.logprobs_unit).max() < 1e-4
    bench.shake(1)
    assert np.abs(bench.unit(LONG, before.ids) - before.logprobs_unit).max() > 0.01
    bench.update()
    after = ask(bench.engine, request_of(10, LONG))
    assert after.version == before.version + 1
    assert np.abs(bench.unit(LONG, after.ids) - after.logprobs_unit).max() < 1e-4
    bench.engine.check_weights()
    assert bench.engine.memory["weights"] >= sum(p.numel() * 4 for p in bench.model.parameters())


def test_an_update_in_the_middle_of_a_reply(bench: Bench) -> None:
    """Each token says the version it was drawn with; what comes later is computed with the new weights throughout."""
    old = bench.engine.version

    async def scenario() -> list[TokenChunk]:
        found = []
        stream = bench.engine.generate(request_of(600, LONG))
        async for chunk in stream:
            found.append(chunk)
            if len(found) == 5:
                bench.shake(2)
                await asyncio.get_running_loop().run_in_executor(None, bench.update)
        return found

    first = bench.model.state_dict()
    first = {name: tensor.clone() for name, tensor in first.items()}
    chunks = asyncio.run(scenario())
    ids = [token for chunk in chunks for token in chunk.ids]
    unit = np.array([p for chunk in chunks for p in chunk.logprobs_unit])
    versions = np.array([chunk.version for chunk in chunks for _ in chunk.ids])
    assert len(ids) == 600 and set(versions.tolist()) == {old, old + 1}
    assert (np.diff(versions) >= 0).all()
    later = versions == old + 1
    assert np.abs(bench.unit(LONG, ids) - unit)[later].max() < 1e-4
    bench.model.load_state_dict(first)
    assert np.abs(bench.unit(LONG, ids) - unit)[~later].max() < 1e-4
    bench.update()


def test_nothing_is_computed_while_it_is_paused(bench: Bench) -> None:
    counted = bench.engine.counts["sampled_tokens"]
    done = threading.Event()

    def user() -> None:
        ask(bench.engine, request_of(20))
        done.set()

    with bench.engine.paused(), bench.engine.held():
        caller = threading.Thread(target=user)
        caller.start()
        bench.engine.weights_changed(bench.engine.version + 1)
        assert bench.engine.counts["sampled_tokens"] == counted and not done.is_set()
    assert done.wait(30)
    caller.join()


def test_a_reply_is_held_to_a_schema(bench: Bench) -> None:
    kinds = {"colour": {"enum": ["red", "green"]}, "count": {"type": "boolean"}}
    schema = {"type": "object", "properties": kinds, "required": [*kinds], "additionalProperties": False}
    text = json.dumps(schema)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_folder())
    end = tokenizer.eos_token_id
    for repeat in range(5):
        reply = ask(bench.engine, request_of(400, repeat=repeat, stop_ids=(end,), temperature=1.5, json_schema=text))
        assert reply.finish == "stop" and reply.ids[-1] == end
        said = json.loads(tokenizer.decode(reply.ids[:-1]))
        assert said["colour"] in ("red", "green") and said["count"] in (True, False)
        assert np.abs(bench.unit(PROMPT, reply.ids) - reply.logprobs_unit).max() < 1e-4, "the model's own"
    certain = ask(bench.engine, request_of(9, temperature=0.0, json_schema=text))
    assert certain.ids != bench.logits(PROMPT, certain.ids).argmax(-1).tolist() and certain.logprobs == [0.0] * 9
    anything = ask(bench.engine, request_of(40, json_schema="{}"))
    assert tokenizer.decode(anything.ids).lstrip().startswith("{")


def test_a_request_that_cannot_be_answered_is_refused_and_hurts_nobody(bench: Bench) -> None:
    for request in (
        request_of(5, np.array([], np.int32)),
        request_of(5, np.array([VOCABULARY + 9], np.int32)),
        request_of(5, np.full(bench.engine.max_model_len, 7, np.int32)),
        request_of(0),
        request_of(5, json_schema='{"type": "no such type"}'),
    ):
        with pytest.raises(EngineFailure) as caught:
            ask(bench.engine, request)
        assert not caught.value.retryable
    assert len(ask(bench.engine, request_of(5)).ids) == 5


def test_ctrl_c_is_not_for_its_processes(bench: Bench) -> None:
    for process in list_engine_processes():
        process.send_signal(signal.SIGINT)
    assert len(ask(bench.engine, request_of(60)).ids) == 60


OWNER = """
import sys, time
from tests.support.vllm_fixtures import list_engine_processes, vllm_engine
if __name__ == "__main__":
    engine = vllm_engine(max_num_seqs=1)
    print(*(process.pid for process in list_engine_processes()), flush=True)
    time.sleep(600)
"""


@pytest.mark.extra_slow
def test_its_processes_end_with_a_killed_owner(tmp_path: Any) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    with tempfile.TemporaryDirectory(prefix="v") as theirs:  # what a killed owner cannot remove; short, for sockets
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]), "TMPDIR": theirs}
        owner = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert owner.stdout is not None
            processes = [psutil.Process(int(pid)) for pid in owner.stdout.readline().split()]
            assert len(processes) >= 2
        finally:
            owner.kill()
            owner.wait()
        gone, alive = psutil.wait_procs(processes, timeout=30)
        assert not alive and len(gone) == len(processes)


def test_what_it_cannot_run_is_refused_before_anything_starts(tmp_path: Any) -> None:
    elsewhere = "cpu" if torch.cuda.is_available() else "cuda"
    with pytest.raises(UserError, match=f"the trainer runs on {elsewhere}"):
        vllm_engine(device=torch.device(elsewhere))
    from ajet_vllm.engine import VllmEngine
    from ajet_vllm.launch import VllmLaunch

    with pytest.raises(UserError, match="vLLM cannot load the model"):
        VllmEngine(VllmLaunch(tmp_path, device=torch.device("cuda" if torch.cuda.is_available() else "cpu")))


def test_what_waits_to_be_fetched_is_merged_without_loss() -> None:
    """vLLM joins outputs that nobody has taken yet, by way of dicts from id to logprob."""
    from vllm.logprobs import FlatLogprobs
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.v1.metrics.stats import RequestStateStats

    from ajet_vllm.requests import LIKELIEST, VERSIONS, OutputReader

    counts = RequestStateStats(5)

    def output(tokens: list[int], version: int, finish: str | None = None) -> RequestOutput:
        columns = FlatLogprobs()
        for token in tokens:  # the version and the likeliest token have the same number as the token
            ids = [token, VERSIONS - version, LIKELIEST - token, LIKELIEST - 3]
            columns.append_fast(ids, [-0.5, -1.0, -1.0, -2.0], iter((0, 1, 2, 3)), iter([None] * 4))
        piece = CompletionOutput(0, "", tokens, 0.0, columns, finish_reason=finish)
        return RequestOutput("r", None, [1], None, [piece], finish is not None, counts)

    first = output([21, 5], 21)
    first.add(output([21], 21), aggregate=True)
    first.add(output([22, 7], 22, "stop"), aggregate=True)
    chunks = OutputReader(2).chunks(first, 0)
    assert [(chunk.version, chunk.ids, chunk.finish) for chunk in chunks] == [
        (21, [21, 5, 21], None),
        (22, [22, 7], "stop"),
    ]
    assert [chunk.logprobs for chunk in chunks] == [[-0.5] * 3, [-0.5] * 2]
    assert [chunk.logprobs_unit for chunk in chunks] == [[-1.0] * 3, [-1.0] * 2]
    assert chunks[0].top[0] == [(21, -1.0), (3, -2.0)]
    with pytest.raises(EngineFailure, match="streamed 1 tokens, .* 5"):
        OutputReader(0).chunks(output([4], 0, "length"), 0)
    with pytest.raises(EngineFailure, match="version 3, .* version 4"):
        reading = OutputReader(0)
        reading.chunks(output([4], 4), 0)
        reading.chunks(output([4], 3), 0)


@pytest.mark.extra_slow
def test_when_its_process_dies_every_call_fails_and_nothing_hangs(bench: Bench) -> None:
    async def scenario() -> list[BaseException | TokenChunk]:
        calls = [asyncio.ensure_future(reply_of(bench.engine, request_of(900, repeat=k))) for k in range(3)]
        stream = bench.engine.generate(request_of(900, repeat=3))
        await stream.__anext__()
        for process in list_engine_processes():
            if "EngineCore" in process.name():
                process.kill()
        with pytest.raises(EngineFailure):
            async for _ in stream:
                pass
        return list(await asyncio.gather(*calls, return_exceptions=True))

    ended = asyncio.run(asyncio.wait_for(scenario(), 60))
    assert [type(end) for end in ended] == [EngineFailure] * 3
    with pytest.raises(EngineFailure):
        ask(bench.engine, request_of(3))
    with pytest.raises(EngineFailure):
        bench.update()
    processes = list_engine_processes()
    bench.engine.close()
    psutil.wait_procs(processes, timeout=30)
    assert not list_engine_processes()


@pytest.mark.extra_slow
def test_a_server_that_says_one_logprob_is_asked_nothing_else() -> None:
    from ajet_vllm.vllm_server import RemoteVllm

    with vllm_server("--logprobs-mode", "raw_logprobs") as url:
        engine = RemoteVllm(url + "/v1", vocabulary=VOCABULARY)
        assert not engine.reports_sampled and not engine.constrains
        for sampling in ({"temperature": 1.0, "top_logprobs": 2}, {"temperature": 0.0}):
            reply = ask(engine, request_of(20, **sampling))
            assert np.abs(unit_logprobs(PROMPT, reply.ids) - reply.logprobs_unit).max() < 1e-4
            assert reply.logprobs == (reply.logprobs_unit if sampling["temperature"] else [0.0] * 20)
        with pytest.raises(EngineFailure, match="processed_logprobs"):
            ask(engine, request_of(20, temperature=0.5))
        engine.close()
        teaches(url + "/v1", reply.ids)


def teaches(url: str, reply: list[int]) -> None:
    """It says of given tokens what transformers does, and that their ids are those of the policy."""
    from ajet.engine.models import load_tokenizer

    tokenizer = load_tokenizer(locate_model("embedded:tiny-tools"))
    teacher = TeacherEndpoint(TeacherConfig(base_url=url, model=str(tiny_folder())))
    teacher.require_same_tokenizer(tokenizer)
    line = timeline_of([*PROMPT.tolist(), *reply], [(len(PROMPT), len(PROMPT) + len(reply))])
    (found,) = asyncio.run(teacher.logprobs([line]))
    assert np.abs(unit_logprobs(PROMPT, reply) - found[line.mask]).max() < 1e-4 and not found[~line.mask].any()
    shifted = SimpleNamespace(
        get_vocab=tokenizer.get_vocab,
        get_added_vocab=tokenizer.get_added_vocab,
        decode=lambda ids: tokenizer.decode([(one + 1) % VOCABULARY for one in ids]),
    )
    with pytest.raises(UserError, match="tokenizer differs from the policy's: token id"):
        teacher.require_same_tokenizer(shifted)
