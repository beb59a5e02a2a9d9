"""A vLLM server on which a trainer's weights are followed, played here: what it is taken for, what it is given, and
that nobody's tokens bear a version that the server may not have had."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.commands.sampling.sampler import _require_fresh_weights
from ajet.engine.probe import WeightsProbe
from ajet.record.checkpoints import Checkpoints
from ajet.schema.errors import EngineFailure, UserError
from ajet_vllm import server_follower
from ajet_vllm.server_follower import UNKNOWN, ServerFollower, name_weights
from ajet_vllm.server_weights import CHANGING
from ajet_vllm.tests.test_vllm_server import KEY, Server, reply
from tests.support.local_fixtures import config_of

IDS = (4, 8, 16)
REAL = httpx.Client


def said(weights: float) -> tuple[float, ...]:
    return tuple(-token * weights for token in IDS[1:])


PROBE = WeightsProbe(IDS, 0.01, {0: said(0.1), 1: said(0.2), 2: said(0.3)})


class Changeable(Server):
    """Its weights are a number, by which it says a text's log-probabilities. `dev`: whether it lets itself be given
    others; `packs`: whether it then says so and keeps half of them."""

    def __init__(self, weights: float = 0.1, *, dev: bool = True, packs: bool = False) -> None:
        super().__init__(processed=True)
        self.weights, self.dev, self.packs = weights, dev, packs
        self.name, self.names = "default", list[str]()
        self.loads = 0
        self.reached = asyncio.Event()
        """A reply was asked for."""

    async def stream(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/weight_info":
            return self.model(request)
        self.reached.set()
        return await super().stream(request)

    def model(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(request.content or b"{}")
        if path.startswith(("/v1", "/inference", "/version")):
            wanted = body.get("sampling_params", {})
            if "prompt_logprobs" in wanted and tuple(body["token_ids"]) == IDS:
                rows = [{str(token): {"logprob": -token * self.weights}} for token in IDS]
                return httpx.Response(200, json={"prompt_logprobs": [None, *rows[1:]]})
            return super().model(request)
        if not self.dev:
            return httpx.Response(404)
        assert request.headers["authorization"] == f"Bearer {KEY}"
        if path == "/weight_info":
            return httpx.Response(200, json={"weight_version": self.name})
        if path == "/update_weight_version":
            self.name = body["new_version"]
            self.names.append(self.name)
        elif path == "/collective_rpc":
            folder = Path(body["kwargs"]["weights_path"])
            if not folder.exists():
                return httpx.Response(500, text="no such folder")
            new = float((folder / "weights").read_text())
            self.weights = (self.weights + new) / 2 if self.packs else new
            self.loads += 1
        else:
            assert path == "/reset_prefix_cache"
        return httpx.Response(200, json={})


def followed(server: Server, monkeypatch: pytest.MonkeyPatch, first: Path = Path("model")) -> ServerFollower:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(server.model)))
    monkeypatch.setattr(httpx, "AsyncClient", partial(httpx.AsyncClient, transport=httpx.MockTransport(server.stream)))
    vllm = SimpleNamespace(base_url="http://server/v1", api_key_env="VLLM_API_KEY", timeout=300.0)
    config = config_of(rollout__vllm=vllm)
    return ServerFollower(config, range(99), first)


def checkpoint(folder: Path, step: int, weights: float) -> Path:
    def write(aside: Path) -> None:
        (aside / "weights").write_text(str(weights))

    return Checkpoints(folder).save(step, write, {})


def nothing() -> None:
    """While calls under way are waited for."""


def test_a_server_is_given_each_checkpoint_and_known_by_name_and_probe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = Changeable()
    engine = followed(server, monkeypatch)
    assert engine.version == UNKNOWN
    assert engine.load_weights(None, 0, PROBE, nothing) and (engine.version, server.loads) == (0, 0)
    folder = checkpoint(tmp_path, 1, 0.2)
    assert engine.load_weights(folder, 1, PROBE, nothing) and (engine.version, server.loads) == (1, 1)
    assert server.names[::2] == ["ajet-0", name_weights(folder, 1)]
    assert server.names[1].startswith(CHANGING), "it has no name while it changes"
    assert {chunk.version for chunk in asyncio.run(reply(engine.engine))} == {1}
    beside = followed(server, monkeypatch)
    assert beside.load_weights(folder, 1, PROBE, nothing) and (beside.version, server.loads) == (1, 1)
    with pytest.raises(FileNotFoundError, match="another sampler will load"):
        beside.load_weights(checkpoint(tmp_path, 2, 0.3), 2, PROBE, nothing, is_leader=False)
    assert server.loads == 1 and beside.version == 1, "who does not lead waits, and goes on with what is there"
    assert engine.load_weights(tmp_path / "step-2", 2, PROBE, nothing)
    assert beside.load_weights(tmp_path / "step-2", 2, PROBE, nothing, is_leader=False) and (
        beside.version,
        server.loads,
    ) == (2, 2)
    again = checkpoint(tmp_path / "another", 1, 0.2)
    assert name_weights(again, 1) != name_weights(folder, 1), (
        "made anew after a fall back: another policy of that number"
    )


def test_a_server_with_other_weights_is_refused_where_it_keeps_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = followed(Changeable(0.7, dev=False), monkeypatch)
    with pytest.raises(UserError, match="does not have the trainer's weights"):
        engine.load_weights(None, 0, PROBE, nothing)
    assert engine.version == UNKNOWN
    server = Changeable(0.7)
    (tmp_path / "weights").write_text("0.1")
    engine = followed(server, monkeypatch, tmp_path)
    assert engine.load_weights(None, 0, PROBE, nothing), "with those of an earlier run, it is given those of model.path"
    assert (engine.version, server.loads, server.names[1:]) == (0, 1, ["ajet-0"])
    with pytest.raises(UserError, match="does not have the trainer's weights"):
        followed(Changeable(0.7, packs=True), monkeypatch, tmp_path).load_weights(None, 0, PROBE, nothing)


def test_a_server_that_says_it_loaded_and_did_not_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As one on a CPU does, which packs its weights."""
    engine = followed(Changeable(packs=True), monkeypatch)
    engine.load_weights(None, 0, PROBE, nothing)
    with pytest.raises(UserError, match="those of policy version 2"):
        engine.load_weights(checkpoint(tmp_path, 2, 0.3), 2, PROBE, nothing)
    assert engine.version == UNKNOWN


