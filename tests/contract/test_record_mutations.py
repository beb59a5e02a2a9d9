"""Whatever is changed in the record of a run that is over is found by `ajet prove`, by `ajet audit`, or is named here.

Each row of the table is one change and the exit codes of both commands. `prove` derives numbers again and takes no
digests: what nothing derives (entropy, times, order of rows) is the audit's. The rows at the end are what neither
holds, as docs/audit.md says.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app

pytestmark = pytest.mark.slow
Row = dict[str, Any]
Mutation = Callable[[Path], object]
METRICS, CHAIN = "metrics.jsonl", "chain.jsonl"
TRAIN, HELD = "episodes/step-2.jsonl", "episodes/step-2.validation.jsonl"
LAST = "checkpoints/step-2"


def edit_rows(file: str, change: Callable[[list[Row]], list[Row] | None]) -> Mutation:
    def mutate(run: Path) -> None:
        rows = [json.loads(line) for line in (run / file).read_text().splitlines()]
        rows = change(rows) or rows
        (run / file).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    return mutate


def is_validation(row: Row) -> bool:
    return "validation/episodes" in row


def set_number(name: str, value: Any = None, *, validation: bool | None = None) -> Mutation:
    """In the last row of its kind; without a value, one more than it was."""

    def change(rows: list[Row]) -> None:
        held = name.startswith("validation/") if validation is None else validation
        row = [row for row in rows if is_validation(row) is held][-1]
        if value is None:
            assert name in row, f"the row has no {name}"
        row[name] = row[name] + 1 if value is None else value

    return edit_rows(METRICS, change)


def drop_number(name: str) -> Mutation:
    return edit_rows(METRICS, lambda rows: rows[-1].pop(name) and None)


def drop_row(*, validation: bool) -> Mutation:
    def change(rows: list[Row]) -> list[Row]:
        last = [at for at, row in enumerate(rows) if is_validation(row) is validation][-1]
        return rows[:last] + rows[last + 1 :]

    return edit_rows(METRICS, change)


def add_row(*, validation: bool, **changed: Any) -> Mutation:
    def change(rows: list[Row]) -> list[Row]:
        return [*rows, [row for row in rows if is_validation(row) is validation][-1] | changed]

    return edit_rows(METRICS, change)


def set_verdicts(file: str, count: int) -> Mutation:
    def change(rows: list[Row]) -> None:
        for row in [row for row in rows if not row["verdict"]["success"]][:count]:
            row["verdict"] |= {"reward": 1.0, "success": True}

    return edit_rows(file, change)


def win_all(run: Path) -> None:
    set_verdicts(HELD, 10**6)(run)
    set_number("validation/success_rate", 1.0)(run)


def set_field(file: str, name: str, value: Any) -> Mutation:
    return edit_rows(file, lambda rows: rows[0].update({name: value}))


def rename_by_hand(rows: list[Row]) -> None:
    """The kind of uuid that a client's episodes have."""
    rows[0]["uuid"] = f"{rows[0]['uuid'][:12]}4{rows[0]['uuid'][13:]}"


def edit_reply(rows: list[Row]) -> None:
    said = rows[0]["messages"][-1]
    said["content"] = f"{said['content']}!"


def end_of(rows: list[Row]) -> Row:
    """The first call that ended by itself."""
    return next(call for row in rows for call in row["calls"] if call["finish"] in ("stop", "tool_calls"))


def copy_episodes(name: str, step: int | None = None) -> Mutation:
    """The file of the last step again, under another name; `step`: and its episodes say so."""

    def mutate(run: Path) -> None:
        shutil.copy(run / TRAIN, run / "episodes" / f"{name}.jsonl")
        shutil.copy((run / TRAIN).with_suffix(".bin"), run / "episodes" / f"{name}.bin")
        if step is not None:
            edit_rows(f"episodes/{name}.jsonl", lambda rows: [{**row, "step": step} for row in rows])(run)

    return mutate


