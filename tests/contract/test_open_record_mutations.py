"""Whatever is changed in the record of a run that was killed is found by `ajet prove`, by `ajet audit`, or named here.

Such a record has no closing link, so one row of metrics and the files of the next step may have no link yet: what was
added in that window, `audit` cannot tell from what the killed process wrote. `prove` can, where episodes or rows do not
fit each other. The rows at the end are what neither holds, as docs/audit.md says.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from tests.contract.conftest import TOOL_SETTINGS
from tests.contract.test_record_mutations import (
    CHAIN,
    METRICS,
    Mutation,
    Row,
    append,
    codes,
    edit_lines,
    edit_reply,
    edit_rows,
    end_of,
    flip_byte,
    mutated,
    remove,
    remove_chain_and_digests,
    remove_chain_and_states,
    set_verdicts,
    whole,  # noqa: F401
    write,
)
from tests.support.ajet_process import ajet, start

pytestmark = pytest.mark.extra_slow
FIRST, LAST, HELD = "episodes/step-1.jsonl", "episodes/step-2.jsonl", "episodes/step-0.validation.jsonl"
SAVED = "checkpoints/step-1"


def edit_call(file: str, change: Callable[[Row], object]) -> Mutation:
    def edit(rows: list[Row]) -> None:
        change(end_of(rows))

    return edit_rows(file, edit)


def is_of(row: Row, step: int) -> bool:
    return row["step"] == step and "tasks" in row


def set_of_step(step: int, name: str, value: float) -> Mutation:
    def change(rows: list[Row]) -> None:
        (row,) = [row for row in rows if is_of(row, step)]
        assert name in row and row[name] != value
        row[name] = value

    return edit_rows(METRICS, change)


def drop_row_of(step: int) -> Mutation:
    return edit_rows(METRICS, lambda rows: [row for row in rows if not is_of(row, step)])


def add_rows(*steps: int, **changed: float) -> Mutation:
    """Copies of the row of step 2."""
    return edit_rows(
        METRICS,
        lambda rows: [*rows, *({**next(r for r in rows if is_of(r, 2)), "step": step, **changed} for step in steps)],
    )


def add_held_out_row(step: int) -> Mutation:
    def change(rows: list[Row]) -> list[Row]:
        row = next(row for row in rows if "validation/episodes" in row)
        return [*rows, {**row, "step": step, "validation/success_rate": 1.0}]

    return edit_rows(METRICS, change)


def win_first(run: Path) -> None:
    """All verdicts of step 1, and the rate that its row shows."""
    set_verdicts(FIRST, 10**6)(run)
    set_of_step(1, "train/success_rate", 1.0)(run)


def copy_file(name: str, step: int) -> Mutation:
    def mutate(run: Path) -> None:
        shutil.copy(run / LAST, run / "episodes" / f"{name}.jsonl")
        shutil.copy((run / LAST).with_suffix(".bin"), run / "episodes" / f"{name}.bin")
        edit_rows(f"episodes/{name}.jsonl", lambda rows: [{**row, "step": step} for row in rows])(run)

    return mutate


def copy_checkpoint(step: int) -> Mutation:
    return lambda run: shutil.copytree(run / SAVED, run / f"checkpoints/step-{step}")


TABLE: list[tuple[str, Mutation, int, int]] = [
    *(
        (f"{kind}: {name}", mutation, code, 1)
        for kind, file in (("first step", FIRST), ("last step", LAST), ("held out", HELD))
        for name, mutation, code in (
            ("one verdict", set_verdicts(file, 1), 1),
            ("episode dropped", edit_rows(file, lambda rows: rows[1:]), 1),
            ("reply edited", edit_rows(file, edit_reply), 1),
            ("finish called length", edit_call(file, lambda call: call.update(finish="length")), 1),
            ("finish called aborted", edit_call(file, lambda call: call.update(finish="aborted")), 1),
            ("reply removed", edit_call(file, lambda call: call.update(reply=None)), 1),
            ("status changed", edit_rows(file, lambda rows: rows[0].update(status="aborted")), 1),
            ("field that nothing derives", edit_rows(file, lambda rows: rows[0].update(printed="x")), 0),
            ("tokens changed", flip_byte(file.replace("jsonl", "bin")), 2),
            ("arrays removed", remove(file.replace("jsonl", "bin")), 2),
            ("file removed", remove(file, file.replace("jsonl", "bin")), 1),
        )
        if file == FIRST or name in ("one verdict", "finish called length", "reply removed", "file removed")
    ),
    *(
        (f"step {step}: {name}", set_of_step(step, name, 9.5), code, 1)
        for step in (1, 2)
        for name, code in (("train/reward", 1), ("train/sampled_tokens", 1), ("entropy", 0), ("loss", 0), ("time", 0))
    ),
    ("all verdicts of a step and its rate", win_first, 1, 1),
    ("row of the first step removed", drop_row_of(1), 1, 1),
    ("row of the last step removed", drop_row_of(2), 0, 1),
    ("held-out number", edit_rows(METRICS, lambda rows: rows[0].update({"validation/success_rate": 0.99})), 1, 1),
    ("metrics removed", remove(METRICS), 0, 1),
    ("row of the last step doubled", add_rows(2), 1, 0),
    ("row of the next step", add_rows(3), 1, 0),
    ("rows of two more steps", add_rows(3, 4), 1, 1),
    ("row of a later step", add_rows(9), 1, 1),
    ("held-out row of the last step", add_held_out_row(2), 1, 0),
    ("held-out row of an earlier step", add_held_out_row(1), 1, 1),
    ("row of nothing", append(METRICS, '{"step": 3, "time": 1.0, "note": 1.0}\n'), 1, 0),
    ("episode of the last step doubled", edit_rows(LAST, lambda rows: [*rows, rows[0]]), 1, 0),
    ("episode of the first step doubled", edit_rows(FIRST, lambda rows: [*rows, rows[0]]), 1, 1),
    ("file of the next step, of no run", copy_file("step-3", 3), 1, 0),
    ("file of a later step", copy_file("step-9", 9), 1, 1),
    ("checkpoint: a byte of the weights", flip_byte(f"{SAVED}/model.safetensors", 4000), 0, 1),
    ("checkpoint: a file more", write(f"{SAVED}/pytorch_model.bin", "x"), 0, 1),
    ("checkpoint: no state", remove(f"{SAVED}/state.json"), 0, 1),
    ("checkpoint of a later step", copy_checkpoint(9), 0, 1),
    ("settings changed", append("resolved.yaml", "# more\n"), 0, 1),
    ("chain removed", remove(CHAIN), 0, 1),
    ("chain emptied", write(CHAIN, ""), 0, 1),
    ("chain removed with all states", remove_chain_and_states, 0, 1),
    ("chain removed with all digests", remove_chain_and_digests, 0, 1),
    ("chain: its first link removed", edit_lines(CHAIN, lambda lines: lines[1:]), 0, 1),
    ("chain: a link removed", edit_lines(CHAIN, lambda lines: [*lines[:2], *lines[3:]]), 0, 1),
    ("chain: a link changed", edit_lines(CHAIN, lambda lines: [lines[0].replace("local", "debug"), *lines[1:]]), 0, 1),
    ("chain: what a checkpoint saw is cut", edit_lines(CHAIN, lambda lines: lines[:2]), 0, 1),
    # what neither holds
    ("the end of the chain cut", edit_lines(CHAIN, lambda lines: lines[:-1]), 0, 0),
    ("status changed", lambda run: write("status.json", json.dumps({"kind": "train", "step": 9}))(run), 0, 0),
    ("half a line that nothing reads", append(METRICS, '{"step": 3'), 0, 0),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a run that was killed once its second step was linked."""
    folder = tmp_path_factory.mktemp("killed")
    assert ajet("init", "tool", "--template", "tool", cwd=folder).returncode == 0
    yaml = next((folder / "tool").glob("*.yaml"))
    more = [*TOOL_SETTINGS, "trainer_common.total_training_steps=50", "trainer_common.test_freq=50"]
    more += ["trainer_common.val_before_train=true", "experiment_name=killed", "rollout.temperature=0.8"]
    process = start("--conf", str(yaml), "--backbone", "local", *more, cwd=folder, log=folder / "log")
    run = folder / "launcher_record" / "killed"
    while process.poll() is None and '"kind": "step", "step": 2' not in read_if_there(run / CHAIN):
        time.sleep(0.005)  # polls the record
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return run


def read_if_there(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_the_record_of_a_killed_run_passes(run: Path, whole: dict[Path, bytes]) -> None:  # noqa: F811
    assert codes(run) == (0, 0) and len({name for name, *_ in TABLE}) == len(TABLE) >= 60
    kinds = [json.loads(line)["kind"] for line in (run / CHAIN).read_text().splitlines()]
    assert "end" not in kinds


@pytest.mark.parametrize(("mutate", "prove", "audit"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_change_of_an_open_record_has_its_exit_codes(
    run: Path, whole: dict[Path, bytes], mutate: Mutation, prove: int, audit: int  # noqa: F811
) -> None:  # fmt: skip
    with mutated(run, whole, mutate):
        assert codes(run) == (prove, audit)


def test_a_key_that_an_open_chain_was_not_made_with(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AJET_AUDIT_KEY", "a key of these tests")
    assert CliRunner().invoke(app, ["audit", str(run)], obj={}).exit_code == 1
