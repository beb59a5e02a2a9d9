"""The transformers engine against transformers itself: same tokens, same logprobs, nothing computed twice."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.model_source import locate_model
from ajet.engine.models import load_model
from ajet.engine.transformers import TransformersEngine
from ajet.engine.transformers.pool import RowPool, Shape
from ajet.engine.transformers.rows import Rows, capacity_class
from ajet.schema.errors import EngineFailure

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)


class Reply:
    """A whole reply."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.unit: list[float] = []
        self.versions: list[int] = []
        self.finish: str | None = None
        self.top: list[Any] = []


def prompt(length: int, rng: np.random.Generator = RNG) -> Any:
    return rng.integers(3, 379, length).astype(np.int32)


async def ask(engine: TransformersEngine, ids: Any, length: int, repeat: int = 0, **how: Any) -> Reply:
    reply = Reply()
    request = TokenRequest(ids, Sampling(length, **how), DrawKey(1, 2, repeat, 0))
    async for chunk in engine.generate(request):
        reply.ids += chunk.ids
        reply.logprobs += chunk.logprobs
        reply.unit += chunk.logprobs_unit
        reply.versions += [chunk.version] * len(chunk.ids)
        reply.top += chunk.top
        reply.finish = chunk.finish
    return reply


def all_of(*calls: Any) -> list[Reply]:
    async def gathered() -> list[Reply]:
        return list(await asyncio.gather(*calls))

    return asyncio.run(gathered())


def unit_logprobs(model: Any, ids: Any, reply: list[int]) -> Any:
    """[R, V] at temperature 1, by one plain forward pass over prompt and reply."""
    full = torch.tensor([[*ids.tolist(), *reply]])
    with torch.no_grad():
        return torch.log_softmax(model(full).logits[0].float(), -1)[len(ids) - 1 : -1]


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(locate_model("embedded:tiny-tools"), dtype=torch.float32)


@pytest.fixture
def engine(model: Any) -> Iterator[TransformersEngine]:
    made = TransformersEngine(model, max_num_seqs=16)
    yield made
    made.close()


def check(model: Any, ids: Any, reply: Reply, atol: float = 2e-4) -> None:
    """Its logprobs are those of a plain forward pass."""
    expected = unit_logprobs(model, ids, reply.ids)
    chosen = expected[torch.arange(len(reply.ids)), torch.tensor(reply.ids)]
    assert torch.allclose(chosen, torch.tensor(reply.unit), atol=atol)


def test_greedy_is_what_generate_gives(model: Any, engine: TransformersEngine) -> None:
    prompts = [prompt(n) for n in (1, 2, 5, 17, 64, 65, 130, 300)]
    replies = all_of(*(ask(engine, p, 20 + 7 * k, temperature=0.0) for k, p in enumerate(prompts)))
    for k, (ids, reply) in enumerate(zip(prompts, replies, strict=True)):
        tokens = torch.from_numpy(ids)[None].long()
        how = {"max_new_tokens": 20 + 7 * k, "do_sample": False, "eos_token_id": None}
        expected = model.generate(tokens, attention_mask=torch.ones_like(tokens), **how)
        assert reply.ids == expected[0, len(ids) :].tolist()
        assert reply.logprobs == [0.0] * len(reply.ids)
        check(model, ids, reply)


def test_logprobs_are_of_what_was_sampled_from(model: Any, engine: TransformersEngine) -> None:
    ids = prompt(40)
    plain, warm, cut = all_of(
        ask(engine, ids, 30),
        ask(engine, ids, 30, 1, temperature=0.7, top_logprobs=3),
        ask(engine, ids, 30, 2, temperature=0.8, top_k=5, top_p=0.9),
    )
    assert plain.logprobs == plain.unit
    for reply in (plain, warm, cut):
        check(model, ids, reply)
    expected = unit_logprobs(model, ids, warm.ids)
    scaled = torch.log_softmax(expected / 0.7, -1)
    assert torch.allclose(scaled[torch.arange(30), torch.tensor(warm.ids)], torch.tensor(warm.logprobs), atol=2e-4)
    for row, top in zip(expected, warm.top, strict=True):
        values, order = row.topk(3)
        assert [token for token, _ in top] == order.tolist()
        assert [p for _, p in top] == pytest.approx(values.tolist(), abs=2e-4)
    ranks = (unit_logprobs(model, ids, cut.ids) > torch.tensor(cut.unit)[:, None] + 1e-4).sum(-1)
    assert ranks.max() < 5


