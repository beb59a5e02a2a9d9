"""What `ajet init` writes: each template is valid, plays an episode as it is, and tells editors and coding agents how.

The model is replaced by one that comes with ajet; what a template is about is the way from task to reward.
"""

from __future__ import annotations

import csv
import json
import os
import re
import statistics
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ajet.cli import launcher
from ajet.cli.init import OWN_TASKS, Template
from ajet.config import load_experiment
from ajet.record.episodes import EpisodeFiles
from ajet.task_reader import open_reader
from tests.support.ajet_process import start

ALL = [each.value for each in Template]
PLAYED = [each.value for each in Template if each is not Template.serve]
SMALL = [
    "model.path=embedded:tiny-tools", "debug.debug_first_n_tasks=1", "rollout.num_repeat=1",
    "rollout.max_model_len=512", "data.max_prompt_length=400", "rollout.max_response_length_in_one_turn=8",
    "trainer_common.threads=1",
]  # fmt: skip


def ajet(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        launcher.main(list(arguments))
    printed = capsys.readouterr()
    assert not ended.value.code, printed.out + printed.err
    return printed.out


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request) -> Path:
    """A project of this template, beside which the commands run."""
    monkeypatch.chdir(tmp_path)
    ajet(capsys, "init", "mine", "--template", request.param)
    return tmp_path / "mine"


@pytest.fixture
def conf(made: Path, request) -> Path:
    """The project's YAML, named after its template."""
    return made / f"{request.node.callspec.params['made']}.yaml"


def wait_for_address(server: subprocess.Popen[str], log: Path) -> str:
    """Return the address that a server prints once it listens."""
    shown = re.compile(r"http://127\.0\.0\.1:\d+")
    while (found := shown.search(log.read_text())) is None:
        assert server.poll() is None, log.read_text()
        threading.Event().wait(0.05)
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize("made", PLAYED, indirect=True, ids=PLAYED)
def test_a_template_plays_an_episode(made, conf, capsys):
    if conf.stem == "langchain":
        pytest.importorskip("langchain_openai")
    assert "is valid" in ajet(capsys, "config", "validate", "--conf", str(conf))
    out = ajet(capsys, "--conf", str(conf), "--backbone", "debug", *SMALL)
    assert "reward 0" in out or "reward 1" in out, out
    (run,) = (made.parent / "launcher_record" / conf.stem / "debug").iterdir()
    (episode,) = EpisodeFiles(run / "episodes").read(0, "debug")
    assert episode.scored and episode.calls and episode.failure is None
    if conf.stem not in OWN_TASKS:
        assert episode.task.metadata["answer"] and episode.verdict.success is not None


@pytest.mark.parametrize("made", PLAYED, indirect=True, ids=PLAYED)
def test_tasks_do_not_depend_on_the_seed(made, conf):
    """Equal ids are equal questions and answers, and the same tasks are held out."""
    readers = [open_reader(load_experiment(conf, backbone="local", overrides=[f"seed={seed}"])) for seed in (0, 1)]
    for split in ("train", "validation"):
        one, other = ({task.task_id: task.model_dump() for task in reader.tasks(split)} for reader in readers)
        assert one and one == other


@pytest.mark.slow
@pytest.mark.parametrize(
    "made", [each.value for each in Template], indirect=True, ids=[each.value for each in Template]
)
def test_editors_and_coding_agents_are_told(made, conf, capsys):
    launch = json.loads((made / ".vscode" / "launch.json").read_text())
    first = launch["configurations"][0]
    assert f"${{workspaceFolder}}/{conf.name}" in first["args"] and first["module"] == "ajet"
    assert (
        json.loads((made / ".vscode" / "settings.json").read_text())["python.defaultInterpreterPath"] == sys.executable
    )
    assert conf.stem == "serve" or load_experiment(conf, backbone="debug", overrides=first["args"][-1:])
    told = (made / "AGENTS.md").read_text()
    assert f"--conf {conf.name} --dry-run" in told and "@" not in told
    if conf.stem == "jsonl":
        (line,) = (part for part in told.split("`") if "config why" in part)
        done = subprocess.run(["sh", "-c", line], cwd=made, capture_output=True, text=True)
        assert done.returncode == 0 and "rollout.temperature" in done.stdout, done.stdout + done.stderr
    if conf.stem in OWN_TASKS:
        return
    held, trained = ({json.loads(line)["question"] for line in (made / name).read_text().splitlines()}
                     for name in ("test.jsonl", "train.jsonl"))  # fmt: skip
    assert len(held) == 32 and not held & trained


