"""The same game behind an environment service: `ajet env serve lake_service.py->FrozenLake`. A task is a seed."""

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map
from workflow import RULES, chosen, show


class FrozenLake:
    def create(self, task_id):
        self.lake = generate_random_map(size=4, seed=int(task_id))
        self.game = gymnasium.make("FrozenLake-v1", desc=self.lake, is_slippery=False).unwrapped
        self.reward, (self.place, _) = 0.0, self.game.reset(seed=int(task_id))
        return [{"role": "system", "content": RULES}, {"role": "user", "content": show(self.lake, self.place)}]

    def step(self, answer):
        action, ended = chosen(answer), False
        if action is not None:
            self.place, self.reward, ended, _, _ = self.game.step(action)
        note = "" if action is not None else "That was no step.\n"
        return note + show(self.lake, self.place), self.reward, ended

    def evaluate(self):
        return self.reward

    def release(self):
        self.game.close()
