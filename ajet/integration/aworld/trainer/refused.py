"""Engines that this version does not have, each with the sentence that says so."""

from __future__ import annotations

from typing import Any

from ajet.integration.aworld.trainer.trainer_processor import TrainerProcessor


class TrinityProcessor(TrainerProcessor):
    """Trinity."""

    def __init__(self, run_path: str) -> None:
        """Raises ValueError."""
        raise ValueError(
            "The trinity backbone is not part of this version; train_engine_name='verl' trains on a cluster."
        )

    def train(self) -> None:
        """Never: it cannot be made."""

    def check_agent(self, agent: Any) -> None:
        """Never."""

    def check_dataset(self, dataset: Any = None, test_dataset: Any = None) -> None:
        """Never."""

    def check_reward(self, reward_func: Any = None) -> None:
        """Never."""

    def check_config(self, config: Any = None) -> None:
        """Never."""
