"""Run folders: who may write, what is continued, what is kept (DESIGN decision 11)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from loguru import logger

from ajet.commands.launch import close_with_outcome
from ajet.config import Experiment, load_experiment
from ajet.record import RunDirectory, read_status
from ajet.record.lock import Holder, RunLock
from ajet.schema.errors import UserError
from ajet.store import open_store
from tests.support.record_fixtures import episode

pytestmark = pytest.mark.slow


def experiment(folder: Path, **more: Any) -> Experiment:
    """A local run named demo; `more` goes below `ajet`, but for `own`, a section of the user's."""
    own = more.pop("own", {"size": 4})
    tree = {"experiment_name": "demo", "backbone": "local", "model": {"path": "embedded:tiny-tools"}, **more}
    return Experiment.from_dict({"ajet": tree, "own": own}, base=folder)


def save(run: RunDirectory, step: int) -> None:
    """A step as the training loop leaves it: episodes, a row, a checkpoint."""
    run.take_up()
    run.episodes.write(step, "train", [episode(f"e{step}", step=step)])
    run.metrics.log(step, {"train/reward": step / 10}, tasks=[step])
    run.checkpoints.save(step, lambda folder: (folder / "model").write_bytes(b"w" * step), {"frontier": step})


def trained(root: Path, *steps: int, **more: Any) -> str:
    """A run that ended after `steps`; answers its id."""
    with RunDirectory.open(experiment(root, **more), root=root) as run:
        for step in steps:
            save(run, step)
        return run.run_id


def test_a_new_run_describes_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-very-secret")
    monkeypatch.setattr(sys, "argv", ["ajet", "--conf", "demo.yaml", "own.key=sk-very-secret"])
    config = experiment(tmp_path, own={"size": 4, "api_key": "literal-secret", "note": "sk-very-secret"})
    with RunDirectory.open(config, root=tmp_path) as run:
        logger.info("started with {}", "literal-secret")
        assert run.resumed is None and run.name == "demo" and run.path == tmp_path / "demo"
    files = {str(path.relative_to(run.path)): path for path in run.path.rglob("*") if path.is_file()}
    names = {
        "given.yaml",
        "resolved.yaml",
        "command",
        "environment.json",
        "run.json",
        "status.json",
        "logs/demo_trainer_0.log",
    }
    assert names <= set(files) and "lock.json" not in files
    for name, path in files.items():
        text = path.read_text()
        assert "sk-very-secret" not in text and "literal-secret" not in text, name
    assert "ajet --conf demo.yaml" in files["command"].read_text()
    described = json.loads(files["environment.json"].read_text())
    assert described["packages"]["numpy"] and described["python"] and described["cpu"]["logical"] >= 1


def test_the_resolved_config_repeats_the_run(tmp_path: Path) -> None:
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        save(run, 1)
    again = load_experiment(run.path / "resolved.yaml", exp_dir=tmp_path)
    with RunDirectory.open(again, root=tmp_path) as resumed:
        assert resumed.run_id == run.run_id and resumed.resumed is not None and resumed.resumed.step == 1


def test_the_same_configuration_is_resumed_and_later_records_are_cut(tmp_path: Path) -> None:
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        save(run, 1)
        save(run, 2)
        run.episodes.write(3, "train", [episode("e3")])
        run.episodes.write(3, "validation", [episode("v3")])
        run.metrics.log(3, {"train/reward": 0.3})
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as again:
        assert again.run_id == run.run_id and again.resumed is not None
        assert again.resumed.step == 2 and again.resumed.state == {"frontier": 2}
        assert again.episodes.steps() == [1, 2, 3], "nothing goes before the checkpoint is loaded"
        again.take_up()
        assert [row["step"] for row in again.metrics.rows()] == [1, 2]
        assert again.episodes.steps() == [1, 2] and again.episodes.steps("validation") == []
    assert len((again.path / "command").read_text().splitlines()) == 4


