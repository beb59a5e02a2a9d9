"""`ajet report`: what an issue needs of a run, and no secret, whoever let it into the record."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from ajet.cli import launcher
from ajet.record.episodes import EpisodeFiles
from ajet.record.logs import main_log
from ajet.schema.episode import Episode, Failure, Verdict
from ajet.schema.task import Task

BY_NAME = "correct-horse-battery-9"
BY_SHAPE = "sk-proj-0123456789abcdefghij"
IN_YAML = "my-own-literal-password-7"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that redacted nothing, with keys everywhere."""
    monkeypatch.setenv("PLANTED_API_KEY", BY_NAME)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "launcher_record" / "mine"
    (run / "logs").mkdir(parents=True)
    secrets = f"{BY_NAME} {BY_SHAPE} {IN_YAML} {tmp_path}/home/data"
    (run / "status.json").write_text(json.dumps({"name": "mine", "outcome": "failed", "note": secrets}))
    (run / "environment.json").write_text(json.dumps({"python": "3.11", "note": secrets}))
    (run / "command").write_text(f"ajet --conf x.yaml rollout.num_repeat=3 # {secrets}\n")
    (run / "given.yaml").write_text(f"ajet: {{seed: 7}}\nmine: {{db_password: {IN_YAML}, note: '{BY_SHAPE}'}}\n")
    resolved = f"ajet: {{seed: 7, rollout: {{num_repeat: 3}}}}\nmine: {{db_password: {IN_YAML}}}\n"
    (run / "resolved.yaml").write_text(resolved)
    origins = {"ajet.seed": "given.yaml", "ajet.rollout.num_repeat": "command line"}
    (run / "origins.json").write_text(json.dumps(origins))
    main_log(run).write_text("an old line\n" * 40_000 + f"the end: {secrets}\n")
    (run / "metrics.jsonl").write_text("".join(json.dumps({"step": n, "note": secrets}) + "\n" for n in range(50)))
    failure = Failure("agent", "ValueError", secrets, traceback=f"at {secrets}")
    EpisodeFiles(run / "episodes").write(3, "train", [
        Episode("a", Task(task_id="worst", main_query=secrets), 0, 3, "train", status="failed", failure=failure),
        Episode("b", Task(task_id="middle"), 0, 3, "train", verdict=Verdict(0.5)),
        Episode("c", Task(task_id="best"), 0, 3, "train", verdict=Verdict(1.0, True, secrets)),
    ])  # fmt: skip
    return run


def bundled(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    with pytest.raises(SystemExit) as ended:
        launcher.main(["report", "mine", *arguments])
    assert not ended.value.code, capsys.readouterr()
    with zipfile.ZipFile(arguments[-1] if arguments else "ajet-report-mine.zip") as bundle:
        return {Path(name).name: bundle.read(name).decode() for name in bundle.namelist()}


def test_no_secret_is_in_it_and_what_helps_is(record, capsys, tmp_path):
    parts = bundled(capsys)
    for name, text in parts.items():
        for secret in (BY_NAME, BY_SHAPE, IN_YAML, str(tmp_path / "home")):
            assert secret not in text, name
    assert "[redacted PLANTED_API_KEY]" in parts["log.txt"] and "the end:" in parts["log.txt"]
    assert len(parts["log.txt"]) < 250_000 and len(parts["metrics.jsonl"].splitlines()) == 20
    assert json.loads(parts["versions.json"])["torch"]
    assert "ajet.seed: 7  (given.yaml)" in parts["origins.txt"]
    assert "ajet.rollout.num_repeat: 3  (command line)" in parts["origins.txt"]
    told = [json.loads(line)["task"]["task_id"] for line in parts["episodes.jsonl"].splitlines()]
    assert told == ["worst", "best"]


def test_a_damaged_part_costs_no_other(record, capsys):
    (record / "given.yaml").write_text(f"ajet: [\ndb_password: {IN_YAML}\n")
    (record / "metrics.jsonl").write_text("{no json}\n")
    parts = bundled(capsys, "--out", "other.zip")
    assert "Left out" in parts["given.yaml"] and not any(IN_YAML in text for text in parts.values())
    assert "could not be read" in parts["metrics.jsonl"] and "the end" in parts["log.txt"]
    with pytest.raises(SystemExit) as ended:
        launcher.main(["report", "mine", "--out", "other.zip"])
    assert ended.value.code == 2 and "exists already" in capsys.readouterr().err
