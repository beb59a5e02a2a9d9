"""The newer place of `metrics.gaia_reward_function`."""

from train.examples.train_gaia_with_aworld_verl.metrics.gaia_reward_function import gaia_reward_func as gaia_reward_func
from train.examples.train_gaia_with_aworld_verl.metrics.gaia_reward_function import question_scorer as question_scorer