def test_a_reply_does_not_depend_on_its_company(model: Any, engine: TransformersEngine) -> None:
    prompts = [prompt(30 + 3 * k) for k in range(6)]
    together = all_of(*(ask(engine, p, 25, repeat=r) for p in prompts for r in range(4)))
    engine.weights_changed(0)
    for k, ids in enumerate(prompts):
        for r in range(4):
            alone = all_of(ask(engine, ids, 25, repeat=r))[0]
            assert alone.ids == together[4 * k + r].ids
    assert len({tuple(reply.ids) for reply in together}) == len(together)


def test_a_group_computes_its_prompt_once(model: Any, engine: TransformersEngine) -> None:
    ids = prompt(70)
    with engine.held():
        replies = run_held(engine, [ask(engine, ids, 10, repeat=r) for r in range(8)])
    for reply in replies():
        check(model, ids, reply)
    assert engine.counts["computed_tokens"] == 70 + 8 * 9  # the last token of a reply is nobody's context
    assert engine.counts["prompt_tokens"] == 8 * 70


def test_prompts_that_begin_alike_compute_the_beginning_once(model: Any, engine: TransformersEngine) -> None:
    common = prompt(50)
    prompts = [np.concatenate([common, prompt(n)]) for n in (9, 9, 12, 1, 1)] + [common]
    with engine.held():
        replies = run_held(engine, [ask(engine, p, 2) for p in prompts])
    done = replies()
    assert engine.counts["computed_tokens"] == 50 + 9 + 9 + 12 + 1 + 1 + 1 + len(prompts)
    for ids, reply in zip(prompts, done, strict=True):
        check(model, ids, reply)


def test_a_conversation_computes_only_what_is_new(model: Any, engine: TransformersEngine) -> None:
    ids = prompt(60)
    for turn in range(4):
        before = engine.counts["computed_tokens"]
        reply = all_of(ask(engine, ids, 15, repeat=turn))[0]
        check(model, ids, reply)
        new = len(ids) if turn == 0 else 11  # the last token sampled, then ten of the tool
        assert engine.counts["computed_tokens"] - before == new + 14
        ids = np.concatenate([ids, np.array(reply.ids, np.int32), prompt(10)])


def test_branches_of_a_conversation_share_it(model: Any, engine: TransformersEngine) -> None:
    ids = prompt(60)
    reply = all_of(ask(engine, ids, 15))[0]
    longer = [np.concatenate([ids, np.array(reply.ids, np.int32), prompt(n)]) for n in (20, 20, 31)]
    before = engine.counts["computed_tokens"]
    for branch, answer in zip(longer, all_of(*(ask(engine, b, 5) for b in longer)), strict=True):
        check(model, branch, answer)
    assert engine.counts["computed_tokens"] - before == (1 + 20) + 20 + 31 + 3 * 4


def test_a_long_prompt_comes_in_portions_beside_running_rows(model: Any) -> None:
    engine = TransformersEngine(model, max_num_seqs=4, step_tokens=32)
    prompts = [prompt(n) for n in (200, 33, 7, 150, 64, 31)]
    for ids, reply in zip(prompts, all_of(*(ask(engine, p, 30) for p in prompts)), strict=True):
        check(model, ids, reply)
    engine.close()


def test_more_calls_than_rows_all_end(model: Any) -> None:
    engine = TransformersEngine(model, max_num_seqs=3, cache_bytes=1)
    prompts = [prompt(int(n)) for n in RNG.integers(1, 120, 40)]
    lengths = RNG.integers(1, 90, 40).tolist()
    replies = all_of(*(ask(engine, p, n) for p, n in zip(prompts, lengths, strict=True)))
    assert [len(reply.ids) for reply in replies] == lengths
    for ids, reply in zip(prompts, replies, strict=True):
        check(model, ids, reply)
    engine.close()


def test_the_context_is_where_a_reply_ends(model: Any) -> None:
    engine = TransformersEngine(model, max_model_len=80)
    reply = all_of(ask(engine, prompt(70), 500))[0]
    assert (len(reply.ids), reply.finish) == (10, "length")
    for ids, says in ((prompt(80), "80 tokens"), (prompt(0), "empty"), (np.array([379], np.int32), "id 379, ")):
        with pytest.raises(EngineFailure, match=says) as failed:
            all_of(ask(engine, ids, 5))
        assert not failed.value.retryable
    engine.close()


