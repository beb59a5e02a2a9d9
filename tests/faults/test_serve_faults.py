"""What clients, agents, judges and machines do wrong to `ajet serve`: each is answered, and stops no other."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from ajet.record import EpisodeFiles, read_status
from ajet.schema.episode import Episode, Outcome
from tests.support.ajet_process import ajet, metric_rows, start
from tests.support.gateways import ScriptedReply
from tests.support.hostile_requests import lattice
from tests.support.rollouts import judge_time_is_up
from tests.support.runs import audit_run, count_tasks, prove_run
from tests.support.served import start_serving

pytestmark = pytest.mark.slow

KEY = "the-admin-key-of-these-tests"


def test_an_episode_that_nobody_asks_anything_of_fails_by_itself():
    with start_serving(gateway={"idle_timeout": 0.3}) as served:
        silent, used = served.open(task="a"), served.open(task="b")
        served.ask(used)
        for opened in (served.take_episode(), served.take_episode()):
            assert opened.status == "failed" and "gateway.idle_timeout" in (opened.failure.message or "")
        assert served.client.get(f"/episodes/{silent['episode']}").json()["reason"].startswith("no model call for 0.3")
        late = served.finish(used, reward=1)
        assert late.status_code == 409 and "no model call" in late.json()["error"]["message"]
        assert served.ask(used).status_code == 410


def test_an_episode_is_not_idle_while_a_call_of_its_runs():
    asked, answer = threading.Event(), threading.Event()

    def slowly(_: Any) -> ScriptedReply:
        asked.set()
        answer.wait(60)
        return ScriptedReply("slow")

    limits: dict[str, Any] = {"gateway": {"idle_timeout": 600}, "episode_timeout": None}
    with start_serving(slowly, **limits) as served, ThreadPoolExecutor() as pool:
        opened = served.open(task="a")
        asking = pool.submit(served.ask, opened)
        assert asked.wait(60)
        served.forgotten(opened["episode"])
        served.looked()
        answer.set()
        assert asking.result().status_code == 200
        assert served.finish(opened, reward=1).json()["status"] == "completed"


def test_an_episode_has_a_time_limit_however_busy_it_is():
    with start_serving(episode_timeout=0.4) as served:
        opened = served.open(task="a")
        until = time.monotonic() + 60
        while (answer := served.ask(opened)).status_code == 200 and time.monotonic() < until:
            pass
        assert answer.status_code == 410
        ended = served.take_episode()
        assert ended.failure is not None and "rollout.episode_timeout" in ended.failure.message


BAD_OPENINGS: list[tuple[Any, str | None]] = [
    ({"task": 3}, "task"),
    ({"task": {"nothing": 1}}, "task"),
    ({"task": {"question": ["x"]}}, "task"),
    ({"task": {"question": "q", "id": {}}}, "task"),
    ({"task": "  "}, "task"),
    ({"task": "q", "agent": ""}, "agent"),
    ({"task": "q", "trainable_targets": "solver"}, "trainable_targets"),
    ({"task": "q", "train": "no"}, "train"),
    ({"task": "q", "surprise": 1}, "surprise"),
    ({"train": False}, "task"),
]


@pytest.mark.parametrize(("body", "field"), BAD_OPENINGS, ids=lambda value: json.dumps(value)[:40])
def test_an_opening_that_cannot_be_honoured_is_refused_by_its_field(body, field, shared):
    answer = shared.client.post("/episodes", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == field
    assert shared.client.get("/episodes").json()["open"] == []


@pytest.fixture(scope="module")
def shared():
    with start_serving(backlog=9) as served:
        yield served


BAD_BODIES = [b"{", b"[]", b"null", b'"text"', b"\xff", b'{"task": "\\ud800"}', b"[" * 100_000, b'{"task": NaN}']
BAD_VALUES = [
    b'"\\ud800"',
    b'{"\\udfff": 1}',
    b"9" * 5_000,
    b"-" + b"9" * 5_000,
    b"NaN",
    b"1e999",
    b"[" * 900 + b"]" * 900,
]
BAD_BODIES += [b'{"task": {"main_query": "q", "metadata": {"a": [%b]}}}' % value for value in BAD_VALUES]


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:20]))
def test_a_body_that_is_no_object_is_refused(body, shared):
    answer = shared.client.post("/episodes", content=body)
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_a_body_of_100_megabytes_is_refused(shared):
    answer = shared.client.post("/episodes", content=b" " * (100 << 20))
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    "body",
    [
        {"reward": "much"},
        {"reward": True},
        {"reward": [1, "x"]},
        {"success": "yes"},
        {"metadata": []},
        {"metrics": {"a": "b"}},
        {"score": 1},
    ],
    ids=json.dumps,
)
def test_an_outcome_that_is_none_leaves_the_episode_open(body, shared):
    opened = shared.open(task="q", train=False)
    shared.ask(opened)
    answer = shared.finish(opened, **body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == next(iter(body))
    endless = shared.client.post(f"/episodes/{opened['episode']}/finish", content=b'{"reward": Infinity}')
    assert endless.status_code == 400
    assert shared.finish(opened, reward=1).status_code == 200


def test_values_that_json_cannot_hold_leave_the_episode_open(shared):
    opened = shared.open(task="q", train=False)
    shared.ask(opened)
    for value in BAD_VALUES[:-1]:
        for field in (b"metadata", b"metrics"):
            body = b'{"reward": 1, "%b": {"a": %b}}' % (field, value)
            answer = shared.client.post(f"/episodes/{opened['episode']}/finish", content=body)
            assert answer.status_code == 400, body[:60]
    assert shared.finish(opened, reward=1).status_code == 200


def test_unknown_episodes_and_methods(shared):
    for method, path in (("GET", "/episodes/x"), ("DELETE", "/episodes/x"), ("POST", "/episodes/x/finish")):
        answer = shared.client.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "episode_not_found")
    wrong = shared.client.put("/episodes")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD, POST")


def test_an_engine_that_fails_in_the_last_call_fails_the_episode():
    with start_serving(lambda _: ScriptedReply("half a reply", fail_after=2)) as served:
        opened = served.open(task="a")
        assert served.ask(opened).status_code == 503
        told = served.finish(opened, reward=1).json()
        assert (told["status"], told["boundary"]) == ("failed", "engine")
        assert served.take_episode().sampled_tokens == 2


class Hanging:
    """A judge that never ends."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()

    def compute_reward(self, workflow_task: Any, workflow_output: Any) -> tuple[float, bool]:
        self.asked.set()
        self.go.wait(60)
        return 1.0, True


