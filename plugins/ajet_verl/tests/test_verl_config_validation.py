"""What we compose passes verl's own validation, and what verl refuses we refuse before it is imported.

verl's checks are verl's own code, called as verl calls them; where they live in a worker, the worker is a stand-in that
has only what the check reads.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ajet.schema.errors import ConfigError
from ajet_verl.config import ModelLimits, compose_verl_config, layer
from tests.support.verl_fixtures import experiment, nested, without_verl

pytestmark = [pytest.mark.verl, without_verl, pytest.mark.slow]

ACTOR, ROLLOUT, TC = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "trainer_common"
TP = "rollout.tensor_model_parallel_size"
MEGATRON = {f"{TC}.strategy": "megatron"}
MODEL = ModelLimits(positions=32768, heads=16, kv_heads=8)


@pytest.fixture
def unchecked(monkeypatch):
    """The config that verl would get without our refusals."""

    def compose(ajet: dict[str, Any], **roots: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(layer, "refuse", lambda *_: None)
            return OmegaConf.create(compose_verl_config(experiment(ajet, **roots)))

    return compose


def validated(config: Any) -> None:
    """As `verl.trainer.main_ppo` validates, and the settings that its workers make objects of at the start."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    assert not need_critic(config)
    validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=False)
    for section in (ROLLOUT, f"{ROLLOUT}.checkpoint_engine", "algorithm", "actor_rollout_ref.ref"):
        at = OmegaConf.select(config, section)
        if section.endswith("ref"):  # as ActorRolloutRefWorker.init_model renames them
            at.ppo_micro_batch_size_per_gpu = at.pop("log_prob_micro_batch_size_per_gpu")
            at.ppo_micro_batch_size = at.pop("log_prob_micro_batch_size")
            at.use_dynamic_bsz = at.pop("log_prob_use_dynamic_bsz")
            at.ppo_max_token_len_per_gpu = at.pop("log_prob_max_token_len_per_gpu")
        omega_conf_to_dataclass(at)
    replica(config)
    if config.trainer.v1.trainer_mode == "ajet_separate_async":
        separate_async(config)
    mini_batches(config)


def mini_batches(config: Any) -> None:
    """TrainingWorker.train_mini_batch with a batch as our trainers send it, up to its first line after the check."""
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils
    from verl.workers.engine_workers import TrainingWorker

    from ajet_verl.trainer.mini_batches import deal_rows

    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    if actor.strategy == "megatron":
        sizes = [actor.megatron[f"{name}_parallel_size"] for name in ("tensor_model", "pipeline_model", "context")]
    else:
        sizes = [actor.ulysses_sequence_parallel_size]
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    for size in sizes:
        assert world % size == 0
        world //= size
    groups = [list(range(task * rollout.n, (task + 1) * rollout.n)) for task in range(config.data.train_batch_size)]
    count = actor.ppo_mini_batch_size
    parts = [sum(groups[first : first + count], []) for first in range(0, len(groups), count)]
    multiple = 1 if actor.use_dynamic_bsz else int(actor.ppo_micro_batch_size_per_gpu)
    order = deal_rows(parts, [1] * len(groups) * rollout.n, ranks=world, multiple=multiple)
    assert len(order) % world == 0

    class Checked(Exception):
        pass

    def rank() -> int:
        raise Checked

    engine = SimpleNamespace(get_data_parallel_size=lambda: world, get_data_parallel_rank=rank)
    mine = len(order) // world
    data = TensorDict({"x": torch.zeros(mine, 1)}, batch_size=[mine])
    tensordict_utils.assign_non_tensor(data, num_mini_batch=len(parts))
    with pytest.raises(Checked):
        TrainingWorker.train_mini_batch(SimpleNamespace(engine=engine), data)


def replica(config: Any) -> None:
    """RolloutReplica.__init__, and the assertion of ActorRolloutRefWorker.init_model, which needs a process group."""
    from verl.workers.rollout.replica import RolloutReplica

    gpus = config.trainer.n_gpus_per_node
    stand_in = SimpleNamespace()
    RolloutReplica.__init__(stand_in, 0, config.actor_rollout_ref.rollout, None, gpus_per_node=gpus)  # type: ignore[arg-type]
    assert (gpus * config.trainer.nnodes) % stand_in.world_size == 0


