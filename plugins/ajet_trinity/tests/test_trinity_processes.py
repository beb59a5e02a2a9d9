"""What runs in Trinity's processes, without Ray: a step's episodes as experiences, credited, cut and summed as they are
on the local backbone; and the private things of Trinity that ours rest on."""

from __future__ import annotations

import ast
import asyncio
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ajet.algorithm import assign_credit, open_algorithm
from ajet.algorithm.token_loss import TokenLoss
from ajet_trinity.package import DISTRIBUTION, require_trinity
from tests.support.local_fixtures import config_of, episode_of, group_of
from tests.support.trinity_here import import_trinity, skip_without_trinity

pytestmark = pytest.mark.extra_slow
RANKS = 4


class Status(SimpleNamespace):
    """As Trinity's runner returns it."""

    ok = property(lambda self: self.completed_runs == self.total_runs)


@pytest.fixture
def settings(monkeypatch):
    """Of a run whose trainer has so many processes; what its processes tell is in `settings.told`."""
    import_trinity(monkeypatch)
    for name, used in (("explorer", {"Explorer": object}), ("workflow_runner", {"Status": Status})):
        stub = SimpleNamespace(**used, WorkflowRunner=object)  # the real ones import vLLM, and wandb, which litters
        monkeypatch.setitem(sys.modules, f"trinity.explorer.{name}", stub)
    from ajet_trinity.processes import credit as module
    from ajet_trinity.processes import loss

    config, told = config_of(use_kl_loss=True, kl_loss_coef=0.25, data__train_batch_size=3), []
    here = SimpleNamespace(experiment=SimpleNamespace(ajet=config, base=None), ranks=RANKS)

    class Sender:
        async def post_async(self, letter):
            told.append(letter)

    monkeypatch.setattr(module, "Sender", Sender)
    for each in (module, loss):
        monkeypatch.setattr(each, "load_context", lambda: here)
    return SimpleNamespace(config=config, told=told)


def groups():
    """Three tasks: episodes of one, two and no timelines, one that failed; one task that nobody could score."""
    first = [episode_of(1.0, (3, 2), uuid="a", seed=1), episode_of(0.0, (4,), uuid="b", seed=2)]
    second = [episode_of(0.5, (5,), uuid="c", seed=3), episode_of(0.0, (2, 2), uuid="d", seed=4)]
    second += [episode_of(None, (3,), uuid="e", status="failed", seed=5)]
    third = [episode_of(None, (2,), uuid="f", seed=6), episode_of(None, (3,), uuid="g", seed=7)]
    made = [group_of(*(replace(one, repeat=at) for at, one in enumerate(each))) for each in (first, second, third)]
    for order, group in enumerate(made):
        group.order = order
    return made


def played(group, task):
    """What Trinity's runner makes of a group, and its pipeline reads."""
    from trinity.common.experience import Experience

    from ajet_trinity.processes.workflow import build_experiences

    found = build_experiences(group, 0)
    for each in found:
        each.eid.batch, each.eid.task = 7, task
    return Experience.deserialize_many(Experience.serialize_many(found))


def credited():
    from ajet_trinity.processes.credit import EpisodeCredit

    rows = [row for task, group in enumerate(groups()) for row in played(group, task)]
    return asyncio.run(EpisodeCredit().process(rows))[0]


def test_credit_is_that_of_the_local_backbone(settings):
    rows, wanted = credited(), assign_credit(groups()[:2], settings.config, step=7)
    assert len(rows) % RANKS == 0 and {row.info["ajet_rows"] for row in rows} == {len(rows)}
    trained = [row for row in rows if row.returns.any()]
    assert len(trained) == len(wanted.samples) == 6
    for sample in wanted.samples:
        (row,) = [row for row in trained if row.tokens.tolist() == sample.timeline.ids.tolist()]
        mask = sample.timeline.mask[row.prompt_length :]
        np.testing.assert_array_equal(row.returns.numpy(), np.float32(sample.weight) * mask)
        np.testing.assert_array_equal(row.advantages.numpy(), sample.advantages[row.prompt_length :] * mask)
        np.testing.assert_array_equal(row.logprobs.numpy(), sample.timeline.logprobs[row.prompt_length :])
    (letter,) = settings.told
    assert letter.step == 7 and {each.uuid for each in letter.credited} == set("abcde")
    assert {each.uuid: each.outcome for each in letter.credited} == wanted.outcomes


