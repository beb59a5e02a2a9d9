"""Several adapters on one model: each is trained by what it sampled, by nothing else, and sampled with as if alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from ajet.backbone.local.lora import add_adapters, merge_saved_adapters
from ajet.backbone.local.policy import LocalPolicy
from ajet.backbone.local.trainer import Trainer
from ajet.config.schema.trainer_common import AdapterConfig, LoraConfig
from ajet.context_tracker import timelines
from ajet.context_tracker.packing import pack
from ajet.engine.adapters import Adapters
from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.transformers import TransformersEngine
from ajet.record.episode_codec import decode, encode
from ajet.schema.batch import TrainingBatch
from ajet.schema.call import Terms
from ajet.schema.errors import ConfigError, EngineFailure, UserError
from ajet_proof.tokens.proof_lines import prove_timelines
from tests.support.local_fixtures import config_of, episode_of, random_samples, tiny_qwen3

TWO = {"solver": AdapterConfig(rank=4), "critic": AdapterConfig(rank=2, alpha=4, agents=["critic*"])}


def of_adapters(*names, seed=0):
    """Samples, their adapters in turn."""
    samples = random_samples(seed)
    for at, sample in enumerate(samples):
        sample.timeline = replace(sample.timeline, adapter=names[at % len(names)])
    return samples


def trainer_of(**changes):
    return Trainer(tiny_qwen3(layers=1), config_of(**{"lora__adapters": TWO, "optim__lr": 0.05} | changes))


def weights_of(trainer, name):
    start, stop = trainer.policy.locate_part(name)
    return trainer.policy.weights.values[start:stop].clone()


def trained(trainer, *steps):
    for step, samples in enumerate(steps, 1):
        trainer.update(TrainingBatch(step, samples))
    return trainer


def test_an_agent_has_the_first_adapter_that_names_it():
    several = Adapters.from_config(config_of(lora__adapters=TWO).trainer_common.lora)
    found = [several.find_adapter(*each) for each in (("a", "solver"), ("solver", "b"), ("critic-2", "x"), ("x", "y"))]
    assert found == ["solver", "solver", "critic", None]


def test_no_timeline_has_tokens_of_two_adapters_and_the_proof_says_so():
    """A call that continues another's tokens under another adapter: a context there, and no timeline of both."""
    calls = episode_of(1.0, (3, 4)).calls
    calls[1].parent, calls[1].prefix = 0, 5
    for call, adapter in zip(calls, ("solver", "critic"), strict=True):
        call.terms = Terms(adapter=adapter)
    apart, _ = timelines(calls)
    assert [(line.adapter, line.sampled, len(line.spans)) for line in apart] == [("solver", 3, 1), ("critic", 4, 1)]
    assert not prove_timelines(calls, apart, "e")
    calls[0].terms = Terms(adapter="critic")
    [joined], _ = timelines(calls)
    assert (joined.adapter, joined.sampled, len(joined.spans)) == ("critic", 7, 2)
    calls[0].terms = Terms(adapter="solver")
    assert "trains what solver sampled" in prove_timelines(calls, [joined], "e")[0].what


def test_the_record_says_which_adapter_sampled_a_call():
    episode = episode_of(1.0, (3, 4))
    episode.calls[1].terms = Terms(adapter="critic")
    episode = replace(episode, timelines=timelines(episode.calls)[0])
    again = decode(*encode(episode))
    assert [call.terms.adapter for call in again.calls] == [None, "critic"]
    assert [line.adapter for line in again.timelines] == [None, "critic"]


def test_no_row_has_tokens_of_two_adapters():
    samples = of_adapters("solver", "critic", None)
    rows = pack(samples, 10_000)
    assert [row.adapter for row in rows].count(None) == 1 and len(rows) == 3
    for row in rows:
        assert {samples[at].timeline.adapter for at in row.targets.sample.tolist()} == {row.adapter}
    assert sum(row.targets.token.size for row in rows) == sum(each.timeline.sampled for each in samples)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.extra_slow)], ids=str)
def test_the_gradient_of_one_adapter_is_exactly_zero_for_the_others(dtype):
    trainer = Trainer(tiny_qwen3(dtype=dtype, layers=1), config_of(lora__adapters=TWO, optim__lr=0.05))
    trained(trainer, of_adapters("solver", "critic"))
    found = {}
    step = trainer.optimizer.step

    def seen(gradients, *rest, part, at):
        found[part] = gradients.clone()
        return step(gradients, *rest, part=part, at=at)

    trainer.optimizer.step = seen
    before = {name: weights_of(trainer, name) for name in TWO}
    trainer.update(TrainingBatch(2, of_adapters("solver")))
    assert list(found) == ["solver"]
    start, stop = trainer.policy.locate_part("critic")
    assert not found["solver"][start:stop].any() and found["solver"].any()
    assert torch.equal(weights_of(trainer, "critic"), before["critic"]), "not even by its momentum"
    assert not torch.equal(weights_of(trainer, "solver"), before["solver"])


