"""While a run opens its parts nothing is collected, and afterwards everything is as it was."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from ajet.config import load_experiment
from ajet.schema.errors import UserError
from ajet.train.parts import assemble, paused_collection


def test_collections_stop_within_and_are_as_before_after_it_even_when_it_fails():
    assert gc.isenabled()
    with pytest.raises(ValueError), paused_collection():
        with paused_collection():
            assert not gc.isenabled()
        assert not gc.isenabled(), "the outer block is not over"
        raise ValueError
    assert gc.isenabled()


def test_who_runs_without_collections_keeps_it_so():
    gc.disable()
    try:
        with paused_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_process_that_is_forked_within_collects():
    script = (
        "import gc, os, sys\n"
        "from ajet.train.parts import paused_collection\n"
        "for enabled in (True, False):\n"
        "    (gc.enable if enabled else gc.disable)()\n"
        "    with paused_collection():\n"
        "        if (child := os.fork()) == 0:\n"
        "            os._exit(gc.isenabled() is not enabled)\n"
        "        if os.waitpid(child, 0)[1] or gc.isenabled():\n"
        "            sys.exit(f'{enabled=}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_backbone_is_opened_without_collections_and_a_refused_one_leaves_them_on(tmp_path):
    (tmp_path / "workflow.py").write_text("async def agent(task, tuner): ...\n")
    (tmp_path / "x.yaml").write_text(
        "ajet:\n  model: {path: none}\n  task_reader: {type: random_dummy}\n"
        "  rollout: {user_workflow: workflow.py->agent}\n"
    )
    seen = []

    def refuses(experiment):
        seen.append(gc.isenabled())
        raise UserError("no")

    experiment = load_experiment(tmp_path / "x.yaml", backbone="debug")
    with pytest.raises(UserError, match="no"), assemble(experiment, run_id="r", opens=refuses):
        raise AssertionError("never opened")
    assert seen == [False] and gc.isenabled()
