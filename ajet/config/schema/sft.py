"""The section `sft`: training on given replies instead of played attempts."""

from __future__ import annotations

from typing import Literal

from ajet.config.schema.base import Section, key

OBJECTIVE = "sft.objective"
NOTHING_IS_PLAYED = "`ajet sft` runs no agent (`ajet eval` reads the key)"
NO_RATIO = "`ajet sft` has its own loss"
IN_TURNS = "`ajet sft` makes one optimizer step per batch"
IDLE_IN_SFT: dict[str, str | None] = {
    "rollout": NOTHING_IS_PLAYED,
    "rollout.max_model_len": None,
    "task_reader": NOTHING_IS_PLAYED,
    "task_judge": NOTHING_IS_PLAYED,
    "environment": NOTHING_IS_PLAYED,
    "data.curriculum": NOTHING_IS_PLAYED,
    "data.max_prompt_length": "`ajet sft` reads `rollout.max_model_len` instead",
    "data.max_response_length": "`ajet sft` reads `rollout.max_model_len` instead",
    "data.on_overlong": "`ajet sft` leaves out a row that is too long, and prints their number",
    "trainer_common.algorithm": NO_RATIO,
    "trainer_common.algorithm.loss_aggregation": "`ajet sft` reads `sft.loss_aggregation` instead",
    "trainer_common.use_kl_loss": NO_RATIO,
    "trainer_common.kl_loss_coef": NO_RATIO,
    "trainer_common.kl_loss_type": NO_RATIO,
    "trainer_common.mode": IN_TURNS,
    "trainer_common.mini_batch_num": IN_TURNS,
    "trainer_common.canary": "nothing is sampled",
    "trainer_common.val_pass_n": NOTHING_IS_PLAYED,
    "trainer_common.keep_best": "`ajet sft` chooses no best checkpoint by the loss",
}
"""Keys and sections without effect on given replies, in the form of a backbone's descriptor."""


class SftConfig(Section):
    """Training on given replies: rows of a file, or episodes of a recorded run."""

    objective: Literal["sft", "dpo"] | None = key(
        None,
        "sft: make given replies likelier; dpo: make the chosen reply of a pair likelier than the rejected one. "
        "null: train on the agent's episodes. `ajet sft` sets the key; a YAML that sets it also works with `ajet "
        "--conf`.",
        needs={"sft": "teaches", "dpo": "teaches"},
    )
    train_files: str | list[str] | None = key(
        None,
        "One or several JSON Lines files, read one after another: rows with `messages` and `tools`, or `prompt` "
        "and `completion`; for dpo `prompt`, `chosen` and `rejected`.",
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
        "Instead of files: a recorded run, by name or folder. sft takes the best episodes of each group, dpo the "
        "best and the worst, with the recorded tokens.",
        when=(OBJECTIVE, "sft", "dpo"),
    )
    best_of_group: int = key(
        1, "Number of episodes of a recorded group to learn from, the best first.", ge=1, when=(OBJECTIVE, "sft")
    )
    min_reward: float | None = key(
        None,
        "Smallest reward of an episode of a recorded run to learn from (dpo: of the chosen episode); null: any.",
        when=(OBJECTIVE, "sft", "dpo"),
    )
    loss_aggregation: Literal["token", "sequence"] = key(
        "token",
        "Mean over all tokens of a batch, or mean over its rows of the mean of each row.",
        when=(OBJECTIVE, "sft"),
    )
    beta: float = key(
        0.1,
        "DPO: weight of the KL penalty (beta) against the reference model, the initial weights.",
        gt=0,
        when=(OBJECTIVE, "dpo"),
    )
    label_smoothing: float = key(
        0.0,
        "DPO: assumed probability that a pair is labelled the wrong way round.",
        ge=0,
        lt=0.5,
        when=(OBJECTIVE, "dpo"),
    )

    @property
    def replies_per_prompt(self) -> int:
        """Number of given replies per prompt."""
        return 2 if self.objective == "dpo" else 1
