"""The chain of what was committed: whatever is changed afterwards is found and named, and what a run does by itself is
no change."""

from __future__ import annotations

import json
import os
import random
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ajet.commands.gc import collect_removable_files
from ajet.record import EpisodeFiles, RunDirectory, checkpoints
from ajet.record.chain import FILE, KEY, Chain, LinkedLines
from ajet.record.files import append_lines
from ajet.schema.episode import Outcome
from ajet.schema.errors import UserError
from ajet.train.reward_hacking_watch import GamingWatch
from ajet_proof.auditing.audit import RunAudit, audit_run, trace_episode, trace_step, trace_task
from ajet_proof.auditing.chain_index import ChainIndex
from ajet_proof.auditing.chain_state import ChainState, Change, find_changes, read_chain
from ajet_proof.auditing.report import print_audit
from tests.record.test_run_directory import experiment
from tests.support.record_fixtures import episode

pytestmark = pytest.mark.slow
ATTEMPTS = 3
FLIPS = 60


def step(run: RunDirectory, number: int, *, saves: bool = True) -> None:
    """As a training loop leaves it: episodes with their outcomes, a row, held-out attempts, a checkpoint."""
    run.take_up()
    played = [episode(f"train{number}{each}" * 3, number, step=number, repeat=each) for each in range(ATTEMPTS)]
    outcomes = {each.uuid: Outcome(number, 0.5) for each in played}
    run.episodes.write(number, "train", played, outcomes)
    run.metrics.log(number, {"train/reward": number / 10, "loss": 0.1, "version": number}, tasks=[number])
    run.episodes.write(number, "validation", [episode(f"held{number}", split="validation", step=number)])
    run.metrics.log(number, {"validation/reward": 0.5})
    if saves:
        run.checkpoints.save(number, lambda to: (to / "model.safetensors").write_bytes(b"w" * number), {})


def trained(root: Path, *steps: int, **more: Any) -> Path:
    with RunDirectory.open(experiment(root, **more), root=root) as run:
        for number in steps:
            step(run, number)
        return run.path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("chained"), 1, 2, 3)


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / recorded.name))


def said(found: RunAudit) -> list[str]:
    return [str(each) for each in found.changes]


def changes_in(run: Path) -> list[Change]:
    state = read_chain(run)
    assert state is not None
    return list(find_changes(run, run / "checkpoints", state))


def committed(run: Path) -> list[Path]:
    """Every file of which all bytes were committed, but the last link's own newline's absence is a cut."""
    files = [path for path in run.rglob("*") if path.is_file() and path.parent.name != "logs"]
    others = ("status.json", "command", "lock.json", ".lock", "metrics.png")
    return sorted(path for path in files if path.name not in others)


def test_a_run_is_as_it_was_committed(recorded: Path) -> None:
    found = audit_run(recorded)
    assert found.ok, said(found)
    assert found.state is not None and found.state.steps.keys() == {1, 2, 3} and found.state.required.keys() == {2, 3}


