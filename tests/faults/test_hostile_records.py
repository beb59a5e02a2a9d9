"""A run's folder that somebody made to attack its reader: no command changes or shows a file outside of it, and each
ends within seconds with an answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import ajet.engine.embedded
from ajet.cli.launcher import app
from ajet.record import EpisodeFiles, RunDirectory
from ajet.schema.call import PromptReader
from ajet.schema.episode import Outcome
from ajet.schema.errors import UserError
from ajet_deploy.deploy import DeployOptions, serve_model
from ajet_viewer.app import Views, build_app
from ajet_viewer.library import Library
from ajet_viewer.view import find_speller
from tests.record.test_run_directory import experiment
from tests.support.record_fixtures import episode

pytestmark = pytest.mark.slow

TINY = Path(ajet.engine.embedded.__file__).parent / "tiny_tools"
SECRET = "the-persons-own-secret-4711"
LIMIT_S = 20.0
"""For one command; most take a tenth of a second."""
COMMANDS: dict[str, list[str]] = {
    "view": ["view", "RUN", "--html", "OUT.html"],
    "prove": ["prove", "RUN", "--ids-only"],
    "audit": ["audit", "RUN"],
    "step": ["audit", "RUN", "--step", "1"],
    "rows": ["audit", "RUN", "--export", "OUT.jsonl"],
    "status": ["status", "RUN", "--once"],
    "runs": ["runs", "--exp-dir", "ROOT"],
    "episodes": ["episodes", "RUN"],
    "report": ["report", "RUN", "--out", "OUT.zip"],
    "rejudge": ["rejudge", "RUN", "--judge", "exact", "--out", "OUT.csv"],
    "stop": ["stop", "RUN"],
    "gc": ["gc", "RUN"],
    "export": ["export", "RUN"],
    "chat": ["chat", "RUN"],
    "teach": ["sft", "--from-run", "RUN", "--exp-dir", "NEW", "model.path=embedded:tiny-tools", "sft.min_reward=1e9"],
    "collect": ["gc", "RUN", "--episodes", "0", "--checkpoints", "1", "--yes"],
}
WRITERS = {"prove": {"proof.json"}, "gc": set(), "export": {"exports"}}
"""What a command that is not `gc --yes` may leave in the folder."""


class OutOfTimeError(BaseException):
    """A command took longer than LIMIT_S."""


@contextmanager
def limited(seconds: float = LIMIT_S) -> Iterator[None]:
    def end(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps with checkpoints of a real model and a chain, as its writers write it."""
    import transformers.models.auto.tokenization_auto  # noqa: F401 — takes seconds, which are no command's

    root = tmp_path_factory.mktemp("recorded")
    with RunDirectory.open(experiment(root), root=root) as run:
        for step in (1, 2):
            run.take_up()
            played = [episode(f"train{step}{each}" * 3, step, step=step, repeat=each) for each in range(2)]
            run.episodes.write(step, "train", played, {each.uuid: Outcome(step, 0.5) for each in played})
            row = {"train/reward": step / 10, "seconds/step": 1.0, "version": step}
            run.metrics.log(step, row, tasks=[step])
            run.checkpoints.save(step, lambda to: shutil.copytree(TINY, to, dirs_exist_ok=True), {})
    assert CliRunner().invoke(app, ["chat", str(run.path)], obj={}, input="").exit_code == 0  # imports, as above
    return run.path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The person's own folder, where nothing may change."""
    home = tmp_path / "home"
    (home / "private").mkdir(parents=True)
    (home / ".bashrc").write_text(f"# {SECRET}\n")
    (home / "private" / "step-1.jsonl").write_text(json.dumps({"uuid": SECRET, "task": {"task_id": SECRET}}) + "\n")
    (home / "private" / "demo_trainer_0.log").write_text(SECRET)
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def run(recorded: Path, tmp_path: Path, home: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "record" / "demo"))


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Each file below a folder, with its content."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def ended(name: str, run: Path) -> str:
    """Run a command, hold its end to what is promised, and return what it printed and wrote."""
    outs = [run.parents[1] / f"OUT.{kind}" for kind in ("html", "jsonl", "zip", "csv")]
    for out in outs:
        out.unlink(missing_ok=True)
    words = {"RUN": str(run), "ROOT": str(run.parent), "NEW": str(run.parents[1] / "new")} | {
        out.name: str(out) for out in outs
    }
    with limited():
        done = CliRunner().invoke(app, [words.get(each, each) for each in COMMANDS[name]], obj={})
    assert done.exit_code in (0, 1, 2), (name, done.exit_code, done.output[-2000:])
    assert "Traceback" not in done.output and "unexpected" not in done.output, (name, done.output[-2000:])
    return done.output + "".join(out.read_bytes().decode(errors="replace") for out in outs if out.exists())