def test_a_judge_that_hangs_costs_its_episode_and_a_client_that_leaves_does_not():
    judge, over = Hanging(), threading.Event()
    with start_serving(judge=judge, episode_timeout=600) as served, judge_time_is_up(over.is_set):
        opened, other = served.open(task="a"), served.open(task="b")
        served.ask(opened)
        served.ask(other)
        url = served.client.base_url
        head = f"POST /episodes/{opened['episode']}/finish HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
        with socket.create_connection((url.host, url.port)) as leaves:
            leaves.sendall(f"{head}authorization: {served.client.headers['authorization']}\r\n\r\n{{}}".encode())
            assert judge.asked.wait(60)
        assert served.finish(other, reward=1).json()["status"] == "completed", "a reward needs no judge"
        assert served.take_episode().uuid == other["episode"]
        over.set()
        hung = served.take_episode()
        assert hung.failure is not None and (hung.failure.boundary, hung.failure.kind) == ("judge", "timeout")
        judge.go.set()


def test_deleting_an_episode_ends_its_judging():
    judge = Hanging()
    with start_serving(judge=judge) as served, ThreadPoolExecutor() as pool:
        opened = served.open(task="a")
        served.ask(opened)
        finishing = pool.submit(served.finish, opened)
        assert judge.asked.wait(60)
        assert served.client.delete(f"/episodes/{opened['episode']}").json()["status"] == "aborted"
        assert finishing.result(60).json()["status"] == "aborted"
        judge.go.set()


WORSE_KEYS = ("schlüssel-" * 4, "0123456789" * 3, "hunter2-hunter2")


@pytest.mark.parametrize(
    "key", ["a space in a long enough key", *(pytest.param(key, marks=pytest.mark.extra_slow) for key in WORSE_KEYS)]
)
def test_a_key_that_is_none_is_refused_before_anything_starts(key, tmp_path):
    done = ajet("serve", "model.path=embedded:tiny-tools", cwd=tmp_path, AJET_ADMIN_KEY=key)
    assert done.returncode == 2 and "AJET_ADMIN_KEY" in done.stdout and key not in done.stdout
    assert not (tmp_path / "launcher_record").exists()


