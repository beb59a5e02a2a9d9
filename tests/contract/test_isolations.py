"""What every isolation promises, run against each.

A worker process takes a second of CPU to start: what differs between user codes only (how a client calls, how a
workflow goes wrong) is tried on it for the codes that take another way through it, for the rest by the extra slow
tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from ajet import WorkflowOutput, WorkflowTask
from ajet.schema.episode import Verdict
from ajet.schema.tool_use import compute_digest
from tests.support.rollouts import (
    HoldsNothing,
    cancelled_attempts_have_time,
    flows,
    stage,
    stuck_stack_probe,
    threads,
    time_is_up,
)
from tests.support.sandbox_fixtures import require
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ISOLATIONS = ("thread", "loop", "process", "loops")
SANDBOX, LOOPS = (pytest.param(each, marks=pytest.mark.extra_slow) for each in ("sandbox", "loops"))
APART = ("process", SANDBOX, LOOPS)
KILLED = ("process", "loops")
"""What hangs there ends with its process."""
HANGS = (flows.HangsAwaiting, flows.HangsBlocking, flows.HangsDeaf, flows.HangsPlain)


@pytest.fixture(params=("thread", "loop", *APART))
def isolation(request: pytest.FixtureRequest) -> str:
    if request.param == "sandbox":
        require("bubblewrap")
    return str(request.param)


def played(
    *workflows: Any, on_process: tuple[Any, ...], on_loops: tuple[Any, ...] = (), sandboxed: bool = True
) -> list[Any]:
    """(isolation, *workflow) of all of them; those that a process plays no other way than another are extra slow, and
    so is a sandbox, whose worker is the same."""
    return [
        pytest.param(
            isolation, *(each if isinstance(each, tuple) else (each,)),
            marks=[pytest.mark.extra_slow]
            if isolation == "sandbox" or (isolation == "process" and each not in on_process)
            or (isolation == "loops" and each not in on_loops) else [],
        )
        for each in workflows for isolation in (*ISOLATIONS, *(("sandbox",) if sandboxed else ()))
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    flows.RELEASE.clear()
    yield
    flows.RELEASE.set()


@pytest.mark.parametrize(
    ("isolation", "workflow"),
    played(
        flows.Asks, flows.AsksBlocking, flows.AsksInHelper, flows.AsksPlain,
        on_process=(flows.AsksInHelper,), on_loops=(flows.AsksInHelper,),
    ),
)  # fmt: skip
def test_clients_of_every_kind_reach_the_model(isolation: str, workflow: type[Any]) -> None:
    with stage(workflow, isolation=isolation) as made:
        groups = made.play(2)
    episodes = [episode for group in groups for episode in group.episodes]
    assert [episode.failure for episode in episodes] == [None] * 4
    assert {episode.reward for episode in episodes} == {1.0}
    assert all(len(episode.calls) == 1 and episode.timelines for episode in episodes)
    used = [[(use.name, use.arguments, use.result, use.error) for use in episode.tool_uses] for episode in episodes]
    told = [
        ("doubled", {"number": 4}, "8", ""), ("look", {"at": [1]}, "much", ""),
        ("call", {}, "ConnectionResetError: gone", "transport"), ("call", {}, "back", ""),
    ]  # fmt: skip
    assert used == 4 * [told if workflow is flows.AsksInHelper else []]
    for episode in episodes:
        for use in episode.tool_uses:
            assert episode.started <= use.started <= use.ended <= episode.ended
            assert use.digest == compute_digest("much more" if use.name == "look" else use.result)
            assert (use.call_id, use.server, use.whole) == (("c1", "eyes", 9) if use.name == "look" else ("", "", -1))


class FunctionJudge(HoldsNothing):
    """What a function answers with is where the judges that ajet ships look."""

    async def verdict(self, workflow_task: WorkflowTask, output: WorkflowOutput) -> Verdict:
        return Verdict(output.reward if output.reward is not None else float(output.metadata["final_answer"] == "yes"))


@pytest.mark.parametrize(
    ("isolation", "function"), played(flows.asks, flows.asks_blocking, on_process=(flows.asks,))
)  # fmt: skip
def test_a_function_is_a_workflow_wherever_it_runs(isolation: str, function: Any) -> None:
    reference = f"tests.support.rollout_workflows->{function.__name__}"
    with stage(function, judge=FunctionJudge(), isolation=isolation, user_workflow=reference) as made:
        episodes = [episode for group in made.play(2) for episode in group.episodes]
    assert [episode.failure for episode in episodes] == [None] * 4
    assert {episode.reward for episode in episodes} == {1.0}
    assert all(len(episode.calls) == 1 and episode.timelines for episode in episodes)


def test_what_is_no_answer_of_a_function_fails_its_episode() -> None:
    with stage(flows.returns_a_number_of_its_own, user_workflow="flows.py->odd") as made:
        episode = made.episode()
    assert episode.failure is not None and (episode.failure.boundary, episode.failure.kind) == ("agent", "wrong_type")
    assert "odd returned an object of the class complex" in episode.failure.message


def test_targets_that_do_not_train_are_recorded_and_not_trained(isolation: str) -> None:
    with stage(flows.Judged, isolation=isolation) as made:
        episode = made.episode()
    assert [call.trained for call in episode.calls] == [False, True]
    assert episode.untrained["not_trainable"] == len(episode.calls[0].response_ids)


RAISES, EXITS = (flows.Raises, "ZeroDivisionError"), (flows.Exits, "SystemExit")
TEXT, UNMADE = (flows.ReturnsText, "wrong_type"), (flows.CannotBeMade, "RuntimeError")


@pytest.mark.parametrize(
    ("isolation", "workflow", "kind"),
    played(
        RAISES, EXITS, (flows.ReturnsNone, "returned_nothing"), TEXT, (flows.NeverCalls, "no_model_call"), UNMADE,
        on_process=(RAISES,),
    ),
)  # fmt: skip
def test_what_user_code_does_wrong_is_the_agents(isolation: str, workflow: type[Any], kind: str) -> None:
    with stage(workflow, isolation=isolation) as made:
        episode = made.episode()
        assert made.failures == {("agent", kind): 1}
    assert (episode.status, episode.reward, episode.attempts) == ("failed", None, 1)
    assert episode.failure is not None and episode.failure.kind == kind
    assert episode.sampled_tokens == episode.untrained.total() and not episode.timelines
    if workflow is flows.Exits:
        assert "rollout_workflows.py" in episode.failure.traceback, "the line that ended the program"
    if workflow is flows.Raises:
        assert "rollout_workflows.py" in episode.failure.traceback and "my own mistake" in episode.failure.traceback


@pytest.fixture
def hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Whether one more attempt has begun to hang since it was asked last."""
    hangs = tmp_path / "hangs"
    monkeypatch.setenv(flows.HANGS, str(hangs))

    def once() -> bool:
        with suppress(FileNotFoundError):
            hangs.unlink()
            return True
        return False

    return once


