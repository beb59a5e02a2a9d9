"""TrainerProcessor: what AgentTrainer asks of something that trains.

Invariant: AgentTrainer calls check_agent, check_dataset, check_reward, check_config and mark_initialized once each, in
this order, and `train` only after them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from loguru import logger


class TrainerProcessor(ABC):
    """Subclass it, write the five methods, and register the class."""

    def __init__(self, run_path: str) -> None:
        """`run_path`: the folder for what it writes."""
        self.run_path = run_path
        self.reward_func_based_on_config = False
        self._initialized = False

    @abstractmethod
    def train(self) -> None:
        """Train, with what was checked before."""

    @abstractmethod
    def check_agent(self, agent: Any) -> Any:
        """`agent`: an Agent, or the path of a file that describes one. Raises ValueError for one that will not do."""

    @abstractmethod
    def check_dataset(self, dataset: Any = None, test_dataset: Any = None) -> Any:
        """Data sets, or paths of some. Raises ValueError."""

    @abstractmethod
    def check_reward(self, reward_func: Any = None) -> Any:
        """A function, or the path of a file that has one. Raises ValueError."""

    @abstractmethod
    def check_config(self, config: Any = None) -> Any:
        """The configuration, or the path of one; answers it with its defaults filled in. Raises ValueError."""

    def inference(self, dataset: Any = None) -> Any:
        """Play without training. Raises NotImplementedError where a processor has none."""
        raise NotImplementedError(f"{type(self).__name__} has no inference")

    @property
    def initialized(self) -> bool:
        """Whether everything was checked."""
        return self._initialized

    @initialized.setter
    def initialized(self, value: bool) -> None:
        self._initialized = value

    def mark_initialized(self) -> None:
        """Note that everything was checked."""
        logger.info("All check finished.")
        self._initialized = True