def separate_async(config: Any) -> None:
    """PPOTrainerSeparateAsync.__init__ up to the base class's, which needs Ray."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

    class Passed(Exception):
        pass

    def stop(self: Any, config: Any) -> None:
        raise Passed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Passed):
        patch.setattr(PPOTrainer, "__init__", stop)
        PPOTrainerSeparateAsync.__new__(PPOTrainerSeparateAsync).__init__(config)


GOOD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({f"{TC}.strategy": "fsdp2", f"{TC}.ulysses_sequence_parallel_size": 2, TP: 4}, {}),
    ({f"{TC}.lora.rank": 16, "rollout.name": "sglang", f"{TC}.algorithm.loss_aggregation": "sequence-sum"}, {}),
    ({f"{TC}.algorithm.clip_dual": None, f"{TC}.optim.lr_schedule": "cosine", f"{TC}.optim.grad_clip": None}, {}),
    ({f"{TC}.algorithm.is_cap": 2.0, f"{TC}.algorithm.use_kl_in_reward": True, f"{TC}.use_kl_loss": False}, {}),
    ({f"{TC}.device": "cpu", f"{TC}.n_gpus_per_node": 1}, {}),
    ({"data.train_batch_size": 3, "rollout.num_repeat": 3}, {}),
    ({f"{TC}.mini_batch_num": 16, "data.train_batch_size": 16}, {}),
    ({"data.train_batch_size": 1, "rollout.num_repeat": 1, f"{TC}.nnodes": 3}, {}),
    ({**MEGATRON, f"{TC}.megatron.tensor_model_parallel_size": 2, f"{TC}.megatron.context_parallel_size": 2}, {}),
    ({**MEGATRON, f"{TC}.megatron.pipeline_model_parallel_size": 4, f"{TC}.gradient_checkpointing": True}, {}),
    ({f"{TC}.mode": "colocate_async", "rollout.val_kwargs.do_sample": True}, {}),
    ({f"{TC}.mode": "separate_async", f"{TC}.mini_batch_num": 4},
     {"verl": {"actor_rollout_ref": {"rollout": {"nnodes": 1, "checkpoint_engine": {"backend": "nccl"}}}}}),
]  # fmt: skip


@pytest.mark.parametrize(("ajet", "roots"), GOOD)
def test_what_passes_our_refusals_passes_verls_validation(ajet, roots):
    validated(OmegaConf.create(compose_verl_config(experiment(ajet, **roots), model=MODEL)))


BAD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"verl": nested(f"{ACTOR}.optim.lr_scheduler_type", "linear")}),
    ({f"{TC}.ulysses_sequence_parallel_size": 3}, {}),
    ({TP: 3}, {}),
    ({f"{TC}.n_gpus_per_node": 6, f"{TC}.nnodes": 4, TP: 8, "data.train_batch_size": 48}, {}),
    ({f"{TC}.lora.rank": 1024}, {"verl": nested("actor_rollout_ref.model.lora.merge", False)}),
    ({"rollout.temperature": 0, "rollout.val_kwargs.do_sample": True}, {}),
    ({f"{TC}.mode": "separate_async"}, {}),
    ({**MEGATRON, f"{TC}.megatron.pipeline_model_parallel_size": 3}, {}),
    ({}, nested(f"{ACTOR}.use_dynamic_bsz", False)),
    ({}, nested(f"{ACTOR}.strategy", "megatron")),
    ({}, nested(f"{ROLLOUT}.pipeline_model_parallel_size", 2)),
    ({}, nested(f"{ROLLOUT}.expert_parallel_size", 2)),
    ({}, {"actor_rollout_ref": {"actor": {"use_dynamic_bsz": False, "ppo_micro_batch_size": 5},
                                "rollout": {"log_prob_micro_batch_size_per_gpu": 1}}}),
    ({"data.train_batch_size": 8}, {"actor_rollout_ref": {"actor": {
        "use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 2, "ppo_mini_batch_size": 16}}}),
]  # fmt: skip


@pytest.mark.parametrize(("ajet", "roots"), BAD)
def test_what_verl_refuses_we_refuse_first(ajet, roots, unchecked):
    with pytest.raises(ConfigError):
        compose_verl_config(experiment(ajet, **roots), model=MODEL)
    config = unchecked(ajet, **roots)
    with pytest.raises((AssertionError, ValueError, NotImplementedError, HydraException, OmegaConfBaseException)):
        validated(config)


SIZES = ((8, 12), (1, 2), (1, 4), (4, 6), (1, 2), (1, 4))


@pytest.mark.extra_slow
def test_over_a_grid_of_sizes_both_refuse_the_same(unchecked):
    """Numbers of mini-batches that leave tasks over are refused by us alone: verl has no such number, and pads."""
    differ, agreed = [], {True: 0, False: 0}
    for batch, minis, repeat, gpus, ulysses, tensor in itertools.product(*SIZES):
        ajet = {
            "data.train_batch_size": batch, f"{TC}.mini_batch_num": minis, "rollout.num_repeat": repeat,
            f"{TC}.n_gpus_per_node": gpus, f"{TC}.ulysses_sequence_parallel_size": ulysses, TP: tensor,
        }  # fmt: skip
        ours = verls = ""
        try:
            compose_verl_config(experiment(ajet), model=MODEL)
        except ConfigError as error:
            ours = error.what
        try:
            validated(unchecked(ajet))
        except (AssertionError, ValueError) as error:
            verls = str(error) or "refused"
        agreed[bool(ours)] += 1
        if bool(ours) != bool(verls):
            differ.append((ajet, ours, verls))
    assert differ == [] and min(agreed.values()) > 1


@pytest.mark.parametrize(("heads", "kv_heads"), [(16, 8), (12, 4), (14, 2)])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_heads_are_split_as_verl_splits_them(heads, kv_heads, parts, monkeypatch):
    from verl.models.transformers import monkey_patch

    class Passed(Exception):
        pass

    def stop() -> None:
        raise Passed

    class Model:
        config = SimpleNamespace(num_attention_heads=heads, num_key_value_heads=kv_heads)

    monkeypatch.setattr(monkey_patch, "is_trl_available", stop)  # the line after the check
    with pytest.raises((Passed, AssertionError)) as verls:
        monkey_patch.apply_monkey_patch(Model(), ulysses_sp_size=parts)  # type: ignore[arg-type]
    try:
        compose_verl_config(
            experiment({f"{TC}.ulysses_sequence_parallel_size": parts}),
            model=ModelLimits(heads=heads, kv_heads=kv_heads),
        )
        assert verls.type is Passed
    except ConfigError as error:
        assert verls.type is AssertionError, error


@pytest.mark.parametrize("tokens", [17999, 18000])
def test_a_pass_must_hold_the_longest_sequence_as_verl_has_it(tokens):
    import torch
    from tensordict import TensorDict
    from verl.utils.seqlen_balancing import rearrange_micro_batches

    own, ones = nested(f"{ACTOR}.ppo_max_token_len_per_gpu", tokens), torch.ones(1, 18000, dtype=torch.long)
    batch = TensorDict({name: ones for name in ("input_ids", "attention_mask")}, batch_size=[1])
    if tokens >= 18000:
        compose_verl_config(experiment(**own))
        rearrange_micro_batches(batch, max_token_len=tokens)
        return
    with pytest.raises(ConfigError, match="a sequence of 18000"):
        compose_verl_config(experiment(**own))
    with pytest.raises(AssertionError, match="max_token_len must be greater"):
        rearrange_micro_batches(batch, max_token_len=tokens)


def test_a_checkpoint_of_another_backbone_is_refused_as_verl_does(unchecked):
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    ajet = {f"{TC}.resume": "/runs/x/checkpoints/7"}
    with pytest.raises(ConfigError, match="not a checkpoint of verl"):
        compose_verl_config(experiment(ajet))
    with pytest.raises(AssertionError, match="global_steps"):
        PPOTrainer._load_checkpoint(SimpleNamespace(config=unchecked(ajet)))  # type: ignore[arg-type]


def test_a_model_says_its_length_as_verl_reads_it(tmp_path):
    from verl.workers.rollout.utils import get_max_position_embeddings

    from ajet_verl.config import read_limits

    for config in ('{"max_position_embeddings": 77}', '{"text_config": {"max_position_embeddings": 88}}'):
        (tmp_path / "config.json").write_text(config)
        loaded = OmegaConf.create(config)
        assert read_limits(tmp_path).positions == get_max_position_embeddings(loaded)
