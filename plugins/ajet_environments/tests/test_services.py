"""Every world behind an environment service does the same: a person's class, AgentJet's, gymnasium's, textarena's and
skyrl-gym's by what they can do, OpenEnv's by its socket, and NeMo Gym's resource servers by HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from ajet.environment.services import EnvService, GymEnv
from ajet.schema.errors import EnvironmentFailure, UserError
from ajet.schema.tool_use import ToolUse
from ajet_environments.services import serving
from ajet_environments.services.hosted import OwnWorld
from ajet_environments.services.server import RequestRefusedError, WorldServer
from ajet_environments.services.serving import LocalWorldService
from ajet_environments.services.sources import SkyRLWorld, open_world
from tests.support import world_fixtures
from tests.support.waiting import until
from tests.support.world_fixtures import (
    NEMO_ROWS,
    AsyncCount,
    Count,
    SkyRL,
    nemo_gym_app,
    on_a_loop,
    openenv_app,
    says,
)  # fmt: skip

HERE = Path(world_fixtures.__file__).parent
LAKE = "gymnasium:FrozenLake-v1?is_slippery=false"
KINDS = ["Count", "AsyncCount", "AgentJetCount", "Arena", "skyrl", "openenv", "nemo_gym", LAKE]
WRONG, NO_ACTION = {LAKE: "\\boxed{0}"}, {LAKE: "up", "openenv": '{"say": 3}', "nemo_gym": says(3)}
CALLED = {"nemo_gym": says("nothing")}
RIGHT = {LAKE: [f"\\boxed{{{number}}}" for number in (1, 1, 2, 2, 1, 2)]}


@pytest.fixture(scope="module", params=KINDS)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, EnvService]]:
    with ExitStack() as stack:
        kind = request.param
        if kind == "openenv":
            world = open_world(f"openenv:ws://{stack.enter_context(on_a_loop(openenv_app()))}", base=HERE)
        elif kind == "skyrl":
            rows = {str(n): {"prompt": [{"role": "user", "content": f"Say {n}."}], "number": n} for n in (1, 2, 3)}
            world = SkyRLWorld(lambda row: SkyRL(dict(row)), "skyrl", rows)
        elif kind == "nemo_gym":
            rows = tmp_path_factory.mktemp("rows") / "rows.jsonl"
            rows.write_text("".join(json.dumps({"id": name, **row}) + "\n" for name, row in NEMO_ROWS.items()))
            source = f"nemo_gym:http://{stack.enter_context(on_a_loop(nemo_gym_app()))}"
            world = open_world(source, base=HERE, data=rows)
        elif kind == LAKE:
            pytest.importorskip("gymnasium")
            world = open_world(kind, base=HERE)
        else:
            world = open_world(f"world_fixtures.py->{kind}", base=HERE)
        beside = LocalWorldService(world)
        stack.callback(beside.close)
        yield kind, beside.service


def test_an_episode_is_played_to_its_end_and_scored(served: tuple[str, EnvService]) -> None:
    kind, service = served
    task = service.task_ids("train")[1]
    env = GymEnv(service, task)
    uses: list[ToolUse] = []
    state = env.create()
    assert all(isinstance(message["content"], str) and message["role"] for message in state)
    assert kind == LAKE or state[-1]["content"].endswith(f"Say {task}.")
    env.on_use = uses.append
    text = {"role": "assistant", "content": [{"type": "text", "text": WRONG.get(kind, "nothing")}]}
    wrong = env.step(CALLED.get(kind, text))
    assert isinstance(wrong.observation, str) and wrong.reward == 0 and not wrong.is_terminated
    assert env.evaluate() == 0
    for said in RIGHT.get(kind, [f"It is {task}"]):
        _, reward, terminated, info = env.step(said)
    assert terminated and isinstance(info, dict)
    assert env.evaluate("any name", {"sparse": False}) == 1
    assert reward == (0 if kind in ("AsyncCount", "AgentJetCount") else 1)
    first = "say" if kind in CALLED else "step"
    assert [use.name for use in uses] == [first] + ["step"] * (len(uses) - 1) and uses[0].result == wrong.observation
    assert env.release() and not env.release()
    with pytest.raises(EnvironmentFailure, match="closed"):
        env.step("more")


def test_instances_are_apart_and_a_copy_of_the_client_speaks_of_the_same_one(served: tuple[str, EnvService]) -> None:
    kind, service = served
    one, other = GymEnv(service, "1"), GymEnv(service, "1")
    assert one.create() == other.create() and one.instance_id != other.instance_id
    there = pickle.loads(pickle.dumps(one))
    for said in RIGHT.get(kind, ["1"]):
        there.step(said)
    assert (one.evaluate(), other.evaluate()) == (1, 0)
    before = one.instance_id
    one.reset()
    assert one.instance_id != before and one.evaluate() == 0
    with pytest.raises(EnvironmentFailure, match="no such instance"):
        there.evaluate()
    assert one.release() and other.release()


@pytest.mark.parametrize("served", [LAKE, "openenv", "nemo_gym"], indirect=True)
def test_what_is_no_action_is_answered_and_changes_nothing(served: tuple[str, EnvService]) -> None:
    kind, service = served
    env = GymEnv(service, "1")
    env.create()
    uses: list[ToolUse] = []
    env.on_use = uses.append
    step = env.step(NO_ACTION[kind])
    assert uses[0].error == "arguments", "the model's own doing"
    assert step.observation.startswith("That was no action") and not step.is_terminated and not env.lost
    for said in RIGHT.get(kind, ["1"]):
        step = env.step(said)
    assert step.is_terminated and env.evaluate() == 1 and env.release()


def test_nemo_gyms_servers_get_calls_that_fit_and_no_others() -> None:
    """By `environment.use`, where a task's metadata is the row; several calls in one message; the server's own paths
    are no tools."""
    heard: list[str] = []
    with on_a_loop(nemo_gym_app(heard)) as place:
        beside = LocalWorldService(open_world(f"nemo_gym:http://{place}", base=HERE))
        try:
            env = GymEnv(beside.service, "any name")
            opened = env.create(params={"metadata": NEMO_ROWS["2"]})
            assert opened == [{"role": "user", "content": "Say 2."}]
            (tool,) = env.get_info()["tools"]
            assert tool["function"]["name"] == "say" and "strict" not in tool["function"]
            step = env.step(says("it is 2", "verify"))
            assert step.observation == "There is no tool verify; there are say." and step.info["invalid_action"]
            two = says("nothing")
            two["tool_calls"].append({**says("it is 2")["tool_calls"][0], "id": "c2"})
            del two["content"]
            told = [each["content"] for each in env.step(two).info["messages"]]
            assert told == [json.dumps({"heard": "wrong"}), json.dumps({"heard": "right"})]
            step = env.step("done")
            assert step.is_terminated and step.reward == 1 and step.info["calls"] == 3 and env.evaluate() == 1
            assert heard == ["seed_session", "say", "say", "verify"], "verified once, scored from that"
            assert env.release()
            with pytest.raises(EnvironmentFailure, match="has no row with the key `responses_create_params`"):
                GymEnv(beside.service, "1").create()
            with pytest.raises(EnvironmentFailure, match="the server lists no tasks"):
                beside.service.task_ids("train")
        finally:
            beside.close()


def test_training_tasks_are_never_held_out_ones() -> None:
    world = open_world("world_fixtures.py->Arena", base=HERE, tasks=20)
    assert len(world.tasks("train")) == 20 and len(world.tasks("dev")) == 2
    assert not {*world.tasks("train")} & {*world.tasks("dev")}


def test_there_are_at_most_as_many_as_allowed_and_those_that_are_idle_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_environments.services.server.REAP_INTERVAL_S", 0.05)
    beside = LocalWorldService(open_world("world_fixtures.py->Count", base=HERE), instances=2, idle_s=900)
    try:
        envs = [GymEnv(beside.service, "1") for _ in range(3)]
        Count.made.clear()
        envs[0].create()
        envs[1].create()
        with pytest.raises(EnvironmentFailure, match="all 2 instances are in use"):
            envs[2].create()
        beside.server.idle_s = 0.3
        assert until(lambda: len(Count.made) == 2 and all(each.released for each in Count.made))
        with pytest.raises(EnvironmentFailure, match="was idle too long"):
            envs[0].step("1")
        assert GymEnv(beside.service, "2").create()
    finally:
        beside.close()


class Held(Count):
    """One whose making, or whose release, waits until it may go on."""

    def __init__(self, made: threading.Event, left: threading.Event) -> None:
        super().__init__()
        self.begun, self.made, self.left = threading.Event(), made, left

    def create(self, task_id: str, params: dict[str, Any]) -> str:
        self.begun.set()
        assert self.made.wait(60)
        return super().create(task_id, params)

    def release(self) -> None:
        assert self.left.wait(60)
        super().release()


def test_an_instance_that_is_released_while_it_is_made_is_let_go_when_it_is_made() -> None:
    may, free, failures, own = threading.Event(), threading.Event(), list[EnvironmentFailure](), list[Held]()
    free.set()
    beside = LocalWorldService(OwnWorld(lambda: own.append(Held(may, free)) or own[0], "held", 1))
    env = GymEnv(beside.service, "1")

    def create() -> None:
        try:
            env.create()
        except EnvironmentFailure as problem:
            failures.append(problem)

    creating = threading.Thread(target=create)
    creating.start()
    try:
        assert until(lambda: bool(own)) and own[0].begun.wait(60)
        assert env.release() and not own[0].released, "no two of its methods run at a time"
        may.set()
        creating.join(60)
        assert until(lambda: own[0].released), "whoever made it"
        assert "the instance could not be created: it was released" in str(failures[0])
    finally:
        may.set()
        beside.close()


def test_a_world_that_holds_up_its_loop_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "END_S", 0.01)
    goes, held = threading.Event(), threading.Event()

    class Holds(AsyncCount):
        async def step(self, action: str) -> dict[str, Any]:
            held.set()
            goes.wait(60)
            return await super().step(action)

    beside = LocalWorldService(OwnWorld(Holds, "holds", 1))
    env = GymEnv(beside.service, "1")
    env.create()

    def step() -> None:
        with suppress(EnvironmentFailure):
            env.step("1")

    threading.Thread(target=step, daemon=True).start()
    assert held.wait(60)
    monkeypatch.setattr(beside._thread, "join", lambda timeout: None)
    beside.close()
    goes.set()


def test_what_is_used_while_idle_ones_are_released_stays() -> None:
    made, may, own = threading.Event(), threading.Event(), list[Held]()
    made.set()

    async def play() -> None:
        server = WorldServer(OwnWorld(lambda: own.append(Held(made, may)) or own[-1], "held", 1), idle_s=900)
        for name in "ab":
            await server.answer_create({"instance_id": name, "task_id": "1"})
        server.hosted["a"].last_used = server.hosted["b"].last_used = -900.0
        looking = asyncio.ensure_future(server.release_idle())
        await asyncio.sleep(0)
        await server.answer_create({"instance_id": "b", "task_id": "1"})
        may.set()
        await looking
        assert server.instances == 1 and [each.released for each in own] == [True, True, False]

    asyncio.run(play())


def test_one_that_is_being_released_counts_until_it_is_and_a_new_one_waits_for_its_slot() -> None:
    made, may, own = threading.Event(), threading.Event(), list[Held]()
    made.set()

    async def play() -> None:
        server = WorldServer(OwnWorld(lambda: own.append(Held(made, may)) or own[-1], "held", 1), instances=2)
        for name in "ab":
            await server.answer_create({"instance_id": name, "task_id": "1"})
        leaving = [asyncio.ensure_future(server.answer_release({"instance_id": name})) for name in "ab"]
        await asyncio.sleep(0.01)
        coming = [asyncio.ensure_future(server.answer_create({"instance_id": name, "task_id": "1"})) for name in "cd"]
        await asyncio.sleep(0.05)
        assert (len(own), server.instances) == (2, 2), "two more would be four at once"
        assert (await server.answer_release({"instance_id": "d"}))["success"], "it is heard when there is a slot"
        leaving[0].cancel()  # as who asked for it goes away
        may.set()
        assert (await coming[0])["success"]
        with pytest.raises(RequestRefusedError, match="it was released"):
            await coming[1]
        assert [each.released for each in own] == [True, True, False], "the fourth was never made"
        assert server.instances == 1

    asyncio.run(play())


def test_an_end_waits_for_what_is_being_released() -> None:
    made, may, own = threading.Event(), threading.Event(), list[Held]()
    made.set()

    async def play() -> None:
        server = WorldServer(OwnWorld(lambda: own.append(Held(made, may)) or own[-1], "held", 1))
        await server.answer_create({"instance_id": "a", "task_id": "1"})
        asked = asyncio.ensure_future(server.answer_release({"instance_id": "a"}))
        await asyncio.sleep(0.01)
        asked.cancel()  # as the end does to requests that take too long
        ending = asyncio.ensure_future(server.close())
        await asyncio.sleep(0.05)
        assert not ending.done()
        may.set()
        await ending
        assert own[0].released

    asyncio.run(play())


def test_a_page_elsewhere_cannot_use_a_world_by_a_name_of_its_own_for_this_machine() -> None:
    body = json.dumps({"instance_id": "a", "task_id": "1"})

    def asked(port: int, host: str, origin: str | None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Host": host, "Content-Type": "application/json", **({"Origin": origin} if origin else {})}
        connection.request("POST", "/create", body, headers)
        answer = connection.getresponse()
        told = answer.read().decode()
        connection.close()
        return answer.status, told

    async def play(listens: str, host: str, origin: str | None) -> tuple[int, str]:
        server = WorldServer(open_world("world_fixtures.py->Count", base=HERE))
        port = await server.start(listens, 0)
        try:
            at = host.replace("PORT", str(port))
            return await asyncio.to_thread(asked, port, at, origin and origin.replace("PORT", str(port)))
        finally:
            await server.close()

    status, told = asyncio.run(play("127.0.0.1", "evil.example", "http://evil.example"))
    assert (
        status == 421
        and "the Host header 'evil.example' is not an address of this service, which has 127.0.0.1:" in told
    )
    assert asyncio.run(play("127.0.0.1", "evil.example:PORT", None))[0] == 421
    assert asyncio.run(play("127.0.0.1", "127.0.0.1:PORT", "http://evil.example"))[0] == 403
    for host in ("127.0.0.1:PORT", "localhost:PORT"):
        assert asyncio.run(play("127.0.0.1", host, f"http://{host}"))[0] == 200
    assert asyncio.run(play("0.0.0.0", "a.name.of.its.own", None))[0] == 200, "others reach it by whatever name"


def test_an_instance_that_raised_is_not_used_again_and_its_error_says_where() -> None:
    beside = LocalWorldService(open_world("world_fixtures.py->Count", base=HERE))
    try:
        env = GymEnv(beside.service, "1")
        env.create()
        with pytest.raises(EnvironmentFailure, match="ZeroDivisionError: of the world's own") as caught:
            env.step("crash")
        assert env.lost is caught.value
        with pytest.raises(EnvironmentFailure, match="the environment is lost"):
            env.evaluate()
        with pytest.raises(EnvironmentFailure, match="failed before"):
            beside.service.ask("step", instance_id=env.instance_id, messages={"role": "assistant", "content": "1"})
        with pytest.raises(EnvironmentFailure, match="there is no split 'test'; the splits are 'train', 'dev'"):
            beside.service.task_ids("test")
        with pytest.raises(EnvironmentFailure, match=r"\(status 401\): the bearer token is missing or wrong"):
            EnvService(beside.service.url, token="guessed").task_ids("train")
        first = beside.service.ask("create", instance_id="x", task_id="1")
        assert beside.service.ask("create", instance_id="x", task_id="1") == first, "asked again, answered as before"
        with pytest.raises(EnvironmentFailure, match="runs task '1' already"):
            beside.service.ask("create", instance_id="x", task_id="2")
    finally:
        beside.close()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("world_fixtures.py->Failing", "it has no `create` and `step`"),
        ("world_fixtures.py->HERE", "refers to HERE"),
        ("gymnasium:NoSuchLake-v1", "cannot be created"),
        ("textarena:GuessTheNumber-v0", "needs the package textarena"),
        ("world_fixtures.py->SkyRL", "has no tasks of its own"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_listens(source: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        open_world(source, base=HERE)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "The file of rows cannot be read: No such file"),
        (b"\xff\xfe{", "The file of rows cannot be read: it is not UTF-8"),
        (b"[" * 99_999, "A row is not valid JSON"),
        (b'{"id": 1}\n{"id": "1"}\n', "Two rows have the task id 1"),
    ],
)
def test_rows_that_cannot_be_tasks_are_said_before_anything_listens(
    rows: bytes | None, said: str, tmp_path: Path
) -> None:
    data = tmp_path / "rows.jsonl"
    if rows is not None:
        data.write_bytes(rows)
    with pytest.raises(UserError, match=said):
        open_world("nemo_gym:http://127.0.0.1:9", base=HERE, data=data)


@pytest.mark.parametrize(
    ("uri", "actions", "code", "said"),
    [
        ("world_fixtures.py->Count", ["2", "1"], 0, "ended after 2 steps, rewards 1 in total"),
        ("world_fixtures.py->Count", [], 0, "ended after 1 steps"),
        ("world_fixtures.py->Count", ["no"], 0, "not ended after 3 steps"),
        ("world_fixtures.py->Count", ["crash"], 1, "missing          step: "),
        (LAKE, [], 0, "ended after 3 steps"),
        ("openenv", [], 0, "step 1           '{\"say\": \"1\"}' → 'wrong', reward 0"),
        ("nemo_gym", [], 0, 'step 1           \'say {"text": "1"}\' → \'{"heard": "right"}\', reward 0'),
        ("http://127.0.0.1:9", [], 1, "missing          create: "),
    ],
)
def test_a_check_plays_an_episode_and_says_what_is_missing(
    uri: str,
    actions: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: Any,
    tmp_path: Path,
) -> None:
    from ajet_environments.services.check import run_check

    monkeypatch.chdir(HERE)
    with ExitStack() as stack:
        if uri == "openenv":
            uri = f"openenv:ws://{stack.enter_context(on_a_loop(openenv_app()))}"
        data = None
        if uri == "nemo_gym":
            uri = f"nemo_gym:http://{stack.enter_context(on_a_loop(nemo_gym_app()))}"
            data = tmp_path / "rows.jsonl"
            data.write_text(json.dumps(NEMO_ROWS["1"]))
        assert run_check(uri, env_type="", split="train", actions=actions, steps=3, data=data) == code
    printed = capsys.readouterr().out
    assert said in printed and ("An episode was run successfully." in printed) == (code == 0)
