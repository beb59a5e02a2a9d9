"""One suite over every TokenEngine, and what only a real model can be asked: that its numbers are the model's."""

import asyncio
from contextlib import aclosing

import numpy as np
import pytest
import torch

from ajet.engine.contract import DrawKey, Sampling, TokenEngine, TokenRequest
from ajet.engine.model_source import locate
from ajet.engine.models import load_model, load_tokenizer
from ajet.engine.scripted import ScriptedEngine
from ajet.engine.transformers import TransformersEngine
from ajet.schema.errors import EngineFailure

PROMPT = np.arange(20, 60, dtype=np.int32)


@pytest.fixture(scope="module")
def model():
    return load_model(locate("embedded:tiny-tools"), dtype=torch.float32)


def scripted():
    return ScriptedEngine(lambda request: list(range(100, 100 + request.sampling.max_tokens)), chunk=2)


@pytest.fixture(params=["transformers", "scripted"])
def engine(request, model):
    made = TransformersEngine(model, max_num_seqs=8) if request.param == "transformers" else scripted()
    yield made
    made.close()


@pytest.fixture
def sampler(model):
    made = TransformersEngine(model, max_num_seqs=8)
    yield made
    made.close()


def a_request(prompt=PROMPT, key=DrawKey(0, 0, 0, 0), **sampling) -> TokenRequest:
    return TokenRequest(np.asarray(prompt, np.int32), Sampling(**{"max_tokens": 6, **sampling}), key)


async def reply(engine: TokenEngine, request: TokenRequest):
    """All of a reply: ids, logprobs, logprobs at temperature 1, versions, finish reasons."""
    ids, logprobs, unit, versions, finishes = [], [], [], [], []
    async for chunk in engine.generate(request):
        assert len(chunk.ids) == len(chunk.logprobs) == len(chunk.logprobs_unit)
        ids += chunk.ids
        logprobs += chunk.logprobs
        unit += chunk.logprobs_unit
        versions += [chunk.version] * len(chunk.ids)
        finishes.append(chunk.finish)
    return ids, logprobs, unit, versions, finishes


def together(*coroutines):
    async def gather():
        return await asyncio.gather(*coroutines, return_exceptions=True)

    return asyncio.run(gather())


def test_it_is_a_token_engine(engine):
    assert isinstance(engine, TokenEngine) and engine.max_model_len > len(PROMPT)


def test_only_the_last_chunk_says_how_it_ended(engine):
    (ids, logprobs, unit, _, finishes) = asyncio.run(reply(engine, a_request()))
    assert len(ids) == 6 and finishes[-1] == "length" and set(finishes[:-1]) <= {None}
    assert all(value <= 0 for value in logprobs + unit)


def test_a_stop_id_is_the_replys_last(engine):
    free = asyncio.run(reply(engine, a_request()))[0]
    cut = asyncio.run(reply(engine, a_request(stop_ids=(free[2],))))
    assert cut[0] == free[: free.index(free[2]) + 1] and cut[4][-1] == "stop"


def test_many_at_once_all_end(engine):
    requests = [a_request(key=DrawKey(0, task, 0, 0)) for task in range(40)]
    answers = together(*(reply(engine, request) for request in requests))
    assert [len(answer[0]) for answer in answers] == [6] * 40


def test_closing_the_iterator_frees_the_slot(engine):
    async def leave():
        async with aclosing(engine.generate(a_request(max_tokens=200))) as chunks:
            await chunks.__anext__()

    together(*(leave() for _ in range(16)))
    assert len(asyncio.run(reply(engine, a_request()))[0]) == 6


def test_the_version_is_that_of_the_weights(engine):
    assert set(asyncio.run(reply(engine, a_request()))[3]) == {0}
    engine.weights_changed(7)
    assert engine.version == 7 and set(asyncio.run(reply(engine, a_request()))[3]) == {7}
    with pytest.raises(ValueError, match="older"):
        engine.weights_changed(6)


