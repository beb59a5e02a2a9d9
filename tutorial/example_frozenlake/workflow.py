"""The agent walks, one step a turn; the game is gymnasium's, and so is the reward: 1 at the goal, 0 elsewhere."""

import re

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask

ACTIONS = {"left": 0, "down": 1, "right": 2, "up": 3}
SIGNS = {"S": "_", "F": "_", "H": "O", "G": "G"}
RULES = """You walk over a frozen lake, one field a turn. P is you, G the goal, O a hole, _ ice.
Reach G and fall into no hole. Think briefly, then answer with one of
\\boxed{Left}, \\boxed{Down}, \\boxed{Right}, \\boxed{Up}."""


class FrozenLakeWorkflow(Workflow):
    name: str = "frozen_lake"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        settings = tuner.config.frozen_lake
        seed = workflow_task.task.metadata["random_number"]
        lake = generate_random_map(size=settings.frozen_lake_size, seed=seed)  # every repeat gets the same lake
        game = gymnasium.make("FrozenLake-v1", desc=lake, is_slippery=settings.is_slippery).unwrapped
        place, _ = game.reset(seed=seed)

        client = tuner.as_raw_openai_sdk_client()
        messages = [{"role": "system", "content": RULES}, {"role": "user", "content": show(lake, place)}]
        reward, turns, unclear = 0.0, 0, 0
        for _ in range(tuner.config.ajet.rollout.multi_turn.max_steps):
            reply = await client.chat.completions.create(model="tuned", messages=messages)
            text = reply.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": text})
            turns += 1
            action = chosen(text)
            if action is None:
                unclear += 1
                note = "That was no step. Answer with \\boxed{Left}, \\boxed{Down}, \\boxed{Right} or \\boxed{Up}.\n"
            else:
                note = ""
                place, reward, ended, _, _ = game.step(action)
                if ended:
                    break
            messages.append({"role": "user", "content": note + show(lake, place)})
        game.close()
        return WorkflowOutput(
            reward=float(reward),
            is_success=reward > 0,
            metadata={"lake": lake, "place": int(place)},
            log_metrics={"turns": float(turns), "unclear_steps": float(unclear)},
        )


def show(lake: list[str], place: int) -> str:
    """The lake as text, with the player on it."""
    size = len(lake)
    rows = [[SIGNS[field] for field in row] for row in lake]
    rows[place // size][place % size] = "P"
    return "\n".join(" ".join(row) for row in rows)


def chosen(text: str) -> int | None:
    """The step in the last box; None where there is none."""
    boxes = re.findall(r"\\boxed\{\s*(\w+)\s*\}", text)
    return ACTIONS.get(boxes[-1].lower()) if boxes else None
