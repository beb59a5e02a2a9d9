"""What a training takes, estimated, against what it takes; and whether that has room."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ajet.algorithm import open_algorithm
from ajet.backbone.local.checkpoint import write_checkpoint
from ajet.backbone.local.trainer import Trainer
from ajet.commands.sampling.colocated import limit_sampler_cache
from ajet.config import Experiment
from ajet.engine.dimensions import ModelSize, read_model_size, read_size_and_context
from ajet.engine.embedded import find_cached_folder
from ajet.engine.model_source import ModelSource
from ajet.engine.models import load_model, load_tokenizer
from ajet.record.console import format_bytes
from ajet.schema.errors import UserError
from ajet.schema.task import Task
from ajet.train import footprint, remarks
from ajet.train.footprint import (
    GIB,
    PROGRAM,
    count_checkpoints,
    describe_memory,
    estimate_checkpoint,
    estimate_footprint,
    estimate_needs,
    explain_no_rehearsal,
    find_disks,
    list_longest_samples,
    render_with_tools,
)
from ajet.train.remarks import describe_remarks, review_machine

PORTER = """
from ajet import Workflow

class Porter(Workflow):
    async def execute(self, workflow_task, tuner): ...

    @classmethod
    def opening(cls, config, task):
        return [{"role": "user", "content": task.main_query}]

    @classmethod
    def list_tools(cls, experiment, *, start):
        schema = {"type": "object", "properties": {}}
        tool = {"name": "lift", "description": "up", "parameters": schema}
        return [{"type": "function", "function": tool}] if start else None
