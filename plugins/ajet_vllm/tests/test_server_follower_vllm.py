"""vLLM's own server as an engine that a trainer's weights are followed on: what it loads is what was written, and where
it says so and it is not, it is refused."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.model_source import locate_model
from ajet.engine.models import load_model, load_tokenizer
from ajet.engine.probe import TEXT, WeightsProbe
from ajet.record import EpisodeFiles
from ajet.record.checkpoints import Checkpoints
from ajet.schema.errors import UserError
from ajet.store import open_shared
from ajet_proof.recorded.prove import prove_record
from ajet_vllm.server_follower import ServerFollower
from tests.support.ajet_process import metric_rows, start
from tests.support.local_fixtures import config_of
from tests.support.sample_fixtures import project_in
from tests.support.vllm_fixtures import tiny_folder, vllm_server

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]
PLAIN = ("--worker-extension-cls", "ajet_vllm.plain_worker.PlainWeights")


class Trained:
    """tiny-tools as it is (version 0), and one step on (version 1), with what each says of the probe."""

    def __init__(self, folder: Path) -> None:
        source = locate_model("embedded:tiny-tools")
        self.tokenizer: Any = load_tokenizer(source)
        ids = self.tokenizer.encode(TEXT, add_special_tokens=False)
        model = load_model(source, dtype=torch.float32)
        said = {0: self._said(model, ids)}
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * parameter.std() * torch.randn_like(parameter)
        said[1] = self._said(model, ids)
        self.probe = WeightsProbe(tuple(ids), 0.01, said)

        def write(aside: Path) -> None:
            model.save_pretrained(aside)
            self.tokenizer.save_pretrained(aside)

        self.first = Checkpoints(folder).save(1, write, {})

    def engine(self, url: str) -> ServerFollower:
        server = SimpleNamespace(base_url=url, api_key_env="NO_KEY", timeout=300.0)
        config = config_of(rollout__vllm=server, rollout__max_model_len=256)
        return ServerFollower(config, self.tokenizer, tiny_folder())

    @staticmethod
    def _said(model: Any, ids: list[int]) -> tuple[float, ...]:
        with torch.no_grad():
            rows = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        return tuple(rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist())


def require_waiting_until_followed(trained: Trained, engine: ServerFollower) -> None:
    """That a call which finds that somebody else gave the server weights begins once it is given policy 1 again."""
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(versions, engine)
        while not engine.engine.has_unknown_weights and not waiting.done():
            time.sleep(0.02)
        assert not waiting.done() and engine.version < 0, "no call begins at weights that nobody knows"
        assert engine.load_weights(trained.first, 1, trained.probe, int)
        assert waiting.result(60) == {1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("checkpoints"))


def versions(engine: ServerFollower) -> set[int]:
    async def reply() -> set[int]:
        request = TokenRequest(np.array([5, 6, 7], np.int32), Sampling(8), DrawKey(0, 0, 0, 0))
        return {chunk.version async for chunk in engine.engine.generate(request)}

    return asyncio.run(reply())


def test_a_server_is_given_the_trainers_weights(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    with vllm_server("--logprobs-mode", "processed_logprobs", *PLAIN) as url:
        require_weights_by_version(trained, url)
        (tmp_path / "one").mkdir(), (tmp_path / "two").mkdir()
        trained_from(url, tmp_path / "one")
        led_by_two(url, tmp_path / "two")


def require_weights_by_version(trained: Trained, url: str) -> tuple[ServerFollower, ServerFollower]:
    """Each version's replies bear its number, and scores are of its weights. Answers who gave the last ones, and who
    gave those of the start again in between."""
    engine = trained.engine(url)
    assert engine.load_weights(None, 0, trained.probe, int)
    assert (engine.version, versions(engine)) == (0, {0})
    assert engine.load_weights(trained.first, 1, trained.probe, int)
    assert (engine.version, versions(engine)) == (1, {1})
    found = engine.engine.score(trained.probe.ids)
    assert trained.probe.measure_gap(1, found) < 1e-3 < trained.probe.tolerance < trained.probe.measure_gap(0, found)
    other = trained.engine(url)
    assert other.load_weights(None, 0, trained.probe, int) and versions(other) == {0}, "model.path's, as at the start"
    require_waiting_until_followed(trained, engine)
    return engine, other


def trained_from(url: str, folder: Path) -> None:
    """A trainer and a sampler, each in a process of its own, with this server between them. A group is at most one
    step old, so the last of three steps needs what the server was given: the weights of step 1 or 2, as the two run."""
    log, store, yaml = folder / "log", f"sqlite:{folder / 'store.db'}", str(project_in(folder) / "sums.yaml")
    settings = [
        "trainer_common.total_training_steps=3", "data.train_batch_size=2", "rollout.num_repeat=2",
        "trainer_common.max_staleness=1", "rollout.temperature=1.0", "model.dtype=float32",
    ]  # fmt: skip
    trains = ("train", "--conf", yaml, "--backbone", "local", "--exp-dir", "runs", "--no-rehearsal")
    processes = [
        start(*trains, "--from-store", store, *settings, cwd=folder, log=log),
        start("sample", "--conf", yaml, "--store", store, "--engine", url, *settings, cwd=folder, log=log),
    ]
    try:
        assert [process.wait(600) for process in processes] == [0, 0], log.read_text()
    finally:
        for process in processes:
            process.kill()
    rows = [row for row in metric_rows(folder / "runs" / "sums") if "tasks" in row]
    assert [row["step"] for row in rows] == [1, 2, 3] and all(row["train/trained_tokens"] for row in rows)
    recorded = [
        e for step in (1, 2, 3) for e in EpisodeFiles(folder / "runs" / "sums" / "episodes").read(step, "train")
    ]
    versions = {run.low for each in recorded for call in each.calls for run in call.versions}
    assert versions <= {0, 1, 2} and versions & {1, 2}, versions
    assert re.search("uses policy version [12]", log.read_text()), log.read_text()
    report = prove_record(str(folder / "runs" / "sums"), folder / "runs")  # by the weights of each version
    assert report.ok and report.held_steps == 3, (report.wrong_steps, report.proof.wrong[:2])


def led_by_two(url: str, folder: Path) -> None:
    """Two samplers at this server, of which the one that was there first gives it weights, until it is killed with -9:
    the other goes on in its place, and no attempt is lost or trained on twice."""
    steps, groups, repeats = 5, 2, 2
    address, yaml = f"sqlite:{folder / 'store.db'}", str(project_in(folder) / "sums.yaml")
    settings = [
        f"trainer_common.total_training_steps={steps}", f"data.train_batch_size={groups}", "rollout.temperature=1.0",
        f"rollout.num_repeat={repeats}", "trainer_common.max_staleness=1",
    ]  # fmt: skip
    trains = ("train", "--conf", yaml, "--backbone", "local", "--exp-dir", "runs", "--no-rehearsal")
    samples = ("sample", "--conf", yaml, "--store", address, "--engine", url, "--lease", "5")
    (folder / "hold").touch()  # no attempt of a third step ends: the first one gives policy 2 at most
    ledger, logs = open_shared(address), {name: folder / name for name in ("trainer", "first", "second")}
    running = {"first": start(*samples, "--name", "first", *settings, cwd=folder, log=logs["first"])}

    def wait(true: Callable[[], bool]) -> None:
        until = time.monotonic() + 600
        while not true():
            assert time.monotonic() < until and all(process.poll() is None for process in running.values()), {
                name: log.read_text() for name, log in logs.items() if log.exists()
            }
            time.sleep(0.05)

    try:
        wait(lambda: bool(ledger.members()))  # it leads
        running["second"] = start(*samples, "--name", "second", *settings, cwd=folder, log=logs["second"])
        wait(lambda: len(ledger.members()) == 2)
        running["trainer"] = start(*trains, "--from-store", address, *settings, cwd=folder, log=logs["trainer"])
        wait(lambda: "uses policy version" in logs["first"].read_text())
        leader = running.pop("first")
        leader.kill()
        leader.wait()
        given = _followed(logs["first"])
        (folder / "hold").unlink()
        assert running["trainer"].wait(600) == 0, logs["trainer"].read_text()
        assert running["second"].wait(120) == 0, logs["second"].read_text()
    finally:
        for process in running.values():
            process.kill()
        ledger.disconnect()
    assert max(_followed(logs["second"])) > max(given), "weights that the first one did not live to give"
    run = folder / "runs" / "sums"
    rows = [row for row in metric_rows(run) if "tasks" in row]
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    recorded = [e for step in range(1, steps + 1) for e in EpisodeFiles(run / "episodes").read(step, "train")]
    trained = Counter((e.order, e.repeat) for e in recorded)
    dropped = {order for row in rows for order in row.get("discarded", ())}
    orders = {order for order, _ in trained}
    assert set(trained.values()) == {1} and len(orders - dropped) == steps * groups
    assert trained.keys() == {(order, repeat) for order in orders for repeat in range(repeats)}
    report = prove_record(str(run), folder / "runs")  # by the weights of each version
    assert report.ok and report.held_steps == steps, (report.wrong_steps, report.proof.wrong[:2])


def _followed(log: Path) -> list[int]:
    """The versions that a sampler had its server have, or found there."""
    return [int(found) for found in re.findall(r"uses policy version (\d+)", log.read_text())]


def test_a_server_that_loads_a_part_and_says_it_went_well_is_refused(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("vLLM packs its weights on a CPU only")
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    with vllm_server("--logprobs-mode", "processed_logprobs") as url:
        engine = trained.engine(url)
        assert engine.load_weights(None, 0, trained.probe, int) and versions(engine) == {0}
        with pytest.raises(UserError, match="loads later weights only in part"):
            engine.load_weights(trained.first, 1, trained.probe, int)
        assert engine.version < 0


def test_a_server_that_keeps_its_weights_is_known_by_what_it_says(trained: Trained) -> None:
    with vllm_server("--logprobs-mode", "processed_logprobs") as url:
        engine = trained.engine(url)
        assert not engine.load_weights(trained.first, 1, trained.probe, int)
        assert (engine.version, versions(engine)) == (0, {0})
