"""The training process with TRL: `python -m ajet_trl.process FILE`, started by TrlTrainer.

Invariants: the engine samples from the tensors trained by TRL's optimizer; the process exits with its parent (at the
end of standard input); user errors are written into a file for the parent, without a traceback.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loguru import logger

from ajet.record.files import apply_umask
from ajet.rollout.failure import refuse_if_all_failed
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.engine.contract import TokenEngine
    from ajet.record import RunDirectory
    from ajet.rollout import Rollout
    from ajet.schema.episode import Episode
    from ajet.task_reader import TaskOrder


def main() -> int:
    """Train with the arguments in the file named on the command line.

    Returns:
        The exit code: 0, or 2 after an error of the user, which is written to a file for the parent process.
    """
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    from ajet.record import RunDirectory
    from ajet_ray.shipped_experiment import restore_experiment

    arguments = json.loads(Path(sys.argv[1]).read_text())
    try:
        experiment = restore_experiment(arguments)
        with RunDirectory.open(experiment, root=experiment.root, kind="debug") as run:
            run_training(experiment, run)
    except UserError as error:
        error_fields = {"what": error.what, **dict(error.rows())}
        Path(arguments["failed"]).write_text(json.dumps(error_fields))
        return 2
    return 0


def run_training(experiment: Experiment, run: RunDirectory) -> None:
    """Train to the last step and save the model into the run's folder. Raises UserError."""
    from contextlib import closing

    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from ajet.rollout import Rollout
    from ajet.rollout.components import load_workflow, open_gateway
    from ajet.task_judge import open_judge
    from ajet.task_reader import TaskOrder, open_reader
    from ajet.task_reader.overlong import drop_overlong
    from ajet.train.parts import pins_of
    from ajet_trl.settings import build_grpo_settings

    reader = open_reader(experiment)
    judge, workflow = open_judge(experiment, reader_judge=reader.judge), load_workflow(experiment)
    with (
        closing(SharedModel(experiment)) as model,
        closing(open_gateway(experiment, model.engine, model.tokenizer)) as gateway,
        closing(Rollout(experiment, gateway, workflow, judge, run_id=run.run_id, pins=pins_of(run))) as rollout,
    ):
        tasks = drop_overlong(reader.tasks("train"), experiment.ajet.data, model.tokenizer)
        order = TaskOrder(tasks, seed=experiment.ajet.seed, shuffle=experiment.ajet.data.shuffle)
        logger.info("TRL controls the steps and prints the following lines; episodes are recorded in {}", run.path)
        trainer = GRPOTrainer(
            model=model.trained,
            reward_funcs=verdicts,
            args=GRPOConfig(
                **build_grpo_settings(experiment, {}),
                output_dir=str(run.path / "trl"),
                max_steps=experiment.ajet.count_steps(len(tasks)),
                use_cpu=model.device == "cpu",
            ),
            # TRL needs a data set. Its prompts have no effect, because `TrlRollout` chooses the tasks of each step.
            train_dataset=Dataset.from_list([{"prompt": "a task"}] * experiment.ajet.data.train_batch_size),
            processing_class=model.tokenizer,
            rollout_func=TrlRollout(rollout, model.engine, run, order, experiment.ajet.rollout.num_repeat),
        )
        trainer.train()
        trainer.save_state()
        trainer.save_model(str(run.path / "model"))
        apply_umask(run.path / "model")
        logger.info("the model after step {} is in {}", trainer.state.global_step, run.path / "model")


class SharedModel:
    """The model trained by TRL, and the engine that samples from its tensors."""

    def __init__(self, experiment: Experiment) -> None:
        """Load the model in float32 on the configured device, and open the engine over the same tensors."""
        import torch

        from ajet.backbone.local.machine import choose_device
        from ajet.engine.model_source import locate_configured_model
        from ajet.engine.models import load_model, load_tokenizer
        from ajet.engine.transformers import TransformersEngine

        config = experiment.ajet
        if isinstance(config.trainer_common.threads, int):
            torch.set_num_threads(config.trainer_common.threads)
        source = locate_configured_model(config, experiment.base)
        device = choose_device(config.trainer_common.device)
        self.device = device.type
        max_length = config.rollout.max_model_len
        self.tokenizer = load_tokenizer(source)
        self.trained = load_model(source, dtype=torch.float32, device=device, max_model_len=max_length)
        self.engine = TransformersEngine(
            self.trained, max_num_seqs=config.rollout.max_num_seqs, max_model_len=max_length
        )

    def close(self) -> None:
        """Stop the engine and its threads."""
        self.engine.close()