def address(folder: Path, process: Any, log: Path) -> str:
    """Where it serves, once it does."""
    while process.poll() is None:
        found = [path for path in folder.rglob("status.json")] if folder.exists() else []
        urls = [status["url"] for path in found if (status := read_status(path.parent)) and status.get("url")]
        if urls and not (read_status(found[0].parent) or {}).get("ended"):
            return str(urls[0])
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def begin(root: str, **body: Any) -> str:
    """An episode by plain HTTP, with one call and no end yet. Its id."""
    admin = {"authorization": f"Bearer {KEY}"}
    until = time.monotonic() + 300
    while (answer := httpx.post(f"{root}/episodes", json=body, headers=admin, timeout=60)).status_code == 429:
        assert time.monotonic() < until, answer.text
        time.sleep(0.05)
    opened = answer.json()
    asked = {"model": "ajet", "messages": [{"role": "user", "content": "What does the eel cost?"}]}
    key = {"authorization": f"Bearer {opened['api_key']}"}
    httpx.post(f"{opened['base_url']}/chat/completions", json=asked, headers=key, timeout=60).raise_for_status()
    return str(opened["episode"])


def end(root: str, episode: str, reward: float) -> dict[str, Any]:
    """The answer to its finish."""
    admin = {"authorization": f"Bearer {KEY}"}
    url = f"{root}/episodes/{episode}/finish"
    ended: dict[str, Any] = httpx.post(url, json={"reward": reward}, headers=admin, timeout=60).json()
    return ended


def play(root: str, reward: float, **body: Any) -> dict[str, Any]:
    """One episode, both."""
    return end(root, begin(root, **body), reward)


SMALL = [
    "model.path=embedded:tiny-tools", "rollout.num_repeat=2", "data.train_batch_size=1", "trainer_common.threads=1",
    "rollout.max_response_length_in_one_turn=8", "rollout.max_model_len=128", "trainer_common.save_freq=1",
    "trainer_common.optim.lr=1e-4", "trainer_common.use_kl_loss=false",
]  # fmt: skip


@pytest.mark.slow
def test_a_recording_server_that_is_killed_has_what_it_answered_for(tmp_path):
    log = tmp_path / "log"
    process = start("serve", *SMALL, cwd=tmp_path, log=log, AJET_ADMIN_KEY=KEY)
    try:
        root = address(tmp_path / "launcher_record", process, log)
        ended = [play(root, n / 4, task=f"What does item {n} cost?") for n in range(4)]
        (file,) = (path for path in _until(lambda: list((tmp_path / "launcher_record").rglob("step-0.debug.jsonl"))))
        _until(lambda: len(file.read_text().splitlines()) == 4)
    finally:
        process.kill()
        process.wait()
    found = list(EpisodeFiles(file.parent).read(0, "debug"))
    assert [episode.uuid for episode in found] == [row["episode"] for row in ended]
    assert [episode.reward for episode in found] == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.slow