@pytest.mark.parametrize(
    ("isolation", "workflow"),
    played(*HANGS, on_process=(flows.HangsDeaf,), on_loops=(flows.HangsBlocking,), sandboxed=False),
)
def test_a_hang_ends_at_its_timeout_and_costs_no_other_episode(
    isolation: str, workflow: type[Any], hung: Callable[[], bool]
) -> None:
    with time_is_up(hung), stage(workflow, isolation=isolation, episode_timeout=300, max_env_worker=1) as made:
        episode = made.episode()
        assert episode.failure is not None and (episode.failure.boundary, episode.failure.kind) == ("agent", "timeout")
        assert len(episode.calls) == 1
        if isolation in KILLED:
            assert "about to hang" in episode.printed
            assert until(lambda: made.abandoned == 0)
        elif workflow is not flows.HangsAwaiting:
            assert made.abandoned == 1
            flows.RELEASE.set()
            assert until(lambda: made.abandoned == 0)
        else:
            assert until(lambda: made.abandoned == 0)


def test_the_rollout_goes_on_while_a_process_is_asked_where_its_attempt_stands(
    hung: Callable[[], bool],
) -> None:
    """One that holds on to its interpreter takes its time to say nothing, and there may be as many as workers."""
    with (
        time_is_up(hung),
        stage(flows.HangsAwaiting, isolation="thread", max_env_worker=1) as made,
        stuck_stack_probe(made, "where it stands"),
    ):
        failure = made.episode().failure
    assert failure is not None and "where it stands" in failure.message