def asked(run: Path) -> str:
    """What the viewer answers to everything that its pages ask for."""
    client = TestClient(build_app(Views(Library.of(run), find_speller), hosts=frozenset(), key=None))
    found = []
    with limited():
        for page in ("runs", "run/demo", "live/demo", "metrics/demo", "config/demo", "rewards/demo", "tasks/demo"):
            found.append(client.get(f"/api/{page}"))
        found.append(client.get("/api/episodes/demo"))
        rows = found[-1].json().get("rows", [])[:2]
        for row in rows:
            for kind in ("episode", "tokens", "raw"):
                found.append(client.get(f"/api/{kind}/{row['uuid']}/of/demo"))
    assert all(each.status_code < 500 for each in found), [(each.url, each.status_code) for each in found]
    return "".join(each.text for each in found)


FILES = (
    *("metrics.jsonl", "status.json", "run.json", "resolved.yaml", "given.yaml", "chain.jsonl", "proof.json"),
    *("environment.json", "origins.json", "command", "notes.json", ".env", ".lock", "lock.json", "model_card.md"),
    *("episodes/step-1.jsonl", "episodes/step-1.bin", "logs/demo_trainer_0.log", ".notes.lock"),
    *("checkpoints/step-2/state.json", "checkpoints/step-2/tokenizer.json", "checkpoints/step-2/config.json"),
)
FOLDERS = ("episodes", "logs", "checkpoints", "checkpoints/step-2", "exports", "pending", "eval", "debug")


def replaced(run: Path, name: str) -> Path:
    """The place of a file or folder of the run, where nothing is any more."""
    place = run / name
    place.parent.mkdir(exist_ok=True)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    return place


def link_files(run: Path, home: Path) -> None:
    for name in FILES:
        replaced(run, name).symlink_to(home / ".bashrc")


def link_some_files(run: Path, home: Path) -> None:
    """Those without which the others are looked at."""
    for name in FILES:
        if name not in ("status.json", "run.json", "resolved.yaml", "chain.jsonl", "checkpoints/step-2/state.json"):
            replaced(run, name).symlink_to(home / ".bashrc")


def link_folders(run: Path, home: Path) -> None:
    for name in FOLDERS:
        replaced(run, name).symlink_to(home / "private")


def link_checkpoint(run: Path, home: Path) -> None:
    """A checkpoint that is whole, and lies outside."""
    shutil.copytree(run / "checkpoints" / "step-2", home / "step-2")
    replaced(run, "checkpoints/step-2").symlink_to(home / "step-2")


def link_log_of_a_failed_run(run: Path, home: Path) -> None:
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"outcome": "failed"}))
    replaced(run, "logs/demo_trainer_0.log").symlink_to(home / ".bashrc")


def link_exports(run: Path, home: Path) -> None:
    (run / "exports").symlink_to(home / "private")


def guess_temporary_names(run: Path, home: Path) -> None:
    for name in ("proof.json", "model_card.md", "lock.json", "notes.json"):
        (run / f".{name}.{os.getpid()}.aside").symlink_to(home / ".bashrc")
    (run / "exports").mkdir()
    (run / "exports" / ".step-2.partial").symlink_to(home / "private")


def make_pipes(run: Path, home: Path) -> None:
    for name in FILES:
        os.mkfifo(replaced(run, name))


def make_some_pipes(run: Path, home: Path) -> None:
    for name in FILES:
        if name not in ("status.json", "run.json", "resolved.yaml", "chain.jsonl", "checkpoints/step-2/state.json"):
            os.mkfifo(replaced(run, name))


def make_sockets(run: Path, home: Path) -> None:
    for name in ("metrics.jsonl", "chain.jsonl", "proof.json", "command"):
        with socket.socket(socket.AF_UNIX) as bound:
            replaced(run, name)
            os.chdir(run)
            try:
                bound.bind(name)
            finally:
                os.chdir(run.parents[1])


def link_to_endless_device(run: Path, home: Path) -> None:
    for name in ("metrics.jsonl", "episodes/step-1.jsonl", "episodes/step-1.bin", "chain.jsonl", "proof.json"):
        replaced(run, name).symlink_to("/dev/zero")


def write_huge_sparse_files(run: Path, home: Path) -> None:
    for name in FILES:
        place = run / name
        if place.parent.is_dir() and not place.is_dir():
            with suppress(FileNotFoundError):
                place.unlink()
            with place.open("wb") as file:
                file.truncate(1 << 40)


def write_sparse_end(run: Path, home: Path) -> None:
    """Behind what is right."""
    for name in ("metrics.jsonl", "episodes/step-1.jsonl", "episodes/step-1.bin", "chain.jsonl"):
        os.truncate(run / name, 1 << 40)


