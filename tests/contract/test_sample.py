"""Samplers and a trainer that share a store: what is played is trained once or counted; both sides play the same."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from safetensors.numpy import load_file, save_file

from ajet.record import EpisodeFiles, read_status
from ajet.schema.episode import Episode
from ajet.schema.errors import UserError
from tests.support.runs import audit_run, count_tasks, metric_rows, prove_run, prove_store, run_here, start
from tests.support.samplers import (
    CHECKED,
    HELD_FROM,
    Experiment,
    announce_training,
    end_training,
    kept_of,
    load_experiment,
    model_folder,
    project_in,
    require_same_terms,
    sample_here,
    samplers_keep_old_weights,
    samplers_meet_bug,
    train_here,
)
from tests.support.stores import ALTERED, Address, open_shared

pytestmark = pytest.mark.slow

STEPS, GROUPS, REPEATS = 4, 2, 2
SETTINGS = [
    f"trainer_common.total_training_steps={STEPS}", f"data.train_batch_size={GROUPS}", f"rollout.num_repeat={REPEATS}",
    "trainer_common.mode=async", "trainer_common.max_staleness=1", "trainer_common.max_checkpoints_to_keep=9",
]  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    return project_in(folder)


def experiment(project: Path, *more: str) -> Experiment:
    overrides = [*SETTINGS, *more]
    return load_experiment(project / "sums.yaml", backbone="local", overrides=overrides, exp_dir=project / "runs")


@pytest.fixture(scope="module")
def trained(project: Path) -> tuple[Path, Address]:
    """A run of which trainer and sampler were killed in the middle, and whose rest was played and trained in this
    process."""
    return killed_and_gone_on(project)


def killed_and_gone_on(
    project: Path, meanwhile: Callable[[Address], None] = lambda store: None
) -> tuple[Path, Address]:
    """`meanwhile`: what happens to the store before anybody goes on."""
    run, store, hold = project / "runs" / "sums", Address.of("store.db", base=project), project / "hold"
    hold.touch()
    yaml, log = str(project / "sums.yaml"), project / "log"
    trainer = ("train", "--conf", yaml, "--backbone", "local", "--exp-dir", "runs", "--no-rehearsal")
    sampler = ("sample", "--conf", yaml, "--name", "one", "--lease", "3")
    processes = [
        start(*trainer, "--from-store", store.shown, *SETTINGS, cwd=project, log=log),
        start(*sampler, "--store", store.shown, *SETTINGS, cwd=project, log=log),
    ]
    try:
        patience = time.monotonic() + 300
        while not kept_of(store, HELD_FROM) or len(metric_rows(run)) < HELD_FROM // GROUPS:
            assert all(process.poll() is None for process in processes), log.read_text()
            assert time.monotonic() < patience, log.read_text()
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    hold.unlink()
    ledger, patience = open_shared(store), time.monotonic() + 60
    while ledger.depths().leased:  # until then nobody is given what the killed one had
        assert time.monotonic() < patience
        time.sleep(0.1)
    ledger.disconnect()
    meanwhile(store)

    def play() -> None:
        while open_shared(store).announced().trainer < 2:  # transformers loads one model at a time in a process
            time.sleep(0.1)
        sample_here(experiment(project), store, name="two", lease_seconds=3)

    playing = threading.Thread(target=play)
    playing.start()
    train_here(experiment(project), store)
    playing.join(timeout=120)
    assert not playing.is_alive(), "the sampler ends with the training"
    return run, store


def trained_tasks(run: Path) -> int:
    """How many tasks the steps of the run have trained, each counted once."""
    return len({order for row in metric_rows(run) for order in row.get("tasks", ())})


def recorded(run: Path) -> Iterator[Episode]:
    for step in range(1, STEPS + 1):
        yield from EpisodeFiles(run / "episodes").read(step, "train")


def test_what_samplers_played_is_trained_once_or_counted(trained: tuple[Path, Address]) -> None:
    run, store = trained
    rows = [row for row in metric_rows(run) if "tasks" in row]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        untrained = sum(value for name, value in row.items() if name.startswith("train/untrained/"))
        assert row["train/sampled_tokens"] == row["train/trained_tokens"] + untrained
        assert row["train/episodes"] == GROUPS * REPEATS
    assert rows[0]["sampler_gap"] < 1e-3, "of the first version there is nothing but fresh tokens"
    assert count_tasks(rows) == (0, 0, ())
    assert len(rows) == len({row["step"] for row in rows})
    depths = open_shared(store).depths()
    used = [order for row in rows for order in row["tasks"]]
    too_old = [order for row in rows for order in row["discarded"]]  # begun before its sampler took newer weights
    assert len(used) == STEPS * GROUPS and not set(used) & set(too_old)
    over = {*used, *too_old}
    assert len(over) == len(used) + len(too_old) and depths.leased == depths.dead == 0
    assert depths.next == len(over) + depths.closed + depths.waiting, "what was begun as the training ended may wait"
    assert max(Counter(episode.uuid for episode in recorded(run)).values()) == 1
    assert {episode.order for episode in recorded(run)} == over


def test_what_a_killed_sampler_had_put_of_a_group_is_not_played_again(trained: tuple[Path, Address]) -> None:
    assert sorted(kept_of(trained[1], HELD_FROM)) == ["one", "two"]
    assert {episode.sampler for episode in recorded(trained[0]) if episode.order == HELD_FROM} == {"one", "two"}


def test_a_sampler_that_a_person_starts_has_a_log_of_its_own(trained: tuple[Path, Address], project: Path) -> None:
    """In the folder that runs have where it is: the first one was started without --exp-dir."""
    one = (project / "launcher_record" / "sums" / "logs" / "sums_sampler_one.log").read_text()
    assert "one runs episodes for run" in one and "groups, " not in one, "it was killed"
    two = (trained[0] / "logs" / "sums_sampler_two.log").read_text()
    assert "two runs episodes for run" in two and re.search(r"two: \d+ groups?, \d+ episodes?", two.splitlines()[-1])


def test_later_weights_are_sampled_with_and_none_too_old(trained: tuple[Path, Address]) -> None:
    run, _ = trained
    assert all(row.get("train/staleness_max", 0) <= 1 for row in metric_rows(run))
    versions = {part.low for episode in recorded(run) for call in episode.calls for part in call.versions}
    assert len(versions) > 1
    report = prove_run(run)  # by the weights of each version, from its checkpoint
    assert report["ok"] and report["held_steps"] == STEPS, (report["wrong_steps"], report["wrong"][:2])
    assert set(map(int, report["weights"])) >= versions


def test_what_the_store_still_holds_is_proven_from_its_address(trained: tuple[Path, Address]) -> None:
    run, store = trained
    found = prove_store(store.shown, run="sums")
    assert found["ok"], (found["wrong_steps"], found["wrong"][:2])
    assert found["episodes"] >= STEPS * REPEATS and not found["unproven"]
    depths = open_shared(store).depths()
    assert found["positions"].get("over", 0) == depths.over
    assert depths.next == sum(found["positions"].values()) + found["gone"]


@pytest.mark.parametrize(
    "changed, named",
    [
        ("seed=7", "seed"),
        ("rollout.num_repeat=5", "rollout.num_repeat"),
        ("rollout.temperature=0.5", "temperature"),
        ("model.chat_template_kwargs={day: monday}", "chat template"),
    ],
)
def test_a_sampler_that_would_play_something_else_is_refused(
    trained: tuple[Path, Address], project: Path, changed: str, named: str
) -> None:
    announced = open_shared(trained[1]).announced()
    assert announced is not None
    with pytest.raises(UserError, match=named) as refusal:
        require_same_terms(experiment(project, changed), announced.policy, trained[1].shown)
    assert refusal.value.where and refusal.value.do
    require_same_terms(experiment(project), announced.policy, trained[1].shown)


def other_weights(folder: Path) -> None:
    """One number is another."""
    tensors = load_file(folder / "model.safetensors")
    name = min(tensors)
    tensors[name] = tensors[name].copy()
    tensors[name].flat[0] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def other_tokenizer(folder: Path) -> None:
    """Two tokens have each other's id."""
    file = folder / "tokenizer.json"
    told = json.loads(file.read_text())
    vocabulary = told["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(told))


def other_template(folder: Path) -> None:
    """It says something else after all."""
    file = folder / "chat_template.jinja"
    file.write_text(file.read_text() + " ")


@pytest.mark.parametrize(
    "change, named",
    [
        (other_weights, "the initial weights"),
        (other_tokenizer, "the tokenizer"),
        (other_template, "the chat template"),
    ],
    ids=["weights", "tokenizer", "template"],
)
def test_a_sampler_with_another_model_is_refused_and_only_that_is_named(
    project: Path, tmp_path: Path, change: Callable[[Path], None], named: str
) -> None:
    announced = announce_training(experiment(project), None)
    copied = shutil.copytree(model_folder("embedded:tiny-tools"), tmp_path / "model")
    require_same_terms(experiment(project, f"model.path={copied}"), announced, "a store")  # wherever the files lie
    change(copied)
    with pytest.raises(UserError) as refusal:
        require_same_terms(experiment(project, f"model.path={copied}"), announced, "a store")
    (differing,) = [words for words in CHECKED if words in refusal.value.what]
    assert differing.startswith(named)


def test_a_sampler_with_other_weights_ends_before_it_has_leased_anything(project: Path, tmp_path: Path) -> None:
    store = Address.of("other.db", base=tmp_path)
    other_weights(shutil.copytree(model_folder("embedded:tiny-tools"), tmp_path / "model"))
    ledger = open_shared(store, rolls=True)
    announce_training(experiment(project), ledger)
    with pytest.raises(UserError, match="differ from the trainer's in: the initial weights"):
        sample_here(experiment(project, f"model.path={tmp_path}/model"), store, name="other")
    assert (ledger.depths().next, ledger.members()) == (0, [])


def test_a_sampler_that_an_error_ends_leaves_no_lease_behind(project: Path, tmp_path: Path) -> None:
    store = Address.of("broken.db", base=tmp_path)
    ledger = open_shared(store, rolls=True)
    announce_training(experiment(project), ledger)
    held: list[int] = []
    bug = samplers_meet_bug(RuntimeError("a bug of ours"), lambda: held.append(ledger.depths().leased))
    with bug, pytest.raises(RuntimeError, match="a bug of ours"):
        sample_here(experiment(project), store, name="one")
    depths = ledger.depths()
    assert held == [3] and (depths.leased, depths.waiting) == (0, 3) and not ledger.members()


@pytest.mark.extra_slow
def test_both_sides_under_one_command_with_checkpoints_in_memory(project: Path) -> None:
    run = project / "runs" / "both"
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as memory:
        elsewhere = f"trainer_common.checkpoint_base_dir={memory}"
        train_here(experiment(project, "experiment_name=both", elsewhere))
        announced = open_shared(Address(run / "store.db")).announced()
        assert announced is not None and Path(announced.policy.weights).is_relative_to(memory)
        assert not list(run.rglob("*.safetensors")), "no weights are written to the disk"
        assert prove_run(run)["held_steps"] == STEPS
    assert trained_tasks(run) == STEPS * GROUPS
    assert {path.name for path in (run / "logs").iterdir()} == {"both_trainer_0.log", "both_sampler_0.log"}
    said = (run / "logs" / "both_sampler_0.log").read_text()
    assert re.search("uses policy version [1-9]", said), said


@pytest.mark.extra_slow
def test_asked_to_end_both_sides_keep_what_ends_in_time_and_go_on_there(tmp_path: Path) -> None:
    """SIGTERM while a step waits for attempts of which none can end until then."""
    project, log, run = project_in(tmp_path), tmp_path / "log", tmp_path / "runs" / "sums"
    store, hold = Address(run / "store.db"), tmp_path / "hold"
    hold.touch()
    command = ("train", "--conf", "sums.yaml", "--backbone", "local", "--exp-dir", "runs", "--no-rehearsal", *SETTINGS)
    process = start(*command, cwd=project, log=log)
    try:
        patience, ahead = time.monotonic() + 300, (HELD_FROM + 2, HELD_FROM + 3)
        waits = {"phase": "rollout", "step": HELD_FROM // GROUPS + 1}
        while not (waits.items() <= (read_status(run) or {}).items() and all(kept_of(store, each) for each in ahead)):
            assert process.poll() is None and time.monotonic() < patience, log.read_text()
            time.sleep(0.05)
        begun = open_shared(store).depths().next
        process.terminate()
        while open_shared(store).announced().policy.below != 0:
            assert process.poll() is None and time.monotonic() < patience, log.read_text()
            time.sleep(0.05)
        hold.unlink()
        assert process.wait(120) == 75, log.read_text()
    finally:
        process.kill()
    assert len(metric_rows(run)) == HELD_FROM // GROUPS + 1, "the step that waited"
    depths = open_shared(store).depths()
    assert (depths.leased, depths.closed, depths.next) == (0, begun - HELD_FROM - GROUPS, begun), (
        "nothing new was begun"
    )
    again = start(*command, cwd=project, log=log)
    try:
        assert again.wait(300) == 0, log.read_text()
    finally:
        again.kill()
    assert trained_tasks(run) == STEPS * GROUPS and count_tasks(metric_rows(run)) == (0, 0, ()), log.read_text()


@pytest.mark.extra_slow
def test_a_sampler_that_says_it_took_weights_and_did_not_ends_the_run_and_is_named(
    project: Path, tmp_path: Path
) -> None:
    store = Address.of("lied.db", base=tmp_path)
    fresh = ("trainer_common.max_staleness=0", "model.dtype=float32", "trainer_common.optim.lr=1e-2")
    ran = experiment(project, "experiment_name=lied", *fresh)

    def play() -> None:
        while open_shared(store).announced() is None:  # transformers loads one model at a time in a process
            time.sleep(0.1)
        sample_here(ran, store, name="liar")

    playing = threading.Thread(target=play, daemon=True)
    with samplers_keep_old_weights():
        playing.start()
        try:
            with pytest.raises(UserError, match="two steps in a row. Samplers: liar"):
                train_here(ran, store)
        finally:
            end_training(store)
            playing.join(timeout=120)
    assert not playing.is_alive()
    gaps = [row["sampler_gap"] for row in metric_rows(project / "runs" / "lied") if "tasks" in row]
    assert gaps[0] < 1e-4 and len(gaps) == 3 and all(gap > 0.01 for gap in gaps[1:])
    assert not (project / "runs" / "lied" / "checkpoints" / "step-3").exists(), "what it played is not saved"


@pytest.mark.extra_slow
def test_a_group_is_trained_in_two_steps_and_the_record_shows_both(project: Path) -> None:
    """Only four groups can close, so that four steps of two have each of them twice, in whatever order."""
    hold, run = project / "hold", project / "runs" / "again"
    hold.touch()
    twice = ("trainer_common.algorithm.max_trained_count=2", "trainer_common.max_staleness=null")
    try:
        train_here(experiment(project, "experiment_name=again", *twice))
    finally:
        hold.unlink()
    rows = [row for row in metric_rows(run) if "tasks" in row]
    assert sorted(order for row in rows for order in row["tasks"]) == [0, 1, 2, 3]
    assert sorted(order for row in rows for order in row.get("again", ())) == [0, 1, 2, 3]
    assert [row["train/episodes"] for row in rows] == [GROUPS * REPEATS] * STEPS
    assert count_tasks(rows) == (0, 0, ())
    steps = [
        (episode.uuid, step) for step in range(1, STEPS + 1) for episode in EpisodeFiles(run / "episodes").read(step)
    ]
    assert len(set(steps)) == len(steps) and set(Counter(uuid for uuid, _ in steps).values()) == {2}
    depths = open_shared(Address(run / "store.db")).depths()
    assert (depths.closed, depths.again, depths.dead) == (0, 0, 0)
    report = prove_run(run)
    assert report["ok"] and report["held_steps"] == STEPS, (report["wrong_steps"], report["wrong"][:2])
    uuid, first = steps[0]
    said = run_here("audit", run, "--episode", uuid).printed
    (second,) = (step for each, step in steps[1:] if each == uuid)
    assert (
        said.count("verdict  ") == 1 and f"used     in step {first}:" in said and f"used     in step {second}:" in said
    )


@pytest.mark.extra_slow
def test_a_sampler_that_is_asked_to_end_gives_back_what_it_cannot_finish(project: Path, tmp_path: Path) -> None:
    hold, log, store = project / "hold", tmp_path / "log", Address.of("drained.db", base=tmp_path)
    ledger = open_shared(store, rolls=True)
    announce_training(experiment(project), ledger, below=HELD_FROM + 2)
    hold.touch()
    arguments = ("--conf", str(project / "sums.yaml"), "--store", store.shown, "--name", "one", "--grace", "0")
    process = start("sample", *arguments, *SETTINGS, cwd=tmp_path, log=log)
    try:
        patience = time.monotonic() + 300
        while ledger.depths().closed < HELD_FROM or not all(kept_of(store, HELD_FROM + place) for place in (0, 1)):
            assert process.poll() is None and time.monotonic() < patience, log.read_text()
            time.sleep(0.05)
        process.terminate()
        assert process.wait(240) == 75, log.read_text()
    finally:
        process.kill()
        hold.unlink()
    depths = ledger.depths()
    assert (depths.waiting, depths.leased, depths.closed) == (2, 0, HELD_FROM)
    assert not ledger.members() and "2 given back" in log.read_text()
    (lease,) = ledger.lease(1)
    assert [kept.episode.repeat for kept in lease.attempts] == [0], "what had ended goes on elsewhere"


@pytest.mark.extra_slow
def test_an_episode_that_somebody_changes_while_it_waits_is_trained_on_by_no_step_and_named(tmp_path: Path) -> None:
    def change(store: Address) -> None:
        assert store.path is not None
        with closing(sqlite3.connect(store.path)) as base:
            changed = f"UPDATE ends SET line = replace(line, 'hello', 'hallo') WHERE place = {HELD_FROM}"
            assert base.execute(changed).rowcount
            base.commit()

    run, _ = killed_and_gone_on(project_in(tmp_path), change)
    rows = [row for row in metric_rows(run) if "tasks" in row]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    (why,) = [row["given_up"][str(HELD_FROM)] for row in rows if "given_up" in row]
    assert why[-1].startswith(f"{ALTERED}: episode ") and f" of position {HELD_FROM}: its digest" in why[-1]
    assert HELD_FROM not in {episode.order for episode in recorded(run)}
    audited = audit_run(run)
    assert audited["ok"] and [each.partition(": ")[2] for each in audited["altered"]] == [why[-1]]
    assert prove_run(run, "--ids-only")["altered"] == audited["altered"]
    resumed = (run / "logs" / "sums_trainer_0.log").read_text().rpartition("resumed after step ")[2]
    assert "skipped 0, doubled 0, given up 1" in resumed.partition("\n")[0], "it has a reason"


@pytest.mark.extra_slow
def test_what_was_given_up_in_a_store_of_one_process_is_in_its_rows_and_skipped_by_no_line(tmp_path: Path) -> None:
    """It trains where samplers failed before."""
    project = project_in(tmp_path)
    alone = ("trainer_common.mode=sync", "store.type=sqlite", f"store.uri=sqlite:{tmp_path}/store.db")
    run = project / "runs" / "sums"
    train_here(experiment(project, *alone, "trainer_common.total_training_steps=1"))
    store = open_shared(f"sqlite:{tmp_path}/store.db", max_attempts=2)
    for _ in range(2):
        store.fail(store.lease(1)[0], "its server is down")
    (dead,) = store.dead()
    assert dead.order == GROUPS
    train_here(experiment(project, *alone, "trainer_common.total_training_steps=2"))
    rows = [row for row in metric_rows(run) if "tasks" in row]
    assert [row["tasks"] for row in rows] == [[0, 1], [3, 4]]
    assert [row.get("given_up") for row in rows] == [None, {"2": ["its server is down"] * 2}]
    assert trained_tasks(run) == 4 and count_tasks(rows)[:2] == (0, 0)
    assert "skipped 0, doubled 0, given up 1" in (run / "logs" / "sums_trainer_0.log").read_text()