def test_where_nobody_could_score_a_row_that_trains_nothing_keeps_the_step(settings):
    from ajet_trinity.processes.credit import EpisodeCredit

    settings.config.data.__dict__["train_batch_size"] = 1
    rows = asyncio.run(EpisodeCredit().process(played(groups()[2], 0)))[0]
    assert len(rows) == RANKS and not any(row.returns.any() for row in rows)
    assert settings.told[0].credited == []


def test_a_step_that_lacks_a_group_is_not_trained(settings):
    """Trinity logs that a runner died, and goes on with the rest."""
    from ajet_trinity.processes.credit import EpisodeCredit

    rows = [row for task, group in enumerate(groups()[:2]) for row in played(group, task)]
    with pytest.raises(RuntimeError, match="step 7: 2 of 3 groups came back"):
        asyncio.run(EpisodeCredit().process(rows))
    assert not settings.told


def test_a_step_of_which_nothing_came_ends_the_explorer(settings, monkeypatch):
    ours, theirs = "ajet_trinity.processes.monitor", "trinity.utils.monitor"
    monkeypatch.setitem(sys.modules, theirs, SimpleNamespace(Monitor=object))  # theirs imports wandb, which litters
    monkeypatch.setitem(sys.modules, ours, None)
    del sys.modules[ours]
    from ajet_trinity.processes.monitor import HANDED_OVER, PLAYED, Letters

    explorers = Letters.__new__(Letters)
    explorers.is_trainer = False
    explorers.log({PLAYED: 3.0, HANDED_OVER: 6.0}, 7)
    explorers.log({"rollout/model_version": 6.0}, 7)
    with pytest.raises(RuntimeError, match="step 7: no group came back"):
        explorers.log({PLAYED: 3.0}, 7)


@pytest.mark.parametrize("rows_at_once", [1, 2, 8])
def test_the_loss_is_the_weighted_sum_however_rows_are_cut(settings, rows_at_once):
    from ajet_trinity.processes.loss import WeightedTokensWithReference

    rows, loss = credited(), WeightedTokensWithReference(backend="verl")
    longest = max(len(row.tokens) - row.prompt_length for row in rows)
    draw = np.random.default_rng(0)

    def padded(values):
        return torch.stack([torch.nn.functional.pad(each.float(), (0, longest - len(each))) for each in values])

    present = padded([torch.from_numpy(draw.normal(-1, 0.1, len(row.returns))) for row in rows]).requires_grad_()
    reference = padded([torch.from_numpy(draw.normal(-1, 0.1, len(row.returns))) for row in rows])
    fields = {
        "old_log_probs": padded([row.logprobs for row in rows]),
        "response_mask": padded([row.action_mask for row in rows]),
        "advantages": padded([row.advantages for row in rows]),
        "returns": padded([row.returns for row in rows]),
        "ref_log_prob": reference,
    }
    assert set(loss.select_keys) == set(fields)
    found = torch.zeros(())
    for at in range(0, len(rows), rows_at_once):
        part = slice(at, at + rows_at_once)
        found = found + loss(logprob=present[part], **{name: each[part] for name, each in fields.items()})[0]
    (gradient,) = torch.autograd.grad(found, present)

    trained = fields["returns"] != 0
    own = present[trained].detach().requires_grad_()
    tokens = TokenLoss.from_settings(settings.config.trainer_common, open_algorithm(settings.config))
    terms = tokens(own, own.detach(), fields["advantages"][trained], reference_T=reference[trained])
    wanted = (fields["returns"][trained] * terms.loss).sum()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradient[trained], torch.autograd.grad(wanted, own)[0])
    assert not gradient[~trained].any()


