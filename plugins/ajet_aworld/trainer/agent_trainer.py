"""AgentTrainer: AWorld's single entry to training, for any engine.

Invariant: the arguments are checked in one order (agent, data, reward, configuration) before training.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from ajet_aworld.trainer import registry


class AgentTrainer:
    """`AgentTrainer(agent=…, train_dataset=…, reward_func=…, config=…).train()`."""

    def __init__(
        self,
        agent: Any,
        config: Any = None,
        reward_func: Any = None,
        train_dataset: Any = None,
        test_dataset: Any = None,
        run_path: str | Path | None = "runs",
        train_engine_name: str = registry.VERL,
    ) -> None:
        """Check all arguments, and prepare the training engine.

        Args:
            agent: An AWorld Agent, the path of a YAML file, or an AworldAgentLoop by reference.
            config: The engine's configuration, or its file.
            reward_func: A function, or the path of a file with one.
            train_dataset: A table, or a path (.csv, .json, .jsonl, .parquet).
            test_dataset: The same for validation.
            run_path: The output folder, created at once.
            train_engine_name: Name of a registered training engine.

        Raises:
            ValueError: an argument is unusable.
        """
        if agent is None or agent == "":
            raise ValueError("trainer agent is required!")
        processor_class = registry.find_processor(train_engine_name)
        self.agent = agent
        self.config = config
        self.reward_func = reward_func
        self.train_dataset, self.test_dataset = train_dataset, test_dataset
        self.train_engine_name = train_engine_name
        self.run_path = str(Path(run_path or "runs").absolute())
        Path(self.run_path).mkdir(parents=True, exist_ok=True)

        self.train_processor = processor_class(self.run_path)
        self.train_processor.check_agent(agent=agent)
        self.train_processor.check_dataset(dataset=train_dataset, test_dataset=test_dataset)
        self.train_processor.check_reward(reward_func=reward_func)
        self.train_processor.check_config(config=config)
        self.train_processor.mark_initialized()

    @staticmethod
    def register_processor(train_engine_name: str, train_type: Any) -> None:
        """Register a subclass of TrainerProcessor by name. Raises ValueError for a used name, or another class."""
        registry.register(train_engine_name, train_type)

    @staticmethod
    def unregister_processor(train_engine_name: str) -> None:
        """Remove a name; unknown names are ignored."""
        registry.unregister(train_engine_name)

    def train(self) -> None:
        """Start the training. Raises ValueError if the train engine is not initialized."""
        self._require_ready().train()

    async def inference(self) -> Any:
        """Play without training and return the result. Raises ValueError if the train engine is not initialized."""
        result = self._require_ready().inference()
        return await result if inspect.isawaitable(result) else result

    def _require_ready(self) -> Any:
        """Return the training engine with its checked arguments. Raises ValueError if a check has not ended."""
        processor = getattr(self, "train_processor", None)
        if processor is None or not processor.initialized:
            raise ValueError(f"Train engine {getattr(self, 'train_engine_name', '')} is not initialized")
        return processor
