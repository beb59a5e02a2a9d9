"""The worked example of docs/adapters.md: what it refuses before its process starts, and the rows it makes of episodes.
Neither TRL nor torch is imported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ajet.integration.trl import package
from ajet.integration.trl.episodes import NOTHING, Episodes, row_of
from ajet.integration.trl.settings import grpo_settings
from ajet.schema.episode import Verdict
from ajet.schema.errors import UserError
from ajet.schema.timeline import Timeline
from tests.docs.snippets import ROOT, blocks
from tests.record_fixtures import episode
from train.trainer.agent_trainer import AgentTrainer

CONFIG = {
    "model": {"path": "embedded:tiny-tools"},
    "data": {"train_batch_size": 4},
    "rollout": {"num_repeat": 2},
}


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """Aside, and nowhere else."""
    there = {None: None, "aside": package.VERSION}
    monkeypatch.setattr(package, "_version_in", lambda folder: there["aside" if folder else None])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.yaml").write_text("{name: adder}")
    return there


def trainer(**given):
    rows = [{"question": "1+1?", "answer": "2"}]
    return AgentTrainer("agent.yaml", train_dataset=rows, train_engine_name="trl", config={**CONFIG, **given})


def test_the_page_prints_what_is_there():
    shown = [block for block in blocks(ROOT / "docs" / "adapters.md") if block.title.startswith("ajet/")]
    assert [block.title for block in shown] == ["ajet/integration/trl/processor.py", "ajet/integration/trl/__init__.py"]
    assert all((ROOT / block.title).read_text().endswith(block.text) for block in shown)


def test_beside_verl_missing_or_of_another_version_it_is_refused(installed, monkeypatch):
    assert trainer().train_processor.folder is not None
    installed["aside"] = "0.27.0"
    with pytest.raises(UserError, match=r"trl 0\.27\.0 is installed") as error:
        trainer()
    assert error.value.where.endswith("share/trl")
    installed["aside"] = None
    with pytest.raises(UserError, match="not installed") as error:
        trainer()
    assert "--no-deps --target" in error.value.do
    installed[None] = package.VERSION
    monkeypatch.setattr(package, "find_spec", lambda name: object())
    with pytest.raises(UserError, match="beside verl") as error:
        trainer()
    assert "patches a class" in error.value.expected
    monkeypatch.setattr(package, "find_spec", lambda name: None)
    assert trainer().train_processor.folder is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trainer_common": {"save_freq": 3}}, "TRL reads no trainer_common.save_freq"),
        ({"trainer_common": {"algorithm": {"clip_dual": 3.0}}}, "no trainer_common.algorithm.clip_dual"),
        ({"trainer_common": {"algorithm": {"adv_estimator": "rloo"}}}, "one adv_estimator, grpo"),
        ({"data": {"curriculum": {"prefer": "hard"}}}, "no data.curriculum"),
        ({"ajet": CONFIG, "trl": {"num_generations": 3}}, "trl.num_generations is ajet's to set"),
        ({"ajet": CONFIG, "trl": {"per_device_train_batch_size": 3}}, "a divisor of 8"),
    ],
)
def test_what_grpotrainer_has_not_is_a_value_error(given, said):
    with pytest.raises(ValueError, match=said):
        trainer(**given)


def test_keys_mean_what_they_mean_elsewhere():
    common = {"optim": {"lr": 0.5, "grad_clip": None}, "use_kl_loss": False, "algorithm": {"norm_adv_by_std": False}}
    own = {"per_device_train_batch_size": 2, "save_steps": 5}
    made = trainer(ajet={**CONFIG, "trainer_common": common}, trl=own).train_processor
    assert made.grpo == grpo_settings(made.experiment(), common)
    assert made.grpo.items() >= {
        "learning_rate": 0.5, "max_grad_norm": 0.0, "beta": 0.0, "scale_rewards": "none", "loss_type": "grpo",
        "num_generations": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "save_steps": 5,
    }.items()  # fmt: skip


def line(ids, mask):
    told = np.full(len(ids), -0.5, np.float32)
    arrays = {"ids": np.array(ids, np.int32), "mask": np.array(mask, bool), "versions": np.zeros(len(ids), np.int32)}
    return Timeline(agent="a", target="policy", logprobs=told, logprobs_unit=told, spans=(), leaf=0, **arrays)


def test_a_row_is_the_episodes_exact_tokens_and_what_is_not_one_sequence_trains_nothing():
    whole = replace(episode(), verdict=Verdict(0.5), timelines=[line([1, 2, 3, 4, 5, 6], [0, 0, 1, 0, 1, 0])])
    assert row_of(whole) == {
        "prompt_ids": [1, 2],
        "completion_ids": [3, 4, 5],
        "env_mask": [1, 0, 1],
        "logprobs": [-0.5, 0.0, -0.5],
    }
    forked = replace(whole, timelines=[*whole.timelines, line([1, 2], [0, 1])])
    unscored = replace(whole, verdict=None)
    assert row_of(forked) is NOTHING and row_of(unscored) is NOTHING
    rows = Episodes(None, None, None, [], 3)._rows([whole, forked, unscored])
    assert rows["verdict"] == [0.5, 0.5, None] and rows["env_mask"] == [[1, 0, 1], [0], [0]]