def test_weights_are_shared_and_a_running_call_goes_on_with_new_ones() -> None:
    model = load_model(locate_model("embedded:tiny-tools"), dtype=torch.float32)
    engine = TransformersEngine(model, max_num_seqs=4)
    other = load_model(locate_model("embedded:tiny-tools"), dtype=torch.float32)
    ids, reply = prompt(30), Reply()

    def update() -> None:
        with engine.paused(), torch.no_grad():
            steps = engine.counts["steps"]
            for parameter in model.parameters():
                parameter.mul_(1.05)
            assert engine.counts["steps"] == steps
        engine.weights_changed(1)

    async def scenario() -> None:
        request = TokenRequest(ids, Sampling(600), DrawKey(0, 0, 0, 0))
        changed = False
        async for chunk in engine.generate(request):
            reply.ids += chunk.ids
            reply.unit += chunk.logprobs_unit
            reply.versions += [chunk.version] * len(chunk.ids)
            if not changed:
                changed = True
                await asyncio.get_running_loop().run_in_executor(None, update)

    asyncio.run(scenario())
    engine.close()
    assert len(reply.ids) == 600
    assert set(reply.versions) == {0, 1} and reply.versions == sorted(reply.versions)
    switch = reply.versions.index(1)
    rows, tokens = torch.arange(600), torch.tensor(reply.ids)
    old, new = (unit_logprobs(m, ids, reply.ids)[rows, tokens] for m in (other, model))
    got = torch.tensor(reply.unit)
    assert torch.allclose(old[:switch], got[:switch], atol=1e-3)
    assert torch.allclose(new[switch:], got[switch:], atol=1e-3)
    assert not torch.allclose(old[switch:], got[switch:], atol=1e-2)


def test_training_mode_and_attention_of_the_model_are_left_alone(model: Any) -> None:
    before = model.config._attn_implementation
    model.train()
    engine = TransformersEngine(model)
    assert model.training and model.config._attn_implementation == before
    pointers = {p.data_ptr() for p in model.parameters()}
    assert {p.data_ptr() for p in engine._model.parameters()} == pointers
    assert not engine._model.training
    model.eval()
    engine.close()


def test_a_cast_copy_is_refreshed_from_its_source() -> None:
    source = load_model(locate_model("embedded:tiny-tools"), dtype=torch.float32)
    cast = load_model(locate_model("embedded:tiny-tools"), dtype=torch.bfloat16)
    engine = TransformersEngine(cast, source_model=source)
    with torch.no_grad():
        source.model.embed_tokens.weight.zero_()
    engine.weights_changed(1)
    assert cast.model.embed_tokens.weight.abs().sum() == 0
    reply = all_of(ask(engine, prompt(9), 4))[0]
    assert reply.unit == pytest.approx([-np.log(379)] * 4, abs=1e-4)  # no logit differs from another
    engine.close()


def test_a_failed_step_fails_its_calls_and_no_others() -> None:
    model = load_model(locate_model("embedded:tiny-tools"), dtype=torch.float32)
    engine = TransformersEngine(model, max_num_seqs=4)
    ids = prompt(20)
    good = all_of(ask(engine, ids, 12))[0]
    norm = model.model.norm.weight
    kept = norm.data
    with engine.paused():
        norm.data = torch.ones(5)  # fits nothing: the next forward pass raises
    failures = asyncio.run(failing(engine, ids))
    assert [type(failure) for failure in failures] == [EngineFailure] * 6
    with engine.paused():
        norm.data = kept
    assert all_of(ask(engine, ids, 12))[0].ids == good.ids
    engine.close()


async def failing(engine: TransformersEngine, ids: Any) -> list[Any]:
    return list(await asyncio.gather(*(ask(engine, ids, 12, r) for r in range(6)), return_exceptions=True))


def run_held(engine: TransformersEngine, calls: list[Any]) -> Any:
    """Hand the calls over while the engine is held; what comes back waits for the replies."""
    result: list[Reply] = []
    thread = threading.Thread(target=lambda: result.extend(all_of(*calls)))
    with engine._state_changed:
        thread.start()
        assert engine._state_changed.wait_for(lambda: len(engine._new_requests) == len(calls), timeout=240)

    def wait() -> list[Reply]:
        thread.join(240)
        return result

    return wait