OPENERS = (flows.Opens, flows.OpensAndRaises, flows.OpensAndAwaits, flows.OpensAndHangs, flows.OpensPlain)
LEFT = ["close file", "close folder", "close session"]


@pytest.mark.parametrize(
    ("isolation", "workflow"), played(*OPENERS, on_process=(flows.OpensAndHangs,), sandboxed=False)
)
def test_what_an_attempt_opened_is_closed_with_it(
    isolation: str, workflow: type[Any], hung: Callable[[], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one first, once, however it ends."""
    log = tmp_path / "opened"
    monkeypatch.setenv(flows.OPENED, str(log))
    late = time_is_up(hung) if workflow not in (flows.Opens, flows.OpensAndRaises) else nullcontext()
    by_itself = cancelled_attempts_have_time() if workflow is flows.OpensAndAwaits else nullcontext()
    with late, by_itself, stage(workflow, isolation=isolation, num_repeat=1, max_retries=0) as made:
        episode = made.episode()
        kind = {flows.Opens: None, flows.OpensAndRaises: "ValueError"}.get(workflow, "timeout")
        assert (episode.failure and episode.failure.kind) == kind
        assert until(lambda: len(log.read_text().splitlines()) >= 5), log.read_text()
    flows.RELEASE.set()
    ends = isolation == "process" and workflow is flows.OpensAndAwaits  # it is not cancelled, its process ends
    beside = ends or workflow is flows.OpensAndHangs  # its own task hangs
    left = [*LEFT[:2], "close session beside"] if beside else LEFT
    assert log.read_text().splitlines() == ["open session", "open folder", *left]


def test_what_is_open_is_closed_when_the_rollout_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "opened"
    monkeypatch.setenv(flows.OPENED, str(log))
    monkeypatch.delenv(flows.HANGS, raising=False)
    with stage(flows.OpensPlain, isolation="thread", num_repeat=1, episode_timeout=None) as made:
        threading.Thread(target=lambda: made.play(1), daemon=True).start()
        assert until(lambda: log.exists() and "open folder" in log.read_text() and made.requests)
    assert until(lambda: log.read_text().splitlines()[-3:] == LEFT), log.read_text()


def test_a_tool_that_does_not_start_is_the_tools_failure() -> None:
    with stage(flows.CannotOpen, isolation="thread", num_repeat=1, max_retries=0) as made:
        failure = made.episode().failure
    assert failure is not None and (failure.boundary, failure.kind) == ("tool", "ToolFailure")
    assert failure.retryable and not failure.policy and "there is no such program" in failure.message


def test_close_is_prompt_while_user_code_hangs(isolation: str) -> None:
    with stage(flows.HangsBlocking, isolation=isolation, episode_timeout=None) as made:
        player = threading.Thread(target=lambda: made.play(1), daemon=True)
        player.start()
        assert until(lambda: made.requests >= 1), "the agent made its call, and hangs"
        closing = threading.Thread(target=made.close)
        closing.start()
        closing.join(240)
        assert not closing.is_alive(), "what hangs is let go of by nobody"


@pytest.mark.parametrize("isolation", APART)
def test_printed_output_and_metrics_reach_the_episode(isolation: str) -> None:
    with stage(flows.Asks, isolation=isolation) as made:
        first, second = made.play(1)[0].episodes
    assert (first.printed, second.printed) == ("playing Tt0#R0\n", "playing Tt0#R1\n")
    assert first.metrics == {"asked": 1.0}


@pytest.mark.parametrize("isolation", APART)
def test_a_process_that_dies_is_a_failure_and_is_replaced(isolation: str) -> None:
    with stage(flows.Dies, isolation=isolation, max_env_worker=1, max_retries=0) as made:
        episodes = made.play(1)[0].episodes
    for episode in episodes:
        assert episode.failure is not None and episode.failure.kind == "process_died"
        assert "code 7" in episode.failure.message and "last words" in episode.failure.message
        assert (episode.failure.boundary, episode.failure.retryable) == (
            ("ajet", True) if isolation == "loops" else ("agent", False)
        )


def test_a_process_of_many_that_is_killed_costs_each_an_attempt_and_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them did it. The next ones are played by another process."""
    monkeypatch.setenv(flows.HANGS, str(tmp_path / "waits"))
    with stage(
        flows.KillsBothOnce, isolation="loops", max_retries=0, policy_failure_reward=-1.0, episode_timeout=None
    ) as made:
        killed = made.play(1)[0].episodes
        for episode in killed:
            failure = episode.failure
            assert failure is not None and (failure.boundary, failure.kind) == ("ajet", "process_died")
            assert failure.retryable and not failure.policy
            assert "code -9" in failure.message and "it ran 2 episodes" in failure.message
            assert (episode.reward, episode.timelines, len(episode.calls)) == (None, [], 1)
        again = made.play(1)[0].episodes
        assert [(episode.failure, episode.reward) for episode in again] == 2 * [(None, 1.0)]
        assert made.abandoned == 0


def test_a_process_that_speaks_garbage_is_ended_and_never_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(flows.HANGS, str(tmp_path / "went off"))
    with stage(flows.Garbles, isolation="process", max_env_worker=1) as made:
        episode = made.episode()
        assert until(lambda: made.abandoned == 0)
    assert episode.failure is not None and (episode.failure.boundary, episode.failure.kind) == ("agent", "process_died")
    assert "could not read a message" in episode.failure.message and len(episode.calls) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_killed_workflow_takes_its_children_along(tmp_path: Any) -> None:
    """The child that a workflow started is of its process group."""
    (tmp_path / "flow.py").write_text(
        "import asyncio, os, subprocess\n"
        "from ajet import Workflow\n"
        "class Starts(Workflow):\n"
        "    async def execute(self, task, tuner):\n"
        "        child = subprocess.Popen(['sleep', '600'])\n"
        f"        open({str(tmp_path / 'pid.new')!r}, 'w').write(str(child.pid))\n"
        f"        os.rename({str(tmp_path / 'pid.new')!r}, {str(tmp_path / 'pid')!r})\n"
        "        await asyncio.sleep(600)\n"
    )
    with (
        time_is_up((tmp_path / "pid").exists),
        stage("flow.py->Starts", isolation="process", folder=tmp_path) as made,
    ):
        episode = made.episode()
    assert episode.failure is not None and episode.failure.kind == "timeout"
    child = int((tmp_path / "pid").read_text())
    assert until(lambda: _gone(child))


def _gone(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
    finally:
        assert process != os.getpid()


def test_the_watchdog_names_the_line_that_blocks_and_the_loop_is_left_behind() -> None:
    from loguru import logger

    said: list[str] = []
    blocked = 0
    source = Path(flows.__file__).read_text().splitlines()
    number = next(n for n, text in enumerate(source, start=1) if "# the line that blocks" in text)
    where = f"for over a second at {Path(flows.__file__)}:{number} in execute"

    def named() -> bool:
        """One more than when it was asked last."""
        nonlocal blocked
        before, blocked = blocked, sum(where in line for line in said)
        return blocked > before

    handler = logger.add(said.append, format="{message}", level="WARNING")
    try:
        with (
            time_is_up(named),
            stage(flows.HangsBlocking, isolation="loop", episode_timeout=300, max_env_worker=1) as made,
        ):
            first, second = made.play(1)[0].episodes
            flows.RELEASE.set()
            assert until(lambda: len(threads("ajet-workflows")) == 2), "what was left goes: one loop, one watchdog"
    finally:
        logger.remove(handler)
    assert len(first.calls) == len(second.calls) == 1, "the second ran on another loop than the blocked one"
    assert sum(where in line for line in said) == 2, said
