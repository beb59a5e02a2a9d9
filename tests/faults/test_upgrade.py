"""What earlier versions left is read, shown, proven and continued by this one: `tests/upgrade/VERSION/*.tar.xz`.

Each version's archives hold what its own command line wrote (`tests/upgrade/make.py` says how): a local run that was
killed in the middle of a step, with oversampling; one of verl in an asynchronous mode, killed with groups waiting; a
server that was killed with episodes pending; a debug run with tools and forks; and the YAMLs that it shipped. The
expectations are read from the archived files as plain JSON, not with the code under test.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ajet.record.earlier_schemas import todays
from ajet.run.summary import Tally
from tests.ajet_command import ajet, metric_rows
from tests.verl_fixtures import without_verl
from tests.verl_runs import skip_without_verl

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parents[1] / "upgrade"
VERSIONS = sorted(path.parent.name for path in HERE.glob("*/project.tar.xz"))
MADE_IN = "/srv/ajet-upgrade/project"
"""Where all of them were made (`tests/upgrade/make.py`)."""
MADE_ON = '"a-machine"'
KEY = "upgrade-test-admin-key-9f2c71d04be35a68"
RUNS = {"local": "local", "served": "served", "verl": "verl", "debug": "debug/debug/"}
"""Of an archive: what the name of its run begins with."""

Command = Callable[..., str]


@dataclass
class Old:
    """An unpacked project of an earlier version with one of its runs."""

    project: Path
    run: Path

    @property
    def name(self) -> str:
        return str(self.run.relative_to(self.project / "launcher_record"))

    def episodes(self, folder: str = "episodes") -> list[dict[str, Any]]:
        """The lines of its files, in today's schema, with the step of the file that each is in."""
        files = sorted((self.run / folder).glob("*.jsonl"))
        lines = ((path, todays(json.loads(line))) for path in files for line in path.read_text().splitlines())
        return [row | {"file": int(path.name.split(".")[0].removeprefix("step-"))} for path, row in lines]

    def checkpoint(self) -> dict[str, Any]:
        """What its last one says of itself."""
        last = max((self.run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.split("-")[1]))
        state: dict[str, Any] = json.loads((last / "state.json").read_text())
        return state


def unpacked(version: str, kind: str, folder: Path) -> Old:
    """That run, in a new place on this machine, as if it had been killed here."""
    for archive in ("project", kind):
        with tarfile.open(HERE / version / f"{archive}.tar.xz") as file:
            file.extractall(folder)
    project = folder / "project"
    (run,) = (path.parent for path in (project / "launcher_record").rglob("status.json"))
    # A run's identity holds absolute paths, and its lock the machine, so a moved run counts as another one, or as one
    # that lives elsewhere. Until a project can be moved as it is, what names the place is moved with it.
    for name in ("run.json", "resolved.yaml", "status.json", "lock.json"):
        path = run / name
        if path.exists():
            text = path.read_text().replace(MADE_IN, str(project)).replace(MADE_ON, json.dumps(socket.gethostname()))
            path.write_text(text)
    return Old(project, run)


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """`ajet ARGUMENTS` in this process: what it prints; its exit code is 0."""
    from ajet.cli.launcher import main

    monkeypatch.setenv("COLUMNS", "500")

    def run(*arguments: str, cwd: Path) -> str:
        monkeypatch.chdir(cwd)
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = "".join(capfd.readouterr())
        assert ended.value.code == 0, printed
        return printed

    return run


def names_of(version: str, pattern: str) -> list[str]:
    """The files of an archive that are meant."""
    with tarfile.open(HERE / version / "yamls.tar.xz") as file:
        return sorted(name for name in file.getnames() if Path(name).match(pattern))


@pytest.mark.parametrize(
    ("version", "name"), [(version, name) for version in VERSIONS for name in names_of(version, "*.yaml")]
)
def test_a_yaml_that_was_shipped_is_valid(version: str, name: str, tmp_path: Path, command: Command):
    with tarfile.open(HERE / version / "yamls.tar.xz") as file:
        file.extractall(tmp_path)
    assert "is valid" in command("config", "validate", "--conf", name, cwd=tmp_path)


