"""What credit is for: each kind of it teaches a tiny model something that the same run does not learn without it.

In all of them the attempt's own reward says nothing of what is to be learned, or says it too bluntly; the run beside
each has the same seed, tasks and steps, and lacks that one thing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ajet.config.schema.algorithm import OverlongConfig
from ajet.config.schema.data import CurriculumConfig as CurriculumSettings
from ajet.schema.episode import Episode
from ajet.schema.process_reward import ProcessReward
from ajet.schema.task import Task
from ajet.task_reader import TaskOrder
from ajet.task_reader.order import CurriculumSampler
from tests.support.local_fixtures import config_of
from tests.support.toy_talks import Learner, Talk

pytestmark = [pytest.mark.slow, pytest.mark.extra_slow]
VOCABULARY = 6
LAST = VOCABULARY - 1


def learner_of(**changes: Any) -> Learner:
    return Learner(config_of(optim__lr=0.01, **changes), vocabulary=VOCABULARY, slots=64)


def tasks_of(count: int) -> list[Task]:
    return [Task(task_id=str(at)) for at in range(count)]


DOORS, TURNS, ATTEMPTS = 4, 3, 24


def right_doors(steps: int, **changes: Any) -> list[float]:
    """Of each step the share of turns in which the policy said the number of the door that it was shown. A door has a
    worth of its own, ten times what a right number adds; each attempt comes to others, in another order; the attempt as
    a whole is worth nothing."""
    learner, draw, shares = learner_of(**changes), np.random.default_rng(0), []
    for step in range(1, steps + 1):
        doors, right = draw.integers(0, DOORS, (2, ATTEMPTS, TURNS)), []

        async def play(talk: Talk, doors: Any = doors, right: list[bool] = right) -> Episode:
            parts = []
            for turn, door in enumerate(doors[talk.key[1], talk.key[2]].tolist()):
                (said,) = await talk.say([LAST, door])
                right.append(said == door)
                parts.append(ProcessReward(reward=10.0 * door + (said == door), step=turn))
            return talk.ended(0.0, *parts)

        learner.learn(learner.play(tasks_of(2), ATTEMPTS, play, step), step)
        shares.append(float(np.mean(right)))
    learner.engine.close()
    return shares


def test_gigpo_compares_steps_in_the_same_state():
    """Compared by their number in the attempt, as `grpo` does, steps differ by the door that they came to; attempts as
    a whole do not differ at all."""
    settings = {"algorithm__adv_estimator": "gigpo", "algorithm__step_discount": 0.0}
    by_state = right_doors(12, **settings)
    by_number = right_doors(12)
    as_a_whole = right_doors(12, **settings, algorithm__process_weight=0.0)
    assert by_state[0] < 0.35 and np.mean(by_state[-3:]) > 0.9, np.round(by_state, 2)
    assert np.mean(by_number[-3:]) < 0.6, np.round(by_number, 2)
    assert np.mean(as_a_whole[-3:]) < 0.35, np.round(as_a_whole, 2)


def asked_two(steps: int, own: Callable[[bool, bool], tuple[float, float]], **changes: Any) -> tuple[Any, Any]:
    """[steps] the shares of right replies of two agents in one episode, of one model: `first` is to say the number that
    it is shown, `second` the one after it. `own` says what each is worth by itself, of who was right; their attempt is
    worth the same whatever they say."""
    learner, draw, shares = learner_of(**changes), np.random.default_rng(0), []
    for step in range(1, steps + 1):
        shown, right = draw.integers(0, DOORS, (4, 2)), []

        async def play(talk: Talk, shown: Any = shown, right: list[Any] = right) -> Episode:
            one, other = shown[talk.key[1]].tolist()
            (first,) = await talk.say([LAST, one], agent="first")
            (second,) = await talk.say([LAST - 1, other], agent="second")
            told = first == one, second == (other + 1) % DOORS
            right.append(told)
            worth = [float(each) for each in own(*told)]
            parts = [
                ProcessReward(reward=each, agent=name) for name, each in zip(("first", "second"), worth, strict=True)
            ]
            return talk.ended(1.0, *parts)

        groups = learner.play(tasks_of(4), 12, play, step)
        assert {len(episode.timelines) for group in groups for episode in group.episodes} == {2}
        learner.learn(groups, step)
        shares.append(np.mean(right, axis=0))
    learner.engine.close()
    return tuple(np.array(shares).T)


def test_two_agents_of_one_episode_learn_each_from_their_own_reward():
    mine = asked_two(20, lambda first, second: (first, second))
    exchanged = asked_two(20, lambda first, second: (second, first))
    none = asked_two(20, lambda first, second: (first, second), algorithm__process_weight=0.0)
    assert max(shares[0] for shares in mine) < 0.35 and min(np.mean(each[-6:]) for each in mine) > 0.7, np.round(
        mine, 2
    )
    for other in (exchanged, none):  # the same rewards, each given to the other agent; and none of their own
        assert max(np.mean(each[-6:]) for each in other) < 0.35, np.round(other, 2)


LIMIT, MOST = 5, 10


def lengths_of(steps: int, overlong: OverlongConfig) -> tuple[list[float], list[float]]:
    """Of each step the mean tokens of a reply, which ends by the token 0 or after `MOST`, and the share of those over
    the limit. The judge likes length: a reply is worth a tenth for each of its tokens."""
    learner, draw = learner_of(algorithm__overlong=overlong), np.random.default_rng(0)
    lengths, over = [], []
    for step in range(1, steps + 1):
        shown = draw.integers(1, VOCABULARY, 4)

        async def play(talk: Talk, shown: Any = shown) -> Episode:
            said = await talk.say([int(shown[talk.key[1]])], most=MOST, stop=(0,))
            return talk.ended(len(said) / MOST)

        groups = learner.play(tasks_of(4), 12, play, step)
        learner.learn(groups, step)
        tokens = [episode.sampled_tokens for group in groups for episode in group.episodes]
        lengths.append(float(np.mean(tokens)))
        over.append(float(np.mean([each > LIMIT for each in tokens])))
    learner.engine.close()
    return lengths, over


def test_overlong_shaping_keeps_replies_within_the_limit():
    """A judge that likes length is held by it: the run without it ends with nothing but the longest replies."""
    shaped = lengths_of(14, OverlongConfig(length=LIMIT, buffer=2, penalty=2.0))
    plain = lengths_of(14, OverlongConfig())
    assert np.mean(shaped[1][-5:]) < 0.1 and np.mean(shaped[0][-5:]) < LIMIT, np.round(shaped, 2)
    assert np.mean(plain[1][-5:]) > 0.9 and np.mean(plain[0][-5:]) > MOST - 1, np.round(plain, 2)


HOPELESS = 18


def drawn_and_solved(steps: int, curriculum: bool) -> tuple[list[float], list[float]]:
    """Of each step the share of drawn tasks that can be solved at all, and the reward at all of those after it. Six of
    24 can be: what is to be said is what is shown; at the others nothing is ever right."""
    tasks = tasks_of(6 + HOPELESS)
    kind = {task.task_id: at for at, task in enumerate(tasks)}
    settings = CurriculumSettings(prefer="uncertain", share=0.25, floor=0.02)
    drawn = CurriculumSampler([*kind], settings, seed=0) if curriculum else None
    order = TaskOrder(tasks, seed=0, curriculum=drawn)
    learner, useful, solved = learner_of(), [], []
    at = 0
    for step in range(1, steps + 1):
        chosen = [order.task(at + each) for each in range(6)]
        at += 6

        async def play(talk: Talk) -> Episode:
            number = kind[talk.task.task_id]
            (said,) = await talk.say([number % VOCABULARY])
            return talk.ended(float(number < 6 and said == number))

        groups = learner.play(chosen, 8, play, step)
        order.record_results(groups, [])
        learner.learn(groups, step)
        useful.append(float(np.mean([kind[task.task_id] < 6 for task in chosen])))
        held_out = learner.play(tasks[:6], 4, play, 1000 + step)
        solved.append(float(np.mean([episode.reward for group in held_out for episode in group.episodes])))
    learner.engine.close()
    return useful, solved


def test_a_curriculum_draws_what_can_be_learned_and_learns_sooner():
    (useful, solved), (others, later) = drawn_and_solved(16, True), drawn_and_solved(16, False)
    assert np.mean(useful[-8:]) > 0.35 > np.mean(others[-8:]), (np.round(useful, 2), np.round(others, 2))
    assert np.mean(solved[-8:]) > np.mean(later[-8:]) + 0.1, (np.round(solved, 2), np.round(later, 2))


def beside_a_loud_one(steps: int, **changes: Any) -> list[float]:
    """Of each step the share of right replies, which one scorer gives 1; another gives 0 or 20, whatever is said."""
    learner, draw, shares = learner_of(**changes), np.random.default_rng(0), []
    for step in range(1, steps + 1):
        shown, noise, right = draw.integers(0, DOORS, 4), draw.integers(0, 2, (4, 12)), []

        async def play(talk: Talk, shown: Any = shown, noise: Any = noise, right: list[bool] = right) -> Episode:
            _, task, repeat = talk.key
            (said,) = await talk.say([LAST, int(shown[task])])
            right.append(said == shown[task])
            parts = {"loud": 20.0 * float(noise[task, repeat]), "right": float(right[-1])}
            ended = talk.ended(sum(parts.values()))
            assert ended.verdict is not None
            return replace(ended, verdict=replace(ended.verdict, parts=parts, scorer="loud+right"))

        learner.learn(learner.play(tasks_of(4), 12, play, step), step)
        shares.append(float(np.mean(right)))
    learner.engine.close()
    return shares


def test_gdpo_hears_a_reward_beside_one_twenty_times_as_loud():
    """Each is normalised by itself; added up first, as `grpo` has them, the loud one is all that is left."""
    apart, together = beside_a_loud_one(14, algorithm__adv_estimator="gdpo"), beside_a_loud_one(14)
    assert apart[0] < 0.35 and np.mean(apart[-5:]) > 0.9, np.round(apart, 2)
    assert np.mean(together[-5:]) < 0.4, np.round(together, 2)
