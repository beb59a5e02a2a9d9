"""The workflow: nine agents of whom those with the trained role talk to the model in training, and the others to an
opponent: rules, or a model at another endpoint."""

import os
import random
from typing import Any

from game import Game, Part, introduction, seated
from openai import AsyncOpenAI
from players import Scripted, Talking

from ajet import ModelTuner, ProcessReward, Workflow, WorkflowOutput, WorkflowTask

ROUNDS = 3


class ExampleWerewolves(Workflow):
    name: str = "werewolves"
    trainable_targets: list[str] | None = ["werewolf"]  # or roles of the other side, such as ["seer", "witch"]

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        settings = tuner.config.get("werewolves") or {}  # AgentJet's YAML has no such section
        elsewhere = settings.get("opponents")
        trained = set(self.trainable_targets or [])
        if not trained or ("werewolf" in trained and len(trained) > 1):
            raise ValueError(f"trainable_targets are {sorted(trained)}: the roles of one side are needed")
        draw = random.Random(workflow_task.task.metadata["random_number"])  # the same seats for all repeats of a task
        roles = seated(draw)
        opponents = endpoint(elsewhere) if elsewhere else None
        players: dict[int, Any] = {}
        for number, role in roles.items():
            if role not in trained and opponents is None:
                players[number] = Scripted(random.Random(draw.random()))
                continue
            # target_tag: an agent whose role is not among the trained ones talks to `debug_model` and is not trained
            client = tuner.as_raw_openai_sdk_client(
                agent_name=f"Player{number}", target_tag=role, debug_model=opponents
            )
            model = "tuned" if role in trained else elsewhere.model
            players[number] = Talking(client, introduction(number, roles), model=model)
        game = Game(players, roles)
        winner = await game.play(settings.get("rounds", ROUNDS))
        wolves = "werewolf" in trained
        won = winner == ("werewolves" if wolves else "others")
        against = [number for number, role in roles.items() if (role == "werewolf") != wolves]
        beaten = sum(number not in game.alive for number in against) / len(against)
        own = {number for number, role in roles.items() if role in trained}
        return WorkflowOutput(
            reward=1.0 if won else settings.get("partial", 0.0) * beaten,
            is_success=won,
            metadata={"winner": winner, "roles": [roles[number] for number in sorted(roles)], "alive": game.alive},
            log_metrics={"unclear": game.unclear, "alive": len(game.alive)},
            process=by_parts(game.parts, own, set(against)) if settings.get("by_parts") else [],
        )


def by_parts(parts: list[Part], own: set[int], against: set[int]) -> list[ProcessReward]:
    """Of each answer of the trained: how many opponents died in its night or day, less how many of its own side. It is
    compared with answers of other nights, or days, at the same seats."""
    asked = [part for part in parts for player in part.asked if player in own]
    return [
        ProcessReward(reward=sum(1 if dead in against else -1 for dead in part.dead), step=step, name=part.name)
        for step, part in enumerate(asked)
    ]


def endpoint(settings: Any) -> AsyncOpenAI:
    """The opponents' server, of which nothing is recorded. Its key comes from the environment. Raises ValueError."""
    variable = settings.get("api_key_env")
    if variable and not os.environ.get(variable):
        raise ValueError(f"werewolves.opponents.api_key_env is {variable}, which is not set")
    return AsyncOpenAI(base_url=settings.base_url, api_key=os.environ[variable] if variable else "none")
