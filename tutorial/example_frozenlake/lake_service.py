"""The same game as an environment service: `ajet env serve lake_service.py->FrozenLake`. A task is a seed."""

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map
from workflow import RULES, describe, parse_action


class FrozenLake:
    def create(self, task_id):
        self.lake = generate_random_map(size=4, seed=int(task_id))
        self.game = gymnasium.make("FrozenLake-v1", desc=self.lake, is_slippery=False).unwrapped
        self.reward, (self.position, _) = 0.0, self.game.reset(seed=int(task_id))
        return [{"role": "system", "content": RULES}, {"role": "user", "content": describe(self.lake, self.position)}]

    def step(self, answer):
        action, ended = parse_action(answer), False
        if action is not None:
            self.position, self.reward, ended, _, _ = self.game.step(action)
        note = "" if action is not None else "This was no step.\n"
        return note + describe(self.lake, self.position), self.reward, ended

    def evaluate(self):
        return self.reward

    def release(self):
        self.game.close()