def test_what_of_trinity_is_private_is_where_it_was():
    """Read, not imported: that takes half a minute."""
    skip_without_trinity()
    folder = require_trinity()
    (found,) = metadata.distributions(name=DISTRIBUTION, path=[str(folder)] if folder is not None else sys.path)

    def body(file, function):
        (node,) = (
            node
            for node in ast.walk(ast.parse(Path(found.locate_file(file)).read_text()))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function
        )
        return ast.unparse(node)

    engine = body("trinity/common/models/vllm_model.py", "_generate_internal")
    assert engine.startswith("async def _generate_internal(self, prompt: Any, lora_request=None, **kwargs)")
    update = body("trinity/trainer/verl/trainer.py", "_update_actor")
    assert "ppo_mini_batch_size = self.config.actor.ppo_mini_batch_size" in update
    assert "return self.global_steps" in body("trinity/trainer/verl/trainer.py", "train_step_num")
    trains = body("trinity/trainer/trainer.py", "train")
    assert "while self.train_step_num < self.total_steps:" in trains
    plays = body("trinity/explorer/explorer.py", "explore")
    counted = body("trinity/explorer/explorer.py", "_finish_explore_step")
    assert "metric.update(result['metrics'])" in counted and "self.monitor.log(metric, step=step)" in counted
    assert "metrics['rollout/finished_task_count']" in body(
        "trinity/explorer/rollout_coordinator.py", "_build_batch_result"
    )
    handed_over = body("trinity/buffer/pipelines/experience_pipeline.py", "_process_experiences")
    assert "metrics['experience_count'] = len(exps)" in handed_over
    assert "result_metrics[f'experience_pipeline/{key}'] = float(value)" in handed_over
    makes = Path(found.locate_file("trinity/explorer/scheduler.py")).read_text()
    assert "        runner = RunnerWrapper(\n" in makes, "replaced by name (processes/credit.py)"
    for loop in (trains, plays):
        assert "except Exception:" in loop and "self.logger.error(" in loop, "errors come out of it now: listen no more"


def test_a_runner_that_dies_is_replaced_and_its_task_run_again(settings, monkeypatch):
    """Trinity's own would answer that the task failed, or never."""
    from ray.exceptions import ActorDiedError
    from trinity.explorer import scheduler

    from ajet_trinity.processes import credit

    told, ended = [], []

    class Sender:
        async def post_async(self, letter):
            told.append(letter.role)

    class Runner:
        """As Ray shows an actor."""

        def __init__(self, dead=False, dies_of_task=False):
            self.dead, self.dies_of_task = dead, dies_of_task
            self.__ray_ready__ = SimpleNamespace(remote=self.ready)
            self.prepare = SimpleNamespace(remote=self.ready)
            self.run_task = SimpleNamespace(remote=self.run)

        async def ready(self):
            if self.dead:
                raise ActorDiedError()

        async def run(self, **asked):
            self.dead = self.dead or self.dies_of_task
            await self.ready()
            return Status(completed_runs=2, total_runs=2, metrics=[]), b"the rows"

    monkeypatch.setattr(credit, "Sender", Sender)
    monkeypatch.setattr(scheduler.ray, "kill", ended.append)  # else Ray starts by itself
    asyncio.run(credit.EpisodeCredit().prepare())
    assert scheduler.RunnerWrapper is credit.LastingRunner

    def answer(first, *successors):
        """A task's, and how many deaths were told."""
        told.clear()
        ended.clear()
        left = iter(successors)
        monkeypatch.setattr(credit.LastingRunner, "_create_runner", lambda self: next(left))
        lasting = credit.LastingRunner.__new__(credit.LastingRunner)
        lasting.logger, lasting.runner_id, lasting.retry_times = SimpleNamespace(warning=print, error=print), 0, 0
        lasting.runner = first
        task = SimpleNamespace(task=scheduler.Task(workflow=object, raw_task={"ticket": 3}), batch_id=1)
        asked = {"repeat_times": 2, "run_id_base": 0, "timeout": 60.0, "collect_partial_runs": False}
        status, rows, *_ = asyncio.run(lasting.run_with_retry(task, **asked))
        return status.ok, rows, len(told)

    assert answer(Runner()) == (True, b"the rows", 0) and not ended
    assert answer(dying := Runner(dies_of_task=True), Runner()) == (True, b"the rows", 1) and ended == [dying]
    assert answer(dead := Runner(dead=True), Runner()) == (True, b"the rows", 1) and ended == [dead]
    assert answer(Runner(dies_of_task=True), Runner(dead=True), Runner()) == (True, b"the rows", 2)


