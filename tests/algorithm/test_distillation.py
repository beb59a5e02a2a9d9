"""On-policy distillation: its formula by hand and by finite differences, what the teacher said on its way into the
record, and a teacher that fails."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from loguru import logger

from ajet.algorithm import assign_credit, open_algorithm
from ajet.commands.launch import launch
from ajet.commands.launch_checks import refuse_untrainable
from ajet.config import Experiment
from ajet.config.schema.algorithm import TeacherConfig
from ajet.engine.teacher_endpoint import TeacherEndpoint, choose_probe_ids
from ajet.gateway import Capture
from ajet.record.episode_codec import decode, encode
from ajet.record.plain_json import dumps
from ajet.rollout.attempt import AttemptResult, Identity
from ajet.rollout.teacher import TeacherScorer
from ajet.schema.episode import Verdict
from ajet.schema.errors import TeacherFailure, UserError
from ajet.schema.task import Task
from ajet.train.runner import LaunchOptions
from tests.support.judge_fixtures import SECRET, JudgeServer
from tests.support.local_fixtures import config_of, episode_of, group_of


def config(**changes):
    path = {"algorithm__teacher__path": "embedded:tiny-tools"}
    return config_of(algorithm__adv_estimator="distillation", **{**path, **changes})


def taught(reward, own, told, uuid="a"):
    """An episode of one call, with the logprobs of policy and teacher."""
    made = episode_of(reward, (len(own),), uuid=uuid)
    (call,), (line,) = made.calls, made.timelines
    line.logprobs_unit[2:] = own
    return replace(made, calls=[replace(call, teacher=np.asarray(told, np.float32))])


def test_the_advantage_by_hand():
    episodes = [taught(1.0, [-1.0, -2.0], [-0.5, -4.0]), taught(0.0, [-0.1], [-0.4], "b")]
    batch = assign_credit([group_of(*episodes)], config(algorithm__teacher__weight=2.0))
    rows = [sample.advantages[sample.timeline.mask].tolist() for sample in batch.samples]
    np.testing.assert_allclose(rows[0], [2 * 0.5, 2 * -2.0], rtol=1e-6)
    np.testing.assert_allclose(rows[1], [2 * -0.3], rtol=1e-6)
    assert batch.metrics["distillation/reverse_kl"] == pytest.approx((-0.5 + 2.0 + 0.3) / 3, rel=1e-6)
    mixed = config(algorithm__teacher__bound=1.0, algorithm__teacher__reward_weight=0.5)
    rows = [s.advantages[s.timeline.mask].tolist() for s in assign_credit([group_of(*episodes)], mixed).samples]
    grpo = 0.5 / (np.sqrt(0.5) + 1e-6)
    np.testing.assert_allclose(rows[0], [0.5 + 0.5 * grpo, -1.0 + 0.5 * grpo], rtol=1e-6)


def test_one_attempt_is_enough_and_an_unscored_one_is_left_out():
    algorithm, one = open_algorithm(config()), group_of(taught(0.0, [-1.0], [-2.0]))
    assert algorithm.learns_from(one) and assign_credit([one], config()).trained_tokens == 1
    assert not algorithm.learns_from(group_of(taught(None, [-1.0], [-2.0])))


def test_its_gradient_is_that_of_the_reverse_divergence():
    """Over all that a policy of five tokens can sample: minus the mean of A grad log p is the derivative of
    KL(policy || teacher), by finite differences."""
    draw = np.random.default_rng(0)
    logits, teacher = draw.normal(size=5), np.log(draw.dirichlet(np.ones(5)))

    def policy(at):
        return at - np.log(np.exp(at).sum())

    def divergence(at):
        return float((np.exp(policy(at)) * (policy(at) - teacher)).sum())

    penalties = [policy(logits)[token : token + 1] - teacher[token] for token in range(5)]
    advantages = np.concatenate(open_algorithm(config()).advantages(np.zeros(5), penalties, [0] * 5))
    p = np.exp(policy(logits))
    found = -sum(p[token] * advantages[token] * (np.eye(5)[token] - p) for token in range(5))
    steps = 1e-5 * np.eye(5)
    wanted = [(divergence(logits + step) - divergence(logits - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(found, wanted, atol=1e-8)


def test_what_the_teacher_said_is_recorded_bit_for_bit():
    made = taught(1.0, [-1.0, -2.0], [-0.1, np.nan])
    row, blob = encode(made)
    again = decode(json.loads(dumps(row)), blob)
    assert again.calls[0].teacher.tobytes() == made.calls[0].teacher.tobytes()
    with pytest.raises(ValueError, match="call 0"):
        assign_credit([group_of(again)], config())
    assert "teacher" not in encode(episode_of(1.0))[0]["calls"][0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"algorithm__teacher__path": None}, "no teacher is fully set"),
        ({"algorithm__teacher__base_url": "http://x/v1"}, "two teachers"),
        ({"rollout__temperature": 0.9}, "temperature 1"),
        ({"rollout__top_p": 0.9}, "temperature 1"),
        ({"algorithm__use_kl_in_reward": True}, "use_kl_in_reward"),
        ({"mode": "async"}, "trainer_common.mode"),
    ],
)
def test_what_it_cannot_do_is_refused(changes, why):
    with pytest.raises(UserError, match=why):
        open_algorithm(config(**changes))


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_other_backbones_refuse_by_name(backbone):
    settings = config()
    settings.backbone = backbone
    with pytest.raises(UserError, match=f"{backbone}, which cannot use the log-probabilities of a teacher model"):
        open_algorithm(settings)


class Scripted:
    """A teacher that says `logprob` of every token, or raises."""

    def __init__(self, logprob=None):
        self.logprob = logprob

    async def logprobs(self, lines):
        if self.logprob is None:
            raise TeacherFailure("the teacher did not answer", own=True)
        return [np.full(line.ids.size, self.logprob, np.float32) for line in lines]

    def close(self):
        pass


def asked(teacher, verdict, split="train"):
    calls = episode_of(1.0, (3, 2)).calls
    played = AttemptResult(capture=Capture(calls=calls))
    identity = Identity("run", split, 1, Task(task_id="t"), 0, 0, 0)

    async def ask():
        await TeacherScorer(teacher, config()).score_attempt(
            identity, played, verdict, asyncio.get_running_loop().create_future()
        )

    asyncio.run(ask())
    return played


def test_each_token_that_can_be_trained_is_asked_about():
    played = asked(Scripted(-0.5), Verdict(0.0))
    assert [call.teacher.tolist() for call in played.capture.calls] == [[-0.5] * 3, [-0.5] * 2]
    for verdict, split in ((None, "train"), (Verdict(None), "train"), (Verdict(1.0), "validation")):
        assert all(call.teacher is None for call in asked(Scripted(-0.5), verdict, split).capture.calls)


def test_a_teacher_that_fails_is_a_failure_of_the_attempt():
    played = asked(Scripted(), Verdict(1.0))
    assert (played.failure.boundary, played.failure.kind, played.failure.own) == ("judge", "TeacherFailure", True)
    assert played.failure.retryable and all(call.teacher is None for call in played.capture.calls)


class Letters:
    """A tokenizer of ten tokens, the last one added."""

    def get_vocab(self):
        return {self.decode([token]): token for token in range(10)}

    def get_added_vocab(self):
        return {"<end>": 9}

    def decode(self, ids):
        return "".join("<end>" if token == 9 else chr(97 + token) for token in ids)


def says(request, spelt=lambda token: Letters().decode([token])):
    rows = [{str(token): {"logprob": -token / 10, "decoded_token": spelt(token)}} for token in request["prompt"][1:]]
    return {"choices": [{"prompt_logprobs": [None, *rows]}]}


def endpoint(server, **changes):
    return TeacherEndpoint(TeacherConfig(base_url=server.url, model="t", max_retries=1, **changes))


def told_by(say, monkeypatch, lengths=(3, 2)):
    """What an endpoint that answers by `say` gives for timelines of these lengths, and the requests that it got."""
    monkeypatch.setattr("ajet.engine.teacher_endpoint.PAUSE", 0.0)
    server = JudgeServer(say)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        lines = [replace(line, ids=line.ids % 9) for line in episode_of(1.0, lengths).timelines]
        teacher = endpoint(server)
        teacher.require_same_tokenizer(Letters())
        return lines, asyncio.run(teacher.logprobs(lines)), server.seen
    finally:
        server.shutdown()
        server.server_close()


def test_an_endpoints_connections_are_closed_on_the_loop_that_asked():
    server = JudgeServer(says)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    async def asked():
        teacher = endpoint(server)
        await teacher.leave()
        await teacher.logprobs([replace(line, ids=line.ids % 9) for line in episode_of(1.0, (3,)).timelines])
        client = teacher.client
        assert not client.is_closed
        await teacher.leave()
        await teacher.leave()
        teacher.close()
        return client

    try:
        assert asyncio.run(asked()).is_closed
    finally:
        server.shutdown()
        server.server_close()


def test_an_endpoint_is_asked_for_the_very_ids(monkeypatch):
    lines, found, seen = told_by(says, monkeypatch)
    assert choose_probe_ids(Letters()) == [*range(9), 9] == seen[0]["prompt"]
    assert sorted(each["prompt"] for each in seen[1:]) == sorted(line.ids.tolist() for line in lines)
    for line, row in zip(lines, found, strict=True):
        np.testing.assert_allclose(row, np.where(line.mask, -line.ids / 10, 0), rtol=1e-6)


def test_an_endpoint_with_other_tokens_is_refused(monkeypatch):
    with pytest.raises(UserError, match="id 9 is '<end>' in the policy's tokenizer and '<pad>' in the teacher's"):
        told_by(lambda asked: says(asked, lambda token: "<pad>" if token == 9 else chr(97 + token)), monkeypatch)


def test_an_endpoint_that_spells_nothing_is_said(monkeypatch):
    said: list[str] = []
    handler = logger.add(lambda line: said.append(str(line)), level="WARNING")
    try:
        told_by(lambda asked: says(asked, lambda token: None), monkeypatch)
    finally:
        logger.remove(handler)
    assert any("returns no decoded tokens" in line for line in said)


@pytest.mark.parametrize(
    ("answer", "tries", "why"),
    [
        ((500, {"error": "no memory"}), 2, "status 500"),
        ((400, {"error": "too long"}), 1, "status 400"),
        ({"choices": [{"text": "hello"}]}, 1, "did not return prompt_logprobs"),
    ],
)
def test_an_endpoint_that_fails(answer, tries, why, monkeypatch):
    """After the probe, which it answers."""
    calls = []

    def say(request):
        calls.append(request)
        return says(request) if len(calls) == 1 else answer

    with pytest.raises(TeacherFailure, match=why):
        told_by(say, monkeypatch, lengths=(2,))
    assert len(calls) == 1 + tries


def test_a_key_that_no_request_can_carry_is_in_no_error(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f"{SECRET}\n")  # as from a file
    assert told_by(says, monkeypatch)[1]
    monkeypatch.setenv("OPENAI_API_KEY", f"{SECRET}\n{SECRET}")
    with pytest.raises(UserError, match="OPENAI_API_KEY contains a character") as caught:
        told_by(says, monkeypatch)
    assert SECRET not in str(caught.value)


def test_an_address_that_is_none_is_said():
    with pytest.raises(UserError, match="The teacher cannot be used: Invalid port"):
        TeacherEndpoint(TeacherConfig(base_url="http://host:port/v1", model="t")).require_same_tokenizer(Letters())


def test_a_teacher_that_is_not_there_is_told_before_the_policy_is_loaded(tmp_path):
    taught = {"adv_estimator": "distillation", "teacher": {"path": "./nowhere"}}
    tree = {
        "backbone": "local", "model": {"path": "embedded:tiny-tools"}, "trainer_common": {"algorithm": taught},
        "rollout": {"temperature": 1.0, "user_workflow": "w.py->W"}, "task_reader": {"type": "random_dummy"},
        "experiment_dir": str(tmp_path / "runs"),
    }  # fmt: skip
    (tmp_path / "w.py").write_text("from ajet import Workflow\n\n\nclass W(Workflow):\n    pass\n")
    with pytest.raises(UserError, match="There is no model at './nowhere'") as caught:
        launch(Experiment.from_dict({"ajet": tree}, base=tmp_path), LaunchOptions())
    assert caught.value.where == "ajet.trainer_common.algorithm.teacher.path"
    assert not (tmp_path / "runs").exists()


TAUGHT = {"adv_estimator": "distillation", "teacher": {"path": "x"}}
ELSEWHERE = [
    ({"trainer_common": {"algorithm": TAUGHT}}, "runs the agent itself"),
    ({"data": {"curriculum": {"prefer": "hard"}}}, "remote samplers choose"),
]


@pytest.mark.parametrize(("keys", "why"), ELSEWHERE)
def test_who_plays_elsewhere_is_refused(keys, why):
    tree = {"backbone": "local", "rollout": {"temperature": 1.0}, **keys}
    experiment = Experiment.from_dict({"ajet": tree}, base=Path())
    refuse_untrainable(experiment)
    with pytest.raises(UserError, match=why):
        refuse_untrainable(experiment, remote=True)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"trainer_common": {"algorithm": {"policy_loss": "kl_cov"}}}, "backbone verl, which cannot"),
        ({"data": {"curriculum": {"prefer": "hard"}}}, "backbone verl, which cannot"),
    ],
)
def test_what_only_local_has_is_refused_by_name(keys, why):
    tree = {"backbone": "verl", "model": {"path": "x"}, **keys}
    with pytest.raises(UserError, match=why) as caught:
        Experiment.from_dict({"ajet": tree}, base=Path()).require_ready()
    assert "--backbone local" in str(caught.value)


@pytest.mark.parametrize("backbone", ["verl", "trinity", "local"])
def test_a_loss_of_ones_own_that_chooses_is_refused_where_there_is_nothing_to_choose_from(backbone):
    settings = config_of(algorithm__policy_loss="tests.support.own_algorithms->Choosy")
    settings.backbone = backbone
    if backbone == "local":
        assert open_algorithm(settings).name == "grpo"
        return
    with pytest.raises(UserError, match=f"Choosy is not possible on the backbone {backbone}, which cannot"):
        open_algorithm(settings)