@pytest.mark.extra_slow
def test_each_learns_as_if_the_other_were_not_there():
    """Bit for bit: its gradient, its clipping, its moments and its count of steps are its own."""
    both = [of_adapters("solver", "critic", seed=seed) for seed in (0, 1)]
    alone = [[each for each in samples if each.timeline.adapter == "solver"] for samples in both]
    together, one = trained(trainer_of(), *both), trained(trainer_of(), *alone)
    assert torch.equal(weights_of(together, "solver"), weights_of(one, "solver"))
    assert not torch.equal(weights_of(together, "critic"), weights_of(one, "critic"))
    assert together.optimizer.counts == {"critic": 2, "solver": 2} and one.optimizer.counts == {"solver": 2}


@pytest.mark.extra_slow
def test_logprobs_are_those_of_a_trainer_with_this_adapter_alone():
    trainer = trained(trainer_of(), of_adapters("solver", "critic"))
    single = Trainer(tiny_qwen3(layers=1), config_of(lora__rank=4))
    single.policy.weights.values.copy_(weights_of(trainer, "solver"))
    plain, base = random_samples(3), Trainer(tiny_qwen3(layers=1), config_of())
    for ours, theirs in ((of_adapters("solver", seed=3), single), (random_samples(3), base)):
        for mine, their in zip(trainer.logprobs(ours), theirs.logprobs(plain), strict=True):
            np.testing.assert_allclose(mine, their, atol=1e-5)
    kl = trainer.logprobs(of_adapters("critic", seed=3), reference=True)
    np.testing.assert_allclose(np.concatenate(kl), np.concatenate(base.logprobs(plain)), atol=1e-5)


@pytest.mark.slow
def test_an_error_in_the_step_of_one_leaves_the_others_as_they_were():
    trainer = trained(trainer_of(), of_adapters("solver", "critic"))
    before, counts = trainer.policy.weights.values.clone(), dict(trainer.optimizer.counts)
    moments, step = trainer.optimizer.first.clone(), trainer.optimizer.step

    def failing(*given, part, at):
        if part == "critic":
            raise MemoryError("no more")
        return step(*given, part=part, at=at)

    trainer.optimizer.step = failing
    names = list(trainer.policy.adapters.names)
    assert names.index("solver") < names.index("critic"), "the first moves before the second fails"
    with pytest.raises(MemoryError):
        trainer.update(TrainingBatch(2, of_adapters("solver", "critic", seed=1)))
    assert torch.equal(trainer.policy.weights.values, before) and torch.equal(trainer.optimizer.first, moments)
    assert (trainer.optimizer.counts, trainer.version, trainer.has_partial_update) == (counts, 1, False)


def test_what_was_sampled_by_an_unknown_adapter_is_not_trained_on():
    with pytest.raises(UserError, match="the adapter judge, which this trainer does not train"):
        trained(trainer_of(), of_adapters("judge"))
    with pytest.raises(UserError, match="sampled with the base model"):
        trained(trainer_of(), random_samples())
    with pytest.raises(UserError, match="sampled with the adapter solver, which"):
        trained(Trainer(tiny_qwen3(layers=1), config_of(lora__rank=4)), of_adapters("solver"))