def claim_in_chain(run: Path, **claims: Any) -> None:
    """Change what each link says of the episodes."""
    links = [json.loads(line) for line in (run / "chain.jsonl").read_text().splitlines()]
    for link in links:
        for told in link.get("episodes", ()):
            for line in told["lines"]:
                line[4] = claims.get("blob_length", line[4])
                line[2] = claims.get("length", line[2])
            told["file"] = claims.get("file", told["file"])
            told["blob_at"] = claims.get("blob_at", told["blob_at"])
        if "step" in claims:
            link["step"] = claims["step"]
    (run / "chain.jsonl").write_text("".join(json.dumps(link) + "\n" for link in links))


def claim_huge_lengths(run: Path, home: Path) -> None:
    claim_in_chain(run, length=10**10, blob_length=10**10)
    path = run / "episodes" / "step-1.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["blob"]["length"] = rows[1]["blob"]["offset"] = 10**18
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def claim_a_device(run: Path, home: Path) -> None:
    claim_in_chain(run, file="/dev/zero", blob_length=10**10)


def claim_files_outside(run: Path, home: Path) -> None:
    claim_in_chain(run, file="episodes/../../../home/private/step-1.jsonl")


def claim_odd_numbers(run: Path, home: Path) -> None:
    claim_in_chain(run, step=float("inf"), blob_at=-(10**30))


def chain_many_calls(run: Path, home: Path) -> None:
    chain_calls(run, 20_000, range(10_000, 12_000))


def chain_as_many_calls_as_are_read(run: Path, home: Path) -> None:
    chain_calls(run, 8_000, [7_999])


def chain_calls(run: Path, count: int, leaves: Sequence[int]) -> None:
    """Make step 1 one episode of calls that go on from each other."""
    path = run / "episodes" / "step-1.jsonl"
    row = json.loads(path.read_text().splitlines()[0])
    first = row["calls"][0]
    empty = {name: [0, 0] for name in ("suffix_ids", "response_ids", "logprobs", "logprobs_unit")}
    calls = [first | empty | {"index": 0, "parent": None, "prefix": 0}]
    calls += [first | empty | {"index": at, "parent": at - 1, "prefix": at, "fork": None} for at in range(1, count)]
    for at, each in enumerate(calls):
        each["suffix_ids"], each["response_ids"] = [at, at + 1], [0, 0]
    raw = bytes(4 * len(calls))
    packed = zlib.compress(raw)
    path.with_suffix(".bin").write_bytes(packed)
    row |= {"arrays": {"ints": len(calls), "floats": 0}, "outcome": None}
    del row["policy"]
    for each in calls:
        each["versions"] = []
        each.pop("teacher", None)
    row |= {"blob": {"offset": 0, "length": len(packed), "crc32": zlib.crc32(packed)}}
    lines = [{"leaf": at, "agent": "a", "target": "policy", "spans": []} for at in leaves]
    path.write_text(json.dumps(row | {"calls": calls, "timelines": lines}) + "\n")


def nest_deeply(run: Path, home: Path) -> None:
    deep = "[" * 200_000
    for name in ("metrics.jsonl", "episodes/step-1.jsonl", "chain.jsonl", "proof.json", "run.json", "notes.json"):
        (run / name).write_text('{"step": 1, "uuid": ' + deep + "\n")
    (run / "resolved.yaml").write_text("ajet: " + "{a: " * 5000)


def write_many_values(run: Path, home: Path) -> None:
    many = "{}," * 1_500_000
    for name in ("metrics.jsonl", "episodes/step-1.jsonl"):
        with (run / name).open("a") as file:
            file.write('{"step": 3, "tasks": [' + many + "{}]}\n")


HOSTILE: dict[str, Callable[[Path, Path], None]] = {
    each.__name__: each
    for each in (
        *(link_files, link_some_files, link_folders, link_log_of_a_failed_run, link_exports, link_checkpoint),
        *(guess_temporary_names, make_pipes),
        *(make_some_pipes, make_sockets, link_to_endless_device, write_huge_sparse_files, write_sparse_end),
        *(claim_huge_lengths, claim_a_device, claim_files_outside, claim_odd_numbers, chain_many_calls),
        chain_as_many_calls_as_are_read,
        *(nest_deeply, write_many_values),
    )
}


LOADING = {"chat", "teach"}
"""Commands that load a model for seconds: tried on a folder with links and on one with pipes."""
WITH_MODELS = {"link_some_files", "make_some_pipes"}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_folder_reaches_nothing_outside(kind, run, home):
    HOSTILE[kind](run, home)
    before = listing(home)
    for name in COMMANDS if kind in WITH_MODELS else sorted(COMMANDS.keys() - LOADING):
        there = {path.name for path in run.iterdir()}
        assert SECRET not in ended(name, run), name
        assert listing(home) == before, name
        if name != "collect":
            assert {path.name for path in run.iterdir()} - there <= WRITERS.get(name, set()), name
    assert SECRET not in asked(run)
    assert listing(home) == before