"""
TINY = find_cached_folder("tiny-tools")
BIG = ModelSize(14_000_000_000, 3_000_000, 48, 5120, 13824, 1024, 152064)


def experiment(tmp_path: Path, backbone: str = "local", **sections: Any) -> Experiment:
    tree = {"model": {"path": "embedded:tiny-tools"}, **sections}
    return Experiment.from_dict({"ajet": {"backbone": backbone, **tree}}, base=tmp_path, exp_dir=tmp_path / "record")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [0, 4])
def test_weights_optimizer_and_checkpoint_are_what_the_trainer_holds_and_writes(
    tmp_path: Path, dtype: torch.dtype, rank: int
) -> None:
    assert TINY is not None
    size = read_model_size(TINY)
    assert size is not None
    settings = experiment(tmp_path, trainer_common={"lora": {"rank": rank}}).ajet
    told = estimate_footprint(size, settings, wide=dtype == torch.float32)
    model = load_model(ModelSource("tiny", folder=TINY), dtype=dtype)
    base = sum(p.numel() * p.element_size() for p in model.parameters())
    trainer = Trainer(model, settings, open_algorithm(settings))
    weights, optimizer = trainer.policy.weights, trainer.optimizer
    held = weights.values.nbytes + (weights.low.nbytes if weights.low is not None else 0) + (base if rank else 0)
    assert told.weights == pytest.approx(held, rel=0.02)
    assert told.moments == pytest.approx(optimizer.first.nbytes + optimizer.second.nbytes, rel=0.02)
    assert told.reference == (0 if rank else pytest.approx(base, rel=0.02)), "with adapters the model is its own"
    write_checkpoint(tmp_path, trainer.policy, optimizer, None, 0)
    written = sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors") if "adapter" not in str(path))
    assert told.checkpoint == pytest.approx(written, rel=0.05)


def test_adapters_that_move_one_after_the_other_ask_for_a_copy_as_mini_batches_do(tmp_path: Path) -> None:
    def update(**lora: Any) -> int:
        return estimate_footprint(BIG, experiment(tmp_path, trainer_common={"lora": lora}).ajet, wide=True).update

    one, several = update(rank=8), update(adapters={"a": {"rank": 4}, "b": {"rank": 4, "agents": ["b"]}})
    assert several - one == (8 + 4) * 8 * BIG.adapted, "moments and weights of as many"


def test_the_largest_pass_is_the_longest_sample_or_a_full_row(tmp_path: Path) -> None:
    def of(**sections: Any) -> tuple[int, list[int]]:
        settings = experiment(tmp_path, **sections).ajet
        told = estimate_footprint(BIG, settings, wide=False, context=2000)
        return told.longest, list_longest_samples(told, settings)

    data = {"max_prompt_length": 100, "max_response_length": 300, "train_batch_size": 8}
    assert of() == (4096, [2000, 2000]), "the model's context bounds a sample"
    assert of(data=data) == (4096, [400] * 10)
    assert of(data=data, trainer_common={"micro_batch_tokens": 300}) == (400, [400]), "a longer sample has its own pass"
    one = of(data={**data, "train_batch_size": 1}, rollout={"num_repeat": 2})
    assert one == (800, [400, 400]), "no more than a batch has"


def test_a_critic_s_further_steps_keep_the_hidden_states_of_an_optimizer_step(tmp_path: Path) -> None:
    """Of 8 tasks of 4 attempts, two optimizer steps: 16 replies of 300 tokens, 5,120 numbers of 2 bytes each."""

    def update(**algorithm: Any) -> int:
        data = {"max_prompt_length": 100, "max_response_length": 300, "train_batch_size": 8}
        common = {"mini_batch_num": 2, "algorithm": algorithm}
        settings = experiment(tmp_path, data=data, rollout={"num_repeat": 4}, trainer_common=common).ajet
        return estimate_footprint(BIG, settings, wide=False).update

    assert update(adv_estimator="gae") - update() == 16 * 300 * 5120 * 2
    assert update(adv_estimator="gae", critic={"epochs": 1}) == update()


def test_a_rehearsal_is_left_out_where_it_cannot_tell_or_takes_too_long(tmp_path: Path) -> None:
    told = estimate_footprint(BIG, experiment(tmp_path).ajet, wide=False)
    assert explain_no_rehearsal(told, 5 * told.peak, on_cpu=False).endswith("are free")
    assert [explain_no_rehearsal(told, free, on_cpu=False) for free in (2 * told.peak, None)] == ["", ""]
    assert "would take about" in explain_no_rehearsal(told, 2 * told.peak, on_cpu=True)


def test_what_has_no_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = experiment(tmp_path, trainer_common={"save_freq": 1, "total_training_steps": 9})
    assert list(review_machine(made, train=8, validates=True)) == []
    room = estimate_needs(made, train=8, validates=True)
    assert room is not None and room.checkpoints == 4 and room.local is not None
    monkeypatch.setattr(remarks, "estimate_needs", lambda *_, **__: room._replace(checkpoint=1 << 60, free=1 << 20))
    keys = [finding.key for finding in review_machine(made, train=8, validates=True)]
    assert keys == ["trainer_common.max_checkpoints_to_keep", "model.path"]
    assert list(review_machine(experiment(tmp_path, "debug"), train=8, validates=True)) == []
    said = describe_remarks(made, open_algorithm(made.ajet), train=8, validates=True)
    assert f"checkpoints take about {format_bytes(1 << 60)} each, up to 4 exist at" in said and "1 MiB are free" in said


def test_a_file_where_the_record_should_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "record").write_text("")
    (finding,) = review_machine(experiment(tmp_path), train=8, validates=False)
    assert "record is a file, not a folder" in finding.what and "--exp-dir" in finding.do


def test_how_many_checkpoints_lie_there_at_once(tmp_path: Path) -> None:
    def of(steps: int | None, validates: bool = True, **trainer: Any) -> int:
        return count_checkpoints(experiment(tmp_path, trainer_common=trainer).ajet, validates=validates, steps=steps)

    assert of(1000) == of(None) == 4 and of(1000, validates=False) == 3
    assert of(40) == 2 and of(7) == 1 and of(1000, save_freq=-1) == 1 and of(1000, max_checkpoints_to_keep=9) == 11
    assert of(40, mode="async") == 4, "with samplers each step is saved"
    elsewhere = experiment(tmp_path, trainer_common={"checkpoint_base_dir": str(tmp_path / "a")})
    assert {disk.folder for disk in find_disks(elsewhere)} == {tmp_path}


def test_verls_checkpoint_for_samplers_holds_the_weights_once_more(tmp_path: Path) -> None:
    alone, merged = (
        estimate_checkpoint(BIG, experiment(tmp_path, "verl", trainer_common={"mode": mode}).ajet, wide=True)
        for mode in ("sync", "async")
    )
    assert merged - alone == 4 * BIG.parameters


def test_a_size_that_the_files_do_not_tell_is_none(tmp_path: Path) -> None:
    assert read_model_size(tmp_path) is None
    for damaged in (json.dumps({"hidden_size": "wide"}), '{"hidden_size": ', "[]", '{"text_config": [1]}'):
        (tmp_path / "config.json").write_text(damaged)
        assert read_model_size(tmp_path) is None
        assert read_size_and_context(str(tmp_path), tmp_path) == (None, None)
    assert TINY is not None and (size := read_model_size(TINY)) is not None
    assert math.isclose(size.parameters, 638_000, rel_tol=0.1) and (size.layers, size.hidden) == (3, 128)


def test_a_sampler_beside_the_trainer_is_part_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has weights and a cache of its own; both must have room at once, and a vLLM gets what the trainer leaves."""
    both = experiment(tmp_path, trainer_common={"mode": "async"})
    alone, told = (estimate_footprint(BIG, made.ajet, wide=False) for made in (experiment(tmp_path), both))
    assert alone.sampler == 0 and alone.both == alone.peak == told.peak
    assert told.both - told.peak == told.sampler == PROGRAM + 2 * BIG.parameters + told.cache
    assert "for a colocated sampler" in describe_memory(told) and "sampler" not in describe_memory(alone)
    sized = experiment(tmp_path, trainer_common={"mode": "async"}, rollout={"engine": "vllm", "vllm": {"cache_gib": 2}})
    assert estimate_footprint(BIG, sized.ajet, wide=False).sampler == PROGRAM + 2 * BIG.parameters + 2 * GIB
    room = estimate_needs(both, train=8, validates=False)
    assert room is not None and room.local is not None
    monkeypatch.setattr(remarks, "estimate_needs", lambda *_, **__: room._replace(free=room.local.both - 1))
    (finding,) = review_machine(both, train=8, validates=False)
    assert finding.key == "trainer_common.mode" and "trainer and sampler together" in finding.what
    assert list(review_machine(both, train=8, validates=False, is_colocated=False)) == [], "samplers are elsewhere"
    plain = experiment(tmp_path, trainer_common={"mode": "async"}, rollout={"engine": "vllm"})

    def cache_of_sampler(free: int) -> float | None:
        """The bytes of keys and values that the sampler's command gives vLLM."""
        monkeypatch.setattr(footprint, "estimate_needs", lambda *_, **__: room._replace(free=free))
        assert limit_sampler_cache(both) == limit_sampler_cache(sized) == [], "only vLLM takes more than it needs"
        (override,) = limit_sampler_cache(plain) or ("",)
        return float(override.partition("cache_gib=")[2]) * GIB if override else None

    local = room.local
    assert cache_of_sampler(local.both) is None
    assert cache_of_sampler(local.both - local.cache // 4) == pytest.approx(local.cache * 3 / 4, abs=2000)
    assert cache_of_sampler(local.peak) == pytest.approx(local.cache / 16, abs=2000)


def test_what_is_less_than_a_mebibyte_is_not_nothing() -> None:
    shown = [format_bytes(size) for size in (0, 1, 124_384, 2**20, GIB)]
    assert shown == ["0 MiB", "1 KiB", "121 KiB", "1 MiB", "1.0 GiB"]


def test_any_workflow_may_list_its_tools(tmp_path: Path) -> None:
    assert TINY is not None
    (tmp_path / "porter.py").write_text(PORTER)
    task, tokenizer = Task(main_query="Lift it."), load_tokenizer(ModelSource("tiny", folder=TINY))

    def run(environment: str | None, tokens: int) -> Experiment:
        rollout = {"user_workflow": "porter.py->Porter", "max_model_len": tokens}
        return experiment(tmp_path, rollout=rollout, environment={"use": environment})

    assert render_with_tools(run("crane", 4000), task, tokenizer, start=False) is None, "not known before it starts"
    assert render_with_tools(run(None, 100), task, tokenizer) is None, "no tools are wanted"
    counted = render_with_tools(run("crane", 4000), task, tokenizer)
    assert counted is not None and counted[1].endswith("1 tool") and "lift" in counted[0].text
    with pytest.raises(UserError) as error:
        render_with_tools(run("crane", 40), task, tokenizer)
    assert error.value.where == "ajet.rollout.max_model_len" and "lift" in error.value.expected