@without_verl
@pytest.mark.parametrize("kind", RUNS)
def test_the_yamls_of_a_run_are_valid(version: str, kind: str, tmp_path: Path, command: Command):
    old = unpacked(version, kind, tmp_path)
    serving = ["task_reader.type=agent.py->Prices", "rollout.user_workflow=agent.py->PriceAgent"]
    more = serving if kind == "served" else []  # what `ajet serve` does without
    for yaml in (old.project / f"{kind}.yaml", old.run / "resolved.yaml"):
        assert "is valid" in command("config", "validate", "--conf", str(yaml), *more, cwd=old.project)


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_is_listed_shown_and_proven(version: str, kind: str, tmp_path: Path, command: Command):
    old = unpacked(version, kind, tmp_path)
    assert old.name.startswith(RUNS[kind])
    (line,) = (line for line in command("runs", cwd=old.project).splitlines() if old.name in line)
    assert ("finished" if kind == "debug" else "stopped") in line

    recorded = old.episodes()
    splits = Counter(episode["split"] for episode in recorded)
    for split, count in splits.items():
        shown = command("episodes", old.name, "--split", split, "--worst", "999", cwd=old.project)
        tasks = Counter(episode["task"]["task_id"] for episode in recorded if episode["split"] == split)
        assert {task: shown.count(task) >= 1 for task in tasks} == dict.fromkeys(tasks, True), (split, count)

    page = tmp_path / "page.html"
    command("view", old.name, "--html", str(page), cwd=old.project)
    data = frozen(page)
    assert {row["uuid"]: row["reward"] for row in data["episodes"]} == {
        episode["uuid"]: episode["verdict"]["reward"] for episode in recorded
    }
    for episode in recorded:
        shown_calls = data["pages"][episode["uuid"]]["calls"]
        assert [call["fork"] for call in shown_calls] == [call["fork"] for call in episode["calls"]]
    if kind == "debug":
        forks = [call["fork"] for episode in recorded for call in episode["calls"]]
        assert "client_edit" in forks and any(len(episode["calls"]) > 2 for episode in recorded)

    report = json.loads(command("prove", old.name, "--ids-only", "--json", cwd=old.project))
    assert report["ok"] is True and report["episodes"] == len(recorded)


def frozen(page: Path) -> dict[str, Any]:
    """The data of a page that `ajet view --html` wrote."""
    text = page.read_text()
    inner = text.split('id="frozen">', 1)[1].split("</script>", 1)[0]
    data: dict[str, Any] = json.loads(inner)
    return data


@pytest.mark.parametrize("kind", ["local", "served"])
def test_a_checkpoint_is_proven_exported_and_talked_to(version: str, kind: str, tmp_path: Path, command: Command):
    old = unpacked(version, kind, tmp_path)
    step = old.checkpoint()["step"]
    if kind == "local":  # its weights played the step after it
        report = json.loads(command("prove", old.name, "--step", str(step + 1), "--json", cwd=old.project))
        assert report["ok"] is True
    command("export", old.name, cwd=old.project)
    assert (old.run / "exports" / f"step-{step}" / "model.safetensors").is_file()
    assert "model:" in command("chat", old.name, "--prompt", "What does the eel cost?", cwd=old.project)