@pytest.mark.slow
def test_a_batch_of_adapters_is_sampled_as_each_by_itself():
    """Equal prompts under different adapters: nothing that one computed serves another."""
    trainer = trained(trainer_of(), of_adapters("solver", "critic"), of_adapters("critic", "solver", seed=1))
    engine = TransformersEngine(trainer.policy.model, adapters=trainer.policy.adapters.names)
    prompt = np.arange(30, dtype=np.int32)
    asked = [
        TokenRequest(prompt[: 30 - size], Sampling(max_tokens=9), DrawKey(0, size, 0, 0), adapter=adapter)
        for size in (0, 7)
        for adapter in ("solver", "critic", None)
    ]

    async def sampled(request):
        chunks = [chunk async for chunk in engine.generate(request)]
        return sum((each.ids for each in chunks), []), sum((each.logprobs for each in chunks), [])

    async def at_once():
        return await asyncio.gather(*map(sampled, asked))

    try:
        together = asyncio.run(at_once())
        engine.weights_changed(1)  # nothing is cached
        for request, (ids, logprobs) in zip(asked, together, strict=True):
            alone = asyncio.run(sampled(request))
            assert alone[0] == ids
            np.testing.assert_allclose(alone[1], logprobs, atol=1e-5)
            sample = random_samples()[0]
            line = np.concatenate([request.prompt_ids, np.array(ids, np.int32)])
            mask = np.arange(line.size) >= request.prompt_ids.size
            zeros = np.zeros(line.size, np.float32)
            sample.timeline = replace(
                sample.timeline, ids=line, mask=mask, logprobs=zeros, versions=zeros, adapter=request.adapter
            )
            np.testing.assert_allclose(trainer.logprobs([sample])[0][mask], logprobs, atol=1e-4)
        assert together[0][1] != together[1][1] != together[2][1], "they are different policies"
        with pytest.raises(EngineFailure, match="no adapter judge"):
            asyncio.run(sampled(replace(asked[0], adapter="judge")))
    finally:
        engine.close()


@pytest.mark.extra_slow
def test_a_checkpoint_has_each_and_goes_on_bit_for_bit(tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    trainer = trained(trainer_of(), of_adapters("solver", "critic"), of_adapters("critic", seed=1))
    (tmp_path / "a").mkdir()
    trainer.save(tmp_path / "a", None)
    again = trainer_of()
    again.load(tmp_path / "a")
    for each in (trainer, again):
        each.update(TrainingBatch(3, of_adapters("critic", "solver", seed=2)))
    assert torch.equal(again.policy.weights.values, trainer.policy.weights.values)
    assert again.optimizer.counts == trainer.optimizer.counts == {"critic": 3, "solver": 2}

    samples = of_adapters("critic", seed=3)
    (tmp_path / "b").mkdir()
    trainer.save(tmp_path / "b", None)
    assert Adapters.from_folder(tmp_path / "b").find_adapter("critic-1", "") == "critic"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "b", dtype="auto")
    loaded = PeftModel.from_pretrained(model, tmp_path / "b" / "adapters" / "critic")
    ids = torch.from_numpy(samples[0].timeline.ids).long()
    with torch.no_grad():
        table = torch.log_softmax(loaded(ids[None]).logits[0].float(), -1)
    at = torch.from_numpy(np.flatnonzero(samples[0].timeline.mask))
    found = table[at - 1].gather(1, ids[at][:, None]).squeeze(1).numpy()
    np.testing.assert_allclose(trainer.logprobs(samples)[0][samples[0].timeline.mask], found, atol=1e-4)

    begun = Trainer(tiny_qwen3(layers=1), config_of(lora__adapters=TWO), start=tmp_path / "b")
    assert torch.equal(begun.policy.weights.values, trainer.policy.weights.values), "a training begins with them"
    other = {"solver": AdapterConfig(rank=8), "critic": TWO["critic"]}
    with pytest.raises(UserError, match="cannot be loaded"):
        Trainer(tiny_qwen3(layers=1), config_of(lora__adapters=other), start=tmp_path / "b")
    louder = {"solver": TWO["solver"], "critic": AdapterConfig(rank=2, alpha=8)}
    with pytest.raises(UserError, match="alpha is 4"):
        Trainer(tiny_qwen3(layers=1), config_of(lora__adapters=louder), start=tmp_path / "b")

    unnamed = merge_saved_adapters(LoraConfig(adapters={"third": AdapterConfig(rank=3)}), tmp_path / "b")
    known = LocalPolicy(tiny_qwen3(layers=1), lora=unnamed, reference=False, start=tmp_path / "b")
    assert known.adapters.names == ("third", "solver", "critic"), "those of the folder, whatever the YAML names"
    start, stop = known.locate_part("critic")
    assert torch.equal(known.weights.values[start:stop], weights_of(trainer, "critic"))


@pytest.mark.parametrize("name", ["train", "model", "0", "q_proj", "weight", "lora_A"])
def test_a_name_that_the_model_itself_has_is_refused(name):
    """torch takes some as no module's name; with others peft would save all adapters under wrong names."""
    with pytest.raises(ConfigError, match=f"the name '{name}'"):
        add_adapters(
            tiny_qwen3(layers=1), LoraConfig(adapters={"solver": AdapterConfig(rank=2), name: AdapterConfig(rank=2)})
        )