def test_a_bit_flipped_anywhere_is_found_and_its_file_named(run: Path) -> None:
    draw = random.Random(7)
    for path in committed(run):
        whole = path.read_bytes()
        name = str(path.relative_to(run))
        for at in {0, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(FLIPS // 10))}:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << draw.randrange(8))]) + whole[at + 1 :])
            last = name == FILE and at >= whole.rfind(b"\n", 0, -1)
            changes = changes_in(run)
            wrong = [change for change in changes if name.startswith(change.file.removesuffix("/state.json"))]
            assert wrong or last, f"{name}, byte {at}: {changes}"
            if name.startswith("episodes/") and name.endswith(".jsonl") and at < len(whole) - 1:
                assert {change.line for change in wrong} == {whole[:at].count(b"\n") + 1}, f"{name}, byte {at}"
        path.write_bytes(whole)
    assert audit_run(run).ok


def test_lines_that_are_removed_added_or_moved_are_named(run: Path) -> None:
    file, rows = run / "episodes" / "step-2.jsonl", run / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    name = f"episodes/{file.name}"
    for changed, words in (
        (lines[:1] + lines[2:], f"{name}:2: a line is missing here (episode {'train21' * 3})"),
        (lines[:2], f"{name}:3: a line is missing here (episode {'train22' * 3})"),
        (lines[1::-1] + lines[2:], f"{name}:1: from here on, the lines are in another order"),
        ([*lines, lines[0]], f"{name}:4: this line was never committed"),
    ):
        file.write_bytes(b"".join(changed))
        assert words in said(audit_run(run))
    file.unlink()
    assert f"{name}: the file is missing, with 3 episodes" in said(audit_run(run))
    file.write_bytes(b"".join(lines))
    (run / "episodes" / "step-1.more.jsonl").write_bytes(lines[0])
    assert said(audit_run(run)) == ["episodes/step-1.more.jsonl: it was never committed"]
    (run / "episodes" / "step-1.more.jsonl").unlink()
    whole = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(b"".join(whole[:2] + whole[3:]))
    assert said(audit_run(run)) == ["metrics.jsonl:3: a line is missing here (a row of step 2)"]
    rows.write_bytes(b"".join(whole))
    shutil.rmtree(run / "checkpoints" / "step-3")
    assert said(audit_run(run)) == ["checkpoints/step-3: it is missing"]


def test_links_that_are_removed_are_missed_and_a_chain_that_is_gone_is_no_old_run(run: Path) -> None:
    chain = run / FILE
    links = chain.read_bytes().splitlines(keepends=True)
    chain.write_bytes(b"".join(links[:3] + links[4:]))
    assert any(each.startswith(f"{FILE}:4: ") for each in said(audit_run(run)))
    chain.write_bytes(b"".join(links[:-4]))
    assert any(each.startswith(FILE) and "checkpoints/step-3" in each for each in said(audit_run(run)))
    chain.write_bytes(b"".join(links))
    Chain(run).commit("record", 3)
    head = json.loads(chain.read_bytes().splitlines()[-1])["digest"]
    assert audit_run(run, head=head[:20]).ok
    chain.write_bytes(b"".join(links))
    assert audit_run(run).ok, "the end of a chain is cut like a run that was killed"
    assert any("--head" in each for each in said(audit_run(run, head=head))), "but for who has kept its head"
    chain.unlink()
    assert any(each.startswith(f"{FILE}: the file is missing") for each in said(audit_run(run)))


def test_with_a_key_nobody_without_it_can_write_the_chain_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "a key that nobody guesses")
    run = trained(tmp_path, 1, 2)
    assert audit_run(run).ok and "a key that nobody guesses" not in (run / FILE).read_text()
    for line in (run / FILE).read_text().splitlines():
        assert json.loads(line)["key"]
    written = (run / FILE).read_bytes()
    monkeypatch.delenv(KEY)
    with pytest.raises(UserError, match="signed with the key"):
        RunDirectory.open(experiment(tmp_path), root=tmp_path)
    found = audit_run(run)
    assert found.ok and found.state is not None and not found.state.is_key_verified, (
        "what is not held to the key is said"
    )
    first = Chain(tmp_path)  # a forger's: every link again, over a changed line, without the key
    for line in written.splitlines():
        link = json.loads(line)
        link = {name: value for name, value in link.items() if name not in ("link", "earlier", "digest")}
        first.commit(link.pop("kind"), link.pop("step"), **link)
    (run / FILE).write_bytes((tmp_path / FILE).read_bytes())
    monkeypatch.setenv(KEY, "a key that nobody guesses")
    assert len(audit_run(run).changes) >= len(written.splitlines()), "every link was written without it"


def test_a_resume_a_rollback_and_a_fork_keep_it_true(tmp_path: Path) -> None:
    run = trained(tmp_path, 1, 2, 3)
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as again:
        step(again, 4, saves=False)
    assert audit_run(run).ok
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as again:  # step 4 is played again
        assert again.resumed is not None and again.resumed.step == 3
        step(again, 4)
    found = audit_run(run)
    assert found.ok and found.state is not None and len(found.state.starts) == 3, said(found)
    uuid = "train40" * 3
    assert len(trace_episode(run, uuid).episodes) == 1, "what the resume has forgotten is not found"
    (run / "checkpoints" / "step-4" / "model.safetensors").write_bytes(b"x" * 4)
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as back:  # the latest is damaged: the one before
        assert back.resumed is not None and back.resumed.step == 3
        back.take_up()
    found = audit_run(run)
    assert found.ok and found.state is not None and max(found.state.steps) == 3, said(found)
    with RunDirectory.open(
        experiment(tmp_path, experiment_name="other"), root=tmp_path, resume=str(run / "checkpoints" / "step-3")
    ) as fork:
        step(fork, 4)
    found = audit_run(fork.path)
    assert found.ok and found.state is not None, said(found)
    base = found.state.starts[0]["from"]
    assert base["step"] == 3 and not base["own"] and base["head"] in audit_run(run).state.heads  # type: ignore[union-attr]


def test_what_a_killed_process_had_not_linked_is_linked_by_the_next_and_said(tmp_path: Path) -> None:
    run = trained(tmp_path, 1)
    chain = (run / FILE).read_bytes()
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as again:
        again.take_up()
        again.episodes.write(1, "validation", [episode("late", split="validation", step=1)])
        again.metrics.log(1, {"validation/reward": 1.0})
    links = (run / FILE).read_bytes().splitlines(keepends=True)
    assert chain == b"".join(links[: len(chain.splitlines())]), "links are only ever appended"
    (run / FILE).write_bytes(b"".join(links[:-2]))  # a kill between the row and its link
    assert audit_run(run).ok
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as again:
        step(again, 2)
    found = audit_run(run)
    assert found.ok and found.state is not None, said(found)
    assert +found.state.adopted == {"episodes/step-1.validation.jsonl": 1, "metrics.jsonl": 1}


def test_trails_lead_from_a_step_back_and_from_an_episode_and_a_task_forward(recorded: Path) -> None:
    back = trace_step(recorded, 2)
    assert back.ok and [each["line"] for each in back.episodes] == [1, 2, 3] and len(back.steps) == 1
    fed = back.episodes[0]
    assert fed["as_committed"] and fed["trained_in"] == 2 and fed["played_by"]["versions"]["ajet"]
    assert [call["sampled"] for call in fed["calls"]] == [5, 6, 4, 0] and len(fed["tools"]) == 2
    console = Console(file=StringIO(), width=200)
    print_audit(back, console)
    assert f"played by sampler {fed['sampler']}, for process" in console.file.getvalue()  # type: ignore[attr-defined]
    assert fed["reward"] == 1.0 and fed["verdict"] == "equal"
    forward = trace_episode(recorded, "train10")
    assert forward.episodes[0]["uuid"] == "train10" * 3
    (used,) = forward.steps
    assert (used["step"], used["first_checkpoint"], used["checkpoints"]) == (1, 1, [2, 3])
    assert used["row"]["train/reward"] == 0.1
    assert {each["step"] for each in trace_task(recorded, "t1").steps} == {1, 2, 3}
    with pytest.raises(UserError, match="The run has no episode"):
        trace_episode(recorded, "nobody")


def test_of_an_episode_that_two_steps_trained_on_the_line_that_is_left_is_told_in_full(tmp_path: Path) -> None:
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as made:
        step(made, 1)
        twice = made.episodes.read(1)
        made.episodes.write(2, "train", twice, {each.uuid: Outcome(2, 0.5) for each in twice})
        made.metrics.log(2, {"version": 2}, tasks=[], again=[1])

    def told() -> list[str]:
        console = Console(file=StringIO(), width=200)
        print_audit(trace_episode(made.path, "train10"), console)
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        return [line.split()[0] for line in lines if line.startswith(("episode ", "again ", "verdict ", "used "))]

    assert told() == ["episode", "verdict", "used", "again", "used"]
    assert collect_removable_files("demo", tmp_path, episodes=1, yes=True).done
    assert told() == ["episode", "episode", "verdict", "used"]


def test_a_link_that_is_being_written_leads_nowhere(run: Path) -> None:
    text = (run / FILE).read_bytes()
    last = text[: text.index(b"held3") + 60]
    (run / FILE).write_bytes(last)
    with ChainIndex(run) as index:
        assert index.find_episode("held3") == [] and len(index.find_episode("held2")) == 1
        assert index.find_step(1)[0] == index.find_step_link(1) and index.find_step_link(7) is None


def test_gc_says_first_and_what_it_removed_is_known_as_removed(run: Path) -> None:
    root = run.parent
    told = collect_removable_files("demo", root, episodes=1, arrays=0, checkpoints=1)
    going = {kind: [path.name for path in paths] for kind, paths in told.found.paths.items()}
    assert told.sizes["episodes"][1] > 0 and not told.done and (run / "episodes" / "step-2.jsonl").exists()
    assert going["checkpoints"] == ["step-2"] and "step-3.bin" in going["arrays"]
    assert sorted(going["episodes"]) == sorted(
        f"step-{number}{split}.{kind}"
        for number in (1, 2)
        for split in ("", ".validation")
        for kind in ("jsonl", "bin")
    )
    assert collect_removable_files("demo", root, episodes=1, arrays=0, checkpoints=1, yes=True).done
    assert not (run / "episodes" / "step-2.jsonl").exists() and not (run / "checkpoints" / "step-2").exists()
    found = audit_run(run)
    assert found.ok and found.state is not None and len(found.state.removed) == 10, said(found)
    gone = trace_episode(run, "train10")
    assert gone.ok and gone.episodes[0]["gone"] and gone.episodes[0]["link"], "its digest is kept"
    assert trace_step(run, 3).episodes[0]["as_committed"], "a line without its arrays is held to the chain"
    with pytest.raises(UserError, match="`ajet gc`"):
        EpisodeFiles(run / "episodes").read(3)
    assert not collect_removable_files("demo", root, episodes=1, arrays=0, checkpoints=1).found, "once"
    with RunDirectory.open(experiment(root), root=root) as again:
        with pytest.raises(UserError, match="The run is in progress"):
            collect_removable_files("demo", root, episodes=0, yes=True)
        step(again, 4)
    found = audit_run(run)
    assert found.ok, said(found)
    lines = (run / "episodes" / "step-3.jsonl").read_bytes()
    (run / "episodes" / "step-3.jsonl").unlink()
    assert said(audit_run(run)) == ["episodes/step-3.jsonl: the file is missing, with 3 episodes"], "gc did not do that"
    assert lines


def test_a_run_keeps_to_its_own_bounds_and_to_what_its_checkpoints_may_go_back_to(tmp_path: Path) -> None:
    bounds = {"keep_episodes": 1, "keep_arrays": 0, "max_checkpoints_to_keep": 2}
    with RunDirectory.open(experiment(tmp_path, trainer_common=bounds), root=tmp_path) as run:
        for number in (1, 2, 3, 4):
            step(run, number)
            run.retain()
    files = {path.name for path in (run.path / "episodes").glob("step-?.*")}
    assert files == {
        *("step-4.jsonl", "step-4.bin", "step-4.validation.jsonl", "step-4.validation.bin"),
    }, "step 3 is the oldest checkpoint's: nothing goes back before it"
    assert audit_run(run.path).ok
    (run.path / "episodes" / "step-4.bin").unlink()
    with RunDirectory.open(experiment(tmp_path, trainer_common=bounds), root=tmp_path) as again:
        GamingWatch(again, upto=4)  # what looks back at a resume takes what is there


def test_gc_leaves_a_checkpoint_whose_replacement_was_killed(run: Path) -> None:
    saved = run / "checkpoints"
    (saved / "step-3").rename(saved / ".step-3.replaced")
    (saved / ".step-2.replaced").mkdir()
    gone = collect_removable_files("demo", run.parent, yes=True).found.paths["leftovers"]
    assert [path.name for path in gone] == [".step-2.replaced"], "that one has its successor"
    with RunDirectory.open(experiment(run.parent), root=run.parent) as again:
        assert again.resumed is not None and again.resumed.step == 3


@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_kill_as_a_step_is_saved_again_is_no_change(run: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has its name, while no folder has it, and before its link: until the next start, and after it."""

    class Killed(BaseException):
        pass

    moments = iter(range(5))

    def killed(work: Any) -> Any:
        def one(*given: Any, **more: Any) -> Any:
            if next(moments, None) == at:
                raise Killed
            return work(*given, **more)

        return one

    with monkeypatch.context() as patch, RunDirectory.open(experiment(run.parent), root=run.parent) as opened:
        opened.take_up()
        patch.setattr(checkpoints.os, "replace", killed(os.replace))
        patch.setattr(checkpoints, "sync_folder", killed(checkpoints.sync_folder))
        patch.setattr(opened.checkpoints.chain, "commit", killed_at_its_end(opened.checkpoints.chain, killed))
        with pytest.raises(Killed):
            opened.checkpoints.save(3, lambda to: (to / "model.safetensors").write_bytes(b"again"), {})
    assert said(audit_run(run)) == []
    with RunDirectory.open(experiment(run.parent), root=run.parent):
        pass
    assert said(audit_run(run)) == []
    state = run / "checkpoints" / "step-3" / "state.json"
    state.write_text(state.read_text().replace('"saved": ', '"saved": 1'))
    assert said(audit_run(run)) != [], "neither of the two"


def killed_at_its_end(chain: Any, killed: Any) -> Any:
    """A `commit` that may be killed before the link that ends a save."""
    ends, commit = killed(chain.commit), chain.commit
    return lambda kind, *given, **more: (ends if kind == "checkpoint" else commit)(kind, *given, **more)


def test_checkpoints_that_gc_removes_lose_their_name_first(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path) -> None:
        (path / "model.safetensors").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("shutil.rmtree", killed)
        collect_removable_files("demo", run.parent, checkpoints=1, yes=True)
    assert not (run / "checkpoints" / "step-2").exists() and audit_run(run).ok
    assert [path.name for path in collect_removable_files("demo", run.parent).found.paths["leftovers"]] == [
        ".step-2.pruned"
    ]


@pytest.mark.parametrize("damage", ["arrays", "line"])
def test_a_resume_goes_on_beside_lines_that_it_cannot_link(tmp_path: Path, damage: str) -> None:
    """A killed process left them, and then its arrays were removed or its last line was damaged."""
    run = trained(tmp_path, 1)
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as again:
        again.take_up()
        chain = (run / FILE).read_bytes()
        again.episodes.write(1, "validation", [episode(name, split="validation", step=1) for name in ("a", "b")])
    (run / FILE).write_bytes(chain)
    file = run / "episodes" / "step-1.validation.jsonl"
    if damage == "arrays":
        file.with_suffix(".bin").unlink()
    else:
        file.write_bytes(file.read_bytes()[:-3] + b"\xff?\n")
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as again:
        step(again, 2)
        assert again.resumed is not None and again.resumed.step == 1
    found = said(audit_run(run))
    lines = [f"episodes/{file.name}:{number}: this line was never committed" for number in (2, 3)]
    assert found[:-1] == lines if damage == "arrays" else found == lines[1:]


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_link_that_is_there_though_its_writing_failed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException
) -> None:
    """As where the disk says that it is full at the end, or Ctrl-C comes in between."""

    def refused(path: Path, lines: list[str]) -> None:
        append_lines(path, lines)
        raise problem

    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        step(run, 1)
        run.status.set(step=1)
        with monkeypatch.context() as patch, pytest.raises((UserError, KeyboardInterrupt)):
            patch.setattr("ajet.record.chain.append_lines", refused)
            run.metrics.log(1, {"validation/reward": 1.0})
    found = audit_run(run.path)
    assert found.ok and found.state is not None and len(found.state.rows) == 3, said(found)


def test_a_link_that_failed_behind_one_that_was_cut_short_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed process left at the end is gone with it: cut to where that ended, the file would keep the link."""

    def refused(path: Path, lines: list[str]) -> None:
        append_lines(path, lines)
        raise OSError(28, "No space left on device")

    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        step(run, 1)
        whole = (run.path / FILE).read_bytes()
        (run.path / FILE).write_bytes(whole + b'{"link": 9, "kind": "' + b"x" * 4000)
        with monkeypatch.context() as patch, pytest.raises(UserError):
            patch.setattr("ajet.record.chain.append_lines", refused)
            run.metrics.log(1, {"validation/reward": 1.0})
        assert (run.path / FILE).read_bytes() == whole
    assert audit_run(run.path).ok


def test_a_run_that_goes_on_while_it_is_audited_is_not_taken_for_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunDirectory.open(experiment(tmp_path), root=tmp_path) as run:
        step(run, 1)
        step(run, 2)
        more = iter((3,))

        def read_meanwhile(folder: Path, key: bytes | None) -> ChainState | None:
            state = read_chain(folder, key)
            for number in more:
                step(run, number)  # which lets the first checkpoint go
            return state

        monkeypatch.setattr("ajet_proof.auditing.audit.read_chain", read_meanwhile)
        found = audit_run(run.path)
    assert found.ok and found.checkpoints == [2, 3], said(found)


def test_the_end_of_a_long_chain_is_found(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    for number in range(3):
        chain.note_lines(LinkedLines("episodes/step-1.jsonl", 1, 0, 0, [("u", "t" * 100_000, 1, "", 1, "")] * number))  # type: ignore[list-item]
        chain.commit("record", number)
    assert Chain(tmp_path).head == chain.head
    with (tmp_path / FILE).open("a") as file:
        file.write('{"link": 4')  # a kill
    assert Chain(tmp_path).head == chain.head
    state = read_chain(tmp_path)
    assert state is not None and state.links == 3 and not state.changes
