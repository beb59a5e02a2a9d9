"""TrainerProcess: the actor running verl's trainer, and its messages to the record.

Invariant: the actor connects verl's public parts like verl's own main program and adds nothing. Errors are raised to
the caller of `run`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from ajet_ray.mailbox import CheckpointNotice, PhaseNotice, Sender
from ajet_verl.agent.early import start_agent_loops
from ajet_verl.trainer.reporting import RunStoppedError


class TrainerProcess:
    """Ray actor that runs verl's trainer. The launch of a run creates one."""

    def run(self, config: Any) -> None:
        """Train until the last step, or until the mailbox requests a stop."""
        sender = Sender()
        sender.introduce("trainer")
        sender.post(PhaseNotice("loading"))
        early_agent_loops = start_agent_loops(config.actor_rollout_ref.rollout.agent.num_workers)

        import transfer_queue
        from omegaconf import OmegaConf

        OmegaConf.resolve(config)
        config.transfer_queue.enable = True
        with ThreadPoolExecutor(1) as executor:  # two processes import torch, here in parallel
            queue_start = executor.submit(transfer_queue.init, config.transfer_queue)
            from verl.trainer.ppo.v1 import get_trainer_cls

            from ajet_verl.agent.workers import AgentWorkers
            from ajet_verl.trainer import trainers  # noqa: F401 - registers ajet's trainers

            pickle_load_balancer()
            if config.actor_rollout_ref.rollout.name == "vllm":
                from ajet_verl.trainer import servers

                servers.start_servers(config)
            queue_start.result()
        trainer: Any = None
        exit_code = 1
        try:
            trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
            trainer.init()
            agent_loops = AgentWorkers.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
                early=early_agent_loops,
            )
            sender.post(PhaseNotice("rollout", trainer.global_steps))
            with suppress(RunStoppedError):
                trainer.fit(agent_loops)
            exit_code = 0
        finally:
            tracking = getattr(trainer, "logger", None)
            if tracking is not None:
                tracking.finish(exit_code=exit_code)
            transfer_queue.close()


def pickle_load_balancer() -> None:
    """Pickle verl's load balancer by value, so that its process imports nothing of verl.

    The first request waits for this process.
    """
    from ray import cloudpickle
    from verl.workers.rollout import router

    cloudpickle.register_pickle_by_value(router)


class SavedCallback:
    """Set as `trainer.checkpoint_callback_class`: reports a written checkpoint."""

    def __init__(self, config: Any = None) -> None:
        """Connect to the run's mailbox. verl passes its config, which is not needed."""
        self._sender = Sender()

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **_: Any) -> None:
        """Post a checkpoint notice. Called by verl after each checkpoint."""
        self._sender.post_and_wait(CheckpointNotice(global_step, checkpoint_dir))