@pytest.mark.parametrize("kind", ["guess_temporary_names", "link_some_files", "make_some_pipes", "link_folders"])
def test_deploying_a_hostile_folder_reaches_nothing_outside(kind, run, home, monkeypatch):
    monkeypatch.setenv("AJET_API_KEY", "a-key-of-my-own-0123456789")
    HOSTILE[kind](run, home)
    before = listing(home)
    with limited(), suppress(UserError), serve_model(DeployOptions("demo", run.parent)):
        pass
    assert listing(home) == before
    assert not (run / "model_card.md").is_symlink() or kind != "guess_temporary_names"


class Swapper:
    """A thread that makes a file of the run a link and a file again, as fast as it can."""

    def __init__(self, place: Path, to: Path) -> None:
        self._place, self._to, self._end = place, to, threading.Event()
        self._thread = threading.Thread(target=self._swap)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _swap(self) -> None:
        own, link = self._place.with_name(".own"), self._place.with_name(".link")
        shutil.copy(self._place, own)
        while not self._end.is_set():
            link.symlink_to(self._to)
            os.replace(link, self._place)
            time.sleep(0.0005)
            os.link(own, link)
            os.replace(link, self._place)
            time.sleep(0.0005)


@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes/step-1.jsonl", "command"])
def test_a_file_swapped_for_a_link_is_never_shown(name, run, home):
    before = listing(home)
    with Swapper(run / name, home / ".bashrc"):
        for command in ("view", "report", "episodes", "audit"):
            assert SECRET not in ended(command, run), command
        for _ in range(5):
            assert SECRET not in asked(run)
    assert listing(home) == before


def test_a_card_holds_a_records_text_as_text(run, monkeypatch):
    said = "$(touch PWNED)\n# Heading <img src=x> `code` [a](//evil.example/x) \x1b[31m"
    settings = json.dumps({"ajet": {"backbone": "local", "model": {"path": said}}})
    (run / "resolved.yaml").write_text(settings)
    (run / "environment.json").write_text(json.dumps({"packages": ["ajet"], "gpus": 5, "python": "3\n# Heading"}))
    ended("export", run)
    card = (run / "exports" / "step-2" / "model_card.md").read_text()
    headings = [line for line in card.splitlines() if line.startswith("#")]
    assert not any("Heading" in line for line in headings)
    assert "\n# Heading" not in card and "\x1b" not in card and "](//" not in card
    assert "<img" not in card.replace("\\<img", "")


@pytest.mark.parametrize("where", ["run", "record"])
def test_a_run_is_reached_through_the_users_own_link(where, run, home, recorded):
    disk = run.parents[1] / "disk"
    moved = run if where == "run" else run.parent
    shutil.move(moved, disk)
    moved.symlink_to(disk)
    for name in ("prove", "audit", "episodes", "view", "export"):
        printed = ended(name, run)
        assert "does not open" not in printed, name
    assert (run / "proof.json").is_file() and (run / "exports" / "step-2" / "config.json").is_file()
    with RunDirectory.open(experiment(run.parent), root=run.parent) as opened:
        assert opened.resumed is not None and opened.resumed.step == 2


def test_a_linked_folder_inside_is_refused_before_a_resume(run, home):
    shutil.move(run / "episodes", home / "episodes")
    (run / "episodes").symlink_to(home / "episodes")
    before = listing(home)
    with pytest.raises(UserError) as refused:
        RunDirectory.open(experiment(run.parent), root=run.parent)
    assert str(run / "episodes") in refused.value.where
    assert listing(home) == before


@pytest.mark.parametrize("given", ["9" * 5000, "²", "-1", "1e3", "９"])
@pytest.mark.parametrize("place", ["metrics/demo?start=", "episodes/demo?offset=", "episodes/demo?limit="])
def test_a_number_that_is_none_is_a_bad_request(place, given, run):
    client = TestClient(build_app(Views(Library.of(run), find_speller), hosts=frozenset(), key=None))
    name = place.rpartition("?")[2].rstrip("=")
    answer = client.get(f"/api/{place}{given}")
    assert answer.status_code == 400 and name in answer.json()["error"] and len(answer.json()["error"]) < 200


def test_episode_of_thousands_of_calls_in_a_row_is_read(run):
    chain_calls(run, 5_000, [4_999])
    (read,) = EpisodeFiles(run / "episodes").read(1)
    assert len(read.calls) == 5_000 and len(read.timelines[0].ids) == 5_000
    assert len(PromptReader(read.calls).full_ids(4_999)) == 5_000
