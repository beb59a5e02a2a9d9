"""AgentTrainer: AWorld's one entry to training, over whatever trains.

Invariant: what it is given is checked in one order (agent, data, reward, configuration) before anything is trained.
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
        """`agent`: an AWorld Agent, the path of a YAML file that describes one, or an AworldAgentLoop by reference.
        `config`: what the engine is configured by, or a file of it. `reward_func`: a function, or the path of a file
        with one. Data sets: tables or paths (.csv, .json, .jsonl, .parquet). `run_path`: the folder for what training
        writes, made at once. Raises ValueError for what cannot be used."""
        if agent is None or agent == "":
            raise ValueError("trainer agent is required!")
        kind = registry.find_processor(train_engine_name)
        self.agent, self.config, self.reward_func = agent, config, reward_func
        self.train_dataset, self.test_dataset = train_dataset, test_dataset
        self.train_engine_name = train_engine_name
        self.run_path = str(Path(run_path or "runs").absolute())
        Path(self.run_path).mkdir(parents=True, exist_ok=True)

        self.train_processor = kind(self.run_path)
        self.train_processor.check_agent(agent=agent)
        self.train_processor.check_dataset(dataset=train_dataset, test_dataset=test_dataset)
        self.train_processor.check_reward(reward_func=reward_func)
        self.train_processor.check_config(config=config)
        self.train_processor.mark_initialized()

    @staticmethod
    def register_processor(train_engine_name: str, train_type: Any) -> None:
        """Make a subclass of TrainerProcessor known by a name. Raises ValueError for a name that is taken, and for what
        is none."""
        registry.register(train_engine_name, train_type)

    @staticmethod
    def unregister_processor(train_engine_name: str) -> None:
        """Forget it; nothing happens where it is not known."""
        registry.unregister(train_engine_name)

    def train(self) -> None:
        """Train. Raises ValueError before all was checked."""
        self._require_ready().train()

    async def inference(self) -> Any:
        """Play without training; what comes of it is the processor's. Raises ValueError before all was checked."""
        found = self._require_ready().inference()
        return await found if inspect.isawaitable(found) else found

    def _require_ready(self) -> Any:
        found = getattr(self, "train_processor", None)
        if found is None or not found.initialized:
            raise ValueError(f"Train engine {getattr(self, 'train_engine_name', '')} is not initialized")
        return found