def test_a_closed_engine_fails_its_calls(engine):
    engine.close()
    engine.close()
    (outcome,) = together(reply(engine, a_request()))
    assert isinstance(outcome, EngineFailure)


# What only a real model can be asked.


def log_softmax(model, ids, temperature=1.0) -> np.ndarray:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].float()
    return torch.log_softmax(logits / temperature, -1).numpy()


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_are_the_models_own(sampler, model, temperature):
    ids, logprobs, unit, _, _ = asyncio.run(reply(sampler, a_request(temperature=temperature, max_tokens=12)))
    whole = [*PROMPT.tolist(), *ids]
    places = range(len(PROMPT) - 1, len(whole) - 1)
    expected_unit = [log_softmax(model, whole)[at, whole[at + 1]] for at in places]
    expected = [log_softmax(model, whole, temperature)[at, whole[at + 1]] for at in places]
    np.testing.assert_allclose(unit, expected_unit, atol=2e-4)
    np.testing.assert_allclose(logprobs, expected, atol=2e-4)


def test_greedy_takes_the_most_likely(sampler, model):
    ids = asyncio.run(reply(sampler, a_request(temperature=0.0)))[0]
    whole = [*PROMPT.tolist(), *ids]
    table = log_softmax(model, whole)
    assert ids == [int(table[at].argmax()) for at in range(len(PROMPT) - 1, len(whole) - 1)]


def test_draws_depend_on_the_key_and_on_nothing_beside_it(sampler):
    request = a_request(key=DrawKey(3, 1, 2, 0), max_tokens=10, temperature=4.0)
    alone = asyncio.run(reply(sampler, request))[0]
    others = [a_request(prompt=PROMPT[: 5 + n], key=DrawKey(3, 9, n, 0), max_tokens=3 + n) for n in range(7)]
    among = together(reply(sampler, request), *(reply(sampler, other) for other in others))[0][0]
    other_key = asyncio.run(reply(sampler, a_request(key=DrawKey(3, 1, 3, 0), max_tokens=10, temperature=4.0)))[0]
    assert alone == among != other_key


def test_shared_prompts_and_grown_conversations_are_computed_once(sampler):
    group = [a_request(key=DrawKey(0, 0, repeat, 0), max_tokens=4) for repeat in range(6)]
    answers = together(*(reply(sampler, request) for request in group))
    assert sampler.counts["computed_tokens"] < 2 * len(PROMPT) + 6 * 4 < 6 * len(PROMPT)
    before = sampler.counts["computed_tokens"]
    grown = [*PROMPT.tolist(), *answers[0][0], 30, 31]
    asyncio.run(reply(sampler, a_request(prompt=grown, max_tokens=1)))
    assert sampler.counts["computed_tokens"] - before <= 4


@pytest.mark.parametrize("prompt", [[], [10**6], list(range(20)) * 10000], ids=["empty", "no such id", "too long"])
def test_an_impossible_prompt_fails_alone(sampler, prompt):
    bad, good = together(reply(sampler, a_request(prompt=prompt)), reply(sampler, a_request()))
    assert isinstance(bad, EngineFailure) and len(good[0]) == 6


def test_calls_across_an_update_say_which_weights_sampled_what(sampler):
    async def play():
        versions = []
        async for chunk in sampler.generate(a_request(max_tokens=400, stop_ids=())):
            if not versions:
                await asyncio.get_running_loop().run_in_executor(None, sampler.weights_changed, 1)
            versions += [chunk.version] * len(chunk.ids)
        return versions

    versions = asyncio.run(play())
    assert len(versions) == 400 and versions == sorted(versions) and set(versions) == {0, 1}


def test_the_tokenizer_speaks_with_tools():
    tokenizer = load_tokenizer(locate("embedded:tiny-tools"))
    assert tokenizer.chat_template and len(tokenizer) < 600