def test_a_local_run_that_was_killed_with_oversampling_goes_on(version: str, tmp_path: Path, command: Command):
    old = unpacked(version, "local", tmp_path)
    before = metric_rows(old.run)
    saved = old.checkpoint()
    frontier = saved["state"]["frontier"]
    assert saved["step"] == 2 and max(row["step"] for row in before) == 3 and frontier["unfinished"]
    kept = {path.name: path.read_bytes() for path in (old.run / "episodes").glob("step-[012].*")}

    command("--conf", "local.yaml", cwd=old.project)

    assert [path.name for path in (old.project / "launcher_record").iterdir()] == ["local"], "it is the same run"
    rows = metric_rows(old.run)
    assert [row["step"] for row in rows if "tasks" in row] == [1, 2, 3, 4, 5]
    assert [row for row in rows if row["step"] <= 2] == [row for row in before if row["step"] <= 2]
    assert {path.name: path.read_bytes() for path in (old.run / "episodes").glob("step-[012].*")} == kept
    tally = Tally.of(rows)
    assert (tally.skipped, tally.doubled, tally.failed) == (0, 0, 0)
    begun = [{name: row.get(name, []) for name in ("tasks", "discarded", "waiting")} for row in rows if "tasks" in row]
    assert all(sum(map(len, row.values())) == 4 for row in begun[2:]), (
        "each task that a step began is said to be somewhere"
    )
    later = [task for row in rows if row["step"] > 2 for task in row.get("tasks", [])]
    assert set(frontier["unfinished"]) <= set(later), "what was under way comes back first"
    assert max(row["version"] for row in rows if "version" in row) == 5
    report = json.loads(command("prove", old.name, "--json", cwd=old.project))
    assert report["ok"] is True


