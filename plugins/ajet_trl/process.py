"""The process that trains with TRL: `python -m ajet_trl.process TOLD`, started by TrlTrainer.

Invariants: the engine samples from the very tensors that TRL's optimizer changes; the process ends when whoever started
it has gone (its standard input closes); a mistake of the person's is written down for them, not printed as a traceback.
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
    """Answers the exit code."""
    threading.Thread(target=_ends_with_its_starter, daemon=True).start()
    from ajet.record import RunDirectory
    from ajet_ray.shipped_experiment import restore_experiment

    told = json.loads(Path(sys.argv[1]).read_text())
    try:
        experiment = restore_experiment(told)
        with RunDirectory.open(experiment, root=experiment.root, kind="debug") as run:
            train(experiment, run)
    except UserError as mistake:
        screen = {"what": mistake.what, **dict(mistake.rows())}
        Path(told["failed"]).write_text(json.dumps(screen))
        return 2
    return 0


def train(experiment: Experiment, run: RunDirectory) -> None:
    """To the last step; the model goes into the run's folder. Raises UserError."""
    from contextlib import closing

    from datasets import Dataset
    from loguru import logger
    from trl import GRPOConfig, GRPOTrainer

    from ajet.rollout import Rollout
    from ajet.rollout.components import open_gateway, workflow_of
    from ajet.task_judge import open_judge
    from ajet.task_reader import TaskOrder, open_reader
    from ajet.task_reader.overlong import within_prompt_length
    from ajet.train.parts import pins_of
    from ajet_trl.episodes import Episodes, verdicts
    from ajet_trl.settings import grpo_settings

    reader = open_reader(experiment)
    judge, workflow = open_judge(experiment, reader_judge=reader.judge), workflow_of(experiment)
    with (
        closing(Shared(experiment)) as model,
        closing(open_gateway(experiment, model.engine, model.tokenizer)) as gateway,
        closing(Rollout(experiment, gateway, workflow, judge, run_id=run.run_id, pins=pins_of(run))) as rollout,
    ):
        tasks = within_prompt_length(reader.tasks("train"), experiment.ajet.data, model.tokenizer)
        order = TaskOrder(tasks, seed=experiment.ajet.seed, shuffle=experiment.ajet.data.shuffle)
        logger.info("TRL owns the steps, and its lines follow; episodes are recorded in {}", run.path)
        trainer = GRPOTrainer(
            model=model.trained,
            reward_funcs=verdicts,
            args=GRPOConfig(
                **grpo_settings(experiment, {}),
                output_dir=str(run.path / "trl"),
                max_steps=experiment.ajet.total_steps(len(tasks)),
                use_cpu=model.device == "cpu",
            ),
            train_dataset=Dataset.from_list([{"prompt": "a task"}] * experiment.ajet.data.train_batch_size),
            processing_class=model.tokenizer,
            rollout_func=Episodes(rollout, model.engine, run, order, experiment.ajet.rollout.num_repeat),
        )
        trainer.train()
        trainer.save_state()
        trainer.save_model(str(run.path / "model"))
        apply_umask(run.path / "model")
        logger.info("the model after step {} is in {}", trainer.state.global_step, run.path / "model")


class Shared:
    """The model that TRL trains, and the engine that samples from its tensors."""

    def __init__(self, experiment: Experiment) -> None:
        import torch

        from ajet.backbone.local.machine import choose_device
        from ajet.engine.model_source import locate
        from ajet.engine.models import load_model, load_tokenizer
        from ajet.engine.transformers import TransformersEngine

        config = experiment.ajet
        assert config.model.path is not None
        if isinstance(config.trainer_common.threads, int):
            torch.set_num_threads(config.trainer_common.threads)
        source = locate(config.model.path, base=experiment.base, trust_remote_code=config.model.trust_remote_code)
        device = choose_device(config.trainer_common.device)
        self.device = device.type
        longest = config.rollout.max_model_len
        self.tokenizer = load_tokenizer(source)
        self.trained = load_model(source, dtype=torch.float32, device=device, max_model_len=longest)
        self.engine = TransformersEngine(self.trained, max_num_seqs=config.rollout.max_num_seqs, max_model_len=longest)

    def close(self) -> None:
        """End the engine."""
        self.engine.close()


def _ends_with_its_starter() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock would be held at the end
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
