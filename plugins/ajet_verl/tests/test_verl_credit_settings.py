"""Our settings through verl's config and back."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from ajet.algorithm import assign_credit, open_algorithm
from ajet.algorithm.token_loss import TokenLoss
from ajet.config import Experiment
from ajet.schema.errors import ConfigError
from ajet.store import Address
from ajet_verl.config import compose_verl_config
from ajet_verl.config.credit import read_credit_settings
from ajet_verl.train import require_store
from ajet_verl.trainer.losses import WeightedSum
from tests.support.local_fixtures import episode_of, group_of
from tests.support.verl_fixtures import experiment, nested, without_verl

pytestmark = [pytest.mark.verl, without_verl, pytest.mark.slow]
TC = "trainer_common"
ACTOR = "actor_rollout_ref.actor"
READ = ("mini_batch_num", "use_kl_loss", "kl_loss_coef", "kl_loss_type")


@pytest.mark.parametrize(
    "ajet",
    [
        {},
        {"data.train_batch_size": 64, "rollout.num_repeat": 8, "data.max_response_length": 99},
        {"rollout.temperature": 0.5, "rollout.top_p": 0.9, "rollout.top_k": 20},
        {f"{TC}.mini_batch_num": 4, f"{TC}.use_kl_loss": False},
        {f"{TC}.kl_loss_coef": 0.25, f"{TC}.kl_loss_type": "abs"},
        {f"{TC}.algorithm.adv_estimator": "rloo", f"{TC}.algorithm.norm_adv_by_std": False},
        {f"{TC}.algorithm.clip_low": 0.1, f"{TC}.algorithm.clip_high": 0.3, f"{TC}.algorithm.clip_dual": 3.0},
        {f"{TC}.algorithm.loss_aggregation": "token", f"{TC}.algorithm.is_cap": 1.5},
        {f"{TC}.algorithm.loss_aggregation": "sequence-sum", f"{TC}.algorithm.dynamic_sampling": True},
        {f"{TC}.algorithm.use_kl_in_reward": True, f"{TC}.algorithm.kl_in_reward_coef": 0.5},
        {f"{TC}.mode": "colocate_async", f"{TC}.algorithm.adv_estimator": "reinforce_plus_plus"},
        {f"{TC}.algorithm.adv_estimator": "package.algorithm->Mine"},
        {f"{TC}.algorithm.adv_estimator": "gdpo", f"{TC}.algorithm.reward_weights": {"exact": 2.0}},
        {f"{TC}.algorithm.adv_estimator": "maxrl", f"{TC}.algorithm.policy_loss": "dppo_tv"},
        {f"{TC}.algorithm.overlong.length": 90, f"{TC}.algorithm.overlong.buffer": 20},
        {
            f"{TC}.algorithm.policy_loss": "minirl",
            f"{TC}.algorithm.old_policy": "behaviour",
            f"{TC}.algorithm.is_cap": None,
            f"{TC}.algorithm.is_mode": "geometric_mask",
            f"{TC}.algorithm.is_floor": 0.5,
            f"{TC}.algorithm.importance_weight_cap_ratio": 4.0,
            f"{TC}.algorithm.strict_in_bound": True,
            f"{TC}.algorithm.out_of_date_decay": 0.1,
            f"{TC}.algorithm.balance_sample": True,
            f"{TC}.algorithm.adv_scaling": 2.0,
            f"{TC}.algorithm.mismatch_alarm": 0.3,
            f"{TC}.algorithm.tau_positive": 1.5,
            f"{TC}.algorithm.tau_negative": 1.6,
        },
        {f"{TC}.mode": "colocate_async", f"{TC}.algorithm.old_policy": "behaviour"},
        {f"{TC}.algorithm.preset": "grpo"},
        {f"{TC}.mode": "async", f"{TC}.algorithm.preset": "minirl"},
    ],  # fmt: skip
)
def test_what_the_layer_writes_is_read_back(ajet):
    chosen = experiment(ajet)
    have, want = read_credit_settings(compose_verl_config(chosen)), chosen.ajet
    assert have.data.max_response_length == want.data.max_response_length
    for name in ("temperature", "top_p", "top_k", "num_repeat"):
        assert getattr(have.rollout, name) == getattr(want.rollout, name)
    for name in READ:
        assert getattr(have.trainer_common, name) == getattr(want.trainer_common, name)
    alarm = want.trainer_common.mismatch_alarm(rounded=True)
    bounds = {
        "mismatch_alarm": alarm,
        "clip_dual": want.trainer_common.algorithm.clip_dual or 1e9,
        "is_cap": want.trainer_common.importance_cap,
        "preset": None,  # what it says is there
    }
    assert have.trainer_common.algorithm == want.trainer_common.algorithm.model_copy(update=bounds)


@pytest.mark.parametrize("preset", ["minirl", "grpo"])
def test_with_samplers_groups_that_agree_are_left_out_and_verls_filter_is_off(preset):
    """It would ask for more groups in a step than samplers may play ahead of it."""
    tree = compose_verl_config(experiment({f"{TC}.mode": "async", f"{TC}.algorithm.preset": preset}))
    require_store(tree, Address.of("sqlite:/store.db"))
    settings = read_credit_settings(tree)
    agreed = group_of(episode_of(0.55, uuid="c"), episode_of(0.5, uuid="d"))
    batch = assign_credit(
        [group_of(episode_of(1.0, uuid="a"), episode_of(0.0, uuid="b")), agreed], settings, open_algorithm(settings)
    )
    assert {uuid: sum(batch.outcomes[uuid].untrained.values()) > 0 for uuid in "abcd"} == {
        "a": False, "b": False, "c": True, "d": True,
    }  # fmt: skip
    assert set(batch.outcomes["c"].untrained) == {"zero_variance"}
    tree["algorithm"]["filter_groups"]["enable"] = True
    with pytest.raises(ConfigError, match="filter_groups"):
        require_store(tree, Address.of("sqlite:/store.db"))


def test_the_users_own_section_wins():
    tree = compose_verl_config(
        experiment(verl={**nested(f"{ACTOR}.clip_ratio_low", 0.05), "algorithm": {"norm_adv_by_std_in_grpo": False}})
    )
    algorithm = read_credit_settings(tree).trainer_common.algorithm
    assert algorithm.clip_low == 0.05 and algorithm.norm_adv_by_std is False


MINE = """
from ajet import Algorithm