def answered(url: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
    """A POST."""
    answer = httpx.post(url, json=body, headers={"authorization": f"Bearer {key}"}, timeout=60)
    assert answer.status_code < 300, answer.text
    found: dict[str, Any] = answer.json()
    return found


class Client(threading.Thread):
    """Plays what is missing, once the server of a run answers. A server that waits for more than that is interrupted,
    as by Ctrl-C: it has lost what it should have had."""

    def __init__(self, run: Path, episodes: list[tuple[str, float]]) -> None:
        super().__init__(daemon=True)
        self.run_folder, self.wanted = run, episodes
        self.ended: list[dict[str, Any]] = []
        self.over = threading.Event()

    def run(self) -> None:
        try:
            self.play()
        finally:
            if not self.over.wait(600):
                os.kill(os.getpid(), signal.SIGINT)

    def play(self) -> None:
        url = None
        while url is None and not self.over.is_set():
            status = json.loads((self.run_folder / "status.json").read_text())
            url = status.get("url") if status.get("phase") == "serving" and status.get("pid") == os.getpid() else None
            time.sleep(0.02)
        for task, reward in self.wanted if url else ():
            opened = answered(f"{url}/episodes", KEY, {"task": task})
            body = {"model": "ajet", "messages": [{"role": "user", "content": task}]}
            answered(f"{opened['base_url']}/chat/completions", opened["api_key"], body)
            self.ended.append(answered(f"{url}/episodes/{opened['episode']}/finish", KEY, {"reward": reward}))


def test_episodes_that_a_killed_server_acknowledged_are_trained_once(
    version: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    old = unpacked(version, "served", tmp_path)
    pending = {episode["uuid"]: episode for episode in old.episodes("pending")}
    assert len(pending) == 3 and old.checkpoint()["step"] == 1
    monkeypatch.setenv("AJET_ADMIN_KEY", KEY)
    client = Client(old.run, [(f"What does {task} cost?", reward) for task, reward in (("d", 0.0), *LAST)])
    client.start()
    try:
        command("serve", "--conf", "served.yaml", cwd=old.project)
    finally:
        client.over.set()
        client.join(60)

    rows = metric_rows(old.run)
    assert [row["step"] for row in rows if "version" in row] == [1, 2, 3]
    trained = [episode for episode in old.episodes() if episode["split"] == "train"]
    played = {told["episode"] for told in client.ended}
    now = Counter(episode["uuid"] for episode in trained if episode["file"] > 1)
    assert now == Counter({**dict.fromkeys(pending, 1), **dict.fromkeys(played, 1)}), "each once, and none is missing"
    tasks = {step: {e["task"]["main_query"] for e in trained if e["file"] == step} for step in (2, 3)}
    assert tasks == {2: {"What does c cost?", "What does d cost?"}, 3: {task for task, _ in asked(LAST)}}
    for episode in trained:
        if then := pending.get(episode["uuid"]):
            assert episode["verdict"]["reward"] == then["verdict"]["reward"] and episode["outcome"]["advantage"]
    assert not list((old.run / "pending").iterdir()), "what a checkpoint has is kept nowhere else"


LAST = (("e", 0.0), ("e", 1.0), ("f", 0.25), ("f", 0.75))


def asked(episodes: tuple[tuple[str, float], ...]) -> list[tuple[str, float]]:
    return [(f"What does {task} cost?", reward) for task, reward in episodes]


@without_verl
def test_the_groups_that_wait_in_a_checkpoint_of_verl_are_read(version: str, tmp_path: Path):
    """With what a launch restores them with; `test_a_killed_run_of_verl_goes_on` launches."""
    from ajet.backbone.verl.tickets import Tickets, open_verl_store, without_rows
    from ajet.config import Experiment
    from ajet.record.checkpoints import Checkpoints

    old = unpacked(version, "verl", tmp_path)
    state = old.checkpoint()["state"]
    expected = [json.loads(line) for line in waiting_file(old).read_text().splitlines()]
    waited = sorted(order for order, _ in state["waiting"])
    assert waited
    checkpoint = Checkpoints(old.run / "checkpoints").latest()
    assert checkpoint is not None
    linked = without_rows(checkpoint.path / state["verl"], tmp_path / "resumed")
    assert linked.name == state["verl"] and [path.name for path in linked.iterdir()] == ["actor"]
    run_id = json.loads((old.run / "run.json").read_text())["run_id"]
    experiment = Experiment.from_dict({"ajet": {}}, base=tmp_path)
    run: Any = SimpleNamespace(path=old.run, run_id=run_id, resumed=checkpoint, redact=None, experiment=experiment)
    order: Any = SimpleNamespace(require_same=lambda saved: None, task=lambda position: position)
    (_, sessions), *_ = state["waiting"]
    grants = Tickets(open_verl_store(run, order, sessions=sessions), order, batch=8).due()
    groups = [grant.group for grant in grants if grant.group is not None]
    assert [group.order for group in groups] == waited == [grant.order for grant in grants[: len(waited)]]
    over = {order for row in metric_rows(old.run) if row["step"] <= 2 for order in row.get("tasks", ())}
    assert over and not over & {grant.order for grant in grants}
    assert max(over) < max(grant.order for grant in grants) < max(over) + len(grants) + 1, "none is passed over"
    found = {episode.uuid: episode for group in groups for episode in group.episodes}
    assert sorted(found) == sorted(episode["uuid"] for episode in expected)
    rewards = {episode["uuid"]: episode["verdict"]["reward"] for episode in expected}
    assert {name: episode.reward for name, episode in found.items()} == rewards
    assert all(episode.timelines and episode.sampled_tokens for episode in found.values())


def waiting_file(old: Old) -> Path:
    step = old.checkpoint()["step"]
    (path,) = (old.run / "checkpoints" / f"step-{step}" / "waiting").glob("*.jsonl")
    return path


@pytest.mark.extra_slow
@pytest.mark.boots
def test_a_killed_run_of_verl_goes_on(version: str, tmp_path: Path):
    skip_without_verl()
    old = unpacked(version, "verl", tmp_path)
    waited = {order for order, _ in old.checkpoint()["state"]["waiting"]}
    waited_episodes = {json.loads(line)["uuid"] for line in waiting_file(old).read_text().splitlines()}
    done = ajet("--conf", "verl.yaml", "--with-ray", cwd=old.project, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:]
    rows = [row for row in metric_rows(old.run) if "tasks" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    later = [order for row in rows[2:] for order in [*row["tasks"], *row["discarded"]]]
    assert waited <= set(later)
    seen = [order for row in rows for order in [*row["tasks"], *row["discarded"]]]
    assert len(seen) == len(set(seen)), "nothing is trained twice"
    assert waited_episodes <= {episode["uuid"] for episode in old.episodes()}
    exported = ajet("export", "verl", cwd=old.project)
    assert exported.returncode == 0, exported.stdout
