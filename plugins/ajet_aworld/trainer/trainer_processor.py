"""TrainerProcessor: AgentTrainer's contract of a training engine.

Invariant: AgentTrainer calls check_agent, check_dataset, check_reward, check_config and mark_initialized once each, in
this order, and `train` only afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from loguru import logger


class TrainerProcessor(ABC):
    """Subclass it, write the five methods, and register the class."""

    def __init__(self, run_path: str) -> None:
        """Store the output folder. No argument is checked yet."""
        self.run_path = run_path
        self.reward_func_based_on_config = False
        self._is_initialized = False

    @abstractmethod
    def train(self) -> None:
        """Train with the checked arguments."""

    @abstractmethod
    def check_agent(self, agent: Any) -> Any:
        """Check an Agent, or the path of a file that describes one. Raises ValueError."""

    @abstractmethod
    def check_dataset(self, dataset: Any = None, test_dataset: Any = None) -> Any:
        """Check data sets, or their paths. Raises ValueError."""

    @abstractmethod
    def check_reward(self, reward_func: Any = None) -> Any:
        """Check a function, or the path of its file. Raises ValueError."""

    @abstractmethod
    def check_config(self, config: Any = None) -> Any:
        """Return the configuration, given by value or path, with its defaults. Raises ValueError."""

    def inference(self, dataset: Any = None) -> Any:
        """Play without training. Raises NotImplementedError by default."""
        raise NotImplementedError(f"{type(self).__name__} has no inference")

    @property
    def initialized(self) -> bool:
        """True after all checks."""
        return self._is_initialized

    @initialized.setter
    def initialized(self, value: bool) -> None:
        self._is_initialized = value

    def mark_initialized(self) -> None:
        """Note that all checks passed."""
        logger.info("All check finished.")
        self._is_initialized = True