def test_a_resumed_run_keeps_the_defaults_that_it_began_with(tmp_path: Path) -> None:
    """As after an update of ajet: what nobody set was another value when the run began."""
    trained(tmp_path, 1, rollout={"top_k": 7})
    file = tmp_path / "demo" / "run.json"
    began = json.loads(file.read_text())
    assert "ajet.rollout.top_k" in began["given"] and "ajet.rollout.top_p" not in began["given"]
    began["training"]["ajet.rollout.top_p"] = 0.75
    began["training"]["ajet.trainer_common.algorithm.is_cap"] = 2.0
    file.write_text(json.dumps(began))
    for _ in range(2):
        with RunDirectory.open(experiment(tmp_path, rollout={"top_k": 7}), root=tmp_path) as again:
            assert again.resumed is not None and again.experiment.ajet.rollout.top_p == 0.75
            assert again.experiment.ajet.trainer_common.algorithm.is_cap == 2.0
            assert any("ajet.rollout.top_p stays 0.75" in note for note in again.notes), again.notes
            assert "top_p: 0.75" in (again.path / "resolved.yaml").read_text()
    with pytest.raises(UserError, match="rollout.top_p: 0.75 before, 0.5 now"):
        RunDirectory.open(experiment(tmp_path, rollout={"top_k": 7, "top_p": 0.5}), root=tmp_path)
    with pytest.raises(UserError, match="rollout.top_k"):
        RunDirectory.open(experiment(tmp_path), root=tmp_path)
    with RunDirectory.open(experiment(tmp_path), root=tmp_path, fresh=True) as anew:
        assert anew.experiment.ajet.rollout.top_p == 1.0


def test_a_run_that_never_saved_begins_again_in_its_folder(tmp_path: Path) -> None:
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        run.metrics.log(0, {"validation/reward": 0.1})
        run.episodes.write(1, "train", [episode()])
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as again:
        again.take_up()
        assert again.path == run.path and again.resumed is None
        assert again.metrics.rows() == [] and again.episodes.steps() == []