@pytest.mark.slow
@pytest.mark.parametrize("made", ["app"], indirect=True)
def test_app_learns_its_table_by_demonstrations(made, capsys):
    """The table is a spreadsheet's (byte order mark, CRLF); its last fifth is held out by both YAMLs."""
    table = (made / "examples.csv").read_bytes()
    assert table.startswith(b"\xef\xbb\xbfQuestion,Team\r\n") and table.count(b"\r\n") == 81
    subprocess.run([sys.executable, str(made / "make_demonstrations.py")], check=True)
    rows = [json.loads(line) for line in (made / "demonstrations.jsonl").read_text().splitlines()]
    shown = ajet(capsys, "--conf", str(made / "app.yaml"), "--dry-run", "model.path=embedded:tiny-tools")
    assert re.search(r"tasks +64 train, 16 validation", shown), shown
    assert len(rows) == 64 and rows[0]["messages"][1]["content"] in re.sub(r"\s+", " ", shown)
    small = ["model.path=embedded:tiny-tools", "rollout.max_model_len=512", "trainer_common.threads=1"]
    ajet(capsys, "sft", "--conf", str(made / "sft.yaml"), *small, "trainer_common.total_training_steps=1")
    assert (made.parent / "launcher_record/sft/checkpoints/step-1").is_dir()


@pytest.mark.extra_slow
@pytest.mark.parametrize("made", ["app"], indirect=True)
def test_app_template_from_table_to_deployed_model(made, capsys):
    """The road of the README with its own model: learn, compare on held-out rows, deploy, run the app unchanged."""
    subprocess.run([sys.executable, str(made / "make_demonstrations.py")], check=True)
    ajet(capsys, "sft", "--conf", str(made / "sft.yaml"), "trainer_common.threads=1")
    results = made.parent / "results.csv"
    ajet(capsys, "eval", str(made / "app.yaml"), "--model", "base", "--model", "sft", "--csv", str(results))
    with results.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rates = {
        model: statistics.mean(float(row["reward"]) for row in rows if row["model"] == model)
        for model in ("base", "sft")
    }
    assert rates["sft"] - rates["base"] >= 0.5, rates
    key = "a-key-of-the-test-with-enough-bits-0123456789"
    server = start("deploy", "sft", "--port", "0", cwd=made.parent, log=made / "log", AJET_API_KEY=key)
    try:
        url = wait_for_address(server, made / "log")
        client = {**os.environ, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": key}
        asked = [sys.executable, "support_agent.py", rows[0]["question"]]
        done = subprocess.run(asked, cwd=made, env=client, capture_output=True, text=True, timeout=120)
        assert done.stdout.strip() in ("account", "billing", "returns", "shipping"), done.stdout + done.stderr
    finally:
        server.terminate()
        server.wait()


@pytest.mark.slow
@pytest.mark.parametrize("made", ["serve"], indirect=True)
def test_the_client_of_the_serve_template_plays_an_episode(made):
    key = "a-key-of-the-test-with-enough-bits-0123456789"
    environment = {**os.environ, "AJET_ADMIN_KEY": key, "OMP_NUM_THREADS": "1"}
    arguments = ["serve", "--conf", "mine/serve.yaml", *SMALL[:1], *SMALL[3:]]
    server = start(*arguments, cwd=made.parent, log=made / "log", AJET_ADMIN_KEY=key)
    try:
        url = wait_for_address(server, made / "log")
        done = subprocess.run(
            [sys.executable, "mine/client.py", url, "2"],
            cwd=made.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0 and done.stdout.splitlines() == ["completed 0.0"] * 2, done.stdout + done.stderr
    finally:
        server.terminate()
        server.wait()
