"""The runs below a folder: what is read of them, how often, and which names are opened."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ajet.record.files import write_atomically
from ajet.record.process_identity import ProcessIdentity
from ajet_viewer import library as module
from ajet_viewer.library import Library, MissingError


def run_in(root: Path, name: str = "one", *, rows: int = 200) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(json.dumps({"kind": "train", "outcome": "finished", "step": rows}))
    counts = {"train/episodes": 4, "train/scored": 3, "train/failed": 1, "train/failed/tool": 1}
    held = {
        "step": 1,
        "validation/tasks": 2,
        "validation/episodes": 2,
        "validation/scored": 2,
        "validation/reward": 0.5,
    }
    trained = [{"step": step, "tasks": [step], "train/reward": step / rows, **counts} for step in range(1, rows + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (held, *trained)))
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is parsed: rows of metrics and statuses."""
    found: list[str] = []
    parse, status = module.parse_object, module.read_status

    def parsed(line: Any) -> Any:
        found.append("row")
        return parse(line)

    def looked(folder: Path) -> Any:
        found.append("status")
        return status(folder)

    monkeypatch.setattr(module, "parse_object", parsed)
    monkeypatch.setattr(module, "read_status", looked)
    return found


def test_a_row_of_metrics_is_read_for_what_it_says_and_no_other(tmp_path: Path, read: list[str]) -> None:
    run_in(tmp_path)
    (row,) = Library(tmp_path).runs()
    assert row["train/reward"] == 1.0 and row["debug/reward"] is None and row["reward_short"] == "(3/4)"
    assert row["reward_over"] == "over 3 of 4; 1 tool" and row["held_out_short"] == "0.5 (2/2)"
    assert read.count("row") == 2, "the last one, and the first, which has the validation"


def test_what_has_not_changed_is_not_read_again(tmp_path: Path, read: list[str]) -> None:
    folder, library = run_in(tmp_path), Library(tmp_path)
    first = library.runs()
    read.clear()
    assert library.runs() == first and library.run("one") == first[0] and not read
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 201, "train/reward": 0.25}) + "\n")
    assert library.runs()[0]["train/reward"] == 0.25 and "status" not in read
    read.clear()
    kept = (folder / "status.json").stat()
    write_atomically(folder / "status.json", (folder / "status.json").read_text().replace("200", "201"))
    os.utime(folder / "status.json", ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert library.runs()[0]["step"] == 201 and read == ["status"], "as many bytes, at the same time: another file"
    (folder / "notes.json").write_text(json.dumps({"note": "odd", "tags": [], "edit": 1}))
    assert library.runs()[0]["notes"]["note"] == "odd"
    (folder / "metrics.jsonl").unlink()
    assert library.runs()[0]["train/reward"] is None


def test_whether_its_process_lives_is_looked_at_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, library, alive = run_in(tmp_path), Library(tmp_path), [True]
    (folder / "status.json").write_text(json.dumps({"processes": [{"pid": 1, "started": 1.0, "role": "run"}]}))
    monkeypatch.setattr(ProcessIdentity, "alive", lambda self: alive[0])
    assert library.runs()[0]["state"] == "running"
    alive[0] = False
    assert library.runs()[0]["state"] == "stopped"


def test_one_run_is_found_without_a_look_at_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = run_in(tmp_path / "outside", "secret")
    root = tmp_path / "root"
    for name in ("one", "two", "one/debug/d1", "one/else/e1"):
        run_in(root, name)
    (root / "plain").mkdir()
    (root / "leads out").symlink_to(outside)
    (root / "inside").symlink_to(root / "two")
    found, library = Library(root).names(), Library(root)
    assert found == ["inside", "one", "one/debug/d1", "two"]
    monkeypatch.setattr(module, "list_folders", lambda folder: pytest.fail("all are looked at"))
    assert [library.path(name) for name in found] == [root / name for name in found]
    never = ["", ".", "..", "../outside/secret", "one/", "one/else/e1", "one/debug", "one/debug/..", "leads out",
             "plain", "gone", "o\0ne", "/one", str(root / "one"), "leads out/../one",
             "one/debug/../../two"]  # fmt: skip
    for name in never:
        with pytest.raises(MissingError):
            library.path(name)
    alone = Library.of(root / "one")
    assert alone.path("one/debug/d1") == root / "one" / "debug" / "d1"
    with pytest.raises(MissingError):
        alone.path("two")