def test_a_start_of_which_nothing_came_holds_nobody_to_its_settings(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such column"), RunDirectory.open(experiment(tmp_path), root=tmp_path):
        raise UserError("no such column")
    for other in ("services", "debug/20260101-000000"):
        (tmp_path / "demo" / other).mkdir(parents=True)
    with RunDirectory.open(experiment(tmp_path, own={"size": 5}), root=tmp_path) as mended:
        assert mended.path == tmp_path / "demo" and mended.notes == [] and mended.resumed is None
        mended.episodes.write(1, "train", [episode()])
    with pytest.raises(UserError, match="own.size: 5 before, 4 now"):
        RunDirectory.open(experiment(tmp_path), root=tmp_path)


def mistaken(root: Path, **more: Any) -> Path:
    """A start that a mistake of the person's ends before anything is played; answers its folder."""
    run = RunDirectory.open(experiment(root, **more), root=root)
    with pytest.raises(UserError), close_with_outcome(run):
        raise UserError("no such model")
    return run.path


def test_what_a_killed_process_was_just_writing_makes_no_run_of_a_start(tmp_path: Path) -> None:
    trained(tmp_path)
    left = tmp_path / "demo" / ".status.json.4242.aside"
    left.write_text('{"half')
    with RunDirectory.open(experiment(tmp_path, own={"size": 9}), root=tmp_path) as run:
        assert run.resumed is None and not left.exists()


def test_a_mistake_before_anything_was_played_leaves_no_run(tmp_path: Path) -> None:
    mistaken(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    debug = tmp_path / "runs" / "demo" / "debug" / "20260101-000000"
    debug.mkdir(parents=True)
    folder = mistaken(tmp_path / "runs")
    assert {path.name for path in folder.iterdir()} <= {"debug", ".lock"}, "what others left is theirs"
    first = trained(tmp_path / "runs", 1)
    assert (mistaken(tmp_path / "runs") / "run.json").exists() and read_status(folder)["run_id"] == first


def test_a_mistake_removes_nothing_that_may_say_more(tmp_path: Path) -> None:
    """The logs of programs beside it, of an earlier start that was killed, of another that has the folder by now."""
    run = RunDirectory.open(experiment(tmp_path), root=tmp_path)
    (run.path / "services").mkdir()
    run.discard()
    assert (run.path / "logs").exists()
    beside = RunDirectory.open(experiment(tmp_path, experiment_name="beside"), root=tmp_path)
    (beside.path / "logs" / "beside_sampler_0.log").write_text("out of memory")
    beside.discard()
    assert (beside.path / "logs" / "beside_sampler_0.log").exists()
    begun = RunDirectory.open(experiment(tmp_path, experiment_name="begun"), root=tmp_path)
    begun.take_up()  # all of its first episodes failed, say
    begun.discard()
    assert (begun.path / "logs").exists()
    mistaken(tmp_path)
    assert (run.path / "services").exists() and (run.path / "logs").exists()
    other = RunDirectory.open(experiment(tmp_path, experiment_name="other"), root=tmp_path)
    other.close("failed")
    again = RunDirectory.open(experiment(tmp_path, experiment_name="other"), root=tmp_path)
    other.discard()
    assert (again.path / "run.json").exists()
    again.close("finished")


def test_a_start_with_a_store_elsewhere_does_for_others_may_have_played_into_it(tmp_path: Path) -> None:
    store = {"type": "sqlite", "uri": f"sqlite:{tmp_path}/elsewhere.db"}
    with RunDirectory.open(experiment(tmp_path, store=store), root=tmp_path) as run:
        open_store(run.experiment, run.path, pending=None, ledger=run.run_id, at=None)
        assert (run.path / "store.address").read_text() == f"sqlite:{tmp_path}/elsewhere.db\n"
    with pytest.raises(UserError, match="own.size: 4 before, 5 now"):
        RunDirectory.open(experiment(tmp_path, store=store, own={"size": 5}), root=tmp_path)


@pytest.mark.parametrize(
    ("changed", "key", "then", "now"),
    [
        ({"trainer_common": {"optim": {"lr": 1e-4}}}, "trainer_common.optim.lr", "1e-06", "0.0001"),
        ({"own": {"size": 8}}, "own.size", "4", "8"),
        ({"own": {}}, "own.size", "4", '"(not set)"'),
        ({"backbone": "verl"}, "backbone", '"local"', '"verl"'),
    ],
)
def test_another_configuration_is_refused_with_both_values(
    tmp_path: Path, changed: dict[str, Any], key: str, then: str, now: str
) -> None:
    trained(tmp_path, 1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(UserError) as error:
        RunDirectory.open(experiment(tmp_path, **changed), root=tmp_path)
    text = str(error.value)
    assert f"{key}: {then} before, {now} now" in text and "--fresh" in text and "--resume" in text
    assert before == {path: path.read_bytes() for path in before}
    assert RunLock(tmp_path / "demo").take() is None, "the refused start kept the lock"


@pytest.mark.parametrize(
    "changed",
    [{"trainer_common": {"save_freq": 3}}, {"project_name": "other"}, {"gateway": {"port": 0}}, {"debug": {}}],
)
def test_what_does_not_bear_on_training_may_change(tmp_path: Path, changed: dict[str, Any]) -> None:
    run_id = trained(tmp_path, 1)
    with RunDirectory.open(experiment(tmp_path, **changed), root=tmp_path) as run:
        assert run.run_id == run_id and run.resumed is not None


@pytest.mark.parametrize("how", [{"fresh": True}, {"resume": "never"}])
def test_fresh_keeps_the_old_folder_under_another_name(tmp_path: Path, how: dict[str, Any]) -> None:
    first = trained(tmp_path, 1)
    with RunDirectory.open(experiment(tmp_path, own={"size": 9}), root=tmp_path, **how) as run:
        assert run.run_id != first and run.resumed is None and run.metrics.rows() == []
        assert run.path == tmp_path / "demo" and "demo.old-1" in run.notes[0]
        save(run, 1)
    assert (tmp_path / "demo.old-1" / "checkpoints" / "step-1" / "state.json").exists()
    RunDirectory.open(experiment(tmp_path), root=tmp_path, **how).close("finished")
    assert (tmp_path / "demo.old-2").exists()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_fresh_start_of_which_nothing_came_leaves_the_earlier_run_where_it_was(tmp_path, elsewhere):
    more = {"trainer_common": {"checkpoint_base_dir": str(tmp_path / "disk")}} if elsewhere else {}
    first = trained(tmp_path / "runs", 1, **more)
    for _ in range(2):
        RunDirectory.open(experiment(tmp_path / "runs", **more), root=tmp_path / "runs", fresh=True).discard()
        assert os.listdir(tmp_path / "runs") == ["demo"]
        assert not elsewhere or os.listdir(tmp_path / "disk") == ["demo"]
    with RunDirectory.open(experiment(tmp_path / "runs", **more), root=tmp_path / "runs", fresh=True) as run:
        run.episodes.folder.mkdir()
        run.discard()
    assert sorted(os.listdir(tmp_path / "runs")) == ["demo", "demo.old-1"], "something came of it"
    old = str(tmp_path / ("disk" if elsewhere else "runs") / "demo.old-1")
    with RunDirectory.open(experiment(tmp_path / "runs", **more), root=tmp_path / "runs", resume=old) as run:
        assert run.resumed is not None and run.resumed.step == 1 and run.run_id != first


def test_a_fresh_start_beside_which_others_wrote_is_not_removed(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    run = RunDirectory.open(experiment(tmp_path), root=tmp_path, fresh=True)
    beside = tmp_path / "demo" / "debug" / "20260101-000000"
    beside.mkdir(parents=True)
    run.discard()
    assert beside.exists() and (tmp_path / "demo.old-1" / "checkpoints").exists()


def test_the_checkpoints_of_a_run_that_is_put_back_come_before_it(tmp_path: Path, monkeypatch) -> None:
    more = {"trainer_common": {"checkpoint_base_dir": str(tmp_path / "disk")}}
    trained(tmp_path / "runs", 1, **more)
    run = RunDirectory.open(experiment(tmp_path / "runs", **more), root=tmp_path / "runs", fresh=True)
    renamed, rename = [], os.replace

    def noted(old, new, **folders) -> None:  # type: ignore[no-untyped-def]
        if Path(old).name == "demo.old-1":
            renamed.append(Path(old).parent.name)
        rename(old, new, **folders)

    monkeypatch.setattr("ajet.record.archived_run.os.replace", noted)
    run.discard()
    assert renamed == ["disk", "runs"], "killed between, a run without its checkpoints would begin anew"


class Killed(BaseException):
    """Stands for kill -9."""


@contextmanager
def killed_at(rename: int) -> Iterator[None]:
    """The process ends before this rename of a run's folder or of its checkpoints, counted from 0."""
    replace, left = os.replace, [rename]

    def counted(old: Any, new: Any, **folders: int) -> None:
        if str(Path(old).name).startswith("demo"):
            if not left[0]:
                raise Killed
            left[0] -= 1
        replace(old, new, **folders)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", counted)
        yield


@pytest.mark.parametrize(("rename", "fresh"), [(0, False), (1, False), (1, True)])
def test_killed_between_two_renames_a_run_keeps_its_checkpoints(tmp_path: Path, rename: int, fresh: bool) -> None:
    more = {"trainer_common": {"checkpoint_base_dir": str(tmp_path / "disk")}}
    root = tmp_path / "runs"
    first = trained(root, 1, 2, **more)
    with killed_at(rename):
        RunDirectory.open(experiment(root, **more), root=root, fresh=True)
    with RunDirectory.open(experiment(root, **more), root=root, fresh=fresh) as run:
        assert (run.run_id == first) is not fresh and (run.resumed is None) is fresh
        assert any("demo.old-1 is demo again" in note for note in run.notes) is (rename == 1)
        save(run, 3)
    old = ["demo.old-1"] if fresh else []
    assert sorted(os.listdir(root)) == sorted(os.listdir(tmp_path / "disk")) == ["demo", *old]
    kept = tmp_path / "disk" / (old or ["demo"])[0]
    assert (kept / "step-2").exists() and not list(root.rglob("aside.json"))


def test_checkpoints_that_cannot_be_set_aside_leave_the_run_where_it_was(tmp_path: Path, monkeypatch) -> None:
    """A disk is mounted there, say."""
    more = {"trainer_common": {"checkpoint_base_dir": str(tmp_path / "disk")}}
    first, rename, root = trained(tmp_path / "runs", 1, **more), os.replace, tmp_path / "runs"

    def busy(old: Any, new: Any, **folders: int) -> None:
        if Path(old) == tmp_path / "disk" / "demo":
            raise OSError(16, "Device or resource busy")
        rename(old, new, **folders)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", busy)
        with pytest.raises(UserError, match="cannot be moved out of the way: Device or resource busy"):
            RunDirectory.open(experiment(root, **more), root=root, fresh=True)
    assert os.listdir(root) == ["demo"] and not list(root.rglob("aside.json"))
    with RunDirectory.open(experiment(root, **more), root=root) as run:
        assert run.run_id == first and run.resumed is not None and run.name == "demo"


@pytest.mark.parametrize("rename", [1, 2])
def test_killed_while_a_run_is_put_back_it_is_put_back_by_the_next_start(tmp_path: Path, rename: int) -> None:
    more = {"trainer_common": {"checkpoint_base_dir": str(tmp_path / "disk")}}
    root = tmp_path / "runs"
    first = trained(root, 1, **more)
    run = RunDirectory.open(experiment(root, **more), root=root, fresh=True)
    with killed_at(rename):
        run.discard()
    with RunDirectory.open(experiment(root, **more), root=root) as again:
        assert again.run_id == first and again.resumed is not None and again.resumed.step == 1
    assert os.listdir(root) == os.listdir(tmp_path / "disk") == ["demo"]


@pytest.mark.parametrize("how", [{"fresh": True}, {"resume": "demo.old-1/checkpoints/step-1"}])
def test_a_fresh_start_that_was_killed_before_anything_came_of_it_is_undone(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    first = trained(tmp_path, 1)
    killed = RunDirectory.open(experiment(tmp_path, own={"size": 9}), root=tmp_path, fresh=True)
    killed.log_file.close()
    RunLock.release(killed._run_place.lock)  # type: ignore[arg-type] # as the kernel does
    with RunDirectory.open(experiment(tmp_path), root=tmp_path, **how) as run:
        assert (run.run_id == first) is ("fresh" not in how)
        assert any("demo.old-1 is demo again" in note for note in run.notes), run.notes
    assert sorted(os.listdir(tmp_path)) == ["demo", "demo.ended-1", *(["demo.old-1"] if "fresh" in how else [])]
    assert (tmp_path / "demo.ended-1" / "logs" / "demo_trainer_0.log").exists(), "it may say what ended it"


def test_a_mistake_in_a_fresh_start_names_no_log_of_the_run_that_is_back(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    run = RunDirectory.open(experiment(tmp_path), root=tmp_path, fresh=True)
    with pytest.raises(UserError) as error, close_with_outcome(run):
        raise UserError("The model is not there.")
    assert sorted(os.listdir(tmp_path)) == ["demo"] and not hasattr(error.value, "log")


def test_the_earlier_run_is_named_until_a_step_of_the_one_in_its_place_is_recorded(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    RunDirectory.open(experiment(tmp_path), root=tmp_path, fresh=True).close("failed")
    (tmp_path / "demo" / "rubrics.json").touch()
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        assert any("was kept as demo.old-1" in note for note in run.notes) and run.resumed is None
        save(run, 1)
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        assert run.notes == []


def test_fresh_without_an_earlier_run_says_nothing(tmp_path: Path) -> None:
    with RunDirectory.open(experiment(tmp_path), root=tmp_path, fresh=True) as run:
        assert run.notes == [] and sorted(os.listdir(tmp_path)) == ["demo"]


def test_a_named_run_is_continued_with_changed_values(tmp_path: Path) -> None:
    run_id = trained(tmp_path, 1, 2)
    changed = experiment(tmp_path, own={"size": 9})
    with RunDirectory.open(changed, root=tmp_path, resume=str(tmp_path / "demo")) as run:
        assert run.run_id == run_id and run.resumed is not None and run.resumed.step == 2
        assert "own.size" in run.notes[0]
    with RunDirectory.open(changed, root=tmp_path) as run:
        assert run.run_id == run_id


def test_an_earlier_checkpoint_begins_a_new_run_and_keeps_the_old_one(tmp_path: Path) -> None:
    run_id = trained(tmp_path, 1, 2)
    path = tmp_path / "demo" / "checkpoints" / "step-1"
    with RunDirectory.open(experiment(tmp_path), root=tmp_path, resume=str(path)) as run:
        assert run.run_id != run_id and run.resumed is not None and run.resumed.step == 1
        assert run.resumed.path == tmp_path / "demo.old-1" / "checkpoints" / "step-1"
        assert (run.resumed.path / "model").read_bytes() == b"w"
        assert run.checkpoints.all() == []


def test_a_run_that_began_from_anothers_checkpoint_begins_from_it_again_until_it_has_its_own(tmp_path: Path) -> None:
    before, tmp_path = tmp_path / "before", tmp_path / "moved"
    trained(before, 1, 2)
    path = before / "demo" / "checkpoints" / "step-1"
    with RunDirectory.open(experiment(before), root=before, resume=str(path)) as run:
        run.take_up()  # and then it is killed, before its first checkpoint
        run.episodes.write(2, "train", [episode("e2", step=2)])
        run.metrics.log(2, {"train/reward": 0.5}, tasks=[2])
    first, old = run.run_id, before.rename(tmp_path) / "demo.old-1"
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        assert run.run_id == first and run.resumed is not None
        assert run.resumed.path == old / "checkpoints" / "step-1" and "starts again from" in run.notes[0]
        run.take_up()
        assert run.metrics.rows() == [] and run.episodes.steps() == []
    aside = old.rename(tmp_path / "kept")
    with pytest.raises(UserError, match="has saved no checkpoint yet") as error:
        RunDirectory.open(experiment(tmp_path), root=tmp_path)
    assert str(old) in str(error.value)
    aside.rename(old)
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        save(run, 2)
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        assert run.resumed is not None and run.resumed.path == run.path / "checkpoints" / "step-2"


def test_a_start_from_anothers_checkpoint_of_which_nothing_came_binds_nobody_to_it(tmp_path: Path) -> None:
    trained(tmp_path / "a", 1)
    base = tmp_path / "a" / "demo" / "checkpoints" / "step-1"
    with RunDirectory.open(experiment(tmp_path), root=tmp_path, resume=str(base)) as run:
        assert run.resumed is not None
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        assert run.resumed is None


def test_a_checkpoint_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no complete checkpoint") as error:
        RunDirectory.open(experiment(tmp_path), root=tmp_path, resume="nowhere")
    assert "nowhere" in str(error.value)


def test_checkpoints_elsewhere_follow_the_run(tmp_path: Path) -> None:
    elsewhere = {"trainer_common": {"checkpoint_base_dir": str(tmp_path / "disk")}}
    trained(tmp_path / "runs", 1, **elsewhere)
    assert (tmp_path / "disk" / "demo" / "step-1").exists()
    with RunDirectory.open(experiment(tmp_path / "runs", **elsewhere), root=tmp_path / "runs", fresh=True) as run:
        assert run.resumed is None and run.checkpoints.all() == []
        save(run, 5)
    assert sorted(os.listdir(tmp_path / "disk")) == ["demo", "demo.old-1"]
    old = tmp_path / "disk" / "demo.old-1" / "step-1"
    with RunDirectory.open(experiment(tmp_path / "runs", **elsewhere), root=tmp_path / "runs", resume=str(old)) as run:
        assert run.resumed is not None and run.resumed.step == 1 and run.resumed.path == old


def test_a_run_whose_checkpoints_lie_elsewhere_is_continued_by_its_folder(tmp_path: Path) -> None:
    elsewhere = {"trainer_common": {"checkpoint_base_dir": str(tmp_path / "disk")}}
    run_id = trained(tmp_path, 1, 2, **elsewhere)
    changed = experiment(tmp_path, own={"size": 9}, **elsewhere)
    with pytest.raises(UserError, match="had other settings") as error:
        RunDirectory.open(changed, root=tmp_path)
    assert f"--resume {tmp_path / 'demo'} continues the run" in str(error.value)
    with RunDirectory.open(changed, root=tmp_path, resume=str(tmp_path / "demo")) as run:
        assert run.run_id == run_id and run.resumed is not None and run.resumed.step == 2


def test_a_run_whose_checkpoints_lie_elsewhere_is_not_begun_anew_over_its_records(tmp_path: Path) -> None:
    places = [{"trainer_common": {"checkpoint_base_dir": str(tmp_path / name)}} for name in ("a", "b")]
    root = tmp_path / "runs"
    first = trained(root, 1, **places[0])
    for other in (places[1], {}):
        with pytest.raises(UserError, match="looks for them in") as error:
            RunDirectory.open(experiment(root, **other), root=root)
        assert str(tmp_path / "a" / "demo") in str(error.value) and "checkpoint_base_dir" in str(error.value)
    os.rename(tmp_path / "a", tmp_path / "b")
    with RunDirectory.open(experiment(root, **places[1]), root=root) as run:
        assert run.run_id == first and run.resumed is not None and len(run.metrics.rows()) == 1
    with RunDirectory.open(experiment(root, **places[0]), root=root, fresh=True) as run:
        assert run.resumed is None and os.listdir(tmp_path / "b") == ["demo.old-1"]


HOLDER = """
import sys, time
from pathlib import Path
from tests.record.test_run_directory import experiment
from ajet.record import RunDirectory
run = RunDirectory.open(experiment(Path(sys.argv[1])), root=Path(sys.argv[1]))
print(run.name, flush=True)
sys.stdin.readline()
"""


def holder(root: Path) -> subprocess.Popen[str]:
    """A process that opened demo and holds it until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "demo\n"
    return process


def test_a_live_run_keeps_its_folder_and_the_next_one_says_where_it_writes(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        try:
            with RunDirectory.open(experiment(tmp_path), root=tmp_path, fresh=True) as second:
                assert second.name == "demo-2" and f"process {process.pid}" in second.notes[0]
                with RunDirectory.open(experiment(tmp_path), root=tmp_path) as third:
                    assert third.name == "demo-3"
        finally:
            process.kill()
    assert (tmp_path / "demo" / "lock.json").exists(), "a killed run leaves its lock behind"
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as next_run:
        assert next_run.name == "demo" and next_run.notes == []


HERE = {"host": socket.gethostname()}


def test_a_process_id_used_again_by_another_process_does_not_hold(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "demo")
    assert lock.take() is None
    content = json.loads(lock.path.read_text())
    lock.release()
    before = {"started": content["started"] - 1000, "ticks": content["ticks"] - 1000, "kernel": False}
    lock.path.write_text(json.dumps(content | before))
    assert RunLock(tmp_path / "demo").take() is None


def test_a_living_holder_without_a_kernels_lock_is_respected(tmp_path: Path) -> None:
    """As where the file system has none and the system no /proc."""
    (tmp_path / "demo").mkdir()
    mine = {"pid": os.getpid(), "started": psutil.Process().create_time(), "kernel": False}
    (tmp_path / "demo" / "lock.json").write_text(json.dumps(mine | HERE))
    assert str(os.getpid()) in str(RunLock(tmp_path / "demo").take())


def test_a_holder_on_another_host_counts_as_alive(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "demo")
    assert lock.take() is None
    content = json.loads(lock.path.read_text())
    lock.release()
    lock.path.write_text(json.dumps(content | {"host": "elsewhere", "boot": "another"}))
    other = RunLock(tmp_path / "demo").take()
    assert isinstance(other, Holder) and other.process.host == "elsewhere"


def test_a_damaged_lock_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "lock.json").write_text("{half")
    assert RunLock(tmp_path / "demo").take() is None


def test_only_one_of_many_starters_gets_the_folder(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom ajet.record.lock import RunLock\nsys.stdin.readline()\n"
        "print('got' if RunLock(Path(sys.argv[1])).take() is None else 'held', flush=True)\nsys.stdin.readline()\n"
    )
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "demo")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for _ in range(4)
    ]
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("\n")
    answers = [starter.stdout.readline().strip() for starter in starters if starter.stdout is not None]
    for starter in starters:
        starter.communicate("\n")
    assert sorted(answers) == ["got", "held", "held", "held"]


@pytest.mark.parametrize("kind", ["debug", "eval"])
def test_debug_and_evaluation_get_folders_of_their_own_and_are_never_resumed(tmp_path: Path, kind: Any) -> None:
    trained(tmp_path, 1)
    with (
        RunDirectory.open(experiment(tmp_path, own={"size": 9}), root=tmp_path, kind=kind) as one,
        RunDirectory.open(experiment(tmp_path), root=tmp_path, kind=kind) as two,
    ):
        assert one.path != two.path and one.path.parent == two.path.parent == tmp_path / "demo" / kind
        assert one.resumed is None
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        assert run.resumed is not None, "a debug run does not disturb the training run beside it"


def test_the_status_names_the_process_while_it_runs_and_the_outcome_after(tmp_path: Path) -> None:
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        run.status.set(phase="rollout", step=3)
        run.status.add_process(os.getppid(), "parent")
        status = read_status(run.path)
        assert status is not None and (status["phase"], status["step"]) == ("rollout", 3)
        mine, parent = status["processes"]
        assert mine["pid"] == os.getpid() and mine["started"] == pytest.approx(psutil.Process().create_time(), abs=1)
        assert parent["role"] == "parent"
    status = read_status(run.path)
    assert status is not None and (status["outcome"], status["processes"]) == ("finished", [])
    with pytest.raises(ZeroDivisionError), RunDirectory.open(experiment(tmp_path), root=tmp_path):
        raise ZeroDivisionError
    assert (read_status(run.path) or {})["outcome"] == "failed"


def test_the_command_is_kept_without_secret_options(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["worker.py", "--redis-password=five gold rings", "--raylet-name=r"])
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        said = (run.path / "command").read_text()
    assert "gold rings" not in said and "--redis-password=" in said and said.endswith(" --raylet-name=r\n")