def test_a_training_server_that_is_killed_goes_on_and_one_that_is_interrupted_leaves_nothing_out(tmp_path):
    log = tmp_path / "log"
    command = ["serve", "--backbone", "local", *SMALL, "trainer_common.total_training_steps=4"]
    command += ["task_reader.type=random_dummy", "task_reader.random_dummy.validation_size=2"]
    run = tmp_path / "launcher_record" / "serve"

    process = start(*command, cwd=tmp_path, log=log, AJET_ADMIN_KEY=KEY)
    root = address(run, process, log)
    late = begin(root, task="task 1")
    play(root, 0.0, task="task 0")
    play(root, 1.0, task="task 0")
    _until(lambda: (run / "checkpoints" / "step-1").exists())
    end(root, late, 0.0)
    play(root, 1.0, task="task 1")
    _until(lambda: (run / "checkpoints" / "step-2").exists())
    process.kill()
    process.wait()
    assert "with importance weight min(trainer's probability / engine's, 2)" in " ".join(log.read_text().split())
    first, second = metric_rows(run)
    assert "stale_fraction" not in first and 0 < second["stale_fraction"] < 1 and second["train/staleness_max"] == 1
    assert 0.5 < second["stale_is_weight_mean"] < 2 and second["stale_is_weight_mean"] != 1

    (run / "status.json").unlink()
    process = start(*command, cwd=tmp_path, log=log, AJET_ADMIN_KEY=KEY)
    root = address(run, process, log)
    assert metric_rows(run)[-1]["step"] == 2
    play(root, 0.0, task="task 2")
    play(root, 1.0, task="task 2")
    _until(lambda: len(metric_rows(run)) == 3)
    half = play(root, 1.0, task="task 3")
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=240) == 130, log.read_text()
    assert (run / "checkpoints" / "step-3").exists()
    kept = {recorded[0].uuid: recorded for recorded in EpisodeFiles(run / "episodes").recorded(3)}
    episode, outcome = kept[half["episode"]]
    assert outcome.discarded == "oversampled" and outcome.untrained == {"oversampled": episode.sampled_tokens}
    assert (read_status(run) or {})["outcome"] == "interrupted"

    (run / "status.json").unlink()
    process = start(*command, cwd=tmp_path, log=log, AJET_ADMIN_KEY=KEY)
    root = address(run, process, log)
    held_out = [play(root, float(n), task="nobody trains on it", held_out=True)["episode"] for n in range(2)]
    given = [play(root, 1.0, held_out=True) for _ in range(2)]
    play(root, 0.0, task="task 4")
    play(root, 1.0, task="task 4")
    assert process.wait(timeout=240) == 0, log.read_text()
    validation = EpisodeFiles(run / "episodes").read(4, "validation")
    assert [(each.uuid, each.repeat) for each in validation] == [
        (held_out[0], 0), (held_out[1], 1), *((each["episode"], 0) for each in given)
    ]  # fmt: skip
    assert len({each.task.task_id for each in validation}) == 3, "each of the server's own once"
    assert not any(call.trained for each in validation for call in each.calls)
    (validated,) = (row for row in metric_rows(run) if "tasks" not in row)
    assert (validated["step"], validated["validation/tasks"], validated["validation/reward"]) == (4, 3, 0.75)
    rows = [row for row in metric_rows(run) if "tasks" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and count_tasks(rows) == (0, 0, ())
    assert [row["version"] for row in rows] == [1, 2, 3, 4]


def _until(condition: Any) -> Any:
    """What it answers once that is true; the test's own limit ends the waiting."""
    deadline = time.monotonic() + 240
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)
    return found


def episodes_of(run: Path) -> list[tuple[int, Episode, Outcome]]:
    files = EpisodeFiles(run / "episodes")
    return [(step, *recorded) for step in files.steps() for recorded in files.recorded(step)]