def test_a_checkpoint_that_is_not_there_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = Changeable()
    engine = followed(server, monkeypatch)
    engine.load_weights(None, 0, PROBE, nothing)
    with pytest.raises(FileNotFoundError):
        engine.load_weights(tmp_path / "step-1", 1, PROBE, nothing)
    assert (engine.version, server.names) == (0, ["ajet-0"])


def test_a_server_that_is_started_again_is_waited_for_and_given_its_weights_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = Changeable()
    engine = followed(server, monkeypatch)
    assert engine.load_weights(None, 0, PROBE, nothing)
    folder, answers = checkpoint(tmp_path, 1, 0.2), server.model

    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    def ends_in_the_load(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/collective_rpc":
            raise httpx.ReadError("")
        return answers(request)

    for gone in (away, ends_in_the_load):
        down = followed_beside(engine, gone, monkeypatch)
        with pytest.raises(FileNotFoundError, match="server failed to"):
            down.load_weights(folder, 1, PROBE, nothing)
    server.name, server.weights = "default", 0.1
    back = followed_beside(engine, answers, monkeypatch)
    assert back.load_weights(folder, 1, PROBE, nothing) and (back.version, server.name) == (1, name_weights(folder, 1))
    monkeypatch.setattr(server_follower, "AWAY", -1.0)
    with pytest.raises(UserError, match="server failed to"):
        followed_beside(engine, away, monkeypatch).load_weights(folder, 2, PROBE, nothing)


def test_a_checkpoint_that_goes_while_it_is_loaded_is_one_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The trainer went on, and keeps so many."""
    server = Changeable()
    engine, folder, answers = followed(server, monkeypatch), checkpoint(tmp_path, 1, 0.2), server.model
    engine.load_weights(None, 0, PROBE, nothing)

    def late(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/collective_rpc":
            shutil.rmtree(folder, ignore_errors=True)
        return answers(request)

    with pytest.raises(FileNotFoundError, match="were deleted while they were loaded"):
        followed_beside(engine, late, monkeypatch).load_weights(folder, 1, PROBE, nothing)
    assert engine.version == UNKNOWN
    later = followed_beside(engine, answers, monkeypatch)
    assert later.load_weights(checkpoint(tmp_path / "later", 2, 0.3), 2, PROBE, nothing) and server.weights == 0.3


def followed_beside(
    engine: ServerFollower, answers: Callable[[httpx.Request], httpx.Response], monkeypatch: pytest.MonkeyPatch
) -> ServerFollower:
    """The same, whose server answers so from now on."""
    monkeypatch.setattr(httpx, "Client", partial(REAL, transport=httpx.MockTransport(answers)))
    return engine


def test_a_server_that_keeps_its_weights_is_the_oldest_version_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = followed(Changeable(dev=False), monkeypatch)
    near = WeightsProbe(IDS, 0.01, {0: said(0.1), 3: said(0.1001), 4: said(0.4)})
    assert not engine.load_weights(Path("step-3"), 3, near, nothing), "3 fits as well: it may be 0 all the same"
    assert engine.version == 0
    assert not engine.load_weights(Path("step-4"), 4, near, nothing) and engine.version == 0
    assert engine.load_weights(None, 0, PROBE, nothing)


def test_weights_that_stay_what_they_are_play_while_they_are_young_enough() -> None:
    _require_fresh_weights(0, 2, 2)
    _require_fresh_weights(0, 99, None)
    with pytest.raises(UserError, match="policy version 0, .* version 3") as refusal:
        _require_fresh_weights(0, 3, 2)
    assert refusal.value.do and "VLLM_SERVER_DEV_MODE" in refusal.value.do


def test_a_reply_across_somebody_elses_update_fails_and_the_weights_are_taken_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = Changeable()
    engine = followed(server, monkeypatch)
    engine.load_weights(None, 0, PROBE, nothing)

    async def scenario() -> None:
        server.held = asyncio.Event()
        call = asyncio.ensure_future(reply(engine.engine))
        await server.reached.wait()
        server.name, server.weights = "theirs", 0.9
        server.held.set()
        with pytest.raises(EngineFailure, match="another process changed"):
            await call

    asyncio.run(scenario())
    assert engine.version == UNKNOWN
    folder = checkpoint(tmp_path, 1, 0.2)
    assert (
        engine.load_weights(folder, 1, PROBE, nothing)
        and engine.version == 1
        and server.name == name_weights(folder, 1)
    )


def test_who_does_not_lead_fails_no_call_while_another_gives_the_server_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = Changeable()
    leader, engine = followed(server, monkeypatch), followed(server, monkeypatch)
    assert leader.load_weights(None, 0, PROBE, nothing) and engine.load_weights(
        None, 0, PROBE, nothing, is_leader=False
    )
    folder, server.name = checkpoint(tmp_path, 1, 0.2), CHANGING

    async def scenario() -> list[Any]:
        calls = [asyncio.ensure_future(reply(engine.engine)) for _ in range(2)]
        while engine.version != UNKNOWN:
            await asyncio.sleep(0)
        calls.append(asyncio.ensure_future(reply(engine.engine)))
        with pytest.raises(FileNotFoundError):
            engine.load_weights(folder, 1, PROBE, nothing, is_leader=False)
        for each, leads in ((leader, True), (engine, False)):
            assert await asyncio.to_thread(each.load_weights, folder, 1, PROBE, nothing, is_leader=leads)
        return await asyncio.gather(*calls)

    sampled = len(server.bodies)
    replies = asyncio.run(scenario())
    assert [{chunk.version for chunk in each} for each in replies] == [{1}] * 3 and server.loads == 1
    assert sum(body["stream"] for body in server.bodies[sampled:]) == 3, "nothing was asked twice"


def test_a_call_waits_while_weights_change_and_bears_the_new_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = Changeable()
    engine = followed(server, monkeypatch)
    engine.load_weights(None, 0, PROBE, nothing)
    folder = checkpoint(tmp_path, 1, 0.2)
    waited: list[None] = []

    async def scenario() -> tuple[Any, Any]:
        server.held = asyncio.Event()
        first = asyncio.ensure_future(reply(engine.engine))
        while not engine.engine.calls:
            await asyncio.sleep(0)
        taking = asyncio.get_running_loop().run_in_executor(
            None, engine.load_weights, folder, 1, PROBE, lambda: waited.append(None)
        )
        while not waited:
            await asyncio.sleep(0.01)
        second = asyncio.ensure_future(reply(engine.engine))
        assert (engine.version, server.loads) == (0, 0), "a call is under way"
        server.held.set()
        assert await taking
        return await first, await second

    first, second = asyncio.run(scenario())
    assert ({chunk.version for chunk in first}, {chunk.version for chunk in second}) == ({0}, {1})


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.integers(0, 6))
def test_a_probe_knows_the_first_version_and_the_newest(steps: list[int], keep: int) -> None:
    probe, version = WeightsProbe(IDS, 0.1, {}), 0
    every = []
    for step in steps:
        probe = probe.add_version(version, said(version), keep=keep)
        every.append(version)
        version += step
    assert list(probe.logprobs) == sorted({every[0], *every[-keep - 1 :]})
    assert WeightsProbe.from_json(json.loads(json.dumps(probe.to_json()))) == probe
    fallen_back = probe.add_version(every[-1], said(0.5), keep=keep)
    assert fallen_back.logprobs[every[-1]] == said(0.5), "made anew"


def test_a_server_that_another_gave_weights_meanwhile_is_looked_at_again_before_it_gets_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = Changeable()
    engine = followed(server, monkeypatch)
    assert engine.load_weights(None, 0, PROBE, nothing)
    old, new = checkpoint(tmp_path, 1, 0.2), checkpoint(tmp_path, 2, 0.3)
    beside, quiet = followed(server, monkeypatch), engine.engine.drain_calls

    @contextmanager
    def long(waits: Callable[[], None]) -> Iterator[None]:
        with quiet(waits):
            if server.loads == 0:
                assert beside.load_weights(new, 2, PROBE, nothing)
            yield

    monkeypatch.setattr(engine.engine, "drain_calls", long)
    with pytest.raises(FileNotFoundError):
        engine.load_weights(old, 1, PROBE, nothing)
    assert server.name == name_weights(new, 2) and server.loads == 1
    assert engine.load_weights(new, 2, PROBE, nothing) and (engine.version, server.loads) == (2, 1)
