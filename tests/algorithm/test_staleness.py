"""What stale tokens are weighed by: who decides it, and who says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from loguru import logger

from ajet.algorithm import Algorithm
from ajet.algorithm.importance import stale_metrics
from ajet.algorithm.staleness import log_staleness
from ajet.algorithm.token_loss import TokenLoss
from ajet.config import Experiment
from ajet.config.schema.trainer_common import TrainerConfig
from tests.support.verl_fixtures import experiment, without_verl

ALGORITHM = "trainer_common.algorithm"


@pytest.mark.parametrize(
    ("written", "asynchronous", "sync"),
    [({}, 2.0, None), ({"is_cap": "auto"}, 2.0, None), ({"is_cap": None}, None, None), ({"is_cap": 1.5}, 1.5, 1.5)],
)
def test_the_cap_is_that_of_the_mode_but_what_is_written_stays(written, asynchronous, sync):
    modes = dict.fromkeys(("async", "colocate_async", "separate_async"), asynchronous)
    for mode, wanted in {"sync": sync, **modes}.items():
        found = TrainerConfig.model_validate({"mode": mode, "algorithm": written})
        assert found.importance_cap == wanted
        assert TokenLoss.from_settings(found, Algorithm(found.algorithm)).is_cap == wanted


@pytest.mark.parametrize("mode", ["sync", "async", "colocate_async", "separate_async"])
def test_a_loss_whose_ratio_is_to_the_policy_that_sampled_has_no_other_weights(mode):
    found = TrainerConfig.model_validate({"mode": mode, "algorithm": {"old_policy": "behaviour"}})
    assert found.importance_cap is None


@pytest.mark.parametrize(("written", "served"), [({}, 2.0), ({"is_cap": None}, None)])
def test_behind_serve_there_is_one_too(written, served):
    tree = {"ajet": {"trainer_common": {"algorithm": written}}}
    in_turns = Experiment.from_dict(tree, base=Path("/somewhere"))
    assert in_turns.list_training_settings()[f"ajet.{ALGORITHM}.is_cap"] is None, "what runs are compared by"
    found = in_turns.adapt_to_serve()
    assert found.list_training_settings()[f"ajet.{ALGORITHM}.is_cap"] == served
    again = Experiment.from_text(found.dump_resolved(), Path("/somewhere/x.yaml"), root=Path("/somewhere"))
    assert again.ajet.trainer_common.importance_cap == served, "what is repeated"


def said_by(function, *arguments) -> str:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message)), format="{message}")
    try:
        function(*arguments)
    finally:
        logger.remove(sink)
    return "".join(lines)


def test_a_run_says_what_stale_tokens_get():
    assert "up to 4 steps old with importance weight min(" in said_by(
        log_staleness, TrainerConfig(mode="colocate_async"), 4
    )
    assert "engine's, 2)" in said_by(log_staleness, TrainerConfig(mode="colocate_async"), 4)
    assert "by earlier weights with importance weight 1 (" in said_by(log_staleness, TrainerConfig(), None)
    for written, said in (
        ({"old_policy": "behaviour"}, "the ratio to the policy that sampled"),
        ({"is_mode": "geometric_mask"}, "importance weights up to 2, geometric_mask"),
    ):
        found = TrainerConfig.model_validate({"mode": "colocate_async", "algorithm": written})
        assert said in said_by(log_staleness, found, 4)


@without_verl
@pytest.mark.parametrize(
    ("mode", "said", "cap"), [("sync", "", (None, 2.0)), ("colocate_async", "up to 4 steps old", ("token", 2.0))]
)
def test_a_run_of_verl_says_it_in_its_asynchronous_modes(mode, said, cap):
    from ajet_verl.config import compose_verl_config
    from ajet_verl.train import announce_staleness

    config = compose_verl_config(experiment({"trainer_common.mode": mode}))
    correction = config["algorithm"]["rollout_correction"]
    assert (correction["rollout_is"], correction["rollout_is_threshold"]) == cap
    found = said_by(announce_staleness, config)
    assert said in found and bool(found) == bool(said)


def test_metrics_are_over_the_stale_tokens_alone():
    assert stale_metrics(8, 0, 0.0, 0) == {}
    assert stale_metrics(8, 4, 5.0, 1) == {
        "stale_fraction": 0.5, "stale_is_weight_mean": 1.25, "stale_is_capped_fraction": 0.25
    }  # fmt: skip
