"""The training process with TRL: `python -m ajet_trl.process FILE`, started by TrlTrainer.

Invariants: the engine samples from the tensors trained by TRL's optimizer; the process exits with its parent (at the
end of standard input); user errors are written into a file for the parent, without a traceback.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.record.files import apply_umask
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory


def main() -> int:
    """Train by the file of arguments; return the exit code."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    from ajet.record import RunDirectory
    from ajet_ray.shipped_experiment import restore_experiment

    order = json.loads(Path(sys.argv[1]).read_text())
    try:
        experiment = restore_experiment(order)
        with RunDirectory.open(experiment, root=experiment.root, kind="debug") as run:
            run_training(experiment, run)
    except UserError as mistake:
        screen = {"what": mistake.what, **dict(mistake.rows())}
        Path(order["failed"]).write_text(json.dumps(screen))
        return 2
    return 0


def run_training(experiment: Experiment, run: RunDirectory) -> None:
    """Train to the last step and save the model into the run's folder. Raises UserError."""
    from contextlib import closing

    from datasets import Dataset
    from loguru import logger
    from trl import GRPOConfig, GRPOTrainer

    from ajet.rollout import Rollout
    from ajet.rollout.components import load_workflow, open_gateway
    from ajet.task_judge import open_judge
    from ajet.task_reader import TaskOrder, open_reader
    from ajet.task_reader.overlong import drop_overlong
    from ajet.train.parts import pins_of
    from ajet_trl.episodes import TrlRollout, verdicts
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
        import torch

        from ajet.backbone.local.machine import choose_device
        from ajet.engine.model_source import locate_model
        from ajet.engine.models import load_model, load_tokenizer
        from ajet.engine.transformers import TransformersEngine

        config = experiment.ajet
        assert config.model.path is not None
        if isinstance(config.trainer_common.threads, int):
            torch.set_num_threads(config.trainer_common.threads)
        source = locate_model(config.model.path, base=experiment.base, trust_remote_code=config.model.trust_remote_code)
        device = choose_device(config.trainer_common.device)
        self.device = device.type
        longest = config.rollout.max_model_len
        self.tokenizer = load_tokenizer(source)
        self.trained = load_model(source, dtype=torch.float32, device=device, max_model_len=longest)
        self.engine = TransformersEngine(self.trained, max_num_seqs=config.rollout.max_num_seqs, max_model_len=longest)

    def close(self) -> None:
        """Stop the engine and its threads."""
        self.engine.close()


def _exit_with_parent() -> None:
    while os.read(0, 1):  # sys.stdin is not used, since its lock would be held at exit
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
