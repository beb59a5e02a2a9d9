"""`ajet.tune` without settings: what a step is made of on this machine, and when held-out tasks are played."""

from __future__ import annotations

from typing import Any

from ajet.commands.tune_defaults import choose_defaults
from ajet.engine.dimensions import ModelSize

SMALL = ModelSize(135_000_000, 0, 30, 576, 1536, 192, 49152)
LARGE = ModelSize(7_600_000_000, 0, 28, 3584, 18944, 512, 152064)


def choose(**changed: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "size": SMALL, "context": 8192, "is_cpu": True, "tasks": 100, "steps": 20, "has_validation": False
    }  # fmt: skip
    return choose_defaults(changed.pop("caller_settings", {}), **{**usual, **changed})


def test_cpu_gets_small_steps() -> None:
    chosen = choose()
    attempts = chosen["data.train_batch_size"] * chosen["rollout.num_repeat"]
    assert attempts <= 32
    assert chosen["rollout.max_response_length_in_one_turn"] <= 256
    assert chosen["trainer_common.optim.lr"] == 4e-5


def test_gpu_keeps_the_usual_step() -> None:
    assert choose(is_cpu=False, size=LARGE) == {"data.train_batch_size": 32}


def test_what_is_set_wins() -> None:
    given = {"data.train_batch_size": 3, "trainer_common.optim.lr": 1.0, "trainer_common.test_freq": 7}
    assert not given.keys() & choose(caller_settings=given, has_validation=True).keys()


def test_batch_is_not_larger_than_the_tasks() -> None:
    assert choose(tasks=3)["data.train_batch_size"] == 3


def test_context_bounds_the_length() -> None:
    assert choose(context=512)["rollout.max_model_len"] == 512


def test_validation_is_played_before_and_five_times() -> None:
    chosen = choose(has_validation=True, steps=20)
    assert chosen["trainer_common.val_before_train"] is True
    assert chosen["trainer_common.test_freq"] == 4
    assert choose(has_validation=True, steps=3)["trainer_common.test_freq"] == 1


def test_lengths_follow_a_given_context() -> None:
    assert choose(caller_settings={"rollout.max_model_len": 160})["data.max_prompt_length"] == 80