def tiny(kind: str) -> Any:
    """A random model whose attention is special."""
    import transformers

    common = {
        "vocab_size": 379,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    torch.manual_seed(0)
    if kind == "gemma2":
        config: Any = transformers.Gemma2Config(
            **common,
            sliding_window=24,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=4.0,
            query_pre_attn_scalar=16,
        )
    elif kind == "mistral":
        config = transformers.MistralConfig(**common, sliding_window=20)
    elif kind == "gpt_oss":
        config = transformers.GptOssConfig(
            **common, sliding_window=16, num_local_experts=4, num_experts_per_tok=4, initializer_range=0.2
        )
    else:
        config = transformers.GPTNeoXConfig(**common)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    return model.eval()


@pytest.mark.parametrize("kind", ["gemma2", "mistral", "gpt_oss", "gpt_neox"])
def test_windows_caps_and_sinks(kind: str) -> None:
    model = tiny(kind)
    engine = TransformersEngine(model, max_num_seqs=8, step_tokens=40)
    prompts = [prompt(n) for n in (5, 33, 90, 90)]
    for ids, reply in zip(prompts, all_of(*(ask(engine, p, 40) for p in prompts)), strict=True):
        check(model, ids, reply, atol=5e-3)  # logits in the tens: large weights make what is masked matter
    engine.close()


def test_bfloat16_is_as_close_as_a_plain_pass(model: Any) -> None:
    half = load_model(locate_model("embedded:tiny-tools"), dtype=torch.bfloat16)
    engine = TransformersEngine(half)
    ids = prompt(60)
    replies = all_of(*(ask(engine, ids, 40, r) for r in range(8)))
    ours, plain = [], []
    for reply in replies:
        rows, tokens = torch.arange(len(reply.ids)), torch.tensor(reply.ids)
        exact = unit_logprobs(model, ids, reply.ids)[rows, tokens]
        ours.append((torch.tensor(reply.unit) - exact).abs())
        plain.append((unit_logprobs(half, ids, reply.ids)[rows, tokens] - exact).abs())
    assert torch.cat(ours).mean() < 1.3 * torch.cat(plain).mean() + 1e-3
    engine.close()


def test_a_closed_engine_holds_no_weights() -> None:
    """Neither do its layers' products, of which each knows its layer: they go before Python looks for circles."""
    half = load_model(locate_model("embedded:tiny-tools"), dtype=torch.bfloat16)
    engine, weight = TransformersEngine(half), weakref.ref(half.lm_head.weight)
    gc.disable()
    try:
        engine.close()
        del engine, half
        assert weight() is None
    finally:
        gc.enable()


def test_capacity_classes() -> None:
    sizes = sorted({capacity_class(n) for n in range(1, 800)})
    assert sizes == [64, 96, 128, 192, 256, 384, 512, 768, 1024]
    assert all(capacity_class(n) >= n for n in range(1, 5000))


def test_rows_keep_their_keys_through_any_moves() -> None:
    """Place, grow, retire, revive, forget at random: a row's keys are always those that were written for it."""
    rng = np.random.default_rng(3)
    rows = Rows(Shape(1, 1, 1, 1, torch.float32, torch.device("cpu")), max_rows=12, max_bytes=1 << 30)
    alive: list[Any] = []

    def write(row: Any) -> None:
        row.computed = row.planned = row.known - 1
        row.pool.keys[0, row.slot, 0, : row.computed, 0] = torch.from_numpy(row.ids[: row.computed].astype(np.float32))

    def intact(row: Any) -> bool:
        keys = row.pool.keys[0, row.slot, 0, : row.computed, 0].numpy()
        return row.pool.rows[row.slot] is row and bool((keys == row.ids[: row.computed]).all())

    for _ in range(400):
        rows.clock += 1
        deed = rng.integers(4)
        if deed == 0 or not alive:
            ids = prompt(int(rng.integers(2, 200)), rng)
            row = rows.place(ids, len(ids))
            row.call = object()
            write(row)
            alive.append(row)
        elif deed == 1 and len(alive) > 2:
            ended = [alive.pop(int(rng.integers(len(alive)))) for _ in range(2)]
            rows.retire(ended)
        elif deed == 2:
            rows.grow(alive[int(rng.integers(len(alive)))])
        else:
            row = alive[int(rng.integers(len(alive)))]
            shared, found = rows.shared(np.concatenate([row.ids[: row.computed], prompt(5, rng)]))
            assert found is not None and shared >= row.computed
            if len(alive) > 8:
                rows.retire(alive)
                alive = []
        for pool in rows.pools.values():
            assert all(pool.rows[: pool.active])
            assert all(row is None or intact(row) for row in pool.rows)
        assert set(map(id, rows.active)) == set(map(id, alive))
    assert isinstance(next(iter(rows.pools.values())), RowPool)
