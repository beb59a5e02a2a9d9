"""An agent that walks over gymnasium's FrozenLake, one step per turn. The reward is 1 at the goal, else 0."""

import re

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask

ACTIONS = {"left": 0, "down": 1, "right": 2, "up": 3}  # gymnasium's numbers
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
SIGNS = {"S": "_", "F": "_", "H": "O", "G": "G"}
RULES = """Walk to G at the lower right. _ is ice, O a hole, # the edge.
Answer \\boxed{left}, \\boxed{down}, \\boxed{right} or \\boxed{up}."""


class FrozenLakeWorkflow(Workflow):
    name: str = "frozen_lake"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        settings = tuner.config.frozen_lake
        seed = workflow_task.task.metadata["random_number"]
        lake = generate_random_map(size=settings.frozen_lake_size, seed=seed)  # the same lake for all repeats of a task
        game = gymnasium.make("FrozenLake-v1", desc=lake, is_slippery=settings.is_slippery).unwrapped
        position, _ = game.reset(seed=seed)

        client = tuner.as_raw_openai_sdk_client()
        messages = [{"role": "system", "content": RULES}, {"role": "user", "content": describe(lake, position)}]
        reward, turns, invalid = 0.0, 0, 0
        for _ in range(tuner.config.ajet.rollout.multi_turn.max_steps):
            reply = await client.chat.completions.create(model="tuned", messages=messages)
            text = reply.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": text})
            turns += 1
            action = parse_action(text)
            if action is None:
                invalid += 1
                note = "This was no step.\n"
            else:
                note = ""
                position, reward, ended, _, _ = game.step(action)
                if ended:
                    break
            messages.append({"role": "user", "content": note + describe(lake, position)})
        game.close()
        return WorkflowOutput(
            reward=float(reward),
            is_success=reward > 0,
            metadata={"lake": lake, "position": int(position)},
            log_metrics={"turns": float(turns), "invalid_steps": float(invalid)},
        )


def describe(lake: list[str], position: int) -> str:
    """Return the three rows of three fields around the player."""
    edge = "#" * (len(lake) + 2)
    grid = [edge, *("#" + "".join(SIGNS[field] for field in line) + "#" for line in lake), edge]
    row, column = divmod(position, len(lake))
    rows = [line[column : column + 3] for line in grid[row : row + 3]]
    rows[1] = rows[1][0] + "P" + rows[1][2]
    return "\n".join(rows)


def parse_action(text: str) -> int | None:
    """Return gymnasium's number of the step in the last box, or None if there is no valid step."""
    boxes = re.findall(r"\\boxed\{\s*(\w+)\s*\}", text)
    return ACTIONS.get(boxes[-1].lower()) if boxes else None