def _exit_with_parent() -> None:
    """End this process at once when its parent closes standard input, as the parent's end does."""
    while os.read(0, 1):  # sys.stdin is not used, since its lock would be held at exit
        pass
    os._exit(1)


# Provide ajet's episodes as GRPOTrainer's `rollout_func`.
# TRL's data set is one step of dummy prompts: ajet's task order decides the tasks of a step, as on every backbone.
# Invariants: an episode is one row of exact tokens, with mask 1 at sampled tokens. The reward comes from ajet's
# judge; TRL leaves episodes without a reward out of the group's baseline. An episode of several sequences (several
# agents, a rewritten context) counts in the baseline, trains no token, and is logged. TRL's generation, chat
# templates and reward models are not used.
NOTHING: dict[str, list[Any]] = {"prompt_ids": [0], "completion_ids": [0], "env_mask": [0], "logprobs": [0.0]}
"""The row of an episode without trained tokens."""


class TrlRollout:
    """Called by the trainer once a step, with one prompt for each episode."""

    __name__ = "episodes"  # TRL reads the name of its functions

    def __init__(
        self, rollout: Rollout, engine: TokenEngine, run: RunDirectory, order: TaskOrder, repeats: int
    ) -> None:
        """Store the parts of the run. `repeats` is the number of episodes per task."""
        self._rollout = rollout
        self._engine = engine
        self._run = run
        self._order, self._repeats = order, repeats

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, list[Any]]:
        """Run the episodes of a step and return one row per episode. Raises UserError if every episode failed."""
        step = int(trainer.state.global_step)
        self._engine.weights_changed(step)  # its tensors are the trainer's
        tasks_per_step = len(prompts) // self._repeats
        tasks = [
            (position, self._order.task(position))
            for position in range(step * tasks_per_step, (step + 1) * tasks_per_step)
        ]
        groups = sorted(self._rollout.play(tasks, step=step + 1, split="train"), key=lambda group: group.order)
        episodes = [
            episode for group in groups for episode in sorted(group.episodes, key=lambda episode: episode.repeat)
        ]
        self._run.episodes.write(step + 1, "train", episodes)
        self._run.status.set(step=step + 1)
        refuse_if_all_failed(episodes, step + 1)
        return self.build_rows(episodes)

    def build_rows(self, episodes: Sequence[Episode]) -> dict[str, list[Any]]:
        """Return the episodes' rows as columns for TRL. Scored episodes without exactly one sampled timeline are
        logged."""
        rows = [build_row(episode) for episode in episodes]
        columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in NOTHING}
        columns["verdict"] = [episode.reward if episode.scored else None for episode in episodes]
        unusable = [episode for episode, row in zip(episodes, rows, strict=True) if episode.scored and row is NOTHING]
        if unusable:
            logger.warning(
                "{} of {} episodes are not trained: TRL needs exactly one sequence per episode ({} has {})",
                len(unusable), len(episodes), unusable[0].uuid,
                len([timeline for timeline in unusable[0].timelines if timeline.sampled]),
            )  # fmt: skip
        return columns


def build_row(episode: Episode) -> dict[str, list[Any]]:
    """Return the row of an episode: prompt, completion, mask of the sampled tokens, and log-probabilities.

    The prompt ends before the first sampled token. An episode that has no score, or not exactly one sampled timeline,
    gets
    the row NOTHING.
    """
    sampled_timelines = [timeline for timeline in episode.timelines if timeline.sampled] if episode.scored else []
    if len(sampled_timelines) != 1:
        return NOTHING
    (timeline,) = sampled_timelines
    trained_positions = np.flatnonzero(timeline.mask)
    start, stop = int(trained_positions[0]), int(trained_positions[-1]) + 1
    return {
        "prompt_ids": timeline.ids[:start].tolist(),
        "completion_ids": timeline.ids[start:stop].tolist(),
        "env_mask": timeline.mask[start:stop].astype(int).tolist(),
        "logprobs": np.where(timeline.mask, timeline.logprobs, 0)[start:stop].tolist(),
    }


def verdicts(verdict: Sequence[float | None], **others: Any) -> list[float | None]:
    """Return the judge's rewards, the column `verdict` of `TrlRollout`'s rows. This is TRL's reward function."""
    return list(verdict)


if __name__ == "__main__":
    sys.exit(main())