@pytest.mark.slow
def test_sigterm_ends_server_during_hostile_requests(tmp_path):
    log = tmp_path / "log"
    process = start("serve", *SMALL, "trainer_common.grace=1", cwd=tmp_path, log=log, AJET_ADMIN_KEY=KEY)
    try:
        root = address(tmp_path / "launcher_record", process, log)
        admin = {"authorization": f"Bearer {KEY}"}
        opened = httpx.post(f"{root}/episodes", json={"task": "a"}, headers=admin, timeout=60).json()
        own = {"authorization": f"Bearer {opened['api_key']}"}
        schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": lattice(26)}}
        ask = {"model": "a", "messages": [{"role": "user", "content": "a"}], "response_format": schema}
        secrets = {"model": "a", "messages": [{"role": "user", "content": "a"}], "user": "-eyJ" * (1 << 18)}

        def send(body: dict[str, Any]) -> None:
            with suppress(httpx.HTTPError):  # the server may end before its reply
                httpx.post(f"{opened['base_url']}/chat/completions", json=body, headers=own, timeout=240)

        threads = [threading.Thread(target=send, args=(body,)) for body in (ask, secrets) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)  # they are being answered
        process.terminate()
        assert process.wait(timeout=60) in (0, 75, 130, 143), log.read_text()
        for thread in threads:
            thread.join()
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_what_was_acknowledged_is_trained_on_once_whenever_the_server_is_killed(tmp_path):
    """Ended by SIGTERM while groups wait for their step, then killed after a step that no checkpoint has; each time
    started again. At last its newest checkpoint is damaged."""
    log = tmp_path / "log"
    settings = ["data.train_batch_size=2", "trainer_common.save_freq=2", "trainer_common.total_training_steps=4"]
    command = ["serve", "--backbone", "local", *SMALL, *settings]
    run = tmp_path / "launcher_record" / "serve"
    ended: dict[str, dict[str, Any]] = {}

    def serve() -> tuple[Any, str]:
        (run / "status.json").unlink(missing_ok=True)
        process = start(*command, cwd=tmp_path, log=log, AJET_ADMIN_KEY=KEY)
        return process, address(run, process, log)

    def finish(root: str, name: str, reward: float) -> None:
        told = play(root, reward, task=name)
        assert told["status"] == "completed", told
        ended[told["episode"]] = told

    def kill(process: Any) -> None:
        process.kill()
        process.wait()

    process, root = serve()
    for name, reward in (("a", 0.0), ("a", 1.0), ("b", 0.0)):  # a waits for another group, b for another attempt
        finish(root, name, reward)
    process.terminate()
    assert process.wait(timeout=240) == 75, "to be started again; nothing is open, so nothing is waited for"
    assert not (run / "episodes").exists(), "nothing is discarded"

    process, root = serve()
    assert metric_rows(run) == []
    first = next(iter(ended))
    headers = {"authorization": f"Bearer {KEY}"}
    again = httpx.post(f"{root}/episodes/{first}/finish", json={"reward": 0.0}, headers=headers)
    assert again.status_code == 200 and again.json()["reward"] == 0.0, "a client that missed the answer gets it"
    for name, reward in (("b", 1.0), ("c", 0.0), ("c", 1.0), ("d", 0.0), ("d", 1.0), ("e", 0.0), ("e", 1.0)):
        finish(root, name, reward)
    _until(lambda: (run / "checkpoints" / "step-2").exists())
    for name, reward in (("f", 0.0), ("f", 1.0), ("g", 1.0)):
        finish(root, name, reward)
    _until(lambda: len(metric_rows(run)) == 3)  # step 3 is in no checkpoint
    kill(process)

    process, root = serve()
    for name, reward in (("g", 0.0), ("h", 0.0), ("h", 1.0)):
        finish(root, name, reward)
    assert process.wait(timeout=240) == 0, log.read_text()

    def complete() -> list[tuple[int, Episode, Outcome]]:
        found = episodes_of(run)
        assert sorted(episode.uuid for _, episode, _ in found) == sorted(ended), "each once, and none is missing"
        return found

    found = complete()
    assert [row["step"] for row in metric_rows(run)] == [1, 2, 3, 4]
    tasks: dict[int, set[str]] = {}
    for step, episode, outcome in found:
        told = ended[episode.uuid]
        assert (episode.reward, episode.sampled_tokens) == (told["reward"], told["sampled_tokens"])
        assert not episode.untrained_with(outcome) and outcome.advantage and outcome.step == step
        tasks.setdefault(step, set()).add(episode.task.main_query)
    assert tasks == {1: {"a", "b"}, 2: {"c", "d"}, 3: {"e", "f"}, 4: {"g", "h"}}
    pending = EpisodeFiles(run / "pending")
    kept = {episode.uuid: episode.task.main_query for number in pending.steps() for episode in pending.read(number)}
    assert sorted(kept.values()) == [*"eeffgghh"], "what came after the checkpoint before the last"

    (run / "checkpoints" / "step-4" / "model.safetensors").write_bytes(b"damaged")
    process, root = serve()  # step 2 is gone back to: what it does not know is trained on again, without any client
    assert process.wait(timeout=240) == 0, log.read_text()
    assert {(step, episode.uuid) for step, episode, _ in complete()} == {(step, one.uuid) for step, one, _ in found}
    assert [row["step"] for row in metric_rows(run)] == [1, 2, 3, 4]
    proved = prove_run(run, "--ids-only")
    assert proved["ok"] and proved["held_steps"] == 4, proved
    assert log.read_text().count("skipped 0, doubled 0") == 2, "both starts from a checkpoint"
    audited = audit_run(run)
    assert audited["ok"], audited["changes"]
    assert audited["chain"]["steps"] == 4 and audited["chain"]["starts"] > 2
