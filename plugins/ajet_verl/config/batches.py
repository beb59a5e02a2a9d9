"""Rules of `refusals` for batch settings: tasks per step, mini-batches, and rows per forward pass.

Invariant: an accepted batch gives exactly `mini_batch_num` optimizer steps of complete groups. Its rows need not be
divisible by the number of model copies, since `trainer.mini_batches` pads the part of each copy. Only for micro-batches
counted in rows verl's own validation requires divisibility.
"""

from __future__ import annotations

from collections.abc import Iterator

from ajet.schema.errors import ConfigError
from ajet_verl.config.effective import ACTOR, ROLLOUT, TRAINER, ULYSSES, EffectiveSettings


def check_batch_sizes(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check that the tasks of a step can be divided into mini-batches (verl: ActorConfig.validate)."""
    batch, trainer = settings.count("data.train_batch_size"), settings.ajet.trainer_common
    key, batch_name = f"{ACTOR}.ppo_mini_batch_size", settings.name("data.train_batch_size", "data.train_batch_size")
    ajet_keys = ("data.train_batch_size", f"{TRAINER}.mini_batch_num")
    is_users = settings.name(key) != ""
    if not is_users and batch % trainer.mini_batch_num:
        yield settings.make_error(
            f"{batch} tasks ({batch_name}) cannot be divided into {trainer.mini_batch_num} mini-batches "
            "(ajet.trainer_common.mini_batch_num).",
            "data.train_batch_size",
            *ajet_keys,
            expected="a multiple",
        )
        return
    mini = settings.count(key)
    if mini < 1 or batch % mini:
        yield settings.make_error(
            f"{batch} tasks ({batch_name}) cannot be divided into mini-batches of {mini} "
            f"({settings.name(key, *ajet_keys)}).",
            key,
            *ajet_keys,
            expected="a multiple",
        )
        return


def check_fixed_micro_batches(settings: EffectiveSettings) -> Iterator[ConfigError]:
    """Check the settings of micro-batches whose size is a number of rows, not of tokens.

    verl's own checks: ActorConfig.__post_init__, ActorConfig.validate, validate_config.
    """
    if settings.value(f"{ACTOR}.use_dynamic_bsz", True):
        return
    keys_and_needs = [
        (f"{ACTOR}.ppo_micro_batch_size", True),
        (f"{ROLLOUT}.log_prob_micro_batch_size", True),
        ("actor_rollout_ref.ref.log_prob_micro_batch_size", _has_reference(settings)),
    ]
    for key, is_needed in keys_and_needs:
        total, per_gpu = settings.value(key), settings.value(f"{key}_per_gpu")
        # verl needs exactly one of the two keys.
        if is_needed and (total is None) == (per_gpu is None):
            yield settings.make_error(
                f"Without use_dynamic_bsz verl needs {key}_per_gpu" + (f", and not {key} too." if total else "."),
                f"{ACTOR}.use_dynamic_bsz",
                f"{TRAINER}.micro_batch_tokens",
                expected="one of the two, or use_dynamic_bsz: true, which counts tokens",
            )
    total, mini = settings.value(f"{ACTOR}.ppo_micro_batch_size"), settings.count(f"{ACTOR}.ppo_mini_batch_size")
    if total is not None and mini % int(total):
        yield settings.make_error(
            f"A mini-batch of {mini} is not a multiple of ppo_micro_batch_size, {total}.",
            f"{ACTOR}.ppo_micro_batch_size",
        )
    elif total is not None and int(total) * settings.count(ULYSSES[0]) < settings.gpus:
        yield settings.make_error(
            f"With ppo_micro_batch_size {total}, some of the {settings.gpus} GPUs have no work.",
            f"{ACTOR}.ppo_micro_batch_size",
        )
    rows, divisor = settings.count("data.train_batch_size") * settings.count(f"{ROLLOUT}.n"), settings.gpus
    if settings.is_megatron:
        # With Megatron each copy of the model needs complete micro-batches.
        divisor = settings.gpus // settings.model_parallel * settings.count(f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    if divisor and rows % divisor:
        yield settings.make_error(
            f"Without use_dynamic_bsz a step of {rows} episodes must be a multiple of {divisor}.",
            "data.train_batch_size",
            "data.train_batch_size",
        )


def _has_reference(settings: EffectiveSettings) -> bool:
    """True if the run compares the policy with a reference model, for a KL loss or a KL term in the reward."""
    return bool(settings.value(f"{ACTOR}.use_kl_loss") or settings.value("algorithm.use_kl_in_reward"))