def remove(*names: str) -> Mutation:
    def mutate(run: Path) -> None:
        for name in names:
            path = run / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return mutate


def write(name: str, text: str) -> Mutation:
    def mutate(run: Path) -> None:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(text)

    return mutate


def append(name: str, text: str) -> Mutation:
    return lambda run: (run / name).write_text((run / name).read_text() + text)


def flip_byte(name: str, at: int = 40) -> Mutation:
    def mutate(run: Path) -> None:
        data = bytearray((run / name).read_bytes())
        data[at] ^= 1
        (run / name).write_bytes(data)

    return mutate


def edit_lines(name: str, change: Callable[[list[str]], list[str]]) -> Mutation:
    return lambda run: (run / name).write_text("".join(change((run / name).read_text().splitlines(keepends=True))))


def edit_state(**changed: Any) -> Mutation:
    def mutate(run: Path) -> None:
        path = run / LAST / "state.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))

    return mutate


def remove_chain_and_states(run: Path) -> None:
    for path in (run / CHAIN, *run.glob("checkpoints/*/state.json")):
        path.unlink()


def remove_chain_and_digests(run: Path) -> None:
    (run / CHAIN).unlink()
    for path in run.glob("checkpoints/*/state.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({name: content[name] for name in ("step", "score", "state", "saved", "files")}))


def remove_chain_and_checkpoints(run: Path) -> None:
    (run / CHAIN).unlink()
    shutil.rmtree(run / "checkpoints")


def link_extra(run: Path) -> None:
    (run / LAST / "extra").symlink_to("config.json")


TABLE: list[tuple[str, Mutation, int, int]] = [
    *(
        (f"held-out number {name}", set_number(f"validation/{name}"), 1, 1)
        for name in (
            "reward",
            "success_rate",
            "success_low",
            "success_high",
            "tasks",
            "episodes",
            "scored",
            "failed",
            "aborted",
            "no_score",
            "calls",
            "sampled_tokens",
            "forks",
            "reply_tokens",
            "turns",
        )
    ),
    ("interval of equal rewards", set_number("validation/reward_error", 0.1), 1, 1),
    ("held-out number made up", set_number("validation/pass@9", 1.0), 1, 1),
    ("held-out number null", set_number("validation/reward", "x"), 1, 1),
    ("held-out number removed", drop_number("validation/reward"), 1, 1),
    ("held-out row removed", drop_row(validation=True), 1, 1),
    ("held-out row doubled", add_row(validation=True), 1, 1),
    ("held-out row of another step", add_row(validation=True, step=1), 1, 1),
    ("held-out row of a later step", add_row(validation=True, step=3, **{"validation/success_rate": 1.0}), 1, 1),
    *(
        (f"number of a step {name}", set_number(f"train/{name}"), 1, 1)
        for name in (
            "reward",
            "success_rate",
            "episodes",
            "scored",
            "failed",
            "no_score",
            "calls",
            "sampled_tokens",
            "forks",
            "reply_tokens",
            "turns",
            "trained_tokens",
        )
    ),
    ("positions of a step", set_number("tasks", [0], validation=False), 1, 1),
    ("row of a step removed", drop_row(validation=False), 1, 1),
    ("row of a step doubled", add_row(validation=False, entropy=9.9), 1, 1),
    ("row of a later step", add_row(validation=False, step=3, entropy=9.9), 1, 1),
    ("row of nothing", append(METRICS, '{"step": 2, "time": 1.0, "note": 1.0}\n'), 1, 1),
    ("metrics emptied", write(METRICS, ""), 1, 1),
    ("metrics removed", remove(METRICS), 1, 1),
    *(
        (f"underived number {name}", set_number(name, 9.9, validation=False), 0, 1)
        for name in ("entropy", "lr", "grad_norm", "seconds/update", "time")
    ),
    ("rows in another order", edit_rows(METRICS, lambda rows: rows[::-1]), 0, 1),
    ("one held-out verdict", set_verdicts(HELD, 1), 1, 1),
    ("all held-out verdicts and the rate", win_all, 1, 1),
    ("one verdict of a step", set_verdicts(TRAIN, 1), 1, 1),
    *(
        (f"{kind} {name}", edit_rows(file, change), code, 1)
        for kind, file in (("held-out", HELD), ("step's", TRAIN))
        for name, change, code in (
            ("episode dropped", lambda rows: rows[1:], 1),
            ("episode doubled", lambda rows: [*rows, rows[0]], 1),
            ("group dropped", lambda rows: [row for row in rows if row["group"] != rows[0]["group"]], 1),
            ("reply edited", edit_reply, 1),
            ("reply removed", lambda rows: end_of(rows).update(reply=None), 1),
            ("finish called length", lambda rows: end_of(rows).update(finish="length"), 1),
            ("uuid renamed", rename_by_hand, 1),
            ("status changed", lambda rows: rows[0].update(status="aborted"), 1),
            ("episodes in another order", lambda rows: rows[::-1], 0),
            ("field that nothing derives", lambda rows: rows[0].update(printed="x"), 0),
        )
    ),
    ("held-out file removed", remove(HELD, HELD.replace("jsonl", "bin")), 1, 1),
    ("step's file removed", remove(TRAIN, TRAIN.replace("jsonl", "bin")), 1, 1),
    ("held-out arrays removed", remove(HELD.replace("jsonl", "bin")), 2, 1),
    ("step's arrays changed", flip_byte(TRAIN.replace("jsonl", "bin")), 2, 1),
    ("file of the next step", copy_episodes("step-3"), 1, 1),
    ("file of a later step", copy_episodes("step-9", 9), 1, 1),
    ("arrays of the next step", write("episodes/step-3.bin", "x"), 0, 1),
    ("unknown file among episodes", write("episodes/notes.txt", "x"), 0, 1),
    ("checkpoint: a file more", write(f"{LAST}/pytorch_model.bin", "x"), 0, 1),
    ("checkpoint: a file more below", write(f"{LAST}/trainer/more.json", "{}"), 0, 1),
    ("checkpoint: a link more", link_extra, 0, 1),
    ("checkpoint: a file removed", remove(f"{LAST}/generation_config.json"), 0, 1),
    ("checkpoint: a byte of the weights", flip_byte(f"{LAST}/model.safetensors", 4000), 0, 1),
    ("checkpoint: a byte of the optimizer", flip_byte(f"{LAST}/trainer/state.safetensors", 4000), 0, 1),
    ("checkpoint: its score", edit_state(score=1.0), 0, 1),
    ("checkpoint: its measurement", edit_state(measured=None), 0, 1),
    ("checkpoint: no state", remove(f"{LAST}/state.json"), 0, 1),
    ("checkpoint removed", remove(LAST), 0, 1),
    ("checkpoint of a later step", lambda run: shutil.copytree(run / LAST, run / "checkpoints/step-3"), 0, 1),
    ("settings changed", append("resolved.yaml", "# more\n"), 0, 1),
    ("given settings removed", remove("given.yaml"), 0, 1),
    ("origins removed", remove("origins.json"), 0, 1),
    ("identity changed", append("run.json", "\n"), 0, 1),
    ("environment removed", remove("environment.json"), 0, 1),
    ("chain removed", remove(CHAIN), 0, 1),
    ("chain emptied", write(CHAIN, ""), 0, 1),
    ("chain removed with all states", remove_chain_and_states, 0, 1),
    ("chain removed with all digests", remove_chain_and_digests, 0, 1),
    ("chain removed with all checkpoints", remove_chain_and_checkpoints, 0, 1),
    ("chain: its first link removed", edit_lines(CHAIN, lambda lines: lines[1:]), 0, 1),
    ("chain: a link removed", edit_lines(CHAIN, lambda lines: lines[:3] + lines[4:]), 0, 1),
    ("chain: a link doubled", edit_lines(CHAIN, lambda lines: [*lines[:3], *lines[2:]]), 0, 1),
    ("chain: two links exchanged", edit_lines(CHAIN, lambda lines: [*lines[:-2], lines[-1], lines[-2]]), 0, 1),
    ("chain: a link changed", edit_lines(CHAIN, lambda lines: [lines[0].replace("local", "debug"), *lines[1:]]), 0, 1),
    ("chain: what a checkpoint saw is cut", edit_lines(CHAIN, lambda lines: lines[:-3]), 0, 1),
    # what neither holds
    ("the end of the chain cut", edit_lines(CHAIN, lambda lines: lines[:-1]), 0, 0),
    ("status changed", lambda run: write("status.json", json.dumps({"kind": "train", "step": 9}))(run), 0, 0),
    ("half a line that nothing reads", append(METRICS, '{"step": 3'), 0, 0),
    ("curve removed", remove("metrics.png"), 0, 0),
    ("note added", write("notes.txt", "x"), 0, 0),
]


@pytest.fixture(scope="module")
def run(tool_project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, folder = tool_project / "launcher_record" / "plain", tmp_path_factory.mktemp("mutated") / "plain"
    return Path(shutil.copytree(source, folder, ignore=shutil.ignore_patterns("logs")))


@pytest.fixture(scope="module")
def whole(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@contextmanager
def mutated(run: Path, whole: dict[Path, bytes], mutate: Mutation) -> Iterator[None]:
    """The record with one change, and as it was afterwards."""
    mutate(run)
    try:
        yield
    finally:
        for path in [path for path in run.rglob("*") if not path.is_dir() or path.is_symlink()]:
            if path.is_symlink() or path not in whole:
                path.unlink()
        for folder in run.glob("checkpoints/*"):
            if not any(path.is_relative_to(folder) for path in whole):
                shutil.rmtree(folder)
        for path, data in whole.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)


def codes(run: Path) -> tuple[int, int]:
    """Of `ajet prove` and of `ajet audit`."""
    proven = CliRunner().invoke(app, ["prove", str(run), "--ids-only"], obj={})
    audited = CliRunner().invoke(app, ["audit", str(run)], obj={})
    return proven.exit_code, audited.exit_code


def test_the_record_as_written_passes_where_it_was_moved(run: Path, whole: dict[Path, bytes]) -> None:
    assert codes(run) == (0, 0) and len(TABLE) >= 100 and len({name for name, *_ in TABLE}) == len(TABLE)


@pytest.mark.parametrize(("mutate", "prove", "audit"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_change_has_its_exit_codes(
    run: Path, whole: dict[Path, bytes], mutate: Mutation, prove: int, audit: int
) -> None:
    with mutated(run, whole, mutate):
        assert codes(run) == (prove, audit)


@pytest.mark.parametrize("words", [["--step", "2"], ["--task", "TASK"], ["--episode", "UUID"]])
@pytest.mark.parametrize("mutate", [None, set_number("loss", 9.9, validation=False), set_verdicts(TRAIN, 10**6)])
def test_a_trail_holds_its_rows_and_episodes(
    run: Path, whole: dict[Path, bytes], mutate: Mutation | None, words: list[str]
) -> None:
    rows = [json.loads(line) for line in (run / TRAIN).read_text().splitlines()]
    used = next(row for row in rows if row["outcome"].get("step") is not None)
    named = {"TASK": used["task"]["task_id"], "UUID": used["uuid"]}
    asked = [named.get(word, word) for word in words]
    with mutated(run, whole, mutate or (lambda _: None)):
        done = CliRunner().invoke(app, ["audit", str(run), *asked], obj={})
    assert done.exit_code == (0 if mutate is None else 1), done.output


def test_a_key_that_the_chain_was_not_made_with(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has no key could have written all of it anew, without one."""
    monkeypatch.setenv("AJET_AUDIT_KEY", "a key of these tests")
    assert CliRunner().invoke(app, ["audit", str(run)], obj={}).exit_code == 1
