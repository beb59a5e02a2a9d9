"""The section `sft`: training on given replies instead of played attempts."""

from __future__ import annotations

from typing import Literal

from ajet.config.schema.base import Section, key

OBJECTIVE = "sft.objective"
NOTHING_IS_PLAYED = "`ajet sft` plays nothing (`ajet eval` reads it)"
NO_RATIO = "`ajet sft` has a loss of its own"
IN_TURNS = "`ajet sft` makes one optimizer step a batch"
IDLE_IN_SFT: dict[str, str | None] = {
    "rollout": NOTHING_IS_PLAYED,
    "rollout.max_model_len": None,
    "task_reader": NOTHING_IS_PLAYED,
    "task_judge": NOTHING_IS_PLAYED,
    "environment": NOTHING_IS_PLAYED,
    "data.curriculum": NOTHING_IS_PLAYED,
    "data.max_prompt_length": "`rollout.max_model_len` says it there",
    "data.max_response_length": "`rollout.max_model_len` says it there",
    "data.on_overlong": "a row that is too long is left out and told",
    "trainer_common.algorithm": NO_RATIO,
    "trainer_common.algorithm.loss_aggregation": "`sft.loss_aggregation` says it there",
    "trainer_common.use_kl_loss": NO_RATIO,
    "trainer_common.kl_loss_coef": NO_RATIO,
    "trainer_common.kl_loss_type": NO_RATIO,
    "trainer_common.mode": IN_TURNS,
    "trainer_common.mini_batch_num": IN_TURNS,
    "trainer_common.canary": "nothing is sampled",
    "trainer_common.val_pass_n": NOTHING_IS_PLAYED,
    "trainer_common.keep_best": "no checkpoint is picked by a loss",
}
"""Keys and sections without effect on given replies, in the form of a backbone's descriptor."""


class SftConfig(Section):
    """Training on given replies: rows of a file, or episodes of a recorded run."""

    objective: Literal["sft", "dpo"] | None = key(
        None,
        "sft: given replies become likelier; dpo: the chosen reply of a pair over the rejected one. null: no given "
        "replies, tasks are played. `ajet sft` sets it; a YAML with the key also works with `ajet --conf`.",
        needs={"sft": "teaches", "dpo": "teaches"},
    )
    train_files: str | list[str] | None = key(
        None,
        "JSON lines, in one file or several, one after another: rows with `messages` and `tools`, or `prompt` and "
        "`completion`; for dpo `prompt`, `chosen` and `rejected`.",
        kind="path",
        when=(OBJECTIVE, "sft", "dpo"),
    )
    val_files: str | list[str] | None = key(
        None,
        "Held-out rows; their loss is measured every `trainer_common.test_freq` steps.",
        kind="path",
        training=False,
        when=(OBJECTIVE, "sft", "dpo"),
    )
    from_run: str | None = key(
        None,
        "In place of files: a recorded run, by its name or folder. sft takes the best episodes of each of its groups, "
        "dpo the best and the worst, with the tokens that were recorded.",
        when=(OBJECTIVE, "sft", "dpo"),
    )
    best_of_group: int = key(
        1, "How many episodes of a recorded group are learned from, the best first.", ge=1, when=(OBJECTIVE, "sft")
    )
    min_reward: float | None = key(
        None,
        "Minimum reward of learned episodes of a recorded run (dpo: of the chosen episode); null: any.",
        when=(OBJECTIVE, "sft", "dpo"),
    )
    loss_aggregation: Literal["token", "sequence"] = key(
        "token", "Mean over all tokens of a batch, or mean over its rows of their mean.", when=(OBJECTIVE, "sft")
    )
    beta: float = key(
        0.1,
        "DPO: how dear it is to leave the reference model, the one that training begins with.",
        gt=0,
        when=(OBJECTIVE, "dpo"),
    )
    label_smoothing: float = key(
        0.0, "DPO: the probability that a pair is the wrong way round.", ge=0, lt=0.5, when=(OBJECTIVE, "dpo")
    )

    @property
    def replies_per_prompt(self) -> int:
        """Number of given replies per prompt."""
        return 2 if self.objective == "dpo" else 1