def test_a_step_of_groups_that_samplers_closed(settings, monkeypatch):
    """Rows and credit are those of groups that Trinity's explorer played; what nobody could score gives its place."""
    from ajet_ray.mailbox import GroupNotice, TicketGrant
    from ajet_trinity.processes import batches

    settings.config.data.__dict__["train_batch_size"] = 2
    scored, third = groups()[:2], groups()[2]
    tickets, told = [scored[0], third, scored[1]], []

    class Sender:
        async def grant(self, ticket):
            return TicketGrant(tickets[ticket].order, tickets[ticket].task, tickets[ticket])

        async def post_async(self, letter):
            told.append(letter)

    monkeypatch.setattr(batches, "Sender", Sender)
    monkeypatch.setattr(
        batches, "load_context", lambda: SimpleNamespace(experiment=SimpleNamespace(ajet=settings.config))
    )
    strategy = batches.StoreGroups(None)
    rows, *_ = asyncio.run(strategy.sample(7))
    assert [(letter.group.order, letter.step, letter.ticket) for letter in told] == [(0, 7, 0), (2, 7, 1), (1, 7, 2)]
    assert all(isinstance(letter, GroupNotice) for letter in told) and strategy.state_dict() == {}
    wanted = assign_credit(scored, settings.config, step=7)
    trained = {tuple(row.tokens.tolist()): row.returns.max().item() for row in rows if row.returns.any()}
    assert trained == {tuple(each.timeline.ids.tolist()): np.float32(each.weight).item() for each in wanted.samples}
    (letter,) = settings.told
    assert {each.uuid: each.outcome for each in letter.credited} == wanted.outcomes


def test_why_its_sides_do_not_run_apart(settings, tmp_path):
    """Its buffer between the modes explore and train: what `ajet_trinity.users_section.SEPARATE_MODES` says of it."""
    from trinity.buffer.storage.sql import SQLExperienceStorage
    from trinity.common.config import StorageConfig
    from trinity.common.experience import EID, Experience

    path = f"sqlite:///{tmp_path / 'rows.db'}"
    told = StorageConfig(name="rows", storage_type="sql", schema_type="experience", path=path, max_read_timeout=60.0)

    async def lives() -> tuple[list[int], list[int]]:
        first = SQLExperienceStorage(told)
        await first.prepare()
        for step in (1, 2, 3, 4):
            row = Experience(eid=EID(batch=step), tokens=[1, 2], prompt_length=1, logprobs=[0.0], reward=1.0)
            await first.write([row])
        read = await first.read(2)
        second = SQLExperienceStorage(told)  # the first was killed before its checkpoint
        return [row.eid.batch for row in read], [row.eid.batch for row in await second.read(2)]

    assert asyncio.run(lives()) == ([4, 3], [2, 1]), "newest first, and 4 and 3 are lost with who read them"


def test_one_question_for_the_weights_version_serves_all_that_wait_and_is_never_too_old():
    from ajet_trinity.processes.workflow import RolloutEngine

    class Actor:
        """The weights change with each answer."""

        def __init__(self):
            self.asked, self.answers = 0, asyncio.Semaphore(0)
            self.get_model_version = SimpleNamespace(remote=self.ask)

        async def ask(self):
            self.asked += 1
            version = self.asked
            await self.answers.acquire()
            return version

    async def ask(actor):
        versions = RolloutEngine(actor, max_model_len=8, vocabulary=8)._versions
        first = asyncio.create_task(versions.read_version())
        while not actor.asked:
            await asyncio.sleep(0)
        others = [asyncio.create_task(versions.read_version()) for _ in range(20)]
        for _ in range(9):
            await asyncio.sleep(0)
        others[0].cancel()
        assert actor.asked == 1, "they wait for a question of their own: the first was asked before they came"
        for _ in range(2):
            actor.answers.release()
        found = [await first, *await asyncio.gather(*others[1:])]
        actor.answers.release()
        return [*found, await versions.read_version()]

    assert asyncio.run(ask(Actor())) == [1, *[2] * 19, 3]
