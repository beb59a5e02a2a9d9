"""Self-distillation: its advantage by hand, the teacher's context, and what it refuses."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ajet.algorithm import assign_credit, open_algorithm
from ajet.algorithm.recorded_models import make_recorded_reference
from ajet.algorithm.self_distillation import prepend_context
from ajet.backbone.local.trainer import Trainer
from ajet.engine.model_source import locate_model
from ajet.engine.models import load_model, load_tokenizer
from ajet.schema.errors import UserError
from ajet.schema.task import Task
from ajet.train.privileged import make_privileged_scorer
from tests.support.local_fixtures import config_of, episode_of, group_of, random_samples

OWN, HINTED = -2.0, -0.5
"""Log-probabilities of each token, without and with the answer."""


def config(**changes):
    return config_of(algorithm__adv_estimator="opsd", **changes)


def scripted(samples):
    return [
        [np.where(sample.timeline.mask, value, 0).astype(np.float32) for sample in samples] for value in (OWN, HINTED)
    ]


def test_the_advantage_by_hand():
    groups = [group_of(episode_of(1.0, (2,), uuid="a")), group_of(episode_of(0.0, (1, 3), uuid="b"))]
    batch = assign_credit(groups, config(algorithm__teacher__weight=2.0), reference=scripted)
    for sample in batch.samples:
        np.testing.assert_allclose(sample.advantages[sample.timeline.mask], 2 * (HINTED - OWN))
        assert sample.reference is None
    assert batch.metrics["distillation/reverse_kl"] == OWN - HINTED
    again = assign_credit(
        groups, config(algorithm__teacher__weight=2.0), reference=make_recorded_reference(batch.outcomes)
    )
    assert {uuid: each.advantage for uuid, each in again.outcomes.items()} == {"a": 3.0, "b": 3.0}


def test_rewards_may_count_too():
    group = group_of(episode_of(1.0, uuid="a"), episode_of(0.0, uuid="b"))
    mixed = config(algorithm__teacher__reward_weight=0.5, algorithm__teacher__bound=1.0)
    batch = assign_credit([group], mixed, reference=scripted)
    grpo = 0.5 / (np.sqrt(0.5) + 1e-6)
    assert batch.outcomes["a"].advantage == pytest.approx(1.0 + 0.5 * grpo, rel=1e-6)
    assert batch.outcomes["b"].advantage == pytest.approx(1.0 - 0.5 * grpo, rel=1e-6)


def test_a_context_moves_every_trained_token():
    sample = random_samples()[0]
    moved = prepend_context(sample, np.array([5, 6, 7], np.int32))
    assert moved.timeline.ids.tolist() == [5, 6, 7, *sample.timeline.ids.tolist()]
    assert [span.start - 3 for span in moved.timeline.spans] == [span.start for span in sample.timeline.spans]
    for name in ("mask", "logprobs", "versions"):
        np.testing.assert_array_equal(getattr(moved.timeline, name)[3:], getattr(sample.timeline, name))
    assert not moved.timeline.mask[:3].any() and moved.timeline.sampled == sample.timeline.sampled


@pytest.fixture(scope="module")
def tiny_tools():
    source = locate_model("embedded:tiny-tools", base=".")
    model = load_model(source, dtype=torch.float32, device=torch.device("cpu"), max_model_len=512)
    trainer = Trainer(model, config())

    @contextmanager
    def scorer():
        with trainer.scorer() as found:
            yield found

    return SimpleNamespace(tokenizer=load_tokenizer(source), scorer=scorer, trainer=trainer)


def group_with(metadata):
    task = Task(task_id="eel", main_query="What does the eel cost?", metadata=metadata)
    episode = replace(episode_of(1.0, (4, 3), uuid="a"), task=task)
    group = group_of(episode)
    group.task = task
    return group


def test_the_teacher_reads_the_answer_before_the_attempt(tiny_tools):
    settings = config(algorithm__teacher__template="It costs {answer}.")
    score = make_privileged_scorer(tiny_tools, [group_with({"answer": 71})], settings)
    samples = random_samples(groups=1, size=2)
    for sample in samples:
        sample.episode = "a"
    text = "<|im_start|>system\nIt costs 71.<|im_end|>\n"
    context = np.array(tiny_tools.tokenizer.encode(text, add_special_tokens=False), np.int32)
    in_context = tiny_tools.trainer.logprobs([prepend_context(sample, context) for sample in samples])
    own, hinted = score(samples)
    for sample, plain, expected, row, other in zip(
        samples, tiny_tools.trainer.logprobs(samples), in_context, own, hinted, strict=True
    ):
        np.testing.assert_array_equal(row, plain)
        np.testing.assert_array_equal(other, expected[context.size :])
        assert np.abs((row - other)[sample.timeline.mask]).max() > 0.01


def test_a_task_without_the_field_is_refused(tiny_tools):
    with pytest.raises(UserError, match="no field 'answer'") as refused:
        make_privileged_scorer(tiny_tools, [group_with({"price": 3})], config())
    assert "task eel" in refused.value.where and "price" in refused.value.expected


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"rollout__top_p": 0.9}, "truncate sampling"), ({"algorithm__use_kl_in_reward": True}, "KL penalties")],
)
def test_settings_that_contradict_it_are_refused(changes, why):
    with pytest.raises(UserError, match=why):
        open_algorithm(config(**changes))


def test_verl_refuses_it_by_name():
    settings = config()
    settings.backbone = "verl"
    with pytest.raises(UserError, match="opsd is not possible on the backbone verl"):
        open_algorithm(settings)
