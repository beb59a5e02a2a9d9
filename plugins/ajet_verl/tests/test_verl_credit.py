"""verl's trainer and FSDP engine with our credit and loss, against the local backbone's trainer on the same episodes.

The loss of a batch is a sum over its tokens (DESIGN decision 8), so that neither the engine, nor how an episode is cut
into rows, nor micro batches, nor ranks may show in its gradient. All in float32; two training steps, so that the
reference model differs from the policy.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.algorithm import assign_credit
from ajet.backbone.local.trainer import Trainer
from ajet.engine.embedded import shipped_folder
from ajet.schema.episode import Group, SampledSpan
from ajet.schema.task import Task
from ajet_verl.config import compose_verl_config
from tests.support.local_fixtures import calls_of, episode_of, timeline_of
from tests.support.tiny_models import tiny
from tests.support.verl_fixtures import experiment, through_verl, without_verl

pytestmark = [pytest.mark.verl, without_verl, pytest.mark.extra_slow]

TC = "trainer_common"
PLAIN = {
    "data.max_prompt_length": 64,
    "data.max_response_length": 64,
    "data.train_batch_size": 4,
    "rollout.num_repeat": 3,
    "rollout.max_model_len": 128,
    "rollout.temperature": 0.8,
    f"{TC}.device": "cpu",
    f"{TC}.use_kl_loss": False,
    f"{TC}.optim.lr": 0.01,
    f"{TC}.optim.eps": 0.001,  # without it the first updates would show the gradient's sign alone
    f"{TC}.micro_batch_tokens": 4096,
    f"{TC}.algorithm.mismatch_alarm": None,  # the engine's logprobs are made up
}
KL = {f"{TC}.use_kl_loss": True, f"{TC}.kl_loss_coef": 0.5}
CAP = {f"{TC}.algorithm.is_cap": 1.5}
TWO = {f"{TC}.mini_batch_num": 2}
SMALL = {f"{TC}.micro_batch_tokens": 128}
AGGREGATION = f"{TC}.algorithm.loss_aggregation"
SETTINGS: dict[str, dict[str, Any]] = {
    "sequence": {},
    "sequence-sum": {AGGREGATION: "sequence-sum"},
    "cap": CAP,
    "kl in the reward": {f"{TC}.algorithm.use_kl_in_reward": True, f"{TC}.algorithm.kl_in_reward_coef": 0.1},
    "two mini batches of tokens, with everything": TWO | KL | CAP | {AGGREGATION: "token"},
    "a rate that falls, for an algorithm of one's own": {
        f"{TC}.algorithm.adv_estimator": "tests.support.own_algorithms->AgainstTheMedian",
        f"{TC}.optim.lr_schedule": "linear",
        f"{TC}.optim.lr_warmup_steps": 1,
        f"{TC}.optim.min_lr_ratio": 0.2,
        f"{TC}.total_training_steps": 3,
    },
    "small micro batches, a tightened cap": SMALL | KL | CAP | {f"{TC}.algorithm.mismatch_alarm": 3.0},
    "a loss and weights of whole replies, bounds that narrow with age": SMALL
    | TWO
    | {
        f"{TC}.algorithm.policy_loss": "gspo",
        f"{TC}.algorithm.clip_low": 0.001,
        f"{TC}.algorithm.clip_high": 0.001,
        f"{TC}.algorithm.is_mode": "geometric_truncate",
        f"{TC}.algorithm.is_cap": 1e4,
        f"{TC}.algorithm.importance_weight_cap_ratio": 1.5,
        f"{TC}.algorithm.out_of_date_decay": 0.3,
    },
    "AgentRL's settings for minirl": TWO | {f"{TC}.algorithm.preset": "minirl", f"{TC}.mode": "async"},
    "MaxRL with the loss of DPPO": TWO
    | {
        f"{TC}.algorithm.adv_estimator": "maxrl",
        f"{TC}.algorithm.policy_loss": "dppo_tv",
        f"{TC}.algorithm.clip_low": 1e-6,
        f"{TC}.algorithm.clip_high": 1e-6,
    },
    "small micro batches, two mini batches": SMALL | TWO | {f"{TC}.algorithm.clip_dual": 3.0},
}
"""Each choice stands in one of them, most with others: a scenario costs three seconds."""
RANKS = {
    "two ranks": KL | CAP | TWO,
    "three episodes to an optimizer step": {f"{TC}.mini_batch_num": 4},
}


def groups_of_steps() -> list[list[Group]]:
    """Of two steps: an episode of five timelines, others of one and two, one without a token, a silent group."""
    draw = np.random.default_rng(7)

    def timeline(first_call: int, turns: int) -> Any:
        ids, runs = draw.integers(3, 300, draw.integers(4, 9)).tolist(), []
        for _ in range(turns):
            reply = draw.integers(3, 300, draw.integers(2, 9)).tolist()
            runs.append((len(ids), len(ids) + len(reply)))
            ids = ids + reply + draw.integers(3, 300, 2).tolist()
        made = timeline_of(ids, runs, -draw.uniform(8, 30, len(ids)))
        made.logprobs = np.where(made.mask, made.logprobs, 0).astype(np.float32)
        made.spans = tuple(SampledSpan(first_call + index, *run) for index, run in enumerate(runs))
        return made

    shapes = [[(1, 2, 1, 3, 1), (2,), (1, 1)], [(2,), (), (1,)], [(1,), (3,), (1,)], [(2, 1), (1,), (1,)]]
    rewards = [[1.0, 0.0, 0.25], [0.0, 1.0, 1.0], [0.5, 0.5, 0.5], [0.0, 0.0, 1.0]]
    steps = []
    for _ in range(2):
        groups = []
        for order, (members, scores) in enumerate(zip(shapes, rewards, strict=True)):
            episodes = []
            for repeat, (turns, reward) in enumerate(zip(members, scores, strict=True)):
                episode = replace(episode_of(reward, (1,), uuid=f"{order}/{repeat}"), repeat=repeat, timelines=[])
                for count in turns:
                    calls = sum(len(other.spans) for other in episode.timelines)
                    episode.timelines.append(timeline(calls, count))
                    episode.calls[calls:] = calls_of(episode.timelines[-1], episode.calls[0])
                episodes.append(episode)
            groups.append(Group(Task(task_id=str(order)), order, episodes))
        steps.append(groups)
    return steps


def split_rows(steps: list[list[Group]]) -> list[list[Group]]:
    """The same episodes with one timeline per reply."""
    steps = deepcopy(steps)
    for groups in steps:
        for episode in (episode for group in groups for episode in group.episodes):
            parts = []
            for whole in episode.timelines:
                for span in whole.spans:
                    part = timeline_of(whole.ids[: span.stop], [span[1:]], whole.logprobs[: span.stop])
                    part.logprobs = np.where(part.mask, part.logprobs, 0).astype(np.float32)
                    part.spans, part.leaf = (SampledSpan(*span),), span.call
                    parts.append(part)
            episode.timelines[:] = parts
    return steps


def scenarios(settings: dict[str, dict[str, Any]], ranks: int) -> dict[str, Any]:
    made = {}
    folder = shipped_folder("tiny-tools")
    for name, ajet in settings.items():
        chosen = experiment({**PLAIN, **ajet, f"{TC}.n_gpus_per_node": ranks})
        made[name] = {"config": compose_verl_config(chosen, model_folder=folder), "steps": groups_of_steps()}
    return made


@pytest.fixture(scope="module")
def updated(tmp_path_factory):
    """Each scenario through verl, by its number of ranks, in processes of their own."""
    folder = tmp_path_factory.mktemp("verl")
    return through_verl(folder, [of_one_rank() | of_other_models(folder), scenarios(RANKS, 2)])


def of_one_rank() -> dict[str, Any]:
    made = scenarios(SETTINGS, 1)
    made["a row for each reply"] = {**made["cap"], "steps": split_rows(groups_of_steps())}
    late, *groups = groups_of_steps()
    made |= scenarios({"a rate past a silent step": SETTINGS["a rate that falls, for an algorithm of one's own"]}, 1)
    made["a rate past a silent step"]["steps"] = [late[2:3], *groups]
    made |= scenarios({"adapters": KL | {f"{TC}.lora.rank": 4, f"{TC}.optim.lr": 0.05}}, 1)
    made["no signal"] = {**made["cap"], "steps": [groups[2:3] for groups in groups_of_steps()]}
    fixed = {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 3}
    by_rows = {"actor": fixed, "rollout": {"log_prob_micro_batch_size_per_gpu": 5}}
    chosen = experiment({**PLAIN, **TWO, f"{TC}.n_gpus_per_node": 1}, verl={"actor_rollout_ref": by_rows})
    made["micro batches by rows"] = {
        "config": compose_verl_config(chosen, model_folder=shipped_folder("tiny-tools")),
        "steps": groups_of_steps(),
    }
    return made


OTHERS = {"Gemma 2, fused": "sdpa", "Gemma 2, eager": "eager", "gpt-oss, fused": "sdpa"}
"""A model that torch's fused attention computes otherwise, and one that cannot be built with it, by what is asked for
(`sdpa` is what the settings for a CPU ask for)."""


def of_other_models(folder: Path) -> dict[str, Any]:
    """One step of one group each, without the padding that KL adds to what a step takes."""
    made = {}
    for name, asked in OTHERS.items():
        family = name.split(",")[0]
        place = folder / family.replace(" ", "")
        if not place.exists():
            model = tiny(family, vocab_size=379)
            shutil.copytree(
                shipped_folder("tiny-tools"), place, ignore=shutil.ignore_patterns("*.safetensors", "*.json")
            )
            model.save_pretrained(place)
            for each in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(shipped_folder("tiny-tools") / each, place)
        own = {} if asked == "sdpa" else {"model": {"override_config": {"attn_implementation": asked}}}
        chosen = experiment({**PLAIN, f"{TC}.n_gpus_per_node": 1}, verl={"actor_rollout_ref": own})
        made[name] = {"config": compose_verl_config(chosen, model_folder=place), "steps": [groups_of_steps()[0][:1]]}
    return made


@pytest.fixture(scope="module")
def one_rank(updated):
    return updated[1]


@pytest.fixture(scope="module")
def two_ranks(updated):
    return updated[2]


def local(
    ajet: dict[str, Any], gaps: Sequence[float | None] = (None, None), steps: list[list[Group]] | None = None
) -> dict[str, Any]:
    """The same by the local backbone. `gaps`: between engine and trainer, as the run measured them at each step."""
    import torch
    from transformers import AutoModelForCausalLM

    config = experiment({**PLAIN, **ajet}).ajet
    model = AutoModelForCausalLM.from_pretrained(shipped_folder("tiny-tools"), dtype=torch.float32)
    trainer = Trainer(model, config)
    weights = trainer.policy.weights
    found: list[dict[str, Any]] = []

    def named(flat: Any) -> dict[str, Any]:
        return {place.name: flat[place.start : place.stop].view(place.shape).numpy().copy() for place in weights.places}

    inner = trainer._step_optimizer

    def step(*given: Any, **more: Any) -> Any:
        found.append(named(weights.gradients))
        return inner(*given, **more)

    trainer._step_optimizer = step
    metrics = []
    for number, groups in enumerate(steps or groups_of_steps(), 1):
        batch = assign_credit(
            groups,
            config,
            step=number,
            reference=lambda samples: (trainer.logprobs(samples), trainer.logprobs(samples, reference=True)),
        )
        alarm: Any = config.trainer_common.algorithm.mismatch_alarm
        metrics.append({**batch.metrics, **trainer.update(batch, gap=gaps[number - 1], alarm=alarm)})
    return {"gradients": found, "metrics": metrics, "weights": named(weights.master(0, weights.size))}


def assert_alike(verls: dict[str, Any], ours: dict[str, Any]) -> None:
    assert len(verls["gradients"]) == len(ours["gradients"])
    for number, (have, want) in enumerate(zip(verls["gradients"], ours["gradients"], strict=True)):
        assert have.keys() == want.keys()
        largest = max(np.abs(values).max() for values in want.values())
        assert largest > 1e-3
        for name, values in want.items():
            np.testing.assert_allclose(have[name], values, rtol=2e-4, atol=2e-5 * largest, err_msg=f"{number} {name}")
    for name, values in ours["weights"].items():
        np.testing.assert_allclose(verls["weights"][name], values, rtol=1e-4, atol=2e-5, err_msg=name)
    names = ("loss", "grad_norm", "kl", "clip_fraction", "is_capped_fraction", "mismatch_kl", "logprob_gap_max")
    names += ("steps_skipped", "credit/samples", "credit/left_out_groups", "credit/advantage_abs_mean")
    for have, want in zip(verls["metrics"], ours["metrics"], strict=True):
        names += tuple(
            name for name in want if name.startswith(("stale_", "is_tightened_"))
        )  # what the first step's weights sampled
        assert {name: have[name] for name in names} == pytest.approx(
            {name: want[name] for name in names}, rel=2e-3, abs=2e-5
        )


@pytest.mark.parametrize("name", SETTINGS)
def test_the_gradient_is_the_local_backbones(one_rank, name):
    gaps = [row.get("canary_gap") for row in one_rank[name]["metrics"]]
    assert_alike(one_rank[name], local(SETTINGS[name], gaps))


def test_the_rows_of_an_episode_do_not_show(one_rank):
    assert_alike({**one_rank["a row for each reply"], "metrics": []}, {**local(CAP), "metrics": []})


def test_micro_batches_of_equal_numbers_of_rows_are_padded(one_rank):
    assert_alike({**one_rank["micro batches by rows"], "metrics": []}, {**local(TWO), "metrics": []})


def test_adapters_train_against_the_model_without_them(one_rank):
    adapters = one_rank["adapters"]
    assert all("lora_" in name for step in adapters["gradients"] for name in step)
    first, second = adapters["metrics"]
    assert first["kl"] == 0 and second["kl"] > 0.1 and second["grad_norm"] > 0


def test_a_batch_without_signal_changes_nothing(one_rank):
    from transformers import AutoModelForCausalLM

    silent = one_rank["no signal"]
    assert silent["gradients"] == [] and [row["credit/left_out_groups"] for row in silent["metrics"]] == [1, 1]
    before = AutoModelForCausalLM.from_pretrained(shipped_folder("tiny-tools"))
    for name, values in before.named_parameters():
        np.testing.assert_array_equal(silent["weights"][name], values.detach().numpy())


def test_a_step_without_signal_has_its_place_in_the_schedule(one_rank):
    """It is the whole warm-up; the rate that verl tells is that of the next step: 1 / 2 of the way from 1 to 0.2."""
    silent, second = one_rank["a rate past a silent step"]["metrics"]
    assert "lr" not in silent and second["lr"] == pytest.approx(0.006)


@pytest.mark.parametrize("name", RANKS)
def test_the_ranks_do_not_show(two_ranks, name):
    assert_alike(two_ranks[name], local(RANKS[name]))


def test_a_model_is_trained_by_the_attention_that_is_its_own(one_rank):
    """By torch's fused one where that is the same, else by transformers' eager one, as if that were asked for."""
    assert one_rank["sequence"]["attention"] == "sdpa"
    assert {one_rank[name]["attention"] for name in OTHERS} == {"eager"}
    fused, eager = (one_rank[f"Gemma 2, {name}"] for name in ("fused", "eager"))
    for name, values in eager["gradients"][0].items():
        np.testing.assert_array_equal(fused["gradients"][0][name], values, err_msg=name)


def test_optimizer_steps_are_counted_in_groups(one_rank):
    for name, settings in SETTINGS.items():
        assert len(one_rank[name]["gradients"]) == 2 * settings.get(f"{TC}.mini_batch_num", 1)
