"""What a full disk, or one that cannot be written to, means to each command, and what it is told to do."""

import errno
import json

import pytest

from ajet.commands import export as exporting
from ajet.commands.export import export, find_model_folder, select_checkpoint
from ajet.record.checkpoints import Checkpoints
from ajet.record.files import explain_write_errors
from ajet.schema.errors import UserError

FULL = OSError(errno.ENOSPC, "No space left on device")


def fails(*_, **__):
    raise FULL


def refused(work, *arguments, **more):
    with pytest.raises(UserError) as error:
        work(*arguments, **more)
    return error.value


@pytest.fixture
def run(tmp_path):
    """A run with a checkpoint of 3 MiB, of a backbone whose checkpoints are merged."""
    folder = tmp_path / "record" / "x"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"run": "x"}))
    write = lambda place: (place / "shard").write_bytes(b"x" * (3 << 20))  # noqa: E731
    Checkpoints(folder / "checkpoints").save(1, write, {"step": 1, "verl": "shards"})
    return folder


def test_a_training_is_told_of_checkpoints_and_that_it_goes_on(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    first = refused(checkpoints.save, 1, fails, {})
    assert first.do == "free some space; then start the same command again"
    checkpoints.save(1, lambda folder: (folder / "model").write_text("x"), {})
    later = refused(checkpoints.save, 2, fails, {})
    assert later.do.endswith("start the same command again, which resumes from the last complete checkpoint")
    assert (
        "trainer_common.max_checkpoints_to_keep" in later.expected
        and "last complete checkpoint is of step 1" in later.what
    )


def test_a_limit_on_the_size_of_a_file_is_no_full_disk(tmp_path):
    def too_large(*_, **__):
        raise RuntimeError("serialize: I/O error: File too large (os error 27)") from OSError(errno.EFBIG, "x")

    told = refused(Checkpoints(tmp_path).save, 1, too_large, {})
    assert told.what.startswith("A file reached the limit on file sizes") and "ulimit -f" in told.expected
    assert "disk is full" not in told.what and "start the same command again" in told.do


def test_who_only_records_is_not_told_of_checkpoints(tmp_path):
    with (
        pytest.raises(UserError) as error,
        explain_write_errors("the episodes of step 3", tmp_path, intact="earlier steps are whole"),
    ):
        raise FULL
    assert error.value.expected == "free space for the record of the run" and "checkpoint" not in str(error.value)


def test_an_export_is_told_of_the_models_size_and_of_out(run, monkeypatch):
    monkeypatch.setattr(exporting, "write_model", fails)
    told = refused(export, "x", run.parent, out=run.parent / "model")
    assert told.what == "The disk is full: the model of step 1 could not be written (the checkpoint is unchanged)."
    assert "3 MiB" in told.expected and "max_checkpoints_to_keep" not in str(told)
    assert told.do == (
        "free some space, or choose a folder on another disk with --out; then start the same command again"
    )
    assert sorted(path.name for path in run.parent.iterdir()) == ["x"], "nothing is left behind"


def test_a_deployment_that_merges_first_is_told_of_nothing_that_it_does_not_take(run, monkeypatch):
    monkeypatch.setattr(exporting, "write_model", fails)
    told = refused(find_model_folder, run, select_checkpoint(Checkpoints(run / "checkpoints"), 1))
    assert told.do == "free some space; then start the same command again" and "--" not in str(told)


@pytest.mark.parametrize("elsewhere, do", [(None, ", or choose another folder with --exp-dir"), ("", "")])
def test_a_disk_that_is_read_only(tmp_path, elsewhere, do):
    with pytest.raises(UserError) as error, explain_write_errors("it", tmp_path, intact="all", other_folder=elsewhere):
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path / "a"))
    assert error.value.do == f"remount it as writable{do}; then start the same command again"
