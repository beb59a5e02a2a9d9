"""What becomes of the letters of Trinity's processes: both halves of a step's numbers, and checkpoints that come after
their step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ajet.record import EpisodeFiles
from ajet.record.resume import RecoveryCounts
from ajet.schema.errors import RunFailed
from ajet.store import open_shared
from ajet_ray.mailbox import CheckpointNotice, CreditNotice, StepNotice
from ajet_ray.tests.test_verl_record import ORDER, closed, group, opened, rows, stepped
from ajet_ray.tickets import DEADLY, LaunchTickets
from ajet_trinity import train
from ajet_trinity.train import TrinityRecord


@pytest.fixture
def made(tmp_path):
    with opened(tmp_path) as (verls, run, _):
        yield TrinityRecord(run.experiment, run, verls._sink, verls._tickets), run


def test_a_step_is_what_credit_and_the_trainer_say_of_it(made):
    record, run = made
    first, second = group(0), group(1)
    for each in (first, second):
        record.handle_notice(closed(each))
    told = stepped(1, first, second)
    record.handle_notice(CreditNotice(1, told.credited, {"credit/groups": 2.0, "loss": 9.0}))
    assert not (run.path / "metrics.jsonl").exists(), "its trainer has not ended it"
    record.handle_notice(StepNotice(1, {"loss": 0.5, "seconds/step": 1.0}))
    (row,) = rows(run)
    assert (row["tasks"], row["credit/groups"], row["loss"]) == ([0, 1], 2.0, 0.5)
    recorded = EpisodeFiles(run.path / "episodes").recorded(1)
    assert [(outcome.step, outcome.advantage) for _, outcome in recorded] == [(1, 0.5)] * 4


@pytest.mark.slow
def test_a_checkpoint_is_taken_over_before_its_step_is_told_or_after(made, tmp_path):
    record, run = made
    for step in (1, 2):
        folder = tmp_path / f"global_step_{step}"
        (folder / "actor").mkdir(parents=True)
        played = group(step - 1, step=step)
        record.handle_notice(closed(played))
        record.handle_notice(CreditNotice(step, stepped(step, played).credited, {}))
        letters = [CheckpointNotice(step, str(folder)), StepNotice(step, {"seconds/step": 1.0})]
        for letter in letters if step == 1 else reversed(letters):
            record.handle_notice(letter)
        taken = run.path / "checkpoints" / f"step-{step}"
        assert (taken / f"global_step_{step}" / "actor").is_dir() and not folder.exists()
        assert run.checkpoints.latest().state["trinity"] == f"global_step_{step}"


def test_a_row_says_which_positions_are_given_up(made, tmp_path):
    verls, run = made
    store = open_shared(f"sqlite:{tmp_path}/store.db", rolls=True, max_attempts=1)
    try:
        tickets = LaunchTickets(store, ORDER, batch=2)
        tickets.note_request(2)
        grants = tickets.list_grants()
        store.fail(next(lease for lease in tickets._lease_of_ticket if lease.order == 1), "its server is down")
        tickets.give_up([grant.order for grant in grants].index(2), 1)
        record = TrinityRecord(run.experiment, run, verls._sink, tickets)
        for step, played in ((1, group(0)), (2, group(3))):
            record.handle_notice(closed(played))
            record.handle_notice(CreditNotice(step, stepped(step, played).credited, {}))
            record.handle_notice(StepNotice(step, {"seconds/step": 1.0}))
        first, second = rows(run)
        assert first["given_up"] == {"1": ["its server is down"], "2": [DEADLY]} and "given_up" not in second
        assert first["train/given_up"] == second["train/given_up"] == 2
        found = RecoveryCounts.of([first, second], tickets.list_begun(), step=2, dead=tickets.list_dead())
        assert (found.skipped, found.given_up) == (0, 2), "what its resume line says"
    finally:
        store.disconnect()


@pytest.mark.parametrize(("taken", "stopped"), [(0, False), (2, False), (3, False), (2, True)])
def test_fewer_steps_than_were_asked_for_are_a_failure_whatever_trinity_says(
    made, tmp_path, monkeypatch, taken, stopped
):
    """It catches what goes wrong in either loop, logs it, and calls the run a success."""
    verls, run = made
    config = {"mode": "both", "buffer": {"total_steps": 3}, "cluster": {"node_num": 1, "gpu_per_node": 2},
              "explorer": {"rollout_model": {"engine_num": 1, "tensor_parallel_size": 1}}, "ray_namespace": "ajet",
              "checkpoint_root_dir": str(tmp_path / "root"), "project": "p", "name": "n"}  # fmt: skip

    def on_ray(*args, **kwargs):
        record = args[4]
        for step in range(1, taken + 1):
            record.step = step
        return stopped

    monkeypatch.setattr(train, "prepare_config", lambda *asked: (config, ORDER, None, None))
    monkeypatch.setattr(train, "require_trinity", lambda: None)
    monkeypatch.setattr(train, "choose_device", lambda experiment: "cpu")
    monkeypatch.setattr(train, "open_verl_store", lambda *asked, **more: verls._tickets._store)
    monkeypatch.setattr(train, "build_variable", lambda *asked, **more: {})
    monkeypatch.setattr(train, "run_on_ray", on_ray)
    options = SimpleNamespace(from_store=None, flags=("ray",), skip_check_avail_gpu=False)
    if taken < 3 and not stopped:
        with pytest.raises(RunFailed, match=f"only {taken} of 3 steps"):
            train.train_on_trinity(run.experiment, run, options, None, verls._sink)
    else:
        train.train_on_trinity(run.experiment, run, options, None, verls._sink)
    assert not (run.path / train.FOLDER).exists()