class Mine(Algorithm):
    def of_group(self, returns_G):
        return 2 * returns_G

    def policy_loss(self, logprobs_T, old_T, advantages_T):
        return -3 * advantages_T * logprobs_T, advantages_T > 9
"""


@pytest.mark.parametrize("section", ["ajet", "verl"])
def test_an_algorithm_of_the_users_own_gives_credit_and_loss_there(tmp_path, section):
    """From the configuration that verl's processes get, and as their workers get the loss. verl's own key holds the
    reference, relative to the project's folder."""
    (tmp_path / "mine.py").write_text(MINE)
    roots: dict[str, Any] = {"ajet": {"backbone": "verl", "model": {"path": "some/model"}}}
    own = {"algorithm": {"adv_estimator": "mine.py->Mine"}}
    if section == "ajet":
        roots["ajet"]["trainer_common"] = own
    else:
        roots["verl"] = own
    config = compose_verl_config(Experiment.from_dict(roots, base=tmp_path))
    assert config["algorithm"]["adv_estimator"] == "mine.py->Mine"
    settings = read_credit_settings(config)
    algorithm = open_algorithm(settings)
    batch = assign_credit([group_of(episode_of(1.0, uuid="a"), episode_of(0.5, uuid="b"))], settings, algorithm)
    assert [batch.outcomes[uuid].advantage for uuid in "ab"] == [2.0, 1.0]
    sent = WeightedSum(TokenLoss.from_settings(settings.trainer_common, algorithm))
    found = pickle.loads(pickle.dumps(sent)).tokens
    logprobs = torch.tensor([-1.0, -2.0])
    terms = replace(found, kl_coef=None)(logprobs, logprobs, torch.tensor([1.0, 2.0]))
    assert terms.loss.tolist() == [3.0, 12.0]


def test_what_our_loss_does_not_have_is_an_error_there_too():
    tree: dict[str, Any] = compose_verl_config(experiment())
    tree["actor_rollout_ref"]["actor"]["policy_loss"]["loss_mode"] = "gspo"
    with pytest.raises(ValueError, match="loss_mode is 'gspo', expected vanilla"):
        read_credit_settings(tree)
